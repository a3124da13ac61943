//! The embedded engine: WAL, `synchronous=FULL`, one writer thread with group commit, a few reader threads.

pub(crate) mod backup;
pub(crate) mod ballast;
mod check;
mod checkpoint;
mod condition;
mod connection;
mod cut;
pub(crate) mod deployment;
pub(crate) mod inspect;
mod job;
pub(crate) mod manifest;
mod mark;
pub(crate) mod open;
mod queue;
mod readers;
pub(crate) mod remembered;
mod reopen;
pub(crate) mod restore;
pub(crate) mod salvage;
pub(crate) mod watch;
mod writer;
#[cfg(test)]
mod writer_tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use waybill_kernel::ranges::{MANY, Setting, at_least, check, setting};
use waybill_kernel::{Clock, Code, Entropy, Error, Mode, Result, Time};

use condition::Condition;
pub(crate) use connection::Connection;
use job::{Job, Pending};

use crate::operation::{Call, Work};
#[cfg(feature = "sabotage")]
use crate::sabotage;
use crate::stored::Ledger;
use crate::waits::Waits;
use crate::wake::Hub;
use crate::{Migration, migrate};

#[derive(Clone, Debug)]
pub struct Options {
    /// Of the store, as its figures show it.
    pub name: String,
    pub path: PathBuf,
    /// Calls that may wait for the writer; one more is refused with 503.
    pub write_queue_max: usize,
    /// Calls that may wait for a reader.
    pub read_queue_max: usize,
    pub readers: usize,
    /// How long a commit may be held open for callers that are expected back. A lone caller never waits.
    pub linger_max: Duration,
    /// The write-ahead log is copied into the database beyond this size, off the commit path …
    pub checkpoint_bytes: u64,
    /// … and beyond this one the writer itself waits until it has been: a log that grows costs each commit about twice
    /// as much as one whose room is written over again.
    pub wal_bytes_max: u64,
    /// Pages the file may grow to; None for SQLite's own limit. Tests fill a database with it.
    pub pages_max: Option<u32>,
    /// How long start-up may be held up by the check of the file; what is left is done in the background.
    pub check_budget: Duration,
    /// After a failed commit: between two attempts to open the file again and verify it.
    pub reopen_pause: Duration,
    /// Room kept in reserve for operations that give room or end work when the disk is full; 0 for none.
    pub ballast_bytes: u64,
}

impl Options {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            name: crate::stores::HOME.to_owned(),
            path: path.into(),
            write_queue_max: 4096,
            read_queue_max: 4096,
            readers: 2,
            linger_max: Duration::from_millis(1),
            checkpoint_bytes: 4 << 20,
            wal_bytes_max: 16 << 20,
            pages_max: None,
            check_budget: Duration::from_secs(10),
            reopen_pause: Duration::from_secs(1),
            ballast_bytes: 16 << 20,
        }
    }
}

impl Options {
    /// As the file has them.
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("write_queue_max", self.write_queue_max, MANY),
            setting("read_queue_max", self.read_queue_max, MANY),
            setting("readers", self.readers, 1..=64),
            // A commit that waits for callers is one that everybody waits for.
            setting("linger_us", self.linger_max.as_micros(), 0..=100_000),
            setting("checkpoint_bytes", self.checkpoint_bytes, 4 << 10..=1 << 40),
            setting("wal_bytes_max", self.wal_bytes_max, 4 << 10..=1 << 40),
            setting("check_budget_ms", self.check_budget.as_millis(), at_least(0)),
            setting("reopen_pause_ms", self.reopen_pause.as_millis(), at_least(10)),
            setting("ballast_bytes", self.ballast_bytes, 0..=1 << 40),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        check("sqlite", &self.ranges())
    }
}

pub(crate) struct Sqlite {
    writer: writer::Writer,
    readers: readers::Readers,
    checkpointer: checkpoint::Checkpointer,
    checker: Option<check::Checker>,
    mark: Arc<mark::Mark>,
    condition: Arc<Condition>,
    hub: Hub,
    waits: Arc<Waits>,
}

impl Sqlite {
    /// Blocking: called before the program serves anybody.
    pub(crate) fn open(
        options: &Options,
        migrations: &[Migration],
        clock: &Arc<Clock>,
        entropy: &dyn Entropy,
        hub: Hub,
        ledger: Arc<Ledger>,
    ) -> Result<Self> {
        #[cfg(feature = "sabotage")]
        sabotage::begin()?;
        let tables = Arc::new(migrate::tenant_tables(migrations));
        let mut connection = open::write_connection(options, Arc::clone(&tables))?;
        let verdict = open::verify(&mut connection, options)?;
        #[cfg(feature = "sabotage")]
        sabotage::point("after_verify");
        open::migrate(&mut connection, migrations)?;
        #[cfg(feature = "sabotage")]
        sabotage::point("after_migrate");
        #[cfg(feature = "sabotage")]
        sabotage::after_migration(connection.raw())?;
        let stored = open::ensure_meta(&mut connection, clock.now(), entropy)?;
        clock.raise_to(Time::from_micros(stored.clock_us));

        let condition = Arc::new(Condition::default());
        let mark = Arc::new(mark::Mark::open(&mark::beside(&options.path), &stored)?);
        let ballast = ballast::Ballast::open(&options.path, options.ballast_bytes)?;
        if !ballast.is_held() {
            tracing::error!("the disk is full: only operations that end work or give room are run");
            condition.set_full(true);
        }
        let wal = checkpoint::Wal::new(options);
        let checkpointer = checkpoint::Checkpointer::start(options, &wal, &mark, &condition)?;
        let readers = readers::Readers::start(options, &tables, clock)?;
        let checker = match verdict {
            check::Verdict::Unfinished => Some(check::Checker::start(options, &condition)?),
            _ => None,
        };
        let state = writer::WriterState {
            options: options.clone(),
            tables,
            clock: Arc::clone(clock),
            wal,
            queue: Arc::new(queue::Queue::new(options.write_queue_max)),
            condition: Arc::clone(&condition),
            mark: Arc::clone(&mark),
            ballast,
            commit_seq: stored.commit_seq,
            runtime: Handle::try_current().ok(),
            stored: ledger,
        };
        let writer = writer::Writer::start(state, connection)?;
        let waits = Arc::new(Waits::new(&options.name));
        Ok(Self { writer, readers, checkpointer, checker, mark, condition, hub, waits })
    }

    pub(crate) async fn execute<W: Work>(&self, call: Arc<Call<W>>) -> Result<W::Output> {
        let mode = call.work.mode();
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Pending::new(call, reply, self.hub.clone(), Arc::clone(&self.waits)));
        let submitted = match mode {
            Mode::Write => self.writer.submit(job),
            Mode::Read => self.readers.submit(job),
        };
        submitted.inspect_err(|_| self.waits.failed())?;
        // Only a thread that died with the job in hand drops the sender.
        answer.await.unwrap_or_else(|_| Err(unknown("the database thread ended before it answered")))
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Why writes are refused, if they are.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.condition.trouble()
    }

    pub(crate) fn is_checking(&self) -> bool {
        self.condition.is_checking()
    }

    /// Everything accepted is answered, then the log is copied into the database so that the next start is quick.
    pub(crate) fn close(&self) {
        if let Some(checker) = &self.checker {
            checker.close();
        }
        self.readers.close();
        self.checkpointer.close();
        self.writer.close();
        self.mark.write_if_changed();
    }
}

/// Nobody can say whether the write was made.
fn unknown(cause: impl std::fmt::Display) -> Error {
    Error::new(Code::Unavailable, Code::Unavailable.entry().title).because(cause)
}
