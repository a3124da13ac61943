//! In which of its two protocols a request speaks, by its head alone.
//!
//! SDKs since the end of 2023 send JSON and name the action in `X-Amz-Target`. Older ones, and those written by hand, send
//! the Query protocol: a form, or an address, in which `Action` is one of the parameters. Both come to one listener.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use waybill_kernel::{Code, Error};

const TARGET: &str = "x-amz-target";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/x-amz-json-1.0";

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
    pub fn pick(method: &Method, uri: &Uri, headers: &'a HeaderMap) -> Result<Self, Unspoken> {
        let media = media_type(headers);
        let is = |wanted: &str| media.is_some_and(|media| media.eq_ignore_ascii_case(wanted));
        // The header wins over the content type: some clients send one that says nothing.
        if let Some(target) = headers.get(TARGET) {
            return only(method, &[Method::POST], Self::Json { target: target.to_str().unwrap_or_default() });
        }
        if is(FORM) {
            return only(method, &[Method::POST, Method::GET], Self::Query);
        }
        if *method == Method::GET && names_action(uri) {
            return Ok(Self::Query);
        }
        if is(JSON) {
            return only(method, &[Method::POST], Self::Json { target: "" });
        }
        Err(Unspoken::Protocol)
    }
}

impl From<Unspoken> for Error {
    fn from(unspoken: Unspoken) -> Self {
        match unspoken {
            Unspoken::Method { .. } => Error::new(Code::MethodNotAllowed, "SQS does not answer to this method."),
            Unspoken::Protocol => {
                let message = "The request names no action: send X-Amz-Target with JSON, or a form with Action.";
                Error::new(Code::MissingAction, message)
            }
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

fn names_action(uri: &Uri) -> bool {
    let pairs = uri.query().unwrap_or_default().split('&');
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
            let parts = parts(method, uri, headers);
            assert_eq!(Wire::pick(&parts.method, &parts.uri, &parts.headers), expected, "{method} {uri} {headers:?}");
        }
    }

    #[test]
    fn a_target_that_is_not_text_is_no_action() {
        let (mut parts, ()) = Request::post("/").body(()).unwrap().into_parts();
        parts.headers.insert(TARGET, http::HeaderValue::from_bytes(b"AmazonSQS.\xff").unwrap());
        assert_eq!(Wire::pick(&parts.method, &parts.uri, &parts.headers), Ok(Wire::Json { target: "" }));
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
