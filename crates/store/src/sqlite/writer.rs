//! The writer: takes what is waiting, runs the operations in one transaction, commits once, answers all. One fsync
//! serves hundreds; a lone caller waits for nobody, and writes on its own thread.
//!
//! # When a transaction cannot be kept
//! An operation that fails after it has written, or a full disk, an I/O error or no memory, which make SQLite roll back by
//! itself: the batch is void. It runs again with a savepoint around each operation, so that a failed one is undone alone; if
//! SQLite ends that as well, each runs in a transaction of its own, the innocent succeed and the culprit gets its own error.
//! An error of COMMIT other than a full disk leaves the outcome unknown: its callers are told so, and nothing is written
//! before the file has been opened again and verified (reopen.rs).
//!
//! # When the disk is full
//! The ballast is given back, and until it can be taken again only operations that give room or end work are run, one by
//! one; the others are refused before they run. SQLite says FULL at its limit of pages too, where no disk is full: then
//! there is room for the ballast, and it is taken again at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use metrics::{Counter, Histogram};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;
use waybill_kernel::{Clock, Code, Error, Result, Time};

use super::ballast::Ballast;
use super::checkpoint::{self, Wal};
use super::condition::Condition;
use super::connection::{explain, is_full};
use super::mark::Mark;
use super::open::{self, BUSY_TIMEOUT};
use super::queue::{Queue, Taken};
use super::{Connection, Job, Options, reopen, unknown};
use crate::Value;
use crate::metrics::{BATCH, COMMITS, FSYNCS, OPS, VOIDED, WRITER_BUSY};
#[cfg(feature = "sabotage")]
use crate::sabotage;
use crate::stored::{self, Added, Ledger};
use crate::tenant_check::TenantTables;

const BATCH_OPERATIONS_MAX: usize = 512;
const BATCH_TIME_MAX: Duration = Duration::from_millis(5);
/// Taken from the queue at a time, so that the time is looked at in between.
const DRAIN_OPERATIONS_MAX: usize = 64;
/// Tenants that are remembered for a slow job, and for how long.
const SLOW_TENANTS_MAX: usize = 1_024;
const SLOW_FOR: Duration = Duration::from_secs(1);
/// How often a full disk is asked whether there is room again.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// An overgrown log begins anew when no read is under way in it: so long all writers wait for one to end …
const RESTART_PATIENCE: Duration = Duration::from_millis(50);
/// … and so long they are left alone when it has not: a backup reads for minutes.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    queue: Arc<Queue<Box<dyn Job>>>,
    condition: Arc<Condition>,
    slot: Arc<Slot>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Whoever holds the lock writes; empty while the file is opened again.
type Slot = Mutex<Option<Batcher>>;

