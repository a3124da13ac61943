//! Answers and errors as HTTP, in the protocol that the request came in.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use serde::Serialize;
use waybill_doors::{Body, Refusal, header_of, log_cause};
use waybill_kernel::{Error, RequestId, Result};

use crate::wire::Wire;
use crate::{json, query};

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("x-amz-retry-after");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Json,
    Query,
}

impl Protocol {
    /// Who speaks neither is answered in JSON.
    pub(crate) fn of(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        match Wire::pick(method, uri, headers) {
            Ok(Wire::Query) => Self::Query,
            Ok(Wire::Json { .. }) | Err(_) => Self::Json,
        }
    }

    pub(crate) fn refusal(self) -> Refusal {
        match self {
            Self::Json => |error, id| Self::Json.error(error, id),
            Self::Query => |error, id| Self::Query.error(error, id),
        }
    }

    pub(crate) fn answer(self, action: &str, output: &impl Serialize, id: &RequestId) -> Result<Response<Body>> {
        let text = match self {
            Self::Json => json::write(output)?,
            Self::Query => query::write(action, output, id.as_str())?,
        };
        Ok(self.response(StatusCode::OK, text, id))
    }

    pub(crate) fn error(self, error: &Error, id: &RequestId) -> Response<Body> {
        log_cause(error);
        let http = error.code().entry().sqs.http;
        let status = StatusCode::from_u16(http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = match self {
            Self::Json => {
                let (text, headers) = json::error(error);
                let mut response = self.response(status, text, id);
                response.headers_mut().extend(headers);
                response
            }
            Self::Query => self.response(status, query::error(error, id.as_str()), id),
        };
        let told = error.detail("retry_after").and_then(serde_json::Value::as_u64);
        let wait_s = told.or_else(|| (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1));
        if let Some(wait_s) = wait_s {
            let headers = response.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from(wait_s));
            // SDKs in Rust look at this one and not at the other.
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(wait_s.saturating_mul(1_000)));
        }
        response
    }

    fn response(self, status: StatusCode, text: Vec<u8>, id: &RequestId) -> Response<Body> {
        let media = match self {
            Self::Json => json::CONTENT_TYPE,
            Self::Query => query::CONTENT_TYPE,
        };
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        headers.insert(REQUEST_ID, header_of(id));
        response
    }
}
