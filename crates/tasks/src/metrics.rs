//! The metrics of tasks, each with its unit and meaning.

use metrics::{describe_counter, describe_gauge};

pub(crate) const LEASE_EXPIRIES: &str = "waybill_lease_expiries_total";
pub(crate) const RECEIPTS_ARCHIVED: &str = "waybill_receipts_archived_total";
pub(crate) const LEASE_EXPIRY_LAG: &str = "waybill_lease_expiry_lag_seconds";

pub(crate) fn describe() {
    describe_counter!(LEASE_EXPIRIES, "Leases that ran out and whose tasks went back to the queue, on this node");
    describe_counter!(RECEIPTS_ARCHIVED, "Receipts moved from the ledger to the archive, on this node");
    describe_gauge!(LEASE_EXPIRY_LAG, "How long the first lease of the latest sweep had been over");
}
