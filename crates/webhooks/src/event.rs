//! The body of a request to an endpoint: a receipt, or an audit event of a mesh, in the form that Standard Webhooks recommends.

use serde::Serialize;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_mesh::audit::{self, AuditId};
use waybill_store::{Ctx, Tx, Work};
use waybill_tasks::receipts::{self, ReceiptId};

#[derive(Serialize)]
struct Event<'a, T> {
    #[serde(rename = "type")]
    kind: &'a str,
    timestamp: Time,
    data: &'a T,
}

impl<T: Serialize> Event<'_, T> {
    fn text(&self) -> Result<Option<String>> {
        serde_json::to_string(self).map(Some).map_err(Error::internal)
    }
}

/// Reads the receipt or the audit event that a delivery is about, and writes the body to post. None when it is gone.
pub(crate) struct ReadEvent {
    pub(crate) tenant: Tenant,
    pub(crate) subject: Uuid,
    pub(crate) kind: String,
}

impl Work for ReadEvent {
    type Output = Option<String>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<String>> {
        let mut tx = tx.as_tenant(self.tenant);
        if self.kind.starts_with(audit::PREFIX) {
            let Some(event) = audit::find(&mut tx, AuditId(self.subject)).await? else { return Ok(None) };
            return Event { kind: &self.kind, timestamp: event.at, data: &event }.text();
        }
        let Some(mut receipt) = receipts::find(&mut tx, ReceiptId(self.subject)).await? else { return Ok(None) };
        // It may change between two attempts, and a message is the same in each.
        receipt.delivered_at = None;
        let kind = format!("receipt.{}", receipt.receipt_type);
        Event { kind: &kind, timestamp: receipt.created_at, data: &receipt }.text()
    }
}
