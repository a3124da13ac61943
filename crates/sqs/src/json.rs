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

/// Members that we do not know are left alone; an empty body asks for nothing in particular. A message with NUL is refused by
/// its operation as in the other protocol, and in a batch alone.
pub(crate) fn read<O: Operation>(body: &[u8]) -> Result<O> {
    let text = if body.trim_ascii().is_empty() { "{}" } else { Checked::with_nul(body)?.text };
    // Few clients write nulls, so they are looked for only in what does not read without.
    waybill_store::decode(text).or_else(|error| match without_nulls(text) {
        Some(text) => waybill_store::decode(&text),
        None => Err(error),
    })
}

/// A member that is null is the same as none. None when there is no such member.
///
/// The text is copied, never made a tree of: that would be many times as large as a hostile text.
fn without_nulls(text: &str) -> Option<String> {
    if !text.contains("null") {
        return None;
    }
    let bytes = text.as_bytes();
    let mut kept: Vec<u8> = Vec::with_capacity(bytes.len());
    // Where the latest text begins in what is kept, and the latest byte that is not part of a text or a blank.
    let (mut name_at, mut mark) = (0, b' ');
    let (mut at, mut drops_comma, mut found) = (0, false, false);
    while at < bytes.len() {
        let length = match bytes[at] {
            b'"' => text_length(&bytes[at..]),
            b'n' if mark == b':' && bytes[at..].starts_with(b"null") => {
                kept.truncate(name_at);
                kept.truncate(kept.trim_ascii_end().len());
                // With the comma before it, or else with the one after it.
                drops_comma = kept.pop_if(|last| *last == b',').is_none();
                (at, found, mark) = (at + 4, true, b' ');
                continue;
            }
            b',' if drops_comma => {
                (at, drops_comma) = (at + 1, false);
                continue;
            }
            _ => 1,
        };
        match bytes[at] {
            b'"' => name_at = kept.len(),
            byte if byte.is_ascii_whitespace() => {}
            byte => (mark, drops_comma) = (byte, false),
        }
        kept.extend_from_slice(&bytes[at..at + length]);
        at += length;
    }
    String::from_utf8(kept).ok().filter(|_| found)
}

/// Of a text that begins here, with its quotes.
fn text_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
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
    use waybill_queues::ops::{SendMessage, SendMessageBatch};

    use super::*;

    #[test]
    fn a_member_that_is_null_is_none() {
        for (text, expected) in [
            (r#"{"a":null}"#, r#"{}"#),
            (r#"{"a":null,"b":null}"#, r#"{}"#),
            (r#"{"a":null,"b":1}"#, r#"{"b":1}"#),
            (r#"{"b":1,"a":null}"#, r#"{"b":1}"#),
            (r#"{"b":1 , "a" : null , "c":2}"#, r#"{"b":1  , "c":2}"#),
            (r#"{"e":[{"a":null,"b":"x"},{"b":"y","a":null}]}"#, r#"{"e":[{"b":"x"},{"b":"y"}]}"#),
            (r#"{"b":":null","a":null}"#, r#"{"b":":null"}"#),
            (r#"{"b":"\\\"","a":null}"#, r#"{"b":"\\\""}"#),
            (r#"{"b\"":null,"ä":"null"}"#, r#"{"ä":"null"}"#),
        ] {
            assert_eq!(without_nulls(text).as_deref(), Some(expected), "{text}");
        }
        for text in [r#"{"a":1}"#, r#"{"a":"null"}"#, r#"{"a":[null,1]}"#, "null", r#"{"null":1}"#, r#"{"a":"null"#] {
            assert_eq!(without_nulls(text), None, "{text}");
        }
    }

    #[test]
    fn requests_with_nulls_are_read_and_what_is_wrong_with_them_is_said() {
        let send: SendMessage =
            read(br#"{"QueueUrl":"/q","MessageBody":"null","MessageAttributes":null,"DelaySeconds":null}"#).unwrap();
        assert_eq!((send.message_body.as_str(), send.message_attributes.len()), ("null", 0));
        let batch: SendMessageBatch =
            read(br#"{"QueueUrl":"/q","Entries":[{"Id":"a","MessageBody":"m","MessageAttributes":null}]}"#).unwrap();
        assert_eq!(batch.entries.len(), 1);
        let wrong = read::<SendMessage>(br#"{"QueueUrl":null,"MessageBody":7}"#).unwrap_err();
        assert!(wrong.message().contains("MessageBody"), "{wrong}");
        assert!(read::<SendMessageBatch>(br#"{"QueueUrl":"/q","Entries":[null]}"#).is_err());
    }

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
