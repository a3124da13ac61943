//! A receipt as it is shown.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{Error, Json, Principal, PrincipalKind, Result, Time, hex};
use waybill_store::Row;

use super::ReceiptId;
use crate::lease::LeaseId;
use crate::task::TaskId;

/// Who sent a receipt, or to whom it is addressed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Party {
    pub kind: PrincipalKind,
    pub id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ReceiptRecord {
    pub receipt_id: ReceiptId,
    pub receipt_type: String,
    pub created_at: Time,
    pub from: Party,
    pub to: Party,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// The receipts it answers or refers to.
    pub parents: Vec<ReceiptId>,
    pub body: Json,
    /// SHA-256 over everything but the receipt's own id and its times: equal for equal proofs.
    pub hash: String,
    pub asyncgate_instance: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Time>,
}

/// The columns [`ReceiptRecord::from_row`] reads, from the given one on, in its order. `r` is a receipt.
macro_rules! receipt_columns {
    () => {
        "r.receipt_id, r.receipt_type, r.created_at, r.sender, r.addressee, r.task_id, r.lease_id, r.schedule_id, \
         r.parents, r.body, r.instance, r.delivered_at"
    };
}
pub(crate) use receipt_columns;

/// A receipt as an example shows it, with further fields if need be.
macro_rules! example_receipt {
    ($further:literal) => {
        concat!(
            r#"{"receipt_id": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b", "receipt_type": "task.completed",
             "created_at": "2026-01-05T12:35:04.250000Z", "from": {"kind": "worker", "id": "printer-1"},
             "to": {"kind": "agent", "id": "alice"}, "task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
             "lease_id": "0198c0df-2b3c-7d4e-9f50-6b7c8d9e0f1a",
             "parents": ["0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e1f"], "body": {"result_summary": "{\"pages\":12}",
             "completion_metadata": {"attempt": 0}, "artifacts": [{"url": "https://files.example/report.pdf"}],
             "result_payload": {"pages": 12}, "schema_version": "1"},
             "hash": "5d41402abc4b2a76b9719d911017c592ae1f3a9c0b7d4e6f8a2c4e6f8091a2b3",
             "asyncgate_instance": "waybill-1""#,
            $further,
            "}"
        )
    };
}
pub(crate) use example_receipt;

pub const COLUMNS: &str = receipt_columns!();

impl ReceiptRecord {
    /// `first` is where its columns begin.
    pub fn from_row(row: &Row, first: usize) -> Result<Self> {
        let (from, to) = (Party::read(row.text(first + 3)?)?, Party::read(row.text(first + 4)?)?);
        let mut record = Self {
            receipt_id: ReceiptId::from_slice(row.bytes(first)?)?,
            receipt_type: row.text(first + 1)?.to_owned(),
            created_at: row.time(first + 2)?,
            from,
            to,
            task_id: row.bytes_opt(first + 5)?.map(TaskId::from_slice).transpose()?,
            lease_id: row.bytes_opt(first + 6)?.map(LeaseId::from_slice).transpose()?,
            schedule_id: row.text_opt(first + 7)?.map(str::to_owned),
            parents: row.bytes(first + 8)?.chunks(16).map(ReceiptId::from_slice).collect::<Result<_>>()?,
            body: Json::from_stored(row.text(first + 9)?)?,
            hash: String::new(),
            asyncgate_instance: row.text(first + 10)?.to_owned(),
            delivered_at: row.time_opt(first + 11)?,
        };
        record.hash = record.digest()?;
        Ok(record)
    }

    /// Covers only what never changes, so it is computed when the receipt is read and costs the writer nothing.
    fn digest(&self) -> Result<String> {
        let body: Value = serde_json::from_str(self.body.as_str()).map_err(Error::internal)?;
        let covered = json!({
            "receipt_type": self.receipt_type,
            "from": self.from,
            "to": self.to,
            "task_id": self.task_id,
            "lease_id": self.lease_id,
            "schedule_id": self.schedule_id,
            "parents": self.parents,
            "body": body,
            "asyncgate_instance": self.asyncgate_instance,
        });
        let fingerprint = Fingerprint::of(&covered)?;
        Ok(hex::encode(fingerprint.as_bytes()))
    }
}

impl Party {
    pub(crate) fn read(stored: &str) -> Result<Self> {
        let principal =
            Principal::from_stored(stored).map_err(|error| Error::internal(format!("stored principal: {error}")))?;
        Ok(Self { kind: principal.kind, id: principal.id })
    }
}
