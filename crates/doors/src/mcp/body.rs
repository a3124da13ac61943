//! The body of an MCP request, read under the bounds of REST before the library sees it: that has none for time or for the
//! number of bodies, and its parser keeps the last of two equal names.
//!
//! The arguments of a tool call do not reach the library, which is handed `{}` in their place, and its answer is completed
//! here with the output of the operation, of a tool as of a resource: both stay the text they are.

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
use waybill_kernel::request::{self, During};
use waybill_kernel::{Caller, Code, Error, Profile, RequestId, Result};
use waybill_store::Answer;

use super::resources::MIME;
use super::tools::REPLAY;
use crate::address::query_fields;
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
    /// The library runs the handler in a task of its own.
    request: Option<RequestId>,
    /// What the client has asked for in the URL.
    profile: Option<Profile>,
    operation: OnceLock<Cow<'static, str>>,
    output: Mutex<Option<Output>>,
}

/// What an operation has answered.
pub(super) enum Output {
    Tool(Answer),
    /// Read at this address.
    Resource(String, Answer),
}

impl Call {
    /// The object of arguments; without any, an empty one.
    pub(super) fn arguments(&self) -> &str {
        // They were cut from a text along the bounds of a value.
        self.0.arguments.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("{}")
    }

    pub(super) fn profile(&self) -> Option<Profile> {
        self.0.profile
    }

    /// Does the work under the id of the request that asked for it.
    pub(super) fn during<F: Future>(&self, work: F) -> During<F> {
        request::during(self.0.request.clone(), work)
    }

    /// The operation that the request turns out to call, for its line in the log.
    pub(super) fn tell(&self, operation: Cow<'static, str>) {
        // A request is one message, so there is no second call.
        let _ = self.0.operation.set(operation);
    }

    pub(super) fn give(&self, output: Output) {
        *self.0.output.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
    }

