//! Anomalies: what should not happen and did not break anything. Informational; no state changes with them.

use serde_json::{Value as Json, json};
use waybill_kernel::Result;
use waybill_kernel::id::Uuid;
use waybill_store::{Ctx, Tx};

use crate::receipts::{self, Receipt, ReceiptId, ReceiptType, SYSTEM};
use crate::task::TaskId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In the queue although no attempt is left.
    AttemptsExhausted,
    ExcessiveExpiries,
    ExcessiveRenewals,
    ScheduleOverdue,
    ReceiptBacklog,
    LocatabilityMissing,
    /// A worker that keeps using a lease it does not have.
    InvalidLeaseUses,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::AttemptsExhausted => "attempts_exhausted",
            Kind::ExcessiveExpiries => "excessive_lease_expiries",
            Kind::ExcessiveRenewals => "excessive_renewals",
            Kind::ScheduleOverdue => "schedule_overdue",
            Kind::ReceiptBacklog => "receipt_backlog",
            Kind::LocatabilityMissing => "locatability_missing",
            Kind::InvalidLeaseUses => "invalid_lease_uses",
        }
    }
}

pub struct Anomaly<'a> {
    pub kind: Kind,
    /// The task's owner, or the server's own inbox for what concerns no task.
    pub to: &'a str,
    pub task_id: Option<TaskId>,
    pub related: Option<ReceiptId>,
    /// What tells this crossing of the threshold from the next: reported once each.
    pub crossing: &'a [u8],
    pub details: Json,
    pub recommended_action: &'static str,
}

/// Once per crossing, whoever comes to it again: a schedule that is given the same times anew, a worker whose misuses were
/// forgotten with the task. A second receipt of the same id would stop the sweep that writes it, and later the archive.
pub async fn report(tx: &mut Tx<'_>, ctx: &Ctx<'_>, anomaly: Anomaly<'_>) -> Result<()> {
    let receipt = anomaly.receipt();
    let parents: Vec<ReceiptId> = anomaly.related.into_iter().collect();
    receipts::emit_once(tx, ctx, Receipt { parents: &parents, ..receipt }).await.map(drop)
}

impl<'a> Anomaly<'a> {
    fn receipt(&self) -> Receipt<'a> {
        let near = self.task_id.map_or(Uuid::nil(), |task| task.0);
        let task = self.task_id.map(|task| task.as_bytes().to_vec()).unwrap_or_default();
        let parts = [self.kind.as_str().as_bytes(), &task, self.crossing];
        Receipt {
            id: receipts::keyed_id(ReceiptType::SystemAnomaly, &near, &parts),
            kind: ReceiptType::SystemAnomaly,
            from: SYSTEM,
            to: self.to,
            task_id: self.task_id,
            lease_id: None,
            schedule_id: None,
            parents: &[],
            unlocated: false,
            body: json!({
                "kind": self.kind.as_str(),
                "details": self.details,
                "recommended_action": self.recommended_action,
            })
            .into(),
        }
    }
}
