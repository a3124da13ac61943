//! Sweeps: named work that recurs, done in batches.
//!
//! A run claims the sweep's row, works through batches of one transaction each, and gives the row back. The claim, the
//! first batch and the end are the same transaction when there is little to do.
//!
//! A sweep whose run found nothing is *quiet*: its row says that it is due only in [`QUIET_ROW`]. Until then the nodes go on
//! looking once per interval, and a look that finds nothing writes nothing, not even the row: an idle server does not
//! commit. One that finds something claims the row before it commits.
//!
//! # Contract
//! Every claim raises the row's fencing number, and every batch begins by writing to the row under that number. On
//! PostgreSQL this locks the row: a node that takes over waits for a batch under way, and a batch that comes after the
//! take-over finds another number and changes nothing. On SQLite one node always wins.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Entropy, Error, IdSource, Result, Time};

use super::batch::{Batch, Done, Failed, GiveBack, Outcome, SUPERSEDED};
use crate::{Ctx, Store, Topic, Tx, Value, metrics};

/// A quiet sweep writes its row this often, so that others see that somebody looks.
pub const QUIET_ROW: Duration = Duration::from_secs(300);

/// Between two batches of a run: those whose writes have come meanwhile go first, however much there is to sweep.
pub const BATCH_PAUSE: Duration = Duration::from_millis(5);

/// Work that recurs. Its statements name tenants themselves: a sweep reaches across all of them.
pub trait Sweep: Send + Sync + 'static {
    /// Its row's key and its label in metrics: unique in the program, and kept for ever.
    const NAME: &'static str;

    fn plan(&self) -> Plan;

    /// The key of its row. A sweep that every node runs over rows of its own has a row for each and adds the node's name.
    fn row(&self) -> String {
        Self::NAME.to_owned()
    }

    /// Does at most `limit` rows and says how many; fewer means that there are no more. The contract of
    /// [`crate::Operation`] holds: no effect but through `tx`, and it may be run again.
    fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> impl Future<Output = Result<u64>> + Send;

    /// After the commit of a batch: for metrics of the sweep's own, which must not count what was rolled back.
    fn committed(&self) {}

    /// Woken by this, it runs sooner than it is due. Asked for anew before every run.
    fn topic(&self) -> Option<Topic> {
        None
    }
}

/// How often and how much.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// From the end of a run to the next, less up to a fifth by chance, so that nodes and sweeps do not march in step.
    pub interval: Duration,
    /// Rows in one transaction at most.
    pub batch: i64,
    /// The writer's time one batch should take: after a longer one the run's batches are half as large.
    pub batch_time: Duration,
    /// A run that has taken this long ends although there is more; the rest is soon due.
    pub run_time: Duration,
}

impl Plan {
    pub const fn every(interval: Duration) -> Self {
        Self { interval, batch: 500, batch_time: Duration::from_millis(20), run_time: Duration::from_secs(1) }
    }

    /// Until the next run. `chance` is any number.
    pub(super) fn pause(&self, more: bool, chance: u32) -> Duration {
        if more {
            return self.interval / 10;
        }
        self.interval - self.interval.mul_f64(0.2 * f64::from(chance) / f64::from(u32::MAX))
    }
}

/// Who runs sweeps: one node, for as long as it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub id: Uuid,
    /// Without a batch for this long, another node takes over.
    pub lease: Duration,
}

impl Holder {
    pub const LEASE: Duration = Duration::from_secs(10);

    pub fn new(store: &Store) -> Self {
        Self { id: IdSource::new(store.entropy().as_ref(), store.now()).next(), lease: Self::LEASE }
    }

    /// Whoever has the file open has it alone, so it goes on at once where the process before it was killed.
    pub fn alone() -> Self {
        Self { id: Uuid::nil(), lease: Self::LEASE }
    }

    #[must_use]
    pub fn for_at_least(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }
}

/// What one batch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The batch was full and there is time: the next one follows.
    Going,
    /// The run has ended; `more` when its time was up before its work.
    Ended { more: bool },
    /// Not due yet, or another node has it, until then.
    NotNow { until: Time },
    /// Another node has taken over since the batch before. Nothing was changed.
    Superseded,
}

/// What a whole run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub progress: Progress,
    pub rows: u64,
    pub batches: u32,
    /// When to look again.
    pub next: Time,
}

/// Runs a sweep to its end, due or not, unless another node is at it.
pub async fn sweep_once<S: Sweep>(store: &Store, sweep: &Arc<S>, holder: Holder) -> Result<Report> {
    Run::new(store, sweep, holder).at_any_time().to_end(&CancellationToken::new()).await
}

/// Removes the row of a sweep that will not run again: that of a node that is gone.
pub async fn forget(tx: &mut Tx<'_>, row: &str, now: Time) -> Result<()> {
    const FORGET: &str = "DELETE FROM sweeps WHERE name = $1 AND lease_until <= $2";
    tx.execute(FORGET, &[Value::from(row), Value::from(now)]).await.map(drop)
}

/// One run of a sweep, batch by batch.
pub struct Run<'a, S> {
    store: &'a Store,
    sweep: Arc<S>,
    plan: Plan,
    holder: Holder,
    only_when_due: bool,
    /// The number of our claim, once we have one.
    fence: Option<i64>,
    limit: i64,
    began: Instant,
    rows: u64,
    batches: u32,
    next: Time,
}

