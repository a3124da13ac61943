//! What happens after the commit, in four shapes: a feed gives committed rows out in order, a sweep is work that recurs, an
//! [`Outward`] does outside of transactions what it has claimed, and a job is the plainest thing to claim. All of them act on
//! committed rows, so they may lag and never lead.

mod batch;
mod feed;
pub mod job;
mod list_sweeps;
mod outward;
mod runner;
mod state;
mod sweep;
mod worker;

pub(crate) use feed::settle;
pub use feed::{Cursor, Effect, Feed, Follow, PAGES, Page, SETTLE_MAX, advance, position};
pub use list_sweeps::{ListSweeps, SweepView, Sweeps};
pub use outward::{Bounds, Ended, GivenUp, Outward, Round, Taken, reach_once};
pub use runner::Runner;
pub use state::{DeadJobs, SweepState};
pub use sweep::{BATCH_PAUSE, Holder, Plan, Progress, QUIET_ROW, Report, Run, Sweep, forget, sweep_once};
pub use worker::{Attempt, Jobs, Worker};

use crate::Registry;

/// Adds the store's own operations.
#[must_use]
pub fn register(registry: Registry) -> Registry {
    registry.with::<ListSweeps>()
}
