//! One call through either door, and what came of it in the same terms.

use serde_json::{Value as Json, json};
use waybill_kernel::rest::target;
use waybill_kernel::{Code, Method, OperationSpec};

use super::Expected;
use crate::world::{Reply, World, tool_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    Rest,
    Mcp,
}

#[derive(Debug)]
pub struct Outcome {
    /// The answer or the error object, without the mark of a replay, which each door sets in its own way.
    pub body: Json,
    pub code: Option<Code>,
    pub replay: bool,
}

impl Outcome {
    pub fn as_expected(&self) -> Expected {
        match (self.code, self.replay) {
            (Some(code), _) => Expected::Refused(code),
            (None, true) => Expected::Replay,
            (None, false) => Expected::Done,
        }
    }
}

pub async fn call(world: &World, through: Through, key: &str, spec: &OperationSpec, args: Json) -> Outcome {
    match through {
        Through::Rest => rest(world, key, spec, args).await,
        Through::Mcp => mcp(world, key, spec, args).await,
    }
}

async fn rest(world: &World, key: &str, spec: &OperationSpec, args: Json) -> Outcome {
    let Json::Object(mut fields) = args else { panic!("arguments are an object") };
    let path = target(spec.route.method, spec.route.path, &mut fields);
    let reply = match spec.route.method {
        Method::Get => world.get(key, &path).await,
        Method::Post => world.post(key, &path, &Json::Object(fields)).await,
        Method::Put => Reply::of(world.http.put(world.url(&path)).bearer_auth(key).json(&fields)).await,
        Method::Delete => Reply::of(world.http.delete(world.url(&path)).bearer_auth(key)).await,
    };
    let replay = reply.header("x-idempotent-replay") == Some("true");
    let code = if reply.status < 400 {
        assert_eq!(reply.status, if replay { 200 } else { spec.status }, "{}: {}", spec.name, reply.text);
        None
    } else {
        let code = code_of(&reply.json());
        // Some have a cure of their own: that it is the other door's as well is seen when the two are compared.
        let help = reply.json()["help"].as_str().unwrap_or_default().to_owned();
        assert!(help.ends_with('.'), "{}", reply.text);
        reply.must_be_cured(code, &help, spec.name);
        Some(code)
    };
    Outcome { body: without_position(reply.json()), code, replay }
}

/// Where in the body something was found: in a message it stands elsewhere than alone.
fn without_position(mut body: Json) -> Json {
    let message =
        body["message"].as_str().and_then(|text| text.split_once(" at line ")).map(|(before, _)| before.to_owned());
    if let Some(message) = message {
        body["message"] = json!(message);
    }
    body
}

async fn mcp(world: &World, key: &str, spec: &OperationSpec, args: Json) -> Outcome {
    let params = json!({ "name": tool_name(spec), "arguments": args });
    let reply: Reply = world.mcp(key, "/mcp?profile=full", "tools/call", &params).await;
    let mut answer = reply.json();
    if reply.status == 400 {
        // What the reader of JSON refuses is no message, and so no call: the object is the same, the envelope another.
        let body = without_position(answer["error"]["data"].take());
        return Outcome { code: Some(code_of(&body)), body, replay: false };
    }
    assert_eq!(reply.status, 200, "{}", reply.text);
    let result = answer["result"].take();
    let mut body = result["structuredContent"].clone();
    let text = result["content"][0]["text"].as_str().unwrap();
    if result["isError"] == true {
        let code = code_of(&body);
        // Some have a cure of their own: that it is the other door's as well is seen when the two are compared.
        assert!(body["help"].as_str().is_some_and(|help| help.ends_with('.')), "{body}");
        assert!(text.contains(body["message"].as_str().unwrap()), "the model is not told: {text}");
        if spec.domain == "mail" {
            // What clients of the existing servers read, beside what the other door says.
            for field in ["type", "recoverable", "data"] {
                assert!(body.as_object_mut().unwrap().remove(field).is_some(), "{field}: {body}");
            }
        }
        return Outcome { body, code: Some(code), replay: false };
    }
    assert_eq!(serde_json::from_str::<Json>(text).unwrap(), body, "text and structured content differ");
    let replay = body.as_object_mut().unwrap().remove("idempotent_replay");
    Outcome { body, code: None, replay: replay == Some(json!(true)) }
}

fn code_of(body: &Json) -> Code {
    let found = Code::ALL.iter().find(|code| body["error"] == code.entry().code);
    *found.unwrap_or_else(|| panic!("no code of the catalogue: {body}"))
}
