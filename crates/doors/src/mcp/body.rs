//! The body of an MCP request, read under the bounds of REST before the library sees it: that has none for time or for the
//! number of bodies, and its parser keeps the last of two equal names.
//!
//! The arguments of a tool call do not reach the library, which is handed `{}` in their place, and its answer is completed
//! here with the output of the operation: both stay the text they are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use waybill_kernel::{Caller, Code, Error, Result};
use waybill_store::Answer;

use super::tools::REPLAY;
use crate::body::Bodies;
use crate::json::{self, Checked};
use crate::log::Answers;
use crate::reply;

/// A message without its arguments. The library builds a tree of what is left, so no more of it is let through.
const ENVELOPE_BYTES_MAX: usize = 64 << 10;

/// A call's arguments stand two levels deep, and may be as deep themselves as the body of a REST call.
const DEPTH_MAX: usize = json::DEPTH_MAX + 2;

/// JSON-RPC's code for a body that cannot be parsed.
const PARSE_ERROR: i32 = -32700;

/// What goes past the library: from here to the handler, and back.
#[derive(Clone, Default)]
pub(super) struct Call(Arc<Inner>);

#[derive(Default)]
struct Inner {
    arguments: Option<Bytes>,
    operation: OnceLock<&'static str>,
    output: Mutex<Option<Answer>>,
}

impl Call {
    /// The object of arguments; without any, an empty one.
    pub(super) fn arguments(&self) -> &str {
        // They were cut from a text along the bounds of a value.
        self.0.arguments.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("{}")
    }

    /// The operation that the request turns out to call, for its line in the log.
    pub(super) fn tell(&self, operation: &'static str) {
        // A request is one message, so there is no second call.
        let _ = self.0.operation.set(operation);
    }

    /// What the operation has answered.
    pub(super) fn give(&self, output: Answer) {
        *self.0.output.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
    }

    fn output(&self) -> Option<Answer> {
        self.0.output.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub(super) async fn pass(State(bodies): State<Bodies>, request: Request<Body>, next: Next) -> Response {
    match through(bodies, request, next).await {
        Ok(response) => response,
        Err(error) if error.code() == Code::InvalidRequest => unparsable(&error),
        Err(error) => reply::error(&error),
    }
}

async fn through(bodies: Bodies, request: Request<Body>, next: Next) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Arc<Caller>>().cloned();
    let caller = caller.ok_or_else(|| Error::internal("a request came past the gatekeeper"))?;
    let read = bodies.read(&parts.headers, body, &caller).await?;
    let Split { envelope, arguments } = Split::of(&read.bytes)?;
    let call = Call(Arc::new(Inner { arguments, ..Inner::default() }));
    parts.extensions.insert(call.clone());
    // Of another length than the client has said.
    parts.headers.remove(CONTENT_LENGTH);
    let mut response = next.run(Request::from_parts(parts, Body::from(envelope))).await;
    if let Some(output) = call.output() {
        response = completed(response, &output).await?;
    }
    if let Some(operation) = call.0.operation.get().copied() {
        response.extensions_mut().insert(Answers(operation));
    }
    Ok(response)
}

/// A message in two parts.
struct Split {
    envelope: Bytes,
    arguments: Option<Bytes>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

impl Split {
    fn of(body: &Bytes) -> Result<Self> {
        // Without a body it is not a POST, and the library says what it thinks of that.
        let split =
            if body.is_empty() { None } else { Self::at_arguments(body, Checked::within(body, DEPTH_MAX)?.text) };
        let split = split.unwrap_or_else(|| Self { envelope: body.clone(), arguments: None });
        if split.envelope.len() > ENVELOPE_BYTES_MAX {
            let message = format!("The message has more than {ENVELOPE_BYTES_MAX} bytes beside its arguments.");
            return Err(Error::new(Code::PayloadTooLarge, message).with("limit_bytes", ENVELOPE_BYTES_MAX));
        }
        Ok(split)
    }

