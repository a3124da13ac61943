//! Copying the write-ahead log into the database, off the commit path.
//!
//! SQLite would do it inside the commit that crosses 1,000 pages, and that commit's callers would pay for it. Here a
//! thread of its own copies while the writer goes on; only when the log has outgrown its bound does the writer
//! stop for as long as the rest takes, so that the log cannot grow for ever under a load that never pauses.
//!
//! The same thread keeps the mark (mark.rs), which wants the same pace.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::OpenFlags;
use waybill_kernel::{Error, Result};

use super::ballast::free_bytes;
use super::condition::Condition;
use super::mark::Mark;
use super::{Options, open};
use crate::metrics::{FSYNCS, WAL_BYTES};
#[cfg(feature = "sabotage")]
use crate::sabotage;

const INTERVAL: Duration = Duration::from_millis(100);
/// A page and its header in the log.
pub(super) const FRAME_BYTES: u64 = 4096 + 24;

/// So much longer than its bound a log may get between two looks of the checkpointer; the writer itself sees to the rest.
const SLACK_BYTES: u64 = 8 << 20;

/// What the writer and the checkpointer tell each other.
pub(super) struct Wal {
    store: String,
    database: PathBuf,
    path: PathBuf,
    checkpoint_bytes: u64,
    bytes_max: u64,
    overgrown: AtomicBool,
    /// Held by whoever copies: the writer, who found the log too long, waits for the other instead of failing at SQLite's lock.
    copying: Mutex<()>,
}

impl Wal {
    pub(super) fn new(options: &Options) -> Arc<Self> {
        let mut path = options.path.clone().into_os_string();
        path.push("-wal");
        Arc::new(Self {
            store: options.name.clone(),
            database: options.path.clone(),
            path: path.into(),
            checkpoint_bytes: options.checkpoint_bytes,
            bytes_max: options.wal_bytes_max,
            overgrown: AtomicBool::new(false),
            copying: Mutex::new(()),
        })
    }

    /// Has the log's length looked at after every commit over this connection: a few large batches outgrow the bound between
    /// two looks of the checkpointer.
    pub(super) fn watch(
        self: &Arc<Self>,
        connection: &mut rusqlite::Connection,
        condition: &Arc<Condition>,
    ) -> Result<()> {
        let (wal, condition) = (Arc::clone(self), Arc::clone(condition));
        let longest = wal.bytes_max + SLACK_BYTES;
        let look = move |_: &mut rusqlite::hooks::Wal, pages: std::ffi::c_int| {
            if u64::from(pages.unsigned_abs()) * FRAME_BYTES > longest && !condition.is_checking() {
                wal.overgrown.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        connection.wal_hook(Some(look)).map_err(Error::internal)
    }

    /// Asked by the writer between two batches; true once per overgrowth.
    pub(super) fn take_overgrown(&self) -> bool {
        self.is_overgrown() && self.overgrown.swap(false, Ordering::Relaxed)
    }

    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_overgrown(&self) -> bool {
        self.overgrown.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

pub(super) struct Checkpointer {
    stop: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Checkpointer {
    pub(super) fn start(
        options: &Options,
        wal: &Arc<Wal>,
        mark: &Arc<Mark>,
        condition: &Arc<Condition>,
    ) -> Result<Self> {
        let (wal, mark, condition) = (Arc::clone(wal), Arc::clone(mark), Arc::clone(condition));
        let connection = open::open(&options.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        // The writer decides at the end whether the log is copied.
        open::keep_log(&connection, true, &options.path)?;
        let (stop, stopped) = channel::<()>();
        let thread = thread::Builder::new()
            .name("sqlite-checkpoint".to_owned())
            .spawn(move || {
                let mut failing = false;
                while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    mark.write_if_changed();
                    copy(&connection, &wal, &condition, &mut failing);
                }
            })
            .map_err(Error::internal)?;
        Ok(Self { stop: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn close(&self) {
        drop(self.stop.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Is there room for what the log would add to the database? On a full disk a copy that cannot be completed would take
/// the ballast's room and give nothing for it: the log begins anew only after a complete one.
fn fits(connection: &rusqlite::Connection, database: &Path) -> bool {
    let number = |pragma| connection.query_row(pragma, [], |row| row.get::<_, u32>(0).map(u64::from));
    let (Ok(pages), Ok(page_bytes)) = (number("PRAGMA page_count"), number("PRAGMA page_size")) else { return false };
    let present = fs::metadata(database).map_or(0, |file| file.len());
    pages.saturating_mul(page_bytes).saturating_sub(present) <= free_bytes(database)
}

/// `failing` keeps a failure that lasts from being logged ten times a second.
fn copy(connection: &rusqlite::Connection, wal: &Wal, condition: &Condition, failing: &mut bool) {
    let bytes = wal.bytes();
    metrics::gauge!(WAL_BYTES, "store" => wal.store.clone()).set(bytes as f64);
    if bytes < wal.checkpoint_bytes {
        return;
    }
    if condition.is_damaged() || (condition.is_full() && !fits(connection, &wal.database)) {
        return;
    }
    #[cfg(feature = "sabotage")]
    sabotage::point_within("in_checkpoint");
    let _alone = wal.alone();
    match connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1)) {
        Ok(logged) => {
            *failing = false;
            metrics::counter!(FSYNCS, "store" => wal.store.clone()).increment(2);
            // That all of it was copied says nothing: what has been written meanwhile was not, and a log begins anew
            // only when nothing is left. Left to itself it would grow as long as the load lasts, and a commit that makes
            // the file longer costs nearly twice the fsync of one that writes over it.
            // A check of the whole file is one long read, and the log cannot begin anew before it ends: the writer
            // would wait for it in vain.
            let overgrown = logged.max(0) as u64 * FRAME_BYTES > wal.bytes_max && !condition.is_checking();
            wal.overgrown.store(overgrown, Ordering::Relaxed);
        }
        Err(error) if is_unsynced(&error) => stop(condition, &error),
        Err(error) if !*failing => {
            *failing = true;
            tracing::warn!(%error, "a checkpoint failed; the next one tries again");
        }
        Err(_) => {}
    }
}

/// The log or the database could not be made durable while one was copied into the other.
pub(super) fn is_unsynced(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_FSYNC)
}

/// The kernel may have dropped pages of the database that it could not write, and call the next fsync a success; what has
/// been copied before is not copied again, and a log that began anew would take the only other copy with it. A start
/// copies the whole log from its beginning.
pub(super) fn stop(condition: &Condition, error: &rusqlite::Error) {
    const WHY: &str = "The log could not be copied into the database durably. Nothing is lost; restart the program, which copies \
                       it anew.";
    tracing::error!(%error, "{WHY}");
    condition.set_damaged(WHY);
}
