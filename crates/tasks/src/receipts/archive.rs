//! Receipts that the archive has. An id leads there by its pointer; whoever looks for one looks into the ledger first and
//! here second, so that a receipt that is moved meanwhile is found in one of the two.

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Result, Time};
use waybill_store::{Row, Tx};

use super::{ReceiptId, ReceiptRecord, receipt_columns};

/// A receipt, and since when it has been in the archive if it is there.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct KeptReceipt {
    #[serde(flatten)]
    pub receipt: ReceiptRecord,
    /// Absent while the receipt is in the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived_at: Option<Time>,
}

/// The rows of the archive as `r`, by their pointers as `p`.
macro_rules! archived {
    () => {
        "receipt_archive p JOIN archived_receipts r ON r.tenant = $1 AND r.xact = p.xact AND r.seq = p.seq"
    };
}
pub(crate) use archived;

pub(crate) async fn has(tx: &mut Tx<'_>, id: ReceiptId) -> Result<bool> {
    const HAS: &str = "SELECT 1 FROM receipt_archive WHERE tenant = $1 AND receipt_id = $2";
    Ok(tx.query_opt(HAS, &[id.as_bytes().into()]).await?.is_some())
}

/// What is known of a receipt wherever it is kept: its place (xact, seq), its addressee and its task.
pub(crate) async fn locate(tx: &mut Tx<'_>, id: ReceiptId) -> Result<Option<Row>> {
    const LEDGER: &str = "SELECT xact, seq, addressee, task_id FROM receipts WHERE tenant = $1 AND receipt_id = $2";
    const ARCHIVE: &str = concat!(
        "SELECT r.xact, r.seq, r.addressee, r.task_id FROM ",
        archived!(),
        " WHERE p.tenant = $1 AND p.receipt_id = $2"
    );
    match tx.query_opt(LEDGER, &[id.as_bytes().into()]).await? {
        Some(row) => Ok(Some(row)),
        None => tx.query_opt(ARCHIVE, &[id.as_bytes().into()]).await,
    }
}

/// A receipt wherever it is kept.
pub async fn find(tx: &mut Tx<'_>, id: ReceiptId) -> Result<Option<ReceiptRecord>> {
    const LEDGER: &str =
        concat!("SELECT ", receipt_columns!(), " FROM receipts r WHERE r.tenant = $1 AND r.receipt_id = $2");
    const ARCHIVE: &str =
        concat!("SELECT ", receipt_columns!(), " FROM ", archived!(), " WHERE p.tenant = $1 AND p.receipt_id = $2");
    let row = match tx.query_opt(LEDGER, &[id.as_bytes().into()]).await? {
        Some(row) => Some(row),
        None => tx.query_opt(ARCHIVE, &[id.as_bytes().into()]).await?,
    };
    row.map(|row| ReceiptRecord::from_row(&row, 0)).transpose()
}
