//! The state of recurring and failed work, for those who look at a database from outside. One text for both engines.

use waybill_kernel::Time;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepState {
    pub name: String,
    pub interval_us: i64,
    /// When it is due.
    pub next_at: Time,
    /// Why the latest run failed; None after one that did not.
    pub last_error: Option<String>,
}

impl SweepState {
    pub(crate) const SELECT: &str = "SELECT name, interval_us, next_at, last_error FROM sweeps ORDER BY name";
}

/// Jobs of one kind that have failed for the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadJobs {
    pub kind: String,
    pub count: i64,
}

impl DeadJobs {
    pub(crate) const SELECT: &str = "SELECT kind, count(*) FROM jobs WHERE state = 'dead' GROUP BY kind ORDER BY kind";
}
