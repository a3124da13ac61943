//! From a request to a WebSocket: what the client must have said, and what it is answered.

use http::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, Request, Response, StatusCode};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use waybill_doors::{Body, error_response};
use waybill_kernel::{Code, Error};

const VERSION: &str = "13";

/// The answer that makes a connection a WebSocket.
///
/// # Errors
/// The answer to one that does not ask for it rightly.
pub(crate) fn accept(request: &Request<Body>) -> Result<Response<Body>, Box<Response<Body>>> {
    if *request.method() != Method::GET {
        return Err(Box::new(error_response(&Error::new(
            Code::MethodNotAllowed,
            Code::MethodNotAllowed.entry().title,
        ))));
    }
    let headers = request.headers();
    let asks = has(headers, &CONNECTION, "upgrade") && has(headers, &UPGRADE, "websocket");
    let is_known = headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == VERSION);
    if !asks || !is_known {
        return Err(Box::new(upgrade_required()));
    }
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Box::new(error_response(&Error::invalid("The request has no Sec-WebSocket-Key."))));
    };
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    let Ok(accept) = accept else { return Err(Box::new(upgrade_required())) };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// Also for HTTP/2, where a connection cannot be taken over.
pub(crate) fn upgrade_required() -> Response<Body> {
    let error = Error::invalid("Here is a WebSocket, which is asked for over HTTP/1.1.");
    let cure = format!("Send Connection: Upgrade, Upgrade: websocket and Sec-WebSocket-Version: {VERSION}.");
    let mut response = error_response(&error.with_cure(cure));
    *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
    response
}

/// Is this one of the words of a header that is a list?
fn has(headers: &HeaderMap, name: &http::HeaderName, word: &str) -> bool {
    let texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn answered(method: Method, headers: &[(&str, &str)]) -> Response<Body> {
        let request = Request::builder().method(method).uri("/mesh/ws");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        accept(&request.body(Body::empty()).unwrap()).unwrap_or_else(|refusal| *refusal)
    }

    #[test]
    fn the_example_of_the_rfc_is_accepted() {
        let response = answered(Method::GET, &FULL);
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn what_does_not_ask_rightly_is_told_how() {
        for missing in 0..3 {
            let headers: Vec<_> = (0..4).filter(|index| *index != missing).map(|index| FULL[index]).collect();
            let response = answered(Method::GET, &headers);
            assert_eq!(response.status(), StatusCode::UPGRADE_REQUIRED);
            assert_eq!(response.headers()[SEC_WEBSOCKET_VERSION], "13");
        }
        assert_eq!(answered(Method::GET, &FULL[..3]).status(), StatusCode::BAD_REQUEST);
        assert_eq!(answered(Method::POST, &FULL).status(), StatusCode::METHOD_NOT_ALLOWED);
        let old = [FULL[0], FULL[1], ("sec-websocket-version", "8"), FULL[3]];
        assert_eq!(answered(Method::GET, &old).status(), StatusCode::UPGRADE_REQUIRED);
    }
}
