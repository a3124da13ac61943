//! Tasks that move dead letters out of a queue whose partitions are in several stores.
//!
//! The task is a row in home, as any task is. A round takes from it what its rate allows, then moves so many messages, store by
//! store, each time by one transaction there: what goes to a queue of the same store is moved by it, and all else departs as
//! dead letters do (`transfers.rs`). Then it notes in home how many there were. Every server does this; what one has taken, no
//! other finds. If the program ends before the note, the figure is too low by one round, and no message is lost or there twice.
//!
//! A message on its way holds its group, so that the group keeps its order; the task ends when no store has anything left and
//! all have arrived.

use std::collections::BTreeSet;

use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_store::stores::HOME;
use waybill_store::{Ctx, Row, Store, Stores, Tx, Value, Work};

use super::follow::{Follow, unknown_shard};
use super::messages::is_of_store;
use super::route::{Record, Route, read_shards};
use super::transfers::ROUND_MAX;
use crate::move_tasks::{MoveTaskId, Pace, cost_us};
use crate::moving::{BATCH, Moved, Mover, Outcome, Told};

/// Tasks that one round looks at.
const TASKS_MAX: i64 = 20;
/// Transactions of one round in one store for one task. More than one where home has to be asked in between.
const TURNS_MAX: usize = 8;

/// What a round has come to.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Messages that it had to do with, at least [`ROUND_MAX`] where there may be more.
    pub done: usize,
    /// There are tasks, if only such as may not move anything now.
    pub is_running: bool,
    /// The latest.
    pub failure: Option<Error>,
}

/// One round of the tasks alone. What departs is carried by those who tend the stores.
pub async fn move_once(stores: &Stores) -> Result<usize> {
    let report = move_some(stores).await;
    report.failure.map_or(Ok(report.done), Err)
}

/// What one store cannot do keeps no other from it.
pub(super) async fn move_some(stores: &Stores) -> Report {
    let mut report = Report::default();
    let tasks = match stores.home().system().run(Running).await {
        Ok(tasks) => tasks,
        Err(error) => return Report { failure: Some(error), ..report },
    };
    report.is_running = !tasks.is_empty();
    let mut away = BTreeSet::new();
    for task in &tasks {
        match further(stores, task, &mut away).await {
            Ok((done, failure)) => {
                report.done += done;
                report.failure = failure.or(report.failure);
            }
            Err(error) => report.failure = Some(error),
        }
    }
    report
}

/// One task. Fails where home does not answer.
async fn further(stores: &Stores, task: &Task, away: &mut BTreeSet<String>) -> Result<(usize, Option<Error>)> {
    let allowed = stores.home().system().run(Grant(task.clone())).await?;
    if allowed <= 0 {
        return Ok((0, None));
    }
    let mut turns = Turns { stores, task, told: Told::new(), taken: 0, moved: 0 };
    let (outcome, failure) = turns.run(allowed, away).await;
    let (taken, moved) = (turns.taken, turns.moved);
    let end = outcome.end();
    stores.home().system().run(Note { task: task.clone(), moved, unused: allowed - moved, end }).await?;
    let done = usize::try_from(taken).unwrap_or(0);
    // With less than a whole batch it is the task's rate that sets the pace.
    let is_more = matches!(outcome, Outcome::Going) && allowed == BATCH;
    Ok((if is_more { done.max(ROUND_MAX) } else { done }, failure))
}

#[derive(Clone, Debug)]
struct Task {
    tenant: Tenant,
    task: MoveTaskId,
    source: String,
    destination: Option<String>,
    per_second: Option<i64>,
    paced_to: Time,
    /// Of the source.
    route: Route,
}

/// In home: the tasks of queues that are in several stores.
struct Running;

impl Work for Running {
    type Output = Vec<Task>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Task>> {
        const TASKS: &str = "SELECT t.tenant, t.task, t.source, t.destination, t.per_second, t.paced_to, q.incarnation, \
                             q.generation, q.shards FROM move_tasks t JOIN queues q ON q.tenant = t.tenant \
                             AND q.name = t.source WHERE t.active = 1 AND q.here IS NOT NULL ORDER BY t.paced_to LIMIT $1";
        let rows = tx.query(TASKS, &[TASKS_MAX.into()]).await?;
        rows.iter().map(Task::read).collect()
    }
}

impl Task {
    fn read(row: &Row) -> Result<Self> {
        let shards = read_shards(row.text_opt(8)?)?.unwrap_or_default();
        Ok(Self {
            tenant: Tenant(row.int(0)?),
            task: MoveTaskId::from_slice(row.bytes(1)?)?,
            source: row.text(2)?.to_owned(),
            destination: row.text_opt(3)?.map(str::to_owned),
            per_second: row.int_opt(4)?,
            paced_to: row.time(5)?,
            route: Route::new((row.int(6)?, row.int(7)?), shards),
        })
    }
}

/// In home: how many messages may be moved now. Their time counts as used up, so that two servers together keep to the rate.
struct Grant(Task);

impl Work for Grant {
    type Output = i64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<i64> {
        // Unless it was cancelled, or another server was quicker.
        const GRANT: &str = "UPDATE move_tasks SET paced_to = $3 WHERE tenant = $1 AND task = $2 AND active = 1 \
                             AND paced_to = $4";
        let Task { tenant, task, per_second, paced_to, .. } = &self.0;
        let pace = Pace::new(ctx.now, *paced_to, *per_second);
        let allowed = pace.allowed(BATCH);
        if allowed <= 0 {
            return Ok(0);
        }
        let tx = &mut *tx.as_tenant(*tenant);
        let params = [Value::from(task.as_bytes()), pace.after(allowed).into(), (*paced_to).into()];
        Ok(if tx.execute(GRANT, &params).await? == 0 { 0 } else { allowed })
    }
}

