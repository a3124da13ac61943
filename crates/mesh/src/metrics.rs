//! The metrics of the broker, each with its meaning. Accepting is counted by phase, of which there are four, and by what came of
//! it there.

use metrics::{counter, describe_counter};

pub(crate) const ACCEPT: &str = "waybill_broker_accept_total";
pub(crate) const MISMATCH: &str = "waybill_broker_dedupe_fingerprint_mismatch_total";
pub(crate) const CONSUMED_THEN_REJECTED: &str = "waybill_broker_rate_limit_consumed_then_b2_rejected_total";
pub(crate) const ORPHAN_CHECK: &str = "waybill_broker_dedupe_orphan_check_total";
pub(crate) const VIOLATION: &str = "waybill_broker_atomicity_violation_found";
pub(crate) const DELIVERIES: &str = "waybill_broker_deliveries_total";
pub(crate) const ACKNOWLEDGED: &str = "waybill_broker_acknowledged_total";
pub(crate) const CAPPED: &str = "waybill_broker_cap_refused_total";
pub(crate) const PRUNED: &str = "waybill_broker_pruned_total";

pub(crate) fn describe() {
    describe_counter!(ACCEPT, "Messages that were offered to the broker, by the phase that decided and by its result");
    describe_counter!(MISMATCH, "Ids of messages that were used again for something else");
    describe_counter!(CONSUMED_THEN_REJECTED, "Messages that were refused after they had used their window's budget");
    describe_counter!(ORPHAN_CHECK, "Rows that the check of what belongs together has looked at");
    describe_counter!(VIOLATION, "Rows of messages that lack what was to be committed with them, by kind");
    describe_counter!(DELIVERIES, "Deliveries that messages have led to");
    describe_counter!(ACKNOWLEDGED, "Deliveries that were acknowledged");
    describe_counter!(
        CAPPED,
        "Meshes, members, topics, invites and files that were refused because there are too many"
    );
    describe_counter!(PRUNED, "Rows that were removed because their time was over, by kind");
}

#[derive(Clone, Copy)]
pub(crate) enum Phase {
    B0,
    B1,
    B2,
    B3,
}

pub(crate) fn accepted(phase: Phase, result: &'static str) {
    let phase = match phase {
        Phase::B0 => "b0",
        Phase::B1 => "b1",
        Phase::B2 => "b2",
        Phase::B3 => "b3",
    };
    counter!(ACCEPT, "phase" => phase, "result" => result).increment(1);
}

/// By what there is too much of.
pub(crate) fn capped(what: &'static str) {
    counter!(CAPPED, "what" => what).increment(1);
}
