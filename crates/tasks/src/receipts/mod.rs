//! Receipts: proofs of transitions, written in the transaction of the transition they prove.

pub(crate) mod archive;
pub mod chain;
mod emit;
pub(crate) mod inbox;
mod record;
mod written;

pub use archive::{KeptReceipt, find};
pub use emit::{Body, Receipt, SCHEMA_VERSION, emit, emit_all, emit_once, keyed_id};
pub(crate) use emit::{body_text, check_body, tree};
pub use record::{COLUMNS, Party, ReceiptRecord};
pub(crate) use record::{example_receipt, receipt_columns};
pub use written::{WRITTEN, WrittenReceipt, written};

use waybill_kernel::id_type;

id_type!(
    /// Identifies a receipt within its tenant.
    ReceiptId
);

/// The server's own identity.
pub const SYSTEM: &str = "system:asyncgate";

macro_rules! receipt_types {
    ($($variant:ident = $word:literal),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ReceiptType { $($variant),+ }

        impl ReceiptType {
            pub const ALL: &'static [ReceiptType] = &[$(ReceiptType::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(ReceiptType::$variant => $word),+ }
            }
        }
    };
}

receipt_types! {
    TaskAssigned = "task.assigned",
    TaskAccepted = "task.accepted",
    TaskProgress = "task.progress",
    TaskRetryScheduled = "task.retry_scheduled",
    TaskCompleted = "task.completed",
    TaskFailed = "task.failed",
    TaskCanceled = "task.canceled",
    TaskResultReady = "task.result_ready",
    LeaseExpired = "lease.expired",
    SystemAnomaly = "system.anomaly",
    ReceiptAcknowledged = "receipt.acknowledged",
    ScheduleCreated = "schedule.created",
    ScheduleDeleted = "schedule.deleted",
}

impl ReceiptType {
    /// The termination registry: which obligation a receipt of this type ends. Nothing else ends one, and a type that
    /// ends is never itself an obligation.
    pub const fn ends(self) -> Option<ReceiptType> {
        match self {
            ReceiptType::TaskCompleted | ReceiptType::TaskFailed | ReceiptType::TaskCanceled => {
                Some(ReceiptType::TaskAssigned)
            }
            ReceiptType::ScheduleDeleted => Some(ReceiptType::ScheduleCreated),
            _ => None,
        }
    }

    /// Opens an obligation of its addressee that stays until a receipt that ends it names it as its parent.
    pub fn is_obligation(self) -> bool {
        ReceiptType::ALL.iter().any(|other| other.ends() == Some(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_an_obligation_is_none_itself() {
        for kind in ReceiptType::ALL {
            assert!(kind.ends().is_none() || !kind.is_obligation(), "{}", kind.as_str());
        }
        assert!(ReceiptType::TaskAssigned.is_obligation() && ReceiptType::ScheduleCreated.is_obligation());
        assert!(!ReceiptType::TaskResultReady.is_obligation() && ReceiptType::TaskResultReady.ends().is_none());
    }
}
