//! A message as readers of the inbox see it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use waybill_kernel::{Error, Result, Time};
use waybill_store::Row;

/// The columns of [`Message::read`], in its order.
macro_rules! columns {
    () => {
        "inbox.id, client_message_id, broker_message_id, mesh, inbox.topic, sender_pubkey, sender_name, inbox.body, meta, \
         priority, mentioned, received_at, reply_to_id"
    };
}
pub(super) use columns;

#[derive(Debug, Clone, Serialize)]
pub struct Message {
    /// Ascending in the order of arrival; `since` takes it.
    pub id: i64,
    pub client_message_id: String,
    pub broker_message_id: String,
    pub mesh: String,
    /// Absent for a direct message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    pub sender_pubkey: String,
    pub sender_name: String,
    /// The text; empty where the bytes are none.
    pub body: String,
    /// Only where the bytes are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<Box<RawValue>>,
    pub priority: String,
    pub mentioned: bool,
    pub received_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to_id: Option<String>,
}

impl Message {
    pub(super) fn read(row: &Row) -> Result<Self> {
        let text = |column| row.text(column).map(str::to_owned);
        let text_opt = |column| row.text_opt(column).map(|text| text.map(str::to_owned));
        let bytes = row.bytes(7)?;
        let (body, body_base64) = match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), None),
            Err(_) => (String::new(), Some(STANDARD.encode(bytes))),
        };
        let meta = row.bytes_opt(8)?.map(serde_json::from_slice).transpose().map_err(Error::internal)?;
        Ok(Self {
            id: row.int(0)?,
            client_message_id: text(1)?,
            broker_message_id: text(2)?,
            mesh: text(3)?,
            topic: text_opt(4)?,
            sender_pubkey: text(5)?,
            sender_name: text(6)?,
            body,
            body_base64,
            meta,
            priority: text(9)?,
            mentioned: row.bool(10)?,
            received_at: row.time(11)?,
            reply_to_id: text_opt(12)?,
        })
    }
}
