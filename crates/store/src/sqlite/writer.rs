//! The writer thread: takes what is waiting, runs the operations in one transaction, commits once, answers all. One
//! fsync serves hundreds; a lone caller waits for nobody.
//!
//! # When a transaction cannot be kept
//! An operation that fails after it has written, or a full disk, an I/O error or no memory, which make SQLite roll back by
//! itself: the batch is void. It runs again with a savepoint around each operation, so that a failed one is undone alone; if
//! SQLite ends that as well, each runs in a transaction of its own, the innocent succeed and the culprit gets its own error. An error of COMMIT other than a full disk leaves the outcome unknown: its callers are told
//! so, and writing stops, because after a failed fsync the kernel may have dropped the pages and a second fsync proves nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use metrics::{Counter, Histogram};
use rusqlite::ErrorCode;
use waybill_kernel::{Clock, Code, Error, Result};

use super::checkpoint::Wal;
use super::connection::explain;
use super::queue::Queue;
use super::{Connection, Job, Options, unknown};
use crate::Value;
use crate::metrics::{BATCH, COMMITS, FSYNCS, OPS, VOIDED, WRITER_BUSY};

const BATCH_OPERATIONS_MAX: usize = 512;
const BATCH_TIME_MAX: Duration = Duration::from_millis(5);
/// Taken from the queue at a time, so that the time is looked at in between.
const DRAIN_OPERATIONS_MAX: usize = 64;

pub(super) struct Writer {
    queue: Arc<Queue<Box<dyn Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    failed: Arc<AtomicBool>,
}

