//! The body of an MCP request, read under the bounds of REST before the transport sees it: it has none for time, and its
//! parser keeps the last of two equal names.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use http::{Request, StatusCode};
use serde_json::json;
use waybill_kernel::{Code, Error, Result};

use crate::{Settings, json, reply};

/// JSON-RPC's code for a body that cannot be parsed.
const PARSE_ERROR: i32 = -32700;

pub(crate) async fn check(State(settings): State<Settings>, request: Request<Body>, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match read(body, &settings).await {
        Ok(body) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Err(error) if error.code() == Code::InvalidRequest => unparsable(&error),
        Err(error) => reply::error(&error),
    }
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
