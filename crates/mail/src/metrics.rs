//! The metrics of mail's own sweeps, each with its meaning. Those of the archive are the archivist's.

use metrics::describe_counter;

pub(crate) const ACKS_OVERDUE: &str = "waybill_mail_acks_overdue_total";
pub(crate) const AGENTS_RETIRED: &str = "waybill_mail_agents_retired_total";

pub(crate) fn describe() {
    describe_counter!(ACKS_OVERDUE, "Deliveries whose acknowledgement was found to be overdue, each once");
    describe_counter!(AGENTS_RETIRED, "Agents that were retired because they did nothing for long");
}
