//! Every receipt of every tenant, for domains that act on them.

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::Feed;
use waybill_store::{Row, Topic};

use super::ReceiptId;

/// In the order of feeds, without what the receipts say: [`super::find`] has that for those who want it.
pub const WRITTEN: Feed = Feed {
    sql: "SELECT xact, seq, tenant, receipt_id, receipt_type, created_at FROM receipts \
          WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4",
};

/// Woken by every receipt.
pub fn written() -> Topic {
    Topic::new("receipts written", Tenant(0), b"")
}

/// A row of [`WRITTEN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenReceipt {
    pub tenant: Tenant,
    pub receipt_id: ReceiptId,
    pub receipt_type: String,
    pub created_at: Time,
}

impl WrittenReceipt {
    pub fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            tenant: Tenant(row.int(2)?),
            receipt_id: ReceiptId::from_slice(row.bytes(3)?)?,
            receipt_type: row.text(4)?.to_owned(),
            created_at: row.time(5)?,
        })
    }
}
