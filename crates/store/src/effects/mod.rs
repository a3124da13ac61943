//! What happens after the commit, in three shapes: a feed gives committed rows out in order, a job is work with a claim,
//! a sweep is work that recurs. All of them act on committed rows, so they may lag and never lead.

mod feed;
pub mod job;
mod list_sweeps;
mod runner;
mod state;
mod sweep;
mod worker;

pub(crate) use feed::settle;
pub use feed::{Cursor, Effect, Feed, Follow, Page, SETTLE_MAX, advance, place};
pub use list_sweeps::{ListSweeps, SweepView, Sweeps};
pub use runner::Runner;
pub use state::{DeadJobs, SweepState};
pub use sweep::{BATCH_PAUSE, Holder, Plan, Progress, Report, Run, Sweep, forget, sweep_once};
pub use worker::{Round, Worker, work_once};

use crate::Registry;

/// Adds the store's own operations.
#[must_use]
pub fn register(registry: Registry) -> Registry {
    registry.with::<ListSweeps>()
}