impl Writer {
    pub(super) fn start(options: &Options, connection: Connection, clock: Arc<Clock>, wal: Arc<Wal>) -> Result<Self> {
        let queue = Arc::new(Queue::new(options.write_queue_max));
        let failed = Arc::new(AtomicBool::new(false));
        let scribe = Scribe {
            connection,
            clock,
            wal,
            queue: Arc::clone(&queue),
            linger_max: options.linger_max,
            returning: 0,
            failed: Arc::clone(&failed),
            meters: Meters::new(),
        };
        let thread = thread::Builder::new()
            .name("sqlite-write".to_owned())
            .spawn(move || scribe.serve())
            .map_err(Error::internal)?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)), failed })
    }

    pub(super) fn submit(&self, job: Box<dyn Job>) -> Result<()> {
        self.queue.push(job)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.queue.close();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

struct Scribe {
    connection: Connection,
    clock: Arc<Clock>,
    wal: Arc<Wal>,
    queue: Arc<Queue<Box<dyn Job>>>,
    linger_max: Duration,
    /// How many callers the last commit answered: about as many are expected back soon.
    returning: usize,
    failed: Arc<AtomicBool>,
    meters: Meters,
}

struct Meters {
    ops: Counter,
    commits: Counter,
    fsyncs: Counter,
    busy: Counter,
    voided: Counter,
    batch: Histogram,
}

impl Meters {
    fn new() -> Self {
        Self {
            ops: metrics::counter!(OPS),
            commits: metrics::counter!(COMMITS),
            fsyncs: metrics::counter!(FSYNCS),
            busy: metrics::counter!(WRITER_BUSY),
            voided: metrics::counter!(VOIDED),
            batch: metrics::histogram!(BATCH),
        }
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

/// How one operation's writes are kept apart from its neighbours' in the same transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    /// Not at all: an operation that fails has almost never written anything. If one has, the batch is run again.
    Hopefully,
    /// Each in a savepoint. It costs two statements and a copy of every page an operation touches.
    BySavepoint,
}

impl Scribe {
    fn serve(mut self) {
        while let Some(first) = self.queue.take() {
            if self.failed.load(Ordering::Relaxed) {
                first.fail(stopped());
                continue;
            }
            self.serve_batch(first);
            if self.wal.take_overgrown() {
                self.checkpoint("PRAGMA wal_checkpoint(RESTART)");
            }
        }
        self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)");
    }

    fn serve_batch(&mut self, first: Box<dyn Job>) {
        let mut jobs = Vec::with_capacity(self.returning.max(1));
        jobs.push(first);
        let mut ended = self.transact(|scribe| scribe.run_arrivals(&mut jobs));
        if matches!(ended, Ended::Void(_)) {
            self.meters.voided.increment(1);
            ended = self.transact(|scribe| jobs.iter_mut().all(|job| scribe.run_job(job.as_mut(), Apart::BySavepoint)));
        }
        match ended {
            Ended::Committed => self.answer(jobs),
            Ended::Void(_) => self.run_one_by_one(jobs),
            Ended::Unknown(error) => fail_all(jobs, &error),
        }
    }

    /// Runs the first job, then others until the queue is empty and nobody is expected, or a bound is reached.
    /// False when the transaction cannot be kept; every job taken from the queue is in `jobs` either way.
    fn run_arrivals(&mut self, jobs: &mut Vec<Box<dyn Job>>) -> bool {
        let began = Instant::now();
        let mut waited = None;
        let mut done = 0;
        loop {
            for job in &mut jobs[done..] {
                if !self.run_job(job.as_mut(), Apart::Hopefully) {
                    return false;
                }
            }
            done = jobs.len();
            if done >= BATCH_OPERATIONS_MAX || began.elapsed() >= BATCH_TIME_MAX {
                break;
            }
            let room = DRAIN_OPERATIONS_MAX.min(BATCH_OPERATIONS_MAX - done);
            if self.queue.drain_into(jobs, room) > 0 {
                continue;
            }
            if waited.is_some() || !self.expects_more_than(done) {
                break;
            }
            waited = Some(self.linger(done));
        }
        self.meters.busy.increment(nanoseconds(began.elapsed().saturating_sub(waited.unwrap_or_default())));
        true
    }

    /// The callers of the last commit are on their way back with their next request: committing for the first of them
    /// alone would make the others wait for a whole fsync. Half of them, or `linger_max`, is enough.
    fn expects_more_than(&self, present: usize) -> bool {
        present < self.returning / 2 && !self.linger_max.is_zero()
    }

    fn linger(&self, present: usize) -> Duration {
        let began = Instant::now();
        self.queue.wait_for(self.returning / 2 - present, self.linger_max);
        began.elapsed()
    }

    /// False when the transaction cannot be kept. A job whose caller has gone is passed over.
    fn run_job(&mut self, job: &mut dyn Job, apart: Apart) -> bool {
        if job.is_abandoned() {
            return true;
        }
        let now = self.clock.now();
        if apart == Apart::BySavepoint && self.connection.control("SAVEPOINT operation").is_err() {
            return false;
        }
        let before = self.connection.changes();
        let keep = job.run(&mut self.connection, now);
        if self.connection.is_outside_transaction() {
            return false;
        }
        match apart {
            Apart::Hopefully => keep || self.connection.changes() == before,
            Apart::BySavepoint => {
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
            let ended = self.transact(|scribe| {
                kept = Some(job.run(&mut scribe.connection, scribe.clock.now()));
                kept == Some(true) && !scribe.connection.is_outside_transaction()
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
        if let Err(error) = self.connection.control("BEGIN IMMEDIATE") {
            return Ended::Void(explain(&error));
        }
        let before = self.connection.changes();
        if !body(self) {
            self.roll_back();
            return Ended::Void(Error::internal("the operation did not finish"));
        }
        if self.connection.changes() == before {
            // Replays and refusals write nothing; there is nothing to make durable.
            self.roll_back();
            return Ended::Committed;
        }
        self.commit()
    }

    fn commit(&mut self) -> Ended {
        const STAMP: &str = "UPDATE meta SET commit_seq = commit_seq + 1, clock_us = $1 WHERE id = 1";
        let stamp = [Value::from(self.clock.now())];
        if let Err(error) = self.connection.execute(STAMP, None, &stamp) {
            self.roll_back();
            return Ended::Void(error);
        }
        let Err(error) = self.connection.control("COMMIT") else {
            self.meters.commits.increment(1);
            self.meters.fsyncs.increment(1);
            return Ended::Committed;
        };
        if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
            self.roll_back();
            return Ended::Void(explain(&error));
        }
        tracing::error!(%error, "a commit failed; writing stops until the program is restarted");
        self.failed.store(true, Ordering::Relaxed);
        Ended::Unknown(unknown(&error))
    }

    fn roll_back(&mut self) {
        if !self.connection.is_outside_transaction()
            && let Err(error) = self.connection.control("ROLLBACK")
        {
            tracing::error!(%error, "a rollback failed; writing stops until the program is restarted");
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn answer(&mut self, jobs: Vec<Box<dyn Job>>) {
        self.returning = jobs.len();
        self.meters.ops.increment(jobs.len() as u64);
        self.meters.batch.record(jobs.len() as f64);
        for job in jobs {
            job.answer();
        }
    }

    fn checkpoint(&mut self, pragma: &str) {
        match self.connection.raw().query_row(pragma, [], |_| Ok(())) {
            Ok(()) => self.meters.fsyncs.increment(2),
            Err(error) => tracing::warn!(%error, "a checkpoint failed; the next one tries again"),
        }
    }
}

fn fail_all(jobs: Vec<Box<dyn Job>>, error: &Error) {
    for job in jobs {
        job.fail(unknown(error.cause().unwrap_or_default()));
    }
}

fn stopped() -> Error {
    Error::new(Code::StoreUnavailable, "Writing has stopped after an error of the disk.")
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