impl<'a, S: Sweep> Run<'a, S> {
    pub fn new(store: &'a Store, sweep: &Arc<S>, holder: Holder) -> Self {
        let plan = sweep.plan();
        Self {
            store,
            sweep: Arc::clone(sweep),
            plan,
            holder,
            only_when_due: true,
            fence: None,
            limit: plan.batch.max(1),
            began: Instant::now(),
            rows: 0,
            batches: 0,
            next: store.now().after(plan.interval),
        }
    }

    #[must_use]
    pub fn at_any_time(mut self) -> Self {
        self.only_when_due = false;
        self
    }

    /// Batch after batch; `stopping` ends the run between two of them. A failure is noted in the sweep's row.
    pub async fn to_end(mut self, stopping: &CancellationToken) -> Result<Report> {
        loop {
            match self.step().await {
                Ok(Progress::Going) => tokio::time::sleep(BATCH_PAUSE).await,
                Ok(progress) => return Ok(self.report(progress)),
                Err(error) => {
                    self.note_failure(&error).await;
                    return Err(error);
                }
            }
            if stopping.is_cancelled() {
                self.give_back().await?;
                return Ok(self.report(Progress::Ended { more: true }));
            }
        }
    }

    /// One batch in one transaction.
    pub async fn step(&mut self) -> Result<Progress> {
        let batch = Batch {
            row: self.sweep.row(),
            sweep: Arc::clone(&self.sweep),
            plan: self.plan,
            holder: self.holder,
            only_when_due: self.only_when_due,
            fence: self.fence,
            limit: self.limit,
            is_last: self.began.elapsed() >= self.plan.run_time,
            chance: chance(self.store.entropy().as_ref()),
        };
        let done = match self.store.system().run(batch).await {
            Err(error) if error.code() == SUPERSEDED => return Ok(Progress::Superseded),
            Err(error) => return Err(error),
            Ok(outcome) => outcome,
        };
        let done = match done {
            Outcome::Done(done) => done,
            Outcome::NotNow { until } => {
                self.next = until;
                return Ok(Progress::NotNow { until });
            }
            Outcome::Superseded => return Ok(Progress::Superseded),
        };
        self.count(&done);
        Ok(done.progress)
    }

    fn count(&mut self, done: &Done) {
        let store = self.store.name().to_owned();
        if self.fence.is_none() {
            ::metrics::counter!(metrics::SWEEP_RUNS, "sweep" => S::NAME, "store" => store.clone()).increment(1);
            ::metrics::gauge!(metrics::SWEEP_LAG, "sweep" => S::NAME, "store" => store.clone())
                .set(done.lag.as_secs_f64());
        }
        if done.rows > 0 {
            ::metrics::counter!(metrics::SWEEP_ROWS, "sweep" => S::NAME, "store" => store.clone()).increment(done.rows);
        }
        ::metrics::histogram!(metrics::SWEEP_BATCH, "sweep" => S::NAME, "store" => store.clone())
            .record(done.took.as_secs_f64());
        if done.took > self.plan.batch_time {
            ::metrics::counter!(metrics::SWEEP_LONG_BATCHES, "sweep" => S::NAME, "store" => store.clone()).increment(1);
            self.limit = (self.limit / 2).max(1);
        }
        if let Some(behind) = done.behind {
            ::metrics::gauge!(metrics::SWEEP_BEHIND, "sweep" => S::NAME, "store" => store.clone())
                .set(behind.as_secs_f64());
        }
        self.sweep.committed();
        self.fence = done.fence;
        self.rows += done.rows;
        self.batches += 1;
        self.next = done.next;
    }

    fn report(&self, progress: Progress) -> Report {
        Report { progress, rows: self.rows, batches: self.batches, next: self.next }
    }

    /// Another node need not wait for the lease to end.
    async fn give_back(&self) -> Result<()> {
        let Some(fence) = self.fence else { return Ok(()) };
        self.store.system().run(GiveBack { row: self.sweep.row(), holder: self.holder, fence }).await
    }

    async fn note_failure(&self, error: &Error) {
        let store = self.store.name().to_owned();
        ::metrics::counter!(metrics::SWEEP_FAILURES, "sweep" => S::NAME, "store" => store.clone()).increment(1);
        // The cause is for the log alone: the row is shown through the API.
        let failed = Failed { row: self.sweep.row(), plan: self.plan, holder: self.holder, error: error.to_string() };
        if let Err(error) = self.store.system().run(failed).await {
            tracing::debug!(sweep.name = S::NAME, %error, "a sweep's failure could not be noted either");
        }
    }
}

fn chance(entropy: &dyn Entropy) -> u32 {
    let mut bytes = [0; 4];
    entropy.fill(&mut bytes);
    u32::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_the_interval_less_up_to_a_fifth_and_short_when_there_is_more() {
        let plan = Plan::every(Duration::from_secs(100));
        for (chance, seconds) in [(0, 100), (u32::MAX / 2, 90), (u32::MAX, 80)] {
            assert_eq!(plan.pause(false, chance).as_secs_f64().round() as u64, seconds);
            assert_eq!(plan.pause(true, chance).as_secs(), 10);
        }
    }
}
