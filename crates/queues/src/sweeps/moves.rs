//! Moves dead letters for the tasks that were started. Each batch takes messages as a receive does, so that those who
//! receive from the queue at the same time neither wait nor get them twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Row, Topic, Tx, Value};

use crate::Settings;
use crate::dead_letters::{Fate, transfer};
use crate::ends::end_all;
use crate::fifo::{self, Held, Want};
use crate::flights::{self, Stored, Taken, Takes};
use crate::move_tasks::{self, COMPLETED, FAILED, MoveTaskId, Pace};
use crate::queue::{Part, Queue, topic};
use crate::rules::handle::Token;
use crate::shards::depart;

/// Between two batches while there is something to move.
const PACE: Duration = Duration::from_secs(1);
/// Messages that one transaction takes, whatever becomes of them. Each may wake its own queue, and a transaction wakes 128
/// at most.
const BATCH: i64 = 50;
/// Tasks that one batch looks at.
const TASKS_MAX: i64 = 20;
/// How long messages would be invisible if they were not moved in the same transaction.
const HELD: Duration = Duration::from_secs(30);

/// Nobody knows where the message came from: it was sent to the queue itself.
const NO_SOURCE: &str = "CouldNotDetermineMessageSource";
const NO_QUEUE: &str = "AWS.SimpleQueueService.NonExistentQueue";

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
const TASKS: &str = "SELECT tenant, task, source, destination, per_second, paced_to FROM move_tasks WHERE active = 1 \
                     ORDER BY paced_to LIMIT $1 FOR UPDATE SKIP LOCKED";

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

/// Messages by the name of the queue they go to.
type Targets = BTreeMap<Option<String>, Vec<i64>>;

/// Up to ten messages.
struct Step {
    taken: i64,
    moved: i64,
    outcome: Outcome,
}

/// How a batch of a task has ended.
enum Outcome {
    Going,
    Completed,
    Failed(&'static str),
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

    /// Moves up to `allowed` messages, and takes up to `most`: those that are older than they are kept are taken and not moved.
    /// Answers with how many were taken.
    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, allowed: i64, most: i64) -> Result<i64> {
        let (mut taken, mut moved) = (0, 0);
        let outcome = loop {
            let wanted = (allowed - moved).min(most - taken).min(flights::MESSAGES_MAX as i64);
            if wanted <= 0 {
                break Outcome::Going;
            }
            let step = self.step(ctx, tx, usize::try_from(wanted).unwrap_or(0)).await?;
            taken += step.taken;
            moved += step.moved;
            if !matches!(step.outcome, Outcome::Going) {
                break step.outcome;
            }
        };
        self.note(tx, moved, &outcome).await?;
        Ok(taken)
    }

    /// Up to ten messages, of the first partition that has any.
    async fn step(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, wanted: usize) -> Result<Step> {
        let over = |outcome| Step { taken: 0, moved: 0, outcome };
        let Some(queue) = Queue::find(tx, &self.source).await? else { return Ok(over(Outcome::Failed(NO_QUEUE))) };
        for part in queue.parts() {
            if let Some(step) = self.step_in(ctx, tx, (&queue, part), wanted).await? {
                return Ok(step);
            }
        }
        Ok(over(Outcome::Completed))
    }

