//! The transactions of a sweep's run: a batch under the claim of the sweep's row, and what is noted when a run is given back
//! or fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_kernel::{Code, Error, Mode, Result, Tenant, Time};

use super::sweep::{Holder, Plan, Progress, QUIET_ROW, Sweep};
use crate::{Ctx, Row, Topic, Tx, Value, Work};

/// The transaction of one batch.
pub(super) struct Batch<S> {
    pub(super) row: String,
    pub(super) sweep: Arc<S>,
    pub(super) plan: Plan,
    pub(super) holder: Holder,
    pub(super) only_when_due: bool,
    pub(super) fence: Option<i64>,
    pub(super) limit: i64,
    /// The run's time is up: whatever is left, it ends with this batch.
    pub(super) is_last: bool,
    pub(super) chance: u32,
}

pub(super) enum Outcome {
    Done(Done),
    NotNow { until: Time },
    Superseded,
}

pub(super) struct Done {
    pub(super) progress: Progress,
    /// None when nothing was written, and so nothing was claimed.
    pub(super) fence: Option<i64>,
    pub(super) lag: Duration,
    pub(super) rows: u64,
    pub(super) next: Time,
    /// Of a run that has ended: for how long none has come to the end of its work.
    pub(super) behind: Option<Duration>,
    /// Without the commit, which a batch shares with its neighbours.
    pub(super) took: Duration,
}

/// What fails a batch that has found something while another node claimed the row: nothing of it is kept.
pub(super) const SUPERSEDED: Code = Code::LeaseInvalidOrExpired;

/// What the row says before a run.
enum Look {
    NotNow {
        until: Time,
    },
    Due,
    /// Nothing was found the last time, under this number.
    Quiet {
        fence: i64,
    },
}

/// The run holds the sweep's row.
struct Held {
    fence: i64,
    lag: Duration,
    behind_since: Option<Time>,
}

impl<S: Sweep> Work for Batch<S> {
    type Output = Outcome;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Outcome> {
        let began = Instant::now();
        if self.fence.is_none() && self.only_when_due {
            match self.look(ctx, tx).await? {
                Look::NotNow { until } => return Ok(Outcome::NotNow { until }),
                Look::Quiet { fence } => return self.run_quietly(ctx, tx, fence, began).await,
                Look::Due => {}
            }
        }
        let held = match self.fence {
            None => self.claim(ctx, tx, None).await?,
            Some(fence) => self.renew(ctx, tx, fence).await?,
        };
        let Some(held) = held else {
            return if self.fence.is_some() { Ok(Outcome::Superseded) } else { self.explain(ctx, tx).await };
        };
        let rows = self.sweep.run_batch(ctx, tx, self.limit).await?;
        self.conclude(ctx, tx, &held, rows, began).await
    }
}

impl<S: Sweep> Batch<S> {
    /// The batch comes before the claim, which is left out when the batch has written nothing. Two nodes do not do this at
    /// once, and one that was overtaken by a claim of another node fails with all it wrote.
    async fn run_quietly(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, fence: i64, began: Instant) -> Result<Outcome> {
        if !tx.alone(Topic::new("sweep", Tenant(0), self.row.as_bytes())).await? {
            return Ok(Outcome::NotNow { until: ctx.now.after(self.plan.interval) });
        }
        let rows = self.sweep.run_batch(ctx, tx, self.limit).await?;
        if rows == 0 && !tx.has_written().await? {
            let (progress, next) =
                (Progress::Ended { more: false }, ctx.now.after(self.plan.pause(false, self.chance)));
            let (lag, behind, took) = (Duration::ZERO, Some(Duration::ZERO), began.elapsed());
            return Ok(Outcome::Done(Done { progress, fence: None, lag, rows, next, behind, took }));
        }
        let held = self.claim(ctx, tx, Some(fence)).await?;
        let held = held.ok_or_else(|| Error::new(SUPERSEDED, "Another node has claimed this sweep."))?;
        self.conclude(ctx, tx, &held, rows, began).await
    }

