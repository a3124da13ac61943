//! The JSON protocol: `AmazonSQS.<Action>` in a header, the members of the action as a JSON object.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;
use waybill_doors::{Body, Checked, RequestId, log_cause};
use waybill_kernel::{Error, Result};
use waybill_store::Operation;

pub(crate) const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
pub(crate) const CONTENT: &str = "application/x-amz-json-1.0";
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
const NAMESPACE: &str = "com.amazonaws.sqs";

/// Members that we do not know are left alone; an empty body asks for nothing in particular.
pub(crate) fn read<O: Operation>(body: &[u8]) -> Result<O> {
    let text = if body.trim_ascii().is_empty() { "{}" } else { Checked::of(body)?.text };
    waybill_store::decode(text)
}

pub(crate) fn answer(output: &impl Serialize, id: &RequestId) -> Result<Response<Body>> {
    let text = serde_json::to_vec(output).map_err(Error::internal)?;
    Ok(response(StatusCode::OK, text, id))
}

pub(crate) fn error(error: &Error, id: &RequestId) -> Response<Body> {
    log_cause(error);
    let sqs = error.code().entry().sqs;
    let told = json!({ "__type": format!("{NAMESPACE}#{}", sqs.shape), "message": message(error) });
    let status = StatusCode::from_u16(sqs.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = response(status, told.to_string().into_bytes(), id);
    let headers = response.headers_mut();
    headers.insert(ERROR_TYPE, HeaderValue::from_static(sqs.shape));
    let whose = if status.is_server_error() { "Receiver" } else { "Sender" };
    if let Ok(value) = HeaderValue::from_str(&format!("{};{whose}", sqs.query_code)) {
        headers.insert(QUERY_ERROR, value);
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// SDKs show this one text, so it says what to do as well.
pub(crate) fn message(error: &Error) -> String {
    format!("{} {}", error.message(), error.cure())
}

fn response(status: StatusCode, text: Vec<u8>, id: &RequestId) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
    headers.insert(REQUEST_ID, id.0.clone());
    response
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Code;

    use super::*;

    #[test]
    fn an_error_carries_shape_and_query_code() {
        let id = RequestId(HeaderValue::from_static("r-1"));
        let response = error(&Error::new(Code::QueueDoesNotExist, "The queue \"q\" does not exist."), &id);
        let header = |name: &HeaderName| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(response.status(), 400);
        assert_eq!(header(&ERROR_TYPE), "QueueDoesNotExist");
        assert_eq!(header(&QUERY_ERROR), "AWS.SimpleQueueService.NonExistentQueue;Sender");
        assert_eq!(header(&REQUEST_ID), "r-1");
        let response = error(&Error::internal("a secret path"), &id);
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()[QUERY_ERROR], "InternalFailure;Receiver");
    }
}
