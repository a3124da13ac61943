//! Answers and errors as HTTP.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, StatusCode};
use serde_json::Value;
use waybill_kernel::{Code, Error};
use waybill_store::Answer;

const PROTOCOL_DEPRECATED: HeaderName = HeaderName::from_static("x-asyncgate-deprecated");
const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");
const REPLAY: HeaderName = HeaderName::from_static("x-idempotent-replay");

pub(crate) fn answer(answer: Answer, status: u16) -> Response {
    let status = if answer.replay { StatusCode::OK } else { status_of(status) };
    let mut response = json(status, answer.json);
    if answer.replay {
        response.headers_mut().insert(REPLAY, HeaderValue::from_static("true"));
    }
    response
}

/// Adds the headers that name the successor of a deprecated operation.
pub(crate) fn deprecate(response: &mut Response, successor: &'static str) {
    let headers = response.headers_mut();
    headers.insert(PROTOCOL_DEPRECATED, HeaderValue::from_static("true"));
    headers.insert(DEPRECATION, HeaderValue::from_static("true"));
    if let Ok(link) = HeaderValue::from_str(&format!("<{successor}>; rel=\"successor-version\"")) {
        headers.insert(LINK, link);
    }
}

pub fn json(status: StatusCode, text: impl Into<Body>) -> Response {
    let mut response = (status, text.into()).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Logs the cause of an error, which no client may see.
pub fn log_cause(error: &Error) {
    let (Some(cause), entry) = (error.cause(), error.code().entry()) else { return };
    if entry.http >= 500 {
        tracing::error!(code = entry.code, cause, "a request failed");
    } else {
        tracing::debug!(code = entry.code, cause, "a request was refused");
    }
}

/// The object of the catalogue; its cause is logged here, once.
pub fn error(error: &Error) -> Response {
    log_cause(error);
    let entry = error.code().entry();
    let mut response = json(status_of(entry.http), error.to_json().to_string());
    let headers = response.headers_mut();
    match error.code() {
        Code::Unauthorized => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"waybill\""));
        }
        Code::Unavailable | Code::Overloaded | Code::StoreUnavailable | Code::ShuttingDown => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    if let Some(seconds) = error.detail("retry_after").and_then(Value::as_u64) {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn status_of(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