    /// Writes down what the batch came to.
    async fn conclude(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        held: &Held,
        rows: u64,
        began: Instant,
    ) -> Result<Outcome> {
        let done = i64::try_from(rows).unwrap_or(i64::MAX);
        let full = done >= self.limit;
        let next = ctx.now.after(self.plan.pause(full, self.chance));
        let progress = if full && !self.is_last { Progress::Going } else { Progress::Ended { more: full } };
        let behind_since = full.then(|| held.behind_since.unwrap_or(ctx.now));
        let has_ended = progress != Progress::Going;
        if has_ended {
            let is_quiet = self.fence.is_none() && rows == 0;
            let row_next = if is_quiet { next.max(ctx.now.after(QUIET_ROW)) } else { next };
            self.end(ctx, tx, done, row_next, behind_since).await?;
        } else {
            self.count(tx, done).await?;
        }
        let behind = has_ended.then(|| behind_since.map_or(Duration::ZERO, |since| ctx.now.since(since)));
        let took = began.elapsed();
        Ok(Outcome::Done(Done { progress, fence: Some(held.fence), lag: held.lag, rows, next, behind, took }))
    }

    async fn look(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Look> {
        const LOOK: &str =
            "SELECT holder, lease_until, next_at, last_finished, last_error, fence FROM sweeps WHERE name = $1";
        let Some(row) = tx.query_opt(LOOK, &[Value::from(&self.row)]).await? else { return Ok(Look::Due) };
        let is_ours = row.bytes(0)? == self.holder.id.as_bytes();
        let (next_at, last_finished, fence) = (row.time(2)?, row.time_opt(3)?, row.int(5)?);
        if next_at <= ctx.now {
            return Ok(Look::Due);
        }
        // A quiet one is due in its interval all the same; one that has failed is not.
        let is_well = row.text_opt(4)?.is_none() && (is_ours || row.time(1)? <= ctx.now);
        let look_at = last_finished.filter(|_| is_well).map(|finished| finished.after(self.plan.interval));
        match look_at.filter(|look_at| *look_at < next_at) {
            Some(look_at) if look_at <= ctx.now => Ok(Look::Quiet { fence }),
            Some(look_at) => Ok(Look::NotNow { until: look_at }),
            None => Ok(Look::NotNow { until: next_at }),
        }
    }

    /// The claim leaves `next_at` alone, which tells how late it is. With `after`, nobody may have claimed it since that number.
    async fn claim(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, after: Option<i64>) -> Result<Option<Held>> {
        const CLAIM: &str = "INSERT INTO sweeps \
            (name, interval_us, holder, fence, lease_until, next_at, last_started, last_rows, total_rows, failures) \
            VALUES ($1, $2, $3, 1, $4, $5, $5, 0, 0, 0) ON CONFLICT (name) DO UPDATE SET \
            interval_us = excluded.interval_us, holder = excluded.holder, fence = sweeps.fence + 1, \
            lease_until = excluded.lease_until, last_started = excluded.last_started, last_rows = 0 \
            WHERE (sweeps.lease_until <= $5 OR sweeps.holder = $3) AND sweeps.next_at <= $6 \
            AND coalesce($7, sweeps.fence) = sweeps.fence RETURNING fence, next_at, behind_since";
        let due_by = if self.only_when_due && after.is_none() { ctx.now.micros() } else { i64::MAX };
        let params = [
            Value::from(&self.row),
            Value::from(micros(self.plan.interval)),
            Value::from(&self.holder.id.as_bytes()[..]),
            Value::from(ctx.now.after(self.holder.lease)),
            Value::from(ctx.now),
            Value::from(due_by),
            Value::from(after),
        ];
        let row = tx.query_opt(CLAIM, &params).await?;
        let held = |row: Row| {
            Ok(Held { fence: row.int(0)?, lag: ctx.now.since(row.time(1)?), behind_since: row.time_opt(2)? })
        };
        row.map(held).transpose()
    }

    async fn renew(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, fence: i64) -> Result<Option<Held>> {
        const RENEW: &str = "UPDATE sweeps SET lease_until = $4 WHERE name = $1 AND holder = $2 AND fence = $3 \
                             RETURNING behind_since";
        let params = [
            Value::from(&self.row),
            Value::from(&self.holder.id.as_bytes()[..]),
            Value::from(fence),
            Value::from(ctx.now.after(self.holder.lease)),
        ];
        let row = tx.query_opt(RENEW, &params).await?;
        row.map(|row| Ok(Held { fence, lag: Duration::ZERO, behind_since: row.time_opt(0)? })).transpose()
    }

    /// Why the claim was not given.
    async fn explain(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Outcome> {
        const SELECT: &str = "SELECT holder, lease_until, next_at FROM sweeps WHERE name = $1";
        let row = tx.query_opt(SELECT, &[Value::from(&self.row)]).await?;
        let row = row.ok_or_else(|| Error::internal(format!("the sweep {} has no row", self.row)))?;
        let is_ours = row.bytes(0)? == self.holder.id.as_bytes();
        let free = if is_ours { ctx.now } else { row.time(1)? };
        let due = if self.only_when_due { row.time(2)? } else { ctx.now };
        Ok(Outcome::NotNow { until: free.max(due) })
    }

    async fn count(&self, tx: &mut Tx<'_>, rows: i64) -> Result<()> {
        const COUNT: &str =
            "UPDATE sweeps SET last_rows = last_rows + $2, total_rows = total_rows + $2 WHERE name = $1";
        tx.execute(COUNT, &[Value::from(&self.row), Value::from(rows)]).await.map(drop)
    }

    /// The run ends with this batch, and the row is free.
    async fn end(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        rows: i64,
        next: Time,
        behind_since: Option<Time>,
    ) -> Result<()> {
        const END: &str = "UPDATE sweeps SET last_rows = last_rows + $2, total_rows = total_rows + $2, \
            lease_until = 0, next_at = $3, last_finished = $4, behind_since = $5, last_error = NULL WHERE name = $1";
        let params = [
            Value::from(&self.row),
            Value::from(rows),
            Value::from(next),
            Value::from(ctx.now),
            Value::from(behind_since.map(Time::micros)),
        ];
        tx.execute(END, &params).await.map(drop)
    }
}

pub(super) struct GiveBack {
    pub(super) row: String,
    pub(super) holder: Holder,
    pub(super) fence: i64,
}

impl Work for GiveBack {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const GIVE_BACK: &str = "UPDATE sweeps SET lease_until = 0 WHERE name = $1 AND holder = $2 AND fence = $3";
        let params = [Value::from(&self.row), Value::from(&self.holder.id.as_bytes()[..]), Value::from(self.fence)];
        tx.execute(GIVE_BACK, &params).await.map(drop)
    }
}

pub(super) struct Failed {
    pub(super) row: String,
    pub(super) plan: Plan,
    pub(super) holder: Holder,
    pub(super) error: String,
}

impl Work for Failed {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    /// The claim itself may have been undone with the failed batch, so there may be no row yet, or not our number in it.
    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const NOTE: &str = "INSERT INTO sweeps (name, interval_us, holder, fence, lease_until, next_at, last_started, \
            last_rows, total_rows, failures, last_error) VALUES ($1, $2, $3, 1, 0, $4, $5, 0, 0, 1, $6) \
            ON CONFLICT (name) DO UPDATE SET lease_until = 0, next_at = excluded.next_at, \
            failures = sweeps.failures + 1, last_error = excluded.last_error \
            WHERE sweeps.lease_until <= $5 OR sweeps.holder = $3";
        let params = [
            Value::from(&self.row),
            Value::from(micros(self.plan.interval)),
            Value::from(&self.holder.id.as_bytes()[..]),
            Value::from(ctx.now.after(self.plan.interval)),
            Value::from(ctx.now),
            Value::from(&self.error),
        ];
        tx.execute(NOTE, &params).await.map(drop)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
