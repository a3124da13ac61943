//! Several database files as of one instant.
//!
//! # Why one instant
//! No transaction spans two files, so what concerns two of them is done in steps. A message that goes from shard A to home is
//! noted in A, taken in by home, ended in A, and then home forgets the number by which it would have known it again. Were
//! the snapshot of one file taken after the other's, steps could fall between the two, and no order of the files helps:
//!
//! | falls between the two | A first, then home | home first, then A |
//! |---|---|---|
//! | a message goes from A to home | in both, and home has forgotten its number | in neither |
//! | the last step of that alone | in A it is still noted: carried again, and in home twice | as it was |
//! | a message goes from home to A | in neither | in both |
//! | a queue is purged or deleted | no note is left to tell A | A is ahead of home: every call is refused |
//!
//! So the write lock of every file is held while the snapshots are begun. While all are held nothing can be committed in any
//! of them: what is copied is what a crash of the server at this instant would have left behind. How a start heals that is
//! the same as after any crash: changes of queues are finished by their notes, and messages on their way are carried again
//! and known by their numbers. In which order the files are then copied makes no difference.
//!
//! # What it costs
//! SQLite's write lock is free between two batches of the server's writer, and is asked for again and again until it is had.
//! Writers wait for as long as the locks of all files take, a few milliseconds as a rule: a server waits for
//! [`BUSY_TIMEOUT`](super::open::BUSY_TIMEOUT), and [`HELD_MAX`] is far below. One file alone needs no lock.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{ErrorCode, OpenFlags};
use waybill_kernel::{Code, Error, Result};

use super::backup::wal;
use super::open::{self, Meta};
use super::watch::{Step, Watch};
use super::{check, mark};

/// From the first lock to the last. Who has not got all by then gives them back and begins anew.
const HELD_MAX: Duration = Duration::from_millis(500);
/// Between two such attempts, for the writers to get on.
const PAUSE: Duration = Duration::from_millis(100);
/// For all of them.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether a lock is free.
const LOOK: Duration = Duration::from_micros(20);

/// A read transaction on a file, held until this is dropped.
pub(super) struct Snapshot {
    pub(super) raw: rusqlite::Connection,
    pub(super) path: PathBuf,
    pub(super) meta: Meta,
}

/// Snapshots of all these files, in their order, as of one instant.
pub(super) fn snapshots(paths: &[&Path], watch: &Watch) -> Result<Vec<Snapshot>> {
    // Read before the snapshots are taken: the server moves both on, and the mark must not get ahead by that.
    let marks = paths.iter().map(|path| mark::read(&mark::beside(path))).collect::<Result<Vec<_>>>()?;
    let readers = paths.iter().map(|path| reader(path)).collect::<Result<Vec<_>>>()?;
    let held = match paths {
        [_] => None,
        _ => Some(Held::all(paths, watch)?),
    };
    let begin = |(raw, path): (rusqlite::Connection, &&Path)| {
        let meta = begin_snapshot(&raw, path)?;
        Ok(Snapshot { raw, path: path.to_path_buf(), meta })
    };
    let begun = readers.into_iter().zip(paths).map(begin).collect::<Result<Vec<_>>>();
    drop(held);
    let begun = begun?;
    for (snapshot, marked) in begun.iter().zip(&marks) {
        mark::judge(&mark::beside(&snapshot.path), marked.as_deref(), Some(&snapshot.meta))?;
    }
    Ok(begun)
}

/// The write locks of several files. Nothing is written under them; dropping gives them back.
struct Held(Vec<rusqlite::Connection>);