    fn output(&self) -> Option<Output> {
        self.0.output.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub(super) async fn pass(State(bodies): State<Bodies>, request: Request<Body>, next: Next) -> Response {
    let profile = match profile(request.uri().query().unwrap_or("")) {
        Ok(profile) => profile,
        Err(error) => return refused(error.code().entry().mcp, &error),
    };
    match through(bodies, profile, request, next).await {
        Ok(response) => response,
        Err(error) if error.code() == Code::InvalidRequest => refused(PARSE_ERROR, &error),
        Err(error) => reply::error(&error),
    }
}

/// Which one the URL names. Other fields of its query are not ours to judge: proxies add theirs.
fn profile(query: &str) -> Result<Option<Profile>> {
    let mut named = query_fields(query)?.into_iter().filter(|(name, _)| name == "profile");
    let Some((_, name)) = named.next() else { return Ok(None) };
    if named.next().is_some() {
        return Err(Error::invalid("profile is given twice."));
    }
    Profile::named(&name).map(Some).ok_or_else(|| {
        let shown: String = name.chars().take(64).collect();
        let error = Error::invalid(format!("There is no profile {shown:?} of tools."));
        error.with_cure("Say ?profile=minimal, ?profile=core or ?profile=full, or leave it away.")
    })
}

async fn through(bodies: Bodies, profile: Option<Profile>, asked: Request<Body>, next: Next) -> Result<Response> {
    let (mut parts, body) = asked.into_parts();
    let caller = parts.extensions.get::<Arc<Caller>>().cloned();
    let caller = caller.ok_or_else(|| Error::internal("a request came past the gatekeeper"))?;
    let read = bodies.read(&parts.headers, body, &caller).await?;
    let Split { envelope, arguments } = Split::of(&read.bytes)?;
    let call = Call(Arc::new(Inner { arguments, profile, request: request::current(), ..Inner::default() }));
    parts.extensions.insert(call.clone());
    // Of another length than the client has said.
    parts.headers.remove(CONTENT_LENGTH);
    let mut response = next.run(Request::from_parts(parts, Body::from(envelope))).await;
    if let Some(output) = call.output() {
        response = completed(response, &output).await?;
    }
    if let Some(operation) = call.0.operation.get().cloned() {
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
async fn completed(response: Response, output: &Output) -> Result<Response> {
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

fn with_output(envelope: &Envelope<'_>, output: &Output) -> Result<String> {
    let filled = match output {
        Output::Tool(answer) => tool_content(answer)?,
        Output::Resource(uri, answer) => resource_contents(uri, answer)?,
    };
    let mut result: String = String::with_capacity(filled.len() + 256);
    for (name, value) in &envelope.result {
        if !["content", "structuredContent", "contents"].contains(name) {
            result.push_str(&format!("{}:{},", json!(name), value.get()));
        }
    }
    Ok(format!(r#"{{"jsonrpc":{},"id":{},"result":{{{result}{filled}}}}}"#, envelope.jsonrpc.get(), envelope.id.get()))
}

/// The output as structured content, and the same as text for clients that know no other.
fn tool_content(answer: &Answer) -> Result<String> {
    let json = if answer.replay { Cow::Owned(as_replay(&answer.json)?) } else { Cow::Borrowed(answer.json.as_str()) };
    let text = serde_json::to_string(&json).map_err(Error::internal)?;
    Ok(format!(r#""content":[{{"type":"text","text":{text}}}],"structuredContent":{json}"#))
}

fn resource_contents(uri: &str, answer: &Answer) -> Result<String> {
    let text = serde_json::to_string(&answer.json).map_err(Error::internal)?;
    Ok(format!(r#""contents":[{{"uri":{},"mimeType":"{MIME}","text":{text}}}]"#, json!(uri)))
}

fn as_replay(json: &str) -> Result<String> {
    let fields = json.strip_suffix('}').filter(|fields| fields.len() > 1 && fields.starts_with('{'));
    let fields = fields.ok_or_else(|| Error::internal("the output of an operation is no object with fields"))?;
    Ok(format!(r#"{fields},"{REPLAY}":true}}"#))
}

/// Before the library has seen the message, so that the answer names none.
fn refused(code: i32, error: &Error) -> Response {
    let body = json!({
        "jsonrpc": "2.0",
        "id": null,
        "error": { "code": code, "message": error.message(), "data": error.to_json() },
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
            let answer = Answer { json: json.to_owned(), replay, turn: None };
            with_output(&envelope, &Output::Tool(answer)).unwrap()
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
    fn a_resource_is_the_output_as_text_at_its_address() {
        let empty = r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","contents":[],"ttlMs":0}}"#;
        let envelope: Envelope<'_> = serde_json::from_str(empty).unwrap();
        let json = r#"{"big":123456789012345678901,"text":"a\"b"}"#;
        let answer = Answer { json: json.to_owned(), replay: false, turn: None };
        let uri = "resource://x/\"?a=b";
        let wire = with_output(&envelope, &Output::Resource(uri.to_owned(), answer)).unwrap();
        let wire: Value = serde_json::from_str(&wire).unwrap();
        assert_eq!((&wire["result"]["resultType"], &wire["result"]["ttlMs"]), (&json!("complete"), &json!(0)));
        assert_eq!(wire["result"]["contents"], json!([{ "uri": uri, "mimeType": MIME, "text": json }]));
    }

    #[test]
    fn a_profile_is_one_of_three_or_refused() {
        assert_eq!(profile("").unwrap(), None);
        assert_eq!(profile("via=proxy&profile=minimal").unwrap(), Some(Profile::Minimal));
        for wrong in ["profile=", "profile=Core", "profile=tiny", "profile=core&profile=core", "profile=%ff"] {
            assert_eq!(profile(wrong).unwrap_err().code(), Code::InvalidRequest, "{wrong}");
        }
    }

    #[test]
    fn an_output_that_is_no_object_is_our_fault() {
        assert_eq!(as_replay("[]").unwrap_err().code(), Code::Internal);
    }
}