/// In home: what has become of a grant.
struct Note {
    task: Task,
    moved: i64,
    /// Of the grant. Its time is given back.
    unused: i64,
    /// Status and reason.
    end: Option<(&'static str, Option<&'static str>)>,
}

impl Work for Note {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const NOTE: &str =
            "UPDATE move_tasks SET moved = moved + $3, paced_to = paced_to - $4 WHERE tenant = $1 AND task = $2";
        // One that was cancelled meanwhile stays so.
        const END: &str = "UPDATE move_tasks SET active = 0, status = $3, reason = $4 WHERE tenant = $1 AND task = $2 \
                           AND active = 1";
        let Task { tenant, task, per_second, .. } = &self.task;
        let tx = &mut *tx.as_tenant(*tenant);
        let unused_us = cost_us(*per_second, self.unused);
        tx.execute(NOTE, &[Value::from(task.as_bytes()), self.moved.into(), unused_us.into()]).await?;
        if let Some((status, reason)) = self.end {
            let params = [Value::from(task.as_bytes()), Value::from(status), Value::from(reason)];
            tx.execute(END, &params).await?;
        }
        Ok(())
    }
}

/// The turns of one task in the stores of its source, in one round.
struct Turns<'a> {
    stores: &'a Stores,
    task: &'a Task,
    /// By home, since the round began.
    told: Told,
    taken: i64,
    moved: i64,
}

impl Turns<'_> {
    /// Moves up to `allowed` messages. Of that each store has its share, and what one does not need the next ones have.
    async fn run(&mut self, allowed: i64, away: &mut BTreeSet<String>) -> (Outcome, Option<Error>) {
        let task = self.task;
        let names = task.route.stores(0);
        let (mut is_over, mut is_going, mut failure) = (true, false, None);
        for (place, name) in names.iter().copied().enumerate() {
            let behind = (names.len() - place) as i64;
            let share = (allowed - self.moved + behind - 1) / behind;
            if share <= 0 || away.contains(name) {
                is_over = false;
                continue;
            }
            match self.in_store(name, share).await {
                Ok(Outcome::Completed) => {}
                Ok(Outcome::Failed(reason)) => return (Outcome::Failed(reason), failure),
                Ok(outcome) => {
                    is_over = false;
                    is_going |= matches!(outcome, Outcome::Going);
                }
                Err(error) => {
                    is_over = false;
                    // Each is asked once in a round: on PostgreSQL it takes seconds until one is given up.
                    if is_of_store(&error) {
                        away.insert(name.to_owned());
                    }
                    failure = Some(error);
                }
            }
        }
        let outcome = match (is_over, is_going) {
            (true, _) => Outcome::Completed,
            (false, true) => Outcome::Going,
            (false, false) => Outcome::Waiting,
        };
        (outcome, failure)
    }

    async fn in_store(&mut self, name: &str, share: i64) -> Result<Outcome> {
        let (stores, before) = (self.stores, self.moved);
        let store = stores.find(name).ok_or_else(|| unknown_shard(name))?;
        for _ in 0..TURNS_MAX {
            // Home knows by itself.
            let told = (name != HOME).then(|| self.told.clone());
            let turn = Turn { task: self.task.clone(), told, allowed: share - (self.moved - before) };
            let done = store.system().run(turn).await?;
            self.taken += done.taken;
            self.moved += done.moved;
            match done.outcome {
                Outcome::Asking(queues) => self.ask(queues).await?,
                Outcome::Behind if self.has_followed(name, store).await? => {}
                Outcome::Behind => return Ok(Outcome::Waiting),
                outcome => return Ok(outcome),
            }
        }
        Ok(Outcome::Going)
    }

    async fn ask(&mut self, queues: Vec<String>) -> Result<()> {
        for queue in queues {
            let record = Record::read(self.stores.home(), self.task.tenant, &queue).await?;
            self.told.insert(queue, record.map(|record| (record.incarnation, record.generation)));
        }
        Ok(())
    }

    /// Brings the store's copy of the source up to date. False where that was not what is wrong: home has changed since the
    /// round began, and the next round knows it.
    async fn has_followed(&self, name: &str, store: &Store) -> Result<bool> {
        let Task { tenant, source, .. } = self.task;
        match Record::read(self.stores.home(), *tenant, source).await? {
            Some(record) if name != HOME => {
                store.system().run(Follow::new(*tenant, source, name, Some(record), 0)).await
            }
            _ => Ok(false),
        }
    }
}

/// One transaction in a store of the source.
struct Turn {
    task: Task,
    told: Option<Told>,
    allowed: i64,
}

impl Work for Turn {
    type Output = Moved;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Moved> {
        let Task { tenant, source, destination, route, .. } = &self.task;
        let mover = Mover {
            tenant: *tenant,
            source,
            destination: destination.as_deref(),
            expected: Some((route.incarnation, route.generation)),
            told: self.told.as_ref(),
        };
        let tx = &mut *tx.as_tenant(*tenant);
        mover.run(ctx, tx, self.allowed, BATCH).await
    }
}
