//! The XML in which an error is told.
//!
//! ```text
//! <ErrorResponse xmlns="…">
//!   <Error><Type>Sender</Type><Code>QueueAlreadyExists</Code><Message>…</Message><Detail></Detail></Error>
//!   <RequestId>…</RequestId>
//! </ErrorResponse>
//! ```

use waybill_kernel::Error;
use waybill_kernel::error::Sqs;

use super::xml::Xml;
use crate::signature::Refused;

/// An error as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub http: u16,
    pub body: Vec<u8>,
}

impl Failure {
    /// SDKs show one text, so it says what to do as well. It says nothing of what went wrong inside: the log has that.
    pub fn of(error: &Error, request_id: &str) -> Self {
        let entry = error.code().entry();
        let (message, cure) =
            if entry.sqs.http < 500 { (error.message(), error.cure()) } else { (entry.title, entry.cure) };
        Self::told(entry.sqs, &format!("{message} {cure}"), request_id)
    }

    pub fn of_refused(refused: Refused, request_id: &str) -> Self {
        let sqs = Sqs { shape: refused.shape(), query_code: refused.query_code(), http: refused.http() };
        Self::told(sqs, refused.message(), request_id)
    }

    /// For what has no entry in the catalogue, such as a request that names no action.
    pub fn told(sqs: Sqs, message: &str, request_id: &str) -> Self {
        let mut xml = Xml::default();
        xml.open_document("ErrorResponse");
        xml.open("Error");
        xml.element("Type", if sqs.http < 500 { "Sender" } else { "Receiver" });
        xml.element("Code", sqs.query_code);
        xml.element("Message", message);
        xml.element("Detail", "");
        xml.close("Error");
        xml.element("RequestId", request_id);
        xml.close("ErrorResponse");
        Self { http: sqs.http, body: xml.into_bytes() }
    }
}
