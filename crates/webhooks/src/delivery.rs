//! A delivery as it is shown.

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Result, Time};
use waybill_store::Row;
use waybill_tasks::receipts::ReceiptId;

use crate::webhook::DeliveryId;

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct DeliveryView {
    /// The `webhook-id` of its requests.
    pub delivery_id: DeliveryId,
    /// Of an event of a mesh its `event_id`.
    pub receipt_id: ReceiptId,
    pub receipt_type: String,
    /// `pending`, `delivered` or `failed`.
    pub status: String,
    /// Requests that were made.
    pub attempts: i64,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attempt_at: Option<Time>,
    /// The HTTP status of the last answer; absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_status: Option<i64>,
    /// What was wrong with the last attempt; absent after one that was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Absent once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
}

impl DeliveryView {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            delivery_id: DeliveryId::from_slice(row.bytes(0)?)?,
            receipt_id: ReceiptId::from_slice(row.bytes(1)?)?,
            receipt_type: row.text(2)?.to_owned(),
            status: row.text(3)?.to_owned(),
            attempts: row.int(4)?,
            created_at: row.time(5)?,
            last_attempt_at: row.time_opt(6)?,
            last_status: row.int_opt(7)?,
            last_error: row.text_opt(8)?.map(str::to_owned),
            next_attempt_at: row.time_opt(9)?,
            ended_at: row.time_opt(10)?,
        })
    }
}
