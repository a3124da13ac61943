//! The JSON protocol: `AmazonSQS.<Action>` in a header, the members of the action as a JSON object.

use http::header::{HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::json;
use waybill_doors::Checked;
use waybill_kernel::{Error, Result};
use waybill_store::Operation;

pub(crate) const CONTENT_TYPE: &str = "application/x-amz-json-1.0";
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
const NAMESPACE: &str = "com.amazonaws.sqs";

/// Members that we do not know are left alone; an empty body asks for nothing in particular.
pub(crate) fn read<O: Operation>(body: &[u8]) -> Result<O> {
    let text = if body.trim_ascii().is_empty() { "{}" } else { Checked::of(body)?.text };
    waybill_store::decode(text)
}

pub(crate) fn write(output: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(output).map_err(Error::internal)
}

/// The text of an error, and what of it goes into headers.
pub(crate) fn error(error: &Error) -> (Vec<u8>, [(HeaderName, HeaderValue); 2]) {
    let sqs = error.code().entry().sqs;
    let told = json!({ "__type": format!("{NAMESPACE}#{}", sqs.shape), "message": message(error) });
    let whose = if sqs.http < 500 { "Sender" } else { "Receiver" };
    let query_error = HeaderValue::from_str(&format!("{};{whose}", sqs.query_code));
    let headers = [
        (ERROR_TYPE, HeaderValue::from_static(sqs.shape)),
        (QUERY_ERROR, query_error.unwrap_or_else(|_| HeaderValue::from_static(sqs.shape))),
    ];
    (told.to_string().into_bytes(), headers)
}

/// SDKs show this one text, so it says what to do as well. What went wrong inside is for the log.
pub(crate) fn message(error: &Error) -> String {
    let entry = error.code().entry();
    match entry.sqs.http {
        ..500 => format!("{} {}", error.message(), error.cure()),
        _ => format!("{} {}", entry.title, entry.cure),
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Code;

    use super::*;

    #[test]
    fn an_error_carries_shape_and_query_code_and_nothing_of_the_inside() {
        let told = |told: &Error| {
            let (text, headers) = error(told);
            let [shape, code] = headers.map(|(_, value)| value.to_str().unwrap().to_owned());
            (String::from_utf8(text).unwrap(), shape, code)
        };
        let (text, shape, code) = told(&Error::new(Code::QueueDoesNotExist, "The queue \"q\" does not exist."));
        assert!(
            text.starts_with(r##"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"The queue \"q\" does"##),
            "{text}"
        );
        assert_eq!(
            (shape.as_str(), code.as_str()),
            ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue;Sender")
        );
        let (text, _, code) = told(&Error::internal("a secret path"));
        assert!(!text.contains("secret") && code == "InternalFailure;Receiver", "{text} {code}");
    }
}