    /// None for anything but a tool call with an object of arguments: the library judges it.
    fn at_arguments(body: &Bytes, text: &str) -> Option<Self> {
        let message: Message<'_> = serde_json::from_str(text).ok()?;
        if message.method != "tools/call" {
            return None;
        }
        // serde would take the items of a list for the fields in their order.
        let object = |value: &'_ &RawValue| value.get().starts_with('{');
        let params: Params<'_> = serde_json::from_str(message.params.filter(object)?.get()).ok()?;
        let arguments = params.arguments.filter(object)?.get();
        let arguments = body.slice_ref(arguments.as_bytes());
        let at = arguments.as_ptr() as usize - body.as_ptr() as usize;
        let (before, after) = (&body[..at], &body[at + arguments.len()..]);
        Some(Self { envelope: [before, b"{}", after].concat().into(), arguments: Some(arguments) })
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: &'a RawValue,
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    result: BTreeMap<&'a str, &'a RawValue>,
}

/// The library's answer to a call with the output in its result.
async fn completed(response: Response, output: &Answer) -> Result<Response> {
    let (mut parts, body) = response.into_parts();
    let body = body.collect().await.map_err(Error::internal)?.to_bytes();
    let body = match serde_json::from_slice::<Envelope<'_>>(&body) {
        Ok(envelope) => Bytes::from(with_output(&envelope, output)?),
        // An error of the library's own, after the call: the client is told of it.
        Err(_) => body,
    };
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.entry(CONTENT_TYPE).or_insert(http::HeaderValue::from_static("application/json"));
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// The output as structured content, and the same as text for clients that know no other.
fn with_output(envelope: &Envelope<'_>, output: &Answer) -> Result<String> {
    let json = if output.replay { Cow::Owned(as_replay(&output.json)?) } else { Cow::Borrowed(output.json.as_str()) };
    let text = serde_json::to_string(&json).map_err(Error::internal)?;
    let mut result: String = String::with_capacity(json.len() + text.len() + 256);
    for (name, value) in &envelope.result {
        if !["content", "structuredContent"].contains(name) {
            result.push_str(&format!("{}:{},", json!(name), value.get()));
        }
    }
    result.push_str(&format!(r#""content":[{{"type":"text","text":{text}}}],"structuredContent":{json}"#));
    Ok(format!(r#"{{"jsonrpc":{},"id":{},"result":{{{result}}}}}"#, envelope.jsonrpc.get(), envelope.id.get()))
}

fn as_replay(json: &str) -> Result<String> {
    let fields = json.strip_suffix('}').filter(|fields| fields.len() > 1 && fields.starts_with('{'));
    let fields = fields.ok_or_else(|| Error::internal("the output of an operation is no object with fields"))?;
    Ok(format!(r#"{fields},"{REPLAY}":true}}"#))
}

fn unparsable(error: &Error) -> Response {
    let body = json!({
        "jsonrpc": "2.0",
        "id": null,
        "error": { "code": PARSE_ERROR, "message": error.message(), "data": error.to_json() },
    });
    reply::json(StatusCode::BAD_REQUEST, body.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn split(body: &str) -> (String, Option<String>) {
        let Split { envelope, arguments } = Split::of(&Bytes::copy_from_slice(body.as_bytes())).unwrap();
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        (text(envelope), arguments.map(text))
    }

    #[test]
    fn arguments_of_a_tool_call_are_cut_out_and_nothing_else_is() {
        let call = r#" {"method":"tools/call","params":{"name":"x","arguments": {"a":1e2} ,"_meta":{}},"id":1}"#;
        let (envelope, arguments) = split(call);
        assert_eq!(arguments.as_deref(), Some(r#"{"a":1e2}"#));
        assert_eq!(envelope, r#" {"method":"tools/call","params":{"name":"x","arguments": {} ,"_meta":{}},"id":1}"#);
        for other in [
            r#"{"method":"tools/list","params":{"arguments":{"a":1}},"id":1}"#,
            r#"{"method":"tools/call","params":{"arguments":[1]},"id":1}"#,
            r#"{"method":"tools/call","params":{"arguments":null},"id":1}"#,
            r#"{"method":"tools/call","params":[{"arguments":{}}],"id":1}"#,
            r#"{"method":7}"#,
            "[]",
            "",
        ] {
            assert_eq!(split(other), (other.to_owned(), None));
        }
    }

    #[test]
    fn what_the_library_would_build_a_tree_of_is_bounded() {
        let large = format!("[{}0]", "0,".repeat(ENVELOPE_BYTES_MAX));
        for frame in [
            format!(r#"{{"method":"tools/call","params":{{"arguments":{{}},"_meta":{large}}}}}"#),
            format!(r#"{{"method":"ping","params":{large}}}"#),
            format!(r#"{{"method":"tools/call","params":{{"arguments":{large}}}}}"#),
        ] {
            assert_eq!(Split::of(&Bytes::from(frame)).err().unwrap().code(), Code::PayloadTooLarge);
        }
        let fine = format!(r#"{{"method":"tools/call","params":{{"arguments":{{"payload":{large}}}}}}}"#);
        assert_eq!(split(&fine).1.unwrap().len(), large.len() + r#"{"payload":}"#.len());
    }

    #[test]
    fn a_first_answer_is_the_output_and_a_replay_says_that_it_is_one() {
        let json = r#"{"task_id":"t1","big":123456789012345678901}"#;
        let empty = r#"{"jsonrpc":"2.0","id":"\"7","result":{"content":[],"isError":false}}"#;
        let wire = |replay| {
            let envelope: Envelope<'_> = serde_json::from_str(empty).unwrap();
            with_output(&envelope, &Answer { json: json.to_owned(), replay, turn: None }).unwrap()
        };
        assert!(wire(false).ends_with(&format!(r#""structuredContent":{json}}}}}"#)), "{}", wire(false));
        let first: Value = serde_json::from_str(&wire(false)).unwrap();
        assert_eq!((&first["id"], &first["result"]["isError"]), (&json!("\"7"), &json!(false)));
        assert_eq!(first["result"]["content"], json!([{ "type": "text", "text": json }]));

        let replay: Value = serde_json::from_str(&wire(true)).unwrap();
        assert_eq!(replay["result"]["structuredContent"][REPLAY], true);
        let text = replay["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.ends_with(r#","idempotent_replay":true}"#), "{text}");
    }

    #[test]
    fn an_output_that_is_no_object_is_our_fault() {
        assert_eq!(as_replay("[]").unwrap_err().code(), Code::Internal);
    }
}
