//! In which of its two protocols a request speaks, by its head alone.
//!
//! SDKs since the end of 2023 send JSON and name the action in `X-Amz-Target`. Older ones, and those written by hand, send
//! the Query protocol: a form, or an address, in which `Action` is one of the parameters. Both come to one listener.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method};
use waybill_kernel::error::Sqs;

const TARGET: &str = "x-amz-target";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/x-amz-json-1.0";

/// No action is named where there must be one. The catalogue has no such error: no other door can meet it.
pub const MISSING_ACTION: Sqs = Sqs { shape: "MissingAction", query_code: "MissingAction", http: 400 };
/// An action that SQS does not have.
pub const INVALID_ACTION: Sqs = Sqs { shape: "InvalidAction", query_code: "InvalidAction", http: 400 };
const WRONG_METHOD: Sqs = Sqs { http: 405, ..INVALID_ACTION };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire<'a> {
    /// `AmazonSQS.SendMessage`, as the header has it; empty when there is none or when it is not text.
    Json { target: &'a str },
    /// The action is among the parameters, in the body or in the address.
    Query,
}

/// Why a request is in neither protocol. It is answered in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unspoken {
    /// The protocol is known and has no such method; `allow` is for the header of that name.
    Method { allow: &'static str },
    /// Nothing says which protocol it is.
    Protocol,
}

impl<'a> Wire<'a> {
    pub fn pick(parts: &'a Parts) -> Result<Self, Unspoken> {
        let media = media_type(&parts.headers);
        let is = |wanted: &str| media.is_some_and(|media| media.eq_ignore_ascii_case(wanted));
        // The header wins over the content type: some clients send one that says nothing.
        if let Some(target) = parts.headers.get(TARGET) {
            return only(&parts.method, &[Method::POST], Self::Json { target: target.to_str().unwrap_or_default() });
        }
        if is(FORM) {
            return only(&parts.method, &[Method::POST, Method::GET], Self::Query);
        }
        if parts.method == Method::GET && names_action(parts) {
            return Ok(Self::Query);
        }
        if is(JSON) {
            return only(&parts.method, &[Method::POST], Self::Json { target: "" });
        }
        Err(Unspoken::Protocol)
    }
}

impl Unspoken {
    pub const fn sqs(self) -> Sqs {
        match self {
            Self::Method { .. } => WRONG_METHOD,
            Self::Protocol => MISSING_ACTION,
        }
    }

    pub const fn message(self) -> &'static str {
        match self {
            Self::Method { .. } => "SQS does not answer to this method.",
            Self::Protocol => "The request names no action: send X-Amz-Target with JSON, or a form with Action.",
        }
    }
}

/// The path of a request that came to a queue's own address, for a request without `QueueUrl`: old SDKs leave it out. The
/// path names a queue as a URL does, by its last segment.
pub fn queue_path(parts: &Parts) -> Option<&str> {
    let path = parts.uri.path();
    path.split('/').any(|segment| !segment.is_empty()).then_some(path)
}

fn only<'a>(method: &Method, allowed: &[Method], wire: Wire<'a>) -> Result<Wire<'a>, Unspoken> {
    match allowed.contains(method) {
        true => Ok(wire),
        false if allowed.len() == 1 => Err(Unspoken::Method { allow: "POST" }),
        false => Err(Unspoken::Method { allow: "GET, POST" }),
    }
}

/// Without what follows the semicolon, such as the character set.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    text.split(';').next().map(str::trim)
}

fn names_action(parts: &Parts) -> bool {
    let pairs = parts.uri.query().unwrap_or_default().split('&');
    pairs.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name)).any(|name| name == "Action")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_protocol_is_picked_by_the_first_rule_that_fits() {
        const SEND: (&str, &str) = ("X-Amz-Target", "AmazonSQS.SendMessage");
        const POST: Result<Wire<'_>, Unspoken> = Err(Unspoken::Method { allow: "POST" });
        const EITHER: Result<Wire<'_>, Unspoken> = Err(Unspoken::Method { allow: "GET, POST" });
        const SENT: Result<Wire<'_>, Unspoken> = Ok(Wire::Json { target: "AmazonSQS.SendMessage" });
        let form = ("Content-Type", FORM);
        let json = ("Content-Type", JSON);
        for (method, uri, headers, expected) in [
            ("POST", "/", &[SEND, json][..], SENT),
            ("POST", "/", &[SEND], SENT),
            ("POST", "/", &[SEND, form], SENT),
            ("POST", "/?Action=ListQueues", &[SEND], SENT),
            ("GET", "/?Action=ListQueues", &[SEND], POST),
            ("PUT", "/", &[SEND], POST),
            ("POST", "/", &[form], Ok(Wire::Query)),
            ("POST", "/", &[("Content-Type", "Application/X-WWW-Form-URLEncoded; charset=utf-8")], Ok(Wire::Query)),
            ("POST", "/", &[("Content-Type", "application/x-www-form-urlencoded;charset=UTF-8")], Ok(Wire::Query)),
            ("GET", "/", &[form], Ok(Wire::Query)),
            ("DELETE", "/", &[form], EITHER),
            ("GET", "/?Action=ListQueues", &[], Ok(Wire::Query)),
            ("GET", "/q?Version=2012-11-05&Action=ListQueues", &[json], Ok(Wire::Query)),
            ("GET", "/?action=ListQueues", &[], Err(Unspoken::Protocol)),
            ("GET", "/?ActionName=x", &[], Err(Unspoken::Protocol)),
            ("POST", "/?Action=ListQueues", &[], Err(Unspoken::Protocol)),
            ("POST", "/", &[json], Ok(Wire::Json { target: "" })),
            (
                "POST",
                "/",
                &[("Content-Type", "application/x-amz-json-1.0; charset=utf-8")],
                Ok(Wire::Json { target: "" }),
            ),
            ("GET", "/", &[json], POST),
            ("POST", "/", &[("Content-Type", "application/json")], Err(Unspoken::Protocol)),
            ("GET", "/", &[], Err(Unspoken::Protocol)),
        ] {
            assert_eq!(Wire::pick(&parts(method, uri, headers)), expected, "{method} {uri} {headers:?}");
        }
    }

    #[test]
    fn a_target_that_is_not_text_is_no_action() {
        let (mut parts, ()) = Request::post("/").body(()).unwrap().into_parts();
        parts.headers.insert(TARGET, http::HeaderValue::from_bytes(b"AmazonSQS.\xff").unwrap());
        assert_eq!(Wire::pick(&parts), Ok(Wire::Json { target: "" }));
    }

    #[test]
    fn what_is_not_spoken_has_a_status_and_says_what_to_send() {
        for (unspoken, http) in [(Unspoken::Method { allow: "POST" }, 405), (Unspoken::Protocol, 400)] {
            assert_eq!(unspoken.sqs().http, http);
            assert!(unspoken.message().ends_with('.'));
        }
    }

    #[test]
    fn a_path_names_a_queue_when_it_has_a_segment() {
        for (uri, expected) in [
            ("/", None),
            ("//", None),
            ("http://localhost:9324/", None),
            ("/jobs", Some("/jobs")),
            ("/000000000000/jobs?Action=SendMessage", Some("/000000000000/jobs")),
            ("/000000000000/jobs/", Some("/000000000000/jobs/")),
        ] {
            assert_eq!(queue_path(&parts("POST", uri, &[])), expected, "{uri}");
        }
    }
}
