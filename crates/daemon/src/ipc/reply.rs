//! What goes back to the caller.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, LINK, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Either, Full};
use serde::Serialize;
use waybill_kernel::{Code, Error, Result};

/// Whole, or as it comes: a stream of events, a file.
pub type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>;

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Bytes,
    pub link: Option<String>,
}

const JSON: &str = "application/json";

impl Reply {
    pub fn json(status: u16, value: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(value).map_err(Error::internal)?;
        Ok(Self { status, content_type: JSON, body: body.into(), link: None })
    }

    pub fn ok(value: &impl Serialize) -> Result<Self> {
        Self::json(200, value)
    }

    pub fn text(content_type: &'static str, text: String) -> Self {
        Self { status: 200, content_type, body: text.into(), link: None }
    }

    /// Where the rest of an answer is.
    #[must_use]
    pub fn with_next(mut self, target: Option<String>) -> Self {
        self.link = target.map(|target| format!("<{target}>; rel=\"next\""));
        self
    }

    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Either::Left(Full::new(self.body)));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some(link) = &self.link {
            set(&mut response, LINK, link);
        }
        response
    }
}

pub fn refusal(error: &Error) -> Response<Body> {
    if error.code() == Code::Internal {
        tracing::error!(cause = error.cause(), "a local request failed");
    }
    let body = error.to_json().to_string();
    let reply = Reply { status: error.code().entry().http, content_type: JSON, body: body.into(), link: None };
    let mut response = reply.into_response();
    let retry_after = error.detail("retry_after").and_then(serde_json::Value::as_u64);
    if let Some(seconds) = retry_after.or_else(|| (response.status() == StatusCode::TOO_MANY_REQUESTS).then_some(1)) {
        set(&mut response, RETRY_AFTER, &seconds.to_string());
    }
    response
}

fn set(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
