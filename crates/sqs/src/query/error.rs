//! The XML in which an error is told.
//!
//! ```text
//! <ErrorResponse xmlns="…">
//!   <Error><Type>Sender</Type><Code>QueueAlreadyExists</Code><Message>…</Message><Detail></Detail></Error>
//!   <RequestId>…</RequestId>
//! </ErrorResponse>
//! ```

use waybill_kernel::Error;

use super::xml::Xml;
use crate::json;

pub fn error(error: &Error, request_id: &str) -> Vec<u8> {
    let sqs = error.code().entry().sqs;
    let mut xml = Xml::default();
    xml.open_document("ErrorResponse");
    xml.open("Error");
    xml.element("Type", if sqs.http < 500 { "Sender" } else { "Receiver" });
    xml.element("Code", sqs.query_code);
    xml.element("Message", &json::message(error));
    xml.element("Detail", "");
    xml.close("Error");
    xml.element("RequestId", request_id);
    xml.close("ErrorResponse");
    xml.into_bytes()
}