impl Writer {
    pub(super) fn start(state: WriterState, connection: Connection) -> Result<Self> {
        let (queue, condition) = (Arc::clone(&state.queue), Arc::clone(&state.condition));
        let slot = Arc::new(Mutex::new(Some(Batcher::new(state, connection))));
        let (own_slot, arrivals) = (Arc::clone(&slot), Arc::clone(&queue));
        let thread = thread::Builder::new()
            .name("sqlite-write".to_owned())
            .spawn(move || serve(&own_slot, &arrivals))
            .map_err(Error::internal)?;
        Ok(Self { queue, condition, slot, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn submit(&self, job: Box<dyn Job>) -> Result<()> {
        if let Some(refusal) = self.condition.refusal(job.relieves()) {
            return Err(refusal);
        }
        let mut slot = may_block().then(|| self.slot.try_lock().ok()).flatten();
        match slot.as_mut().and_then(|slot| slot.as_mut()).filter(|batcher| batcher.is_idle()) {
            // A lone caller does the writing on its own thread: handing the call over and back would cost two wakes of
            // a sleeping core, about as much as the fsync. With company the thread's group commit is worth more.
            Some(batcher) => {
                block_in_place(|| batcher.serve_batch(job));
                if batcher.needs_its_thread() {
                    self.queue.nudge();
                }
                Ok(())
            }
            None => self.queue.push(job),
        }
    }

    pub(super) fn close(&self) {
        self.queue.close();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Only a runtime of several threads lets one of them block.
fn may_block() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// What the writer keeps when its connection has to go.
pub(super) struct WriterState {
    pub(super) options: Options,
    pub(super) tables: Arc<TenantTables>,
    pub(super) clock: Arc<Clock>,
    pub(super) wal: Arc<Wal>,
    pub(super) queue: Arc<Queue<Box<dyn Job>>>,
    pub(super) condition: Arc<Condition>,
    pub(super) mark: Arc<Mark>,
    pub(super) ballast: Ballast,
    /// The newest commit that is known to be durable.
    pub(super) commit_seq: i64,
    /// Where those who are answered run.
    pub(super) runtime: Option<Handle>,
    pub(super) stored: Arc<Ledger>,
}

/// The writer's thread. While it waits for arrivals, any caller may write in its stead.
fn serve(slot: &Slot, arrivals: &Queue<Box<dyn Job>>) {
    let mut patience = None;
    loop {
        let taken = arrivals.take(patience);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(batcher) = slot.as_mut() else { return };
        match taken {
            Taken::Item(job) => batcher.serve_batch(job),
            Taken::Nothing => {}
            // A caller that has just written has put something back.
            Taken::Closed if !arrivals.is_empty() => continue,
            Taken::Closed => {
                #[cfg(feature = "sabotage")]
                sabotage::point_within("in_close");
                batcher.finish();
                return;
            }
        }
        if batcher.failed {
            *slot = slot.take().and_then(Batcher::replaced);
            continue;
        }
        batcher.look_for_room();
        if batcher.state.wal.take_overgrown() && Instant::now() >= batcher.restart_at {
            batcher.restart_log();
        }
        let is_short = !batcher.state.ballast.is_held() || batcher.state.condition.is_full();
        patience = is_short.then_some(ROOM_INTERVAL);
    }
}

struct Batcher {
    state: WriterState,
    connection: Connection,
    /// How many callers the last commit answered: about as many are expected back soon.
    returning: usize,
    slow: Slow,
    /// A commit or a rollback has failed: nothing more goes over this connection.
    failed: bool,
    /// When a full disk is asked next.
    look_at: Instant,
    /// When the log may be made to begin anew next.
    restart_at: Instant,
    meters: Meters,
}

struct Meters {
    ops: Counter,
    commits: Counter,
    fsyncs: Counter,
    busy: Counter,
    batch: Histogram,
}

impl Meters {
    fn new(store: &str) -> Self {
        Self {
            ops: metrics::counter!(OPS, "store" => store.to_owned()),
            commits: metrics::counter!(COMMITS, "store" => store.to_owned()),
            fsyncs: metrics::counter!(FSYNCS, "store" => store.to_owned()),
            busy: metrics::counter!(WRITER_BUSY, "store" => store.to_owned()),
            batch: metrics::histogram!(BATCH, "store" => store.to_owned()),
        }
    }
}

/// Tenants of which a job has just taken as long as a whole batch may.
#[derive(Default)]
struct Slow(HashMap<i64, Instant>);

impl Slow {
    fn note(&mut self, tenant: i64, took: Duration) {
        if took < BATCH_TIME_MAX {
            return;
        }
        if self.0.len() >= SLOW_TENANTS_MAX {
            self.0.retain(|_, at| at.elapsed() < SLOW_FOR);
        }
        if self.0.len() < SLOW_TENANTS_MAX {
            self.0.insert(tenant, Instant::now());
        }
    }

    fn has(&self, tenant: i64) -> bool {
        // Almost always empty.
        !self.0.is_empty() && self.0.get(&tenant).is_some_and(|at| at.elapsed() < SLOW_FOR)
    }
}

/// How a transaction ended.
enum Ended {
    Committed,
    /// Rolled back, by SQLite or by us; nothing of it is in the database.
    Void(Error),
    /// Perhaps in the database, perhaps not.
    Unknown(Error),
}

/// How one operation can be undone without its neighbours in the same transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Isolation {
    /// Not at all: an operation that fails has almost never written anything. If one has, the batch is run again.
    None,
    /// Each in a savepoint. It costs two statements and a copy of every page an operation touches.
    Savepoint,
}

impl Batcher {
    fn new(state: WriterState, mut connection: Connection) -> Self {
        if let Err(error) = state.wal.watch(connection.raw(), &state.condition) {
            // The checkpointer looks as well, if not as often.
            tracing::warn!(%error, "the length of the log cannot be watched");
        }
        let (look_at, restart_at, meters) = (Instant::now(), Instant::now(), Meters::new(&state.options.name));
        Self { state, connection, returning: 0, slow: Slow::default(), failed: false, look_at, restart_at, meters }
    }

    /// After a failed commit: the connection is closed, and another opened once the file is sound. None when the program stops.
    fn replaced(self) -> Option<Self> {
        let Self { mut state, connection, .. } = self;
        drop(connection);
        let sound = reopen::until_sound(&mut state)?;
        Some(Self::new(state, sound))
    }

    /// Nobody waits, nobody is expected, and nothing else is to be done first.
    fn is_idle(&self) -> bool {
        self.returning <= 1 && !self.needs_its_thread() && self.state.queue.is_open_and_empty()
    }

    fn needs_its_thread(&self) -> bool {
        self.failed || !self.state.ballast.is_held() || self.state.wal.is_overgrown()
    }

    fn serve_batch(&mut self, first: Box<dyn Job>) {
        // It was let in before the trouble began.
        if let Some(refusal) = self.state.condition.refusal(first.relieves()) {
            return first.fail(refusal);
        }
        self.connection.take_full();
        let mut jobs = Vec::with_capacity(self.returning.max(1));
        jobs.push(first);
        if self.state.condition.is_full() {
            // Alone: each commit then needs as little room as it can.
            return self.run_one_by_one(jobs);
        }
        let mut ended = self.transact(|batcher| batcher.run_arrivals(&mut jobs));
        if matches!(ended, Ended::Void(_)) {
            metrics::counter!(VOIDED).increment(1);
            self.make_room(&mut jobs);
            ended =
                self.transact(|batcher| jobs.iter_mut().all(|job| batcher.run_job(job.as_mut(), Isolation::Savepoint)));
        }
        match ended {
            Ended::Committed => self.answer(jobs),
            Ended::Void(_) => self.run_one_by_one(jobs),
            Ended::Unknown(error) => fail_all(jobs, &error),
        }
        self.make_room(&mut Vec::new());
    }

    /// When SQLite has said FULL: gives the ballast back, and if it was the disk, sends away those who would fill it.
    fn make_room(&mut self, jobs: &mut Vec<Box<dyn Job>>) {
        if !self.connection.take_full() || self.state.options.ballast_bytes == 0 {
            return;
        }
        // Said before the room is given back, so that the checkpointer knows not to take it.
        let is_disk = !self.state.ballast.disk_has_room();
        if is_disk && !self.state.condition.is_full() {
            tracing::error!("the disk is full: only operations that end work or give room are run");
            self.state.condition.set_full(true);
        }
        self.state.ballast.release();
        self.look_at = Instant::now();
        if !is_disk {
            return;
        }
        for job in jobs.extract_if(.., |job| !job.relieves()) {
            job.fail(Error::new(Code::StorageFull, Code::StorageFull.entry().title));
        }
    }

    fn look_for_room(&mut self) {
        let is_waited_for = !self.state.ballast.is_held() || self.state.condition.is_full();
        if !is_waited_for || Instant::now() < self.look_at {
            return;
        }
        self.look_at = Instant::now() + ROOM_INTERVAL;
        let room = self.state.ballast.regain();
        if room && self.state.condition.is_full() {
            tracing::info!("there is room on the disk again");
        }
        self.state.condition.set_full(!room);
    }

    /// Runs the first job, then others until the queue is empty and nobody is expected, or a bound is reached.
    /// False when the transaction cannot be kept; every job taken from the queue is in `jobs` either way.
    fn run_arrivals(&mut self, jobs: &mut Vec<Box<dyn Job>>) -> bool {
        let began = Instant::now();
        let operations_max = BATCH_OPERATIONS_MAX;
        #[cfg(feature = "sabotage")]
        let operations_max = sabotage::batch_max(operations_max);
        let mut waited = None;
        let mut done = 0;
        loop {
            while done < jobs.len() && !self.is_for_later(&jobs[..=done], began) {
                let before = Instant::now();
                if !self.run_job(jobs[done].as_mut(), Isolation::None) {
                    return false;
                }
                self.slow.note(jobs[done].owner().tenant, before.elapsed());
                done += 1;
            }
            if done < jobs.len() {
                self.state.queue.put_back(jobs.drain(done..));
                break;
            }
            if done >= operations_max || began.elapsed() >= BATCH_TIME_MAX {
                break;
            }
            let room = DRAIN_OPERATIONS_MAX.min(operations_max - done);
            if self.state.queue.drain_into(jobs, room) > 0 {
                continue;
            }
            if waited.is_some() || !self.expects_more_than(done) {
                break;
            }
            waited = Some(self.linger(done));
        }
        self.meters.busy.increment(nanoseconds(began.elapsed().saturating_sub(waited.unwrap_or_default())));
        #[cfg(feature = "sabotage")]
        if sabotage::answers_early(&self.state.options.path) {
            self.answer(std::mem::take(jobs));
            sabotage::dawdle();
        }
        true
    }

    /// Whether the last of these jobs is for the next transaction. The others are done and wait for the commit: not longer than
    /// their time, nor for somebody else's job that may take as long as all of them.
    fn is_for_later(&self, jobs: &[Box<dyn Job>], began: Instant) -> bool {
        let [done @ .., next] = jobs else { return false };
        if done.is_empty() {
            return false;
        }
        let tenant = next.owner().tenant;
        began.elapsed() >= BATCH_TIME_MAX
            || (self.slow.has(tenant) && done.iter().any(|job| job.owner().tenant != tenant))
    }

    /// The callers of the last commit are on their way back with their next request: committing for the first of them
    /// alone would make the others wait for a whole fsync. Half of them, or `linger_max`, is enough.
    fn expects_more_than(&self, present: usize) -> bool {
        present < self.returning / 2 && !self.state.options.linger_max.is_zero()
    }

    fn linger(&self, present: usize) -> Duration {
        let began = Instant::now();
        self.state.queue.wait_for(self.returning / 2 - present, self.state.options.linger_max);
        began.elapsed()
    }

    /// False when the transaction cannot be kept. A job whose caller has gone is passed over.
    fn run_job(&mut self, job: &mut dyn Job, isolation: Isolation) -> bool {
        if job.is_abandoned() {
            return true;
        }
        let now = self.now();
        if isolation == Isolation::Savepoint && self.connection.control("SAVEPOINT operation").is_err() {
            return false;
        }
        let (before, added) = (self.connection.changes(), self.connection.added.len());
        let keep = job.perform(&mut self.connection, now);
        if !keep {
            // Nothing of it stays, in this transaction or because there is no such.
            self.connection.added.truncate(added);
        }
        #[cfg(feature = "sabotage")]
        sabotage::point("in_transaction");
        if self.connection.is_outside_transaction() {
            return false;
        }
        match isolation {
            // One that found no room is run again with the ballast's.
            Isolation::None => keep || (self.connection.changes() == before && !self.connection.is_full()),
            Isolation::Savepoint => {
                let undone = keep || self.connection.control("ROLLBACK TO operation").is_ok();
                undone && self.connection.control("RELEASE operation").is_ok()
            }
        }
    }

    fn run_one_by_one(&mut self, jobs: Vec<Box<dyn Job>>) {
        for mut job in jobs {
            if job.is_abandoned() {
                continue;
            }
            let mut kept = None;
            let ended = self.transact(|batcher| {
                let now = batcher.now();
                kept = Some(job.perform(&mut batcher.connection, now));
                kept == Some(true) && !batcher.connection.is_outside_transaction()
            });
            match ended {
                Ended::Committed => self.answer(vec![job]),
                // It ran and keeps its own error, which says more than ours.
                Ended::Void(_) if kept == Some(false) => job.answer(),
                Ended::Void(error) | Ended::Unknown(error) => job.fail(error),
            }
        }
    }

    /// BEGIN, the body, the meta row, COMMIT.
    fn transact(&mut self, body: impl FnOnce(&mut Self) -> bool) -> Ended {
        if self.failed {
            return Ended::Void(stopped(&self.state.condition));
        }
        if let Err(error) = self.connection.control("BEGIN IMMEDIATE") {
            return Ended::Void(explain(&error));
        }
        self.connection.added.clear();
        let before = self.connection.changes();
        if !body(self) {
            return self.roll_back(Ended::Void(Error::internal("the operation did not finish")));
        }
        if self.connection.changes() == before {
            // Replays and refusals write nothing; there is nothing to make durable.
            return self.roll_back(Ended::Committed);
        }
        self.commit()
    }

    fn commit(&mut self) -> Ended {
        const STAMP: &str = "UPDATE meta SET commit_seq = commit_seq + 1, clock_us = $1 WHERE id = 1";
        let now = self.now();
        let added = stored::merged(&self.connection.added);
        let counted = self.count(&added);
        if let Err(error) = counted.and_then(|()| self.connection.execute(STAMP, None, &[Value::from(now)])) {
            return self.roll_back(Ended::Void(error));
        }
        #[cfg(feature = "sabotage")]
        {
            sabotage::commit_slowly();
            sabotage::point("before_commit");
        }
        let Err(error) = self.connection.control("COMMIT") else {
            #[cfg(feature = "sabotage")]
            sabotage::point("after_commit_before_reply");
            self.state.commit_seq += 1;
            self.state.mark.publish(self.state.commit_seq, now.micros());
            self.state.stored.committed(&added);
            self.meters.commits.increment(1);
            self.meters.fsyncs.increment(1);
            return Ended::Committed;
        };
        if is_full(&error) {
            return self.roll_back(Ended::Void(explain(&error)));
        }
        #[cfg(feature = "sabotage")]
        if sabotage::planted("fsync-ignored") {
            return self.roll_back(Ended::Committed);
        }
        #[cfg(feature = "sabotage")]
        if sabotage::planted("reopen-skipped") {
            return self.roll_back(Ended::Unknown(unknown(&error)));
        }
        self.fail("a commit", &error)
    }

    /// Once for all that the batch has stored.
    fn count(&mut self, added: &[Added]) -> Result<()> {
        for (tenant, kind, bytes) in added {
            let params = [Value::from(tenant.0), Value::from(kind.as_str()), Value::from(*bytes)];
            self.connection.execute(stored::ADD.sqlite, None, &params)?;
        }
        Ok(())
    }

    /// Ends the transaction if SQLite has not, with `ended` if that succeeds.
    fn roll_back(&mut self, ended: Ended) -> Ended {
        if !self.connection.is_outside_transaction()
            && let Err(error) = self.connection.control("ROLLBACK")
        {
            return self.fail("a rollback", &error);
        }
        ended
    }

    fn fail(&mut self, what: &str, error: &rusqlite::Error) -> Ended {
        tracing::error!(%error, "{what} failed; writing stops until the database has been opened again and verified");
        self.failed = true;
        self.state.condition.set_reopening(true);
        Ended::Unknown(unknown(error))
    }

    /// Many are told by a task of their own runtime: from here each would be a wake across threads, and the next batch would
    /// wait for all of them.
    fn answer(&mut self, jobs: Vec<Box<dyn Job>>) {
        self.returning = jobs.len();
        self.meters.ops.increment(jobs.len() as u64);
        self.meters.batch.record(jobs.len() as f64);
        match &self.state.runtime {
            Some(runtime) if jobs.len() > 1 => drop(runtime.spawn(async { answer_all(jobs) })),
            _ => answer_all(jobs),
        }
    }

    fn now(&self) -> Time {
        #[cfg(feature = "sabotage")]
        if sabotage::planted("wall-clock") {
            return sabotage::wall();
        }
        #[cfg(feature = "sabotage")]
        if sabotage::planted("clock-leaps") {
            return sabotage::leaping(self.state.clock.now());
        }
        self.state.clock.now()
    }

    /// The log is copied into the database, so that the next start is quick; unless it must be kept as it is.
    fn finish(&mut self) {
        if self.state.condition.is_damaged() {
            let _ = open::keep_log(self.connection.raw(), true, &self.state.options.path);
        } else {
            self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)");
        }
    }

    fn restart_log(&mut self) {
        let wal = Arc::clone(&self.state.wal);
        let _alone = wal.alone();
        let _ = self.connection.raw().busy_timeout(RESTART_PATIENCE);
        if !self.checkpoint("PRAGMA wal_checkpoint(RESTART)") {
            self.restart_at = Instant::now() + RESTART_PAUSE;
        }
        let _ = self.connection.raw().busy_timeout(BUSY_TIMEOUT);
    }

    /// False when a read has stood in the way of a part of it.
    fn checkpoint(&mut self, pragma: &str) -> bool {
        match self.connection.raw().query_row(pragma, [], |row| row.get::<_, i64>(0)) {
            Ok(busy) => {
                self.meters.fsyncs.increment(2);
                busy == 0
            }
            Err(error) if checkpoint::is_unsynced(&error) => {
                checkpoint::stop(&self.state.condition, &error);
                false
            }
            Err(error) => {
                tracing::warn!(%error, "a checkpoint failed; the next one tries again");
                false
            }
        }
    }
}

fn answer_all(jobs: Vec<Box<dyn Job>>) {
    #[cfg(feature = "sabotage")]
    let is_batch = jobs.len() > 1;
    for job in jobs {
        job.answer();
        #[cfg(feature = "sabotage")]
        if is_batch {
            sabotage::point("half_answered");
        }
    }
}

fn fail_all(jobs: Vec<Box<dyn Job>>, error: &Error) {
    for job in jobs {
        #[cfg(feature = "sabotage")]
        if sabotage::planted("unknown-as-internal") {
            job.fail(Error::internal("a commit failed"));
            continue;
        }
        #[cfg(feature = "sabotage")]
        if sabotage::planted("unknown-as-undone") {
            job.fail(Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title));
            continue;
        }
        job.fail(unknown(error.cause().unwrap_or_default()));
    }
}

/// For those who came too late to be refused at the door; nothing was done.
pub(super) fn stopped(condition: &Condition) -> Error {
    let general = || Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title);
    condition.refusal(true).unwrap_or_else(general)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
