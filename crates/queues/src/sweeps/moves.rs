//! Moves dead letters for the tasks that were started, out of queues that are in home alone (`moving.rs`); those of several
//! stores are moved by `shards/moves.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use waybill_kernel::{Result, Tenant};
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Row, Topic, Tx, Value};

use crate::Settings;
use crate::move_tasks::{self, MoveTaskId, Pace};
use crate::moving::{BATCH, Mover, Outcome};

/// Between two batches while there is something to move.
const PACE: Duration = Duration::from_secs(1);
/// Tasks that one batch looks at.
const TASKS_MAX: i64 = 20;

#[derive(Debug)]
pub struct Moves {
    /// Between two looks while there is no task, for one whose word was lost.
    idle: Duration,
    is_busy: AtomicBool,
}

impl Moves {
    pub fn new(settings: &Settings) -> Self {
        Self { idle: Duration::from_secs(settings.sweep_interval_s.max(1)), is_busy: AtomicBool::new(false) }
    }
}

/// Held until the transaction ends: who cancels a task waits for the batch that is under way.
const TASKS: &str = "SELECT t.tenant, t.task, t.source, t.destination, t.per_second, t.paced_to FROM move_tasks t \
                     WHERE t.active = 1 AND NOT EXISTS (SELECT 1 FROM queues q WHERE q.tenant = t.tenant \
                     AND q.name = t.source AND q.here IS NOT NULL) ORDER BY t.paced_to LIMIT $1 FOR UPDATE SKIP LOCKED";

impl Sweep for Moves {
    const NAME: &'static str = "queues.moves";

    fn plan(&self) -> Plan {
        let interval = if self.is_busy.load(Ordering::Relaxed) { PACE } else { self.idle };
        Plan { batch: BATCH, ..Plan::every(interval) }
    }

    fn topic(&self) -> Option<Topic> {
        Some(move_tasks::started())
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        let mut left = limit;
        let tasks = tx.query(TASKS, &[TASKS_MAX.into()]).await?;
        self.is_busy.store(!tasks.is_empty(), Ordering::Relaxed);
        for row in &tasks {
            let task = Task::read(ctx, row)?;
            let allowed = task.pace.allowed(left);
            if allowed > 0 {
                left -= task.run(ctx, &mut tx.as_tenant(task.tenant), allowed, left).await?;
            }
            if left <= 0 {
                break;
            }
        }
        Ok((limit - left).unsigned_abs())
    }
}

struct Task {
    tenant: Tenant,
    task: MoveTaskId,
    source: String,
    destination: Option<String>,
    pace: Pace,
}

impl Task {
    fn read(ctx: &Ctx<'_>, row: &Row) -> Result<Self> {
        Ok(Self {
            tenant: Tenant(row.int(0)?),
            task: MoveTaskId::from_slice(row.bytes(1)?)?,
            source: row.text(2)?.to_owned(),
            destination: row.text_opt(3)?.map(str::to_owned),
            pace: Pace::new(ctx.now, row.time(5)?, row.int_opt(4)?),
        })
    }

    /// Moves up to `allowed` messages, and takes up to `most`. Answers with how many were taken.
    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, allowed: i64, most: i64) -> Result<i64> {
        let destination = self.destination.as_deref();
        let mover = Mover { tenant: self.tenant, source: &self.source, destination, expected: None, told: None };
        let done = mover.run(ctx, tx, allowed, most).await?;
        self.note(tx, done.moved, &done.outcome).await?;
        Ok(done.taken)
    }

    async fn note(&self, tx: &mut Tx<'_>, moved: i64, outcome: &Outcome) -> Result<()> {
        const NOTE: &str = "UPDATE move_tasks SET moved = moved + $3, paced_to = $4 WHERE tenant = $1 AND task = $2";
        const END: &str = "UPDATE move_tasks SET moved = moved + $3, paced_to = $4, active = 0, status = $5, reason = $6 \
                           WHERE tenant = $1 AND task = $2";
        let mut params = vec![self.task.as_bytes().into(), moved.into(), self.pace.after(moved).into()];
        let end = outcome.end();
        let sql = if end.is_some() { END } else { NOTE };
        params.extend(end.into_iter().flat_map(|(status, reason)| [Value::from(status), Value::from(reason)]));
        tx.execute(sql, &params).await.map(drop)
    }
}
