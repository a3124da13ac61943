//! One call through either door, and what came of it in the same terms.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as Json, json};
use waybill_kernel::{Code, Method, OperationSpec};

use super::Expected;
use crate::world::{Reply, World};

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
    let path = filled(spec.route.path, &mut fields);
    let reply = match spec.route.method {
        Method::Get => world.get(key, &format!("{path}?{}", query(&fields))).await,
        Method::Post => world.post(key, &path, &Json::Object(fields)).await,
    };
    let replay = reply.header("x-idempotent-replay") == Some("true");
    let code = if reply.status < 400 {
        assert_eq!(reply.status, if replay { 200 } else { spec.status }, "{}: {}", spec.name, reply.text);
        None
    } else {
        let code = code_of(&reply.json());
        reply.must_be(code, spec.name);
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
    let params = json!({ "name": format!("asyncgate.{}", spec.name), "arguments": args });
    let reply: Reply = world.mcp(key, "/mcp", "tools/call", &params).await;
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
        assert_eq!(body["help"], code.entry().cure);
        assert!(text.contains(body["message"].as_str().unwrap()), "the model is not told: {text}");
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

/// The path with its `{name}` parts taken from the fields.
fn filled(template: &str, fields: &mut Map<String, Json>) -> String {
    let part = |part: &str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some(name) => encoded(&fields.remove(name).unwrap()),
        None => part.to_owned(),
    };
    template.split('/').map(part).collect::<Vec<_>>().join("/")
}

fn query(fields: &Map<String, Json>) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

fn encoded(value: &Json) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string()
}