impl Held {
    /// Asks in the same order always, so that two backups at once do not wait for each other.
    fn all(paths: &[&Path], watch: &Watch) -> Result<Self> {
        let held = Self(paths.iter().map(|path| opened(path)).collect::<Result<Vec<_>>>()?);
        for (raw, path) in held.0.iter().zip(paths) {
            raw.busy_timeout(Duration::ZERO).map_err(|error| damaged(path, &error))?;
        }
        let until = Instant::now() + PATIENCE;
        while !held.try_all(paths)? {
            watch.at(Step::Copying, 0, 0)?;
            if Instant::now() > until {
                let message = "The files could not be held still for an instant: their server writes without a pause, or \
                               has stopped in the middle of a write.";
                let cure = "Try again; if the server is stuck, stop it first.";
                return Err(Error::new(Code::StoreUnavailable, message).with_cure(cure));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(held)
    }

    /// False when it took too long; then none is held.
    fn try_all(&self, paths: &[&Path]) -> Result<bool> {
        let until = Instant::now() + HELD_MAX;
        for (at, (raw, path)) in self.0.iter().zip(paths).enumerate() {
            while !lock(raw, path)? {
                if Instant::now() > until {
                    for held in &self.0[..at] {
                        held.execute_batch("ROLLBACK").map_err(Error::internal)?;
                    }
                    return Ok(false);
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(true)
    }
}

/// False when somebody else has it.
fn lock(raw: &rusqlite::Connection, path: &Path) -> Result<bool> {
    match raw.execute_batch("BEGIN IMMEDIATE") {
        Ok(()) => Ok(true),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(false),
        Err(error) => Err(damaged(path, &error)),
    }
}

/// Opened for writing, because only then does SQLite tidy up its two helper files when the last one leaves; and told to
/// write nothing.
fn reader(path: &Path) -> Result<rusqlite::Connection> {
    let raw = opened(path)?;
    raw.pragma_update(None, "query_only", 1).map_err(|error| damaged(path, &error))?;
    Ok(raw)
}

fn opened(path: &Path) -> Result<rusqlite::Connection> {
    let has_log = wal(path).metadata().is_ok_and(|log| log.len() > 0);
    let raw = open::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // What a crash has left in the log stays there for the server's next start to judge.
    let kept = raw.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log);
    kept.map_err(|error| damaged(path, &error))?;
    Ok(raw)
}

fn begin_snapshot(raw: &rusqlite::Connection, path: &Path) -> Result<Meta> {
    raw.execute_batch("BEGIN").map_err(|error| damaged(path, &error))?;
    let meta = open::stored_meta(raw).map_err(|error| damaged(path, &error))?;
    meta.ok_or_else(|| {
        let message = format!("{} holds no Waybill database yet.", path.display());
        Error::new(Code::NotFound, message).with_cure(super::backup::DATA_FOLDER)
    })
}

fn damaged(path: &Path, error: &rusqlite::Error) -> Error {
    check::damaged(path, &error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use waybill_kernel::Time;
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;
    use crate::sqlite::Options;
    use crate::{MIGRATIONS, migrate};

    const CUTS: usize = 300;
    const WRITTEN_LEAST: i64 = 30;

    fn make(path: &Path) {
        let tables = Arc::new(migrate::tenant_tables(MIGRATIONS));
        let mut connection = open::write_connection(&Options::at(path), tables).unwrap();
        open::migrate(&mut connection, MIGRATIONS).unwrap();
        open::ensure_meta(&mut connection, Time::from_micros(7), &SeededEntropy::new(1)).unwrap();
    }

    fn writer(path: &Path) -> rusqlite::Connection {
        let raw = open::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
        raw.pragma_update(None, "synchronous", "OFF").unwrap();
        raw
    }

    /// Somebody writes to one file and then to the other, again and again: the first is never behind the second, and never
    /// ahead of it by more than one.
    #[test]
    fn snapshots_of_several_files_are_of_one_instant() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["first.db", "second.db"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| make(path));
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, writers) = (Arc::clone(&stop), paths.clone().map(|path| writer(&path)));
        let writing = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                for raw in &writers {
                    raw.execute("UPDATE meta SET commit_seq = commit_seq + 1", []).unwrap();
                }
            }
        });
        let mut last = 0;
        let paths = [paths[0].as_path(), paths[1].as_path()];
        let mut cuts = 0;
        // On a busy machine the writer has few turns: then there are more snapshots.
        while cuts < CUTS || last <= WRITTEN_LEAST {
            let cut = snapshots(&paths, &Watch::none()).unwrap();
            let [first, second] = [&cut[0], &cut[1]].map(|snapshot| snapshot.meta.commit_seq);
            assert!([0, 1].contains(&(first - second)), "{first} and {second}");
            (last, cuts) = (first, cuts + 1);
            assert!(cuts < 1_000 * CUTS, "nothing was written meanwhile");
        }
        stop.store(true, Ordering::Relaxed);
        writing.join().unwrap();
    }

    #[test]
    fn whoever_writes_goes_on_when_the_snapshots_are_begun() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["first.db", "second.db"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| make(path));
        let held = snapshots(&[&paths[0], &paths[1]], &Watch::none()).unwrap();
        for (path, snapshot) in paths.iter().zip(&held) {
            let raw = writer(path);
            raw.busy_timeout(Duration::ZERO).unwrap();
            raw.execute("UPDATE meta SET commit_seq = 9", []).unwrap();
            let seen = open::stored_meta(&snapshot.raw).unwrap().unwrap();
            assert_eq!(seen.commit_seq, 0, "the snapshot stays as it was");
        }
    }

    #[test]
    fn a_lock_that_is_never_free_ends_it_when_it_is_told_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["first.db", "second.db"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| make(path));
        let stuck = writer(&paths[1]);
        stuck.execute_batch("BEGIN IMMEDIATE").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let watch = Watch::new(stop, move |_, _, _| flag.store(true, Ordering::Relaxed));
        let error = snapshots(&[&paths[0], &paths[1]], &watch).err().unwrap();
        assert_eq!(error.code(), Code::Interrupted);
        let free = writer(&paths[0]);
        free.busy_timeout(Duration::ZERO).unwrap();
        free.execute_batch("BEGIN IMMEDIATE").unwrap();
    }
}
