//! The body of an MCP request, read under the bounds of REST before the transport sees it: it has none for time, and its
//! parser keeps the last of two equal names.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use http::{Request, StatusCode};
use serde_json::json;
use waybill_kernel::{Code, Error, Result};

use crate::log::Answers;
use crate::{Settings, json, reply};

/// JSON-RPC's code for a body that cannot be parsed.
const PARSE_ERROR: i32 = -32700;

/// The operation that a request turns out to call. The transport makes the response, so that the handler has no other
/// way to tell.
#[derive(Clone, Default)]
pub(super) struct Called(Arc<OnceLock<&'static str>>);

impl Called {
    pub(super) fn tell(&self, operation: &'static str) {
        // A request is one message, so there is no second call.
        let _ = self.0.set(operation);
    }
}

pub(crate) async fn check(State(settings): State<Settings>, request: Request<Body>, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = match read(body, &settings).await {
        Ok(body) => body,
        Err(error) if error.code() == Code::InvalidRequest => return unparsable(&error),
        Err(error) => return reply::error(&error),
    };
    let called = Called::default();
    parts.extensions.insert(called.clone());
    let mut response = next.run(Request::from_parts(parts, Body::from(body))).await;
    if let Some(operation) = called.0.get().copied() {
        response.extensions_mut().insert(Answers(operation));
    }
    response
}

async fn read(body: Body, settings: &Settings) -> Result<bytes::Bytes> {
    let body = json::read(body, settings.body_bytes_max, Duration::from_millis(settings.body_read_ms)).await?;
    if !body.is_empty() {
        json::parse(&body)?;
    }
    Ok(body)
}

fn unparsable(error: &Error) -> Response {
    let body = json!({
        "jsonrpc": "2.0",
        "id": null,
        "error": { "code": PARSE_ERROR, "message": error.message(), "data": error.to_json() },
    });
    reply::json(StatusCode::BAD_REQUEST, body.to_string())
}
