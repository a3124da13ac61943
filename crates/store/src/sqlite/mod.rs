//! The embedded engine: WAL, `synchronous=FULL`, one writer thread with group commit, a few reader threads.

mod checkpoint;
mod connection;
mod job;
mod open;
mod queue;
mod readers;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use waybill_kernel::{Clock, Code, Entropy, Error, Mode, Result, Time};

pub(crate) use connection::Connection;
use job::{Job, Pending};

use crate::operation::{Call, Work};
use crate::wake::Hub;
use crate::{Migration, migrate};

#[derive(Clone, Debug)]
pub struct Options {
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
    /// … and beyond this one the writer itself waits until it has been.
    pub wal_bytes_max: u64,
    /// Pages the file may grow to; None for SQLite's own limit. Tests fill a database with it.
    pub pages_max: Option<u32>,
}

impl Options {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            write_queue_max: 4096,
            read_queue_max: 4096,
            readers: 2,
            linger_max: Duration::from_millis(1),
            checkpoint_bytes: 4 << 20,
            wal_bytes_max: 64 << 20,
            pages_max: None,
        }
    }
}

pub(crate) struct Sqlite {
    writer: writer::Writer,
    readers: readers::Readers,
    checkpointer: checkpoint::Checkpointer,
    hub: Hub,
}

impl Sqlite {
    /// Blocking: called before the program serves anybody.
    pub(crate) fn open(
        options: &Options,
        migrations: &[Migration],
        clock: &Arc<Clock>,
        entropy: &dyn Entropy,
        hub: Hub,
    ) -> Result<Self> {
        let tables = Arc::new(migrate::tenant_tables(migrations));
        let mut connection = open::write_connection(options, Arc::clone(&tables))?;
        open::migrate(&mut connection, migrations)?;
        let stored = open::ensure_meta(&mut connection, clock.now(), entropy)?;
        clock.raise_to(Time::from_micros(stored.clock_us));

        let wal = checkpoint::Wal::new(options);
        let checkpointer = checkpoint::Checkpointer::start(options, Arc::clone(&wal))?;
        let readers = readers::Readers::start(options, &tables, clock)?;
        let writer = writer::Writer::start(options, connection, Arc::clone(clock), wal)?;
        Ok(Self { writer, readers, checkpointer, hub })
    }

    pub(crate) async fn run<W: Work>(&self, call: Arc<Call<W>>) -> Result<W::Output> {
        let mode = call.work.mode();
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Pending::new(call, reply, self.hub.clone()));
        match mode {
            Mode::Write => self.writer.submit(job)?,
            Mode::Read => self.readers.submit(job)?,
        }
        // Only a thread that died with the job in hand drops the sender.
        answer.await.unwrap_or_else(|_| Err(unknown("the database thread ended before it answered")))
    }

    pub(crate) fn writes_stopped(&self) -> bool {
        self.writer.has_failed()
    }

    /// Everything accepted is answered, then the log is copied into the database so that the next start is quick.
    pub(crate) fn close(&self) {
        self.readers.close();
        self.checkpointer.close();
        self.writer.close();
    }
}

/// Nobody can say whether the write was made.
fn unknown(cause: impl std::fmt::Display) -> Error {
    Error::new(Code::Unavailable, Code::Unavailable.entry().title).because(cause)
}
