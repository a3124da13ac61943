//! The metrics of tasks, each with its unit and meaning.

use metrics::{describe_counter, describe_gauge};

pub(crate) const LEASE_EXPIRIES: &str = "waybill_lease_expiries_total";
pub(crate) const RECEIPTS: &str = "waybill_receipts_total";
pub(crate) const TASKS: &str = "waybill_tasks";
pub(crate) const QUEUE_AGE: &str = "waybill_queue_age_seconds";
pub(crate) const OPEN_OBLIGATIONS: &str = "waybill_open_obligations";
pub(crate) const RECEIPTS_ARCHIVED: &str = "waybill_receipts_archived_total";
pub(crate) const LEASE_EXPIRY_LAG: &str = "waybill_lease_expiry_lag_seconds";

pub(crate) fn describe() {
    describe_counter!(LEASE_EXPIRIES, "Leases that ran out and whose tasks went back to the queue, on this node");
    describe_counter!(
        RECEIPTS,
        "Receipts by type, counted by the node that seals them: task.assigned for tasks that were created, task.accepted \
         for leases, task.completed, task.failed and task.canceled for ends"
    );
    describe_gauge!(
        TASKS,
        "Tasks that are not over: ready, waiting for their time, leased; 10000 of each are counted at most"
    );
    describe_gauge!(
        QUEUE_AGE,
        "How long ago the oldest task that could be leased was created, of the first 10000 that are looked at"
    );
    describe_gauge!(OPEN_OBLIGATIONS, "Obligations that no receipt has ended; 10000 are counted at most");
    describe_counter!(RECEIPTS_ARCHIVED, "Receipts moved from the ledger to the archive, on this node");
    describe_gauge!(LEASE_EXPIRY_LAG, "How long the first lease of the latest sweep had been over");
}