    /// None when there is nothing to take.
    async fn step_in(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        (queue, part): (&Queue, &Part),
        wanted: usize,
    ) -> Result<Option<Step>> {
        let token: Token = ctx.ids.next().into_bytes();
        let mut takes = Takes::new(*part, ctx.now, token, ctx.now.after(HELD));
        let (taken, members): (Vec<Taken>, _) = match queue.is_fifo() {
            true => {
                let times = (ctx.now, &token, ctx.now.after(HELD));
                let want = Want { messages: wanted, held: Held::WaitFor, looks: 0, but: &[] };
                let picked = fifo::take(tx, part, times, want).await?;
                let members: Vec<(String, i64)> =
                    picked.iter().map(|(group, taken)| (group.clone(), taken.mid)).collect();
                (picked.into_iter().map(|(_, taken)| taken).collect(), members)
            }
            false => (takes.take(tx, wanted).await?, Vec::new()),
        };
        if taken.is_empty() {
            return Ok(None);
        }
        let rows = takes.fetch(tx, &taken).await?;
        let (mut moved, mut given_back, mut outcome) = (0, 0, Outcome::Going);
        let (targets, expired) = self.targets(&rows, queue.kept_since(ctx.now))?;
        if queue.is_fifo() {
            let over: Vec<_> = members.iter().filter(|(_, mid)| expired.contains(mid)).cloned().collect();
            fifo::end(tx, part, &over).await?;
        } else if !expired.is_empty() {
            end_all(tx, part, &expired).await?;
        }
        for (name, mids) in targets {
            let target = match &name {
                Some(name) => Queue::find_for_messages(tx, name).await?.ok_or(NO_QUEUE),
                None => Err(NO_SOURCE),
            };
            match target {
                Ok(target) => {
                    let is_near = |mid: &i64| {
                        !target.is_spread() || members.iter().any(|(group, of)| of == mid && target.has_here(group))
                    };
                    let (near, far): (Vec<i64>, Vec<i64>) = mids.iter().partition(|mid| is_near(mid));
                    if !near.is_empty() {
                        transfer(ctx, tx, self.tenant, (part, &near), &target, Fate::Alive).await?;
                    }
                    let kept = match far.is_empty() {
                        true => far,
                        false => depart(ctx, tx, part, &far, &target.name, Fate::Alive).await?,
                    };
                    if !kept.is_empty() {
                        takes.give_back(tx, &kept).await?;
                        given_back += kept.len();
                    }
                    moved += (mids.len() - kept.len()) as i64;
                }
                Err(reason) => {
                    takes.give_back(tx, &mids).await?;
                    given_back += mids.len();
                    outcome = Outcome::Failed(reason);
                }
            }
        }
        let ready = match queue.is_fifo() {
            true => fifo::settle(tx, part, &members, ctx.now).await?,
            false => takes.tidy(tx).await.map(|()| u32::try_from(given_back).unwrap_or(u32::MAX))?,
        };
        if ready > 0 {
            // Whoever has looked meanwhile has not seen them.
            tx.wake(topic(self.tenant, &queue.name), ready);
        }
        Ok(Some(Step { taken: taken.len() as i64, moved, outcome }))
    }

    /// Which messages go where, None for those of which nobody knows, and which are older than they are kept.
    fn targets(&self, rows: &[Stored], kept_since: Time) -> Result<(Targets, Vec<i64>)> {
        let (mut targets, mut expired) = (Targets::new(), Vec::new());
        for row in rows {
            let mid = row.mid()?;
            let name = match &self.destination {
                Some(name) => Some(name.clone()),
                None => row.source()?.map(str::to_owned),
            };
            match row.sent_at()? > kept_since {
                true => targets.entry(name).or_default().push(mid),
                false => expired.push(mid),
            }
        }
        Ok((targets, expired))
    }

    async fn note(&self, tx: &mut Tx<'_>, moved: i64, outcome: &Outcome) -> Result<()> {
        const NOTE: &str = "UPDATE move_tasks SET moved = moved + $3, paced_to = $4 WHERE tenant = $1 AND task = $2";
        const END: &str = "UPDATE move_tasks SET moved = moved + $3, paced_to = $4, active = 0, status = $5, reason = $6 \
                           WHERE tenant = $1 AND task = $2";
        let mut params = vec![self.task.as_bytes().into(), moved.into(), self.pace.after(moved).into()];
        let end = match outcome {
            Outcome::Going => None,
            Outcome::Completed => Some((COMPLETED, None)),
            Outcome::Failed(reason) => Some((FAILED, Some(*reason))),
        };
        let sql = if end.is_some() { END } else { NOTE };
        params.extend(end.into_iter().flat_map(|(status, reason)| [Value::from(status), Value::from(reason)]));
        tx.execute(sql, &params).await.map(drop)
    }
}
