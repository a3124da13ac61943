//! A look at a database file that changes nothing: beside a running server, or at what a crash has left behind.
//!
//! Beside a server SQLite's ordinary protocol is used. When none runs, an ordinary reader would leave helper files behind
//! and rebuild the log's index on the disk, and one that locks would keep a server from starting: so the file is read without
//! locks, with the index in memory. Whoever looks in this way asks [`Inspection::was_disturbed`] afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::config::DbConfig;
use rusqlite::{ErrorCode, OpenFlags, OptionalExtension};
use waybill_kernel::{Code, Error, Result, Time, hex};

use super::manifest::Contents;
use super::open::{self, Meta};
use super::watch::{self, Step, Watch};
use super::{backup, check, mark};
use crate::effects::{DeadJobs, SweepState};
use crate::migrate::HISTORY;

/// As many findings as a person reads.
const FINDINGS_MAX: usize = 20;
const STEPS_BETWEEN_LOOKS: i32 = 10_000;
const URI_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// SQLite's own version, as text, and whether it is one that may be used.
pub fn sqlite_version() -> (&'static str, bool) {
    (rusqlite::version(), rusqlite::version_number() >= open::SQLITE_VERSION_MIN)
}

/// Whether somebody else may write to the file during the look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Server,
    Nobody,
}

pub struct Inspection {
    raw: rusqlite::Connection,
    path: PathBuf,
    mark: Option<Vec<u8>>,
    /// None beside a server, where changes are no surprise.
    files: Option<Files>,
}

/// Size and time of the file and its log.
type Files = [Option<(u64, SystemTime)>; 2];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    pub database_id: String,
    pub commit_seq: i64,
    pub commit_time: Time,
}

/// What the mark says about the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// There is none, or none of this database.
    Nothing,
    Damaged,
    /// Everything it remembers is in the file.
    Whole,
    /// Commits that were made durable are not in the file.
    Missing {
        commits: i64,
        newest: i64,
        at: Time,
    },
}

impl Inspection {
    pub fn open(path: &Path, beside: Beside) -> Result<Self> {
        // Before the file: what is committed in between must not look like the mark's lead.
        let mark = mark::read(&mark::beside(path))?;
        let files = (beside == Beside::Nobody).then(|| files(path));
        let opened = match beside {
            Beside::Server => rusqlite::Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY),
            Beside::Nobody => open_alone(path),
        };
        let unreadable = |error: rusqlite::Error| {
            Error::new(Code::DatabaseUnusable, format!("{} cannot be read: {error}.", path.display()))
        };
        let raw = opened.map_err(unreadable)?;
        raw.busy_timeout(open::BUSY_TIMEOUT).map_err(unreadable)?;
        raw.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(unreadable)?;
        Ok(Self { raw, path: path.to_owned(), mark, files })
    }

    /// None in a file that is new.
    pub fn newest(&self) -> Result<Option<Newest>> {
        let meta = open::stored_meta(&self.raw).map_err(|error| self.damaged(&error))?;
        Ok(meta.map(|meta| Newest {
            database_id: hex::encode(&meta.database_id),
            commit_seq: meta.commit_seq,
            commit_time: Time::from_micros(meta.clock_us),
        }))
    }

    pub fn marked(&self) -> Result<Marked> {
        let meta = open::stored_meta(&self.raw).map_err(|error| self.damaged(&error))?;
        Ok(mark::standing(self.mark.as_deref(), meta.as_ref()))
    }

    /// The newest migration the file has seen.
    pub fn schema(&self) -> Result<Option<i64>> {
        schema(&self.raw).map_err(|error| self.damaged(&error))
    }

    /// What is wrong with the file, if anything. `quick` leaves out whether indexes agree with their tables.
    pub fn findings(&mut self, quick: bool, watch: &Watch) -> Result<Vec<String>> {
        findings(&mut self.raw, quick, watch)
    }

    /// Runs an audit query that a domain supplies and returns at most `max` of the ids it finds.
    pub fn ids(&mut self, sql: &str, max: usize, watch: &Watch) -> Result<Vec<Vec<u8>>> {
        let sql = format!("{sql} LIMIT {max}");
        let found = stoppable(&mut self.raw, watch, |raw| {
            let mut statement = raw.prepare(&sql)?;
            let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        found.map_err(|error| self.damaged(&error))
    }

    /// Runs an audit query that a domain supplies and returns the one text it finds.
    pub fn text(&self, sql: &str) -> Result<Option<String>> {
        self.raw.query_row(sql, [], |row| row.get(0)).optional().map_err(|error| self.damaged(&error))
    }

    /// Runs an audit query that a domain supplies and returns the texts it finds.
    pub fn texts(&self, sql: &str) -> Result<Vec<String>> {
        let ask =
            || -> rusqlite::Result<Vec<String>> { self.raw.prepare(sql)?.query_map([], |row| row.get(0))?.collect() };
        ask().map_err(|error| self.damaged(&error))
    }

    pub fn sweeps(&self) -> Result<Vec<SweepState>> {
        let ask = || -> rusqlite::Result<Vec<SweepState>> {
            let mut statement = self.raw.prepare(SweepState::SELECT)?;
            let rows = statement.query_map([], |row| {
                Ok(SweepState {
                    name: row.get(0)?,
                    interval_us: row.get(1)?,
                    next_at: Time::from_micros(row.get(2)?),
                    last_error: row.get(3)?,
                })
            })?;
            rows.collect()
        };
        ask().map_err(|error| self.damaged(&error))
    }

    pub fn dead_jobs(&self) -> Result<Vec<DeadJobs>> {
        let ask = || -> rusqlite::Result<Vec<DeadJobs>> {
            let mut statement = self.raw.prepare(DeadJobs::SELECT)?;
            let rows = statement.query_map([], |row| Ok(DeadJobs { kind: row.get(0)?, count: row.get(1)? }))?;
            rows.collect()
        };
        ask().map_err(|error| self.damaged(&error))
    }

    /// Somebody has written to the file since it was opened: a server was started. What was found may be no fault.
    pub fn was_disturbed(&self) -> bool {
        self.files.as_ref().is_some_and(|seen| *seen != files(&self.path))
    }

    fn damaged(&self, error: &rusqlite::Error) -> Error {
        check::damaged(&self.path, &error.to_string())
    }
}

fn open_alone(path: &Path) -> rusqlite::Result<rusqlite::Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let encoded = percent_encode(path.as_os_str().as_bytes(), URI_PATH);
    if !backup::wal(path).exists() {
        // Without a log the file is all there is, and even an empty log must not be made.
        return rusqlite::Connection::open_with_flags(format!("file:{encoded}?immutable=1"), flags);
    }
    let raw = rusqlite::Connection::open_with_flags_and_vfs(format!("file:{encoded}"), flags, "unix-none")?;
    // Exclusive mode keeps the WAL index on the heap instead of in a `-shm` file. The `unix-none` VFS takes no file locks, so this
    // blocks nobody.
    raw.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    Ok(raw)
}

fn files(path: &Path) -> Files {
    let seen = |path: &Path| fs::metadata(path).ok().and_then(|file| Some((file.len(), file.modified().ok()?)));
    [seen(path), seen(&backup::wal(path))]
}

fn findings(raw: &mut rusqlite::Connection, quick: bool, watch: &Watch) -> Result<Vec<String>> {
    let pragma = if quick { "quick_check" } else { "integrity_check" };
    let found = stoppable(raw, watch, |raw| {
        let mut statement = raw.prepare(&format!("PRAGMA {pragma}({FINDINGS_MAX})"))?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    })?;
    match found {
        Ok(findings) if findings == ["ok"] => Ok(Vec::new()),
        Ok(findings) => Ok(findings.iter().map(|finding| finding.trim().replace('\n', " ")).collect()),
        // A file so damaged that the check itself cannot go on.
        Err(error) => Ok(vec![error.to_string()]),
    }
}

/// Asks what may take long. Err when it was told to stop; what SQLite says otherwise is for the caller to judge.
fn stoppable<T>(
    raw: &mut rusqlite::Connection,
    watch: &Watch,
    ask: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
) -> Result<rusqlite::Result<T>> {
    watch.at(Step::Checking, 0, 0)?;
    let stop = watch.stop_flag();
    raw.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || stop.load(Ordering::Relaxed))).map_err(Error::internal)?;
    let answer = ask(raw);
    let _ = raw.progress_handler(0, None::<fn() -> bool>);
    // What is small is done before anybody is asked whether to go on.
    watch.at(Step::Checking, 0, 0)?;
    match answer {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Err(watch::interrupted()),
        answer => Ok(answer),
    }
}

fn schema(raw: &rusqlite::Connection) -> rusqlite::Result<Option<i64>> {
    if !raw.table_exists(None, HISTORY)? {
        return Ok(None);
    }
    raw.query_row(&format!("SELECT max(version) FROM {HISTORY}"), [], |row| row.get(0)).optional().map(Option::flatten)
}

/// Checks a copy that nobody else knows, and says what is in it. It becomes one file that needs no log beside it.
pub(super) fn contents_of_copy(path: &Path, watch: &Watch) -> Result<Contents> {
    let mut raw = open::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let damaged = |error: &rusqlite::Error| check::damaged(path, &error.to_string());
    let mode: String =
        raw.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0)).map_err(|error| damaged(&error))?;
    if mode != "delete" {
        return Err(Error::internal(format!("the copy keeps the journal mode {mode}")));
    }
    if let Some(finding) = findings(&mut raw, false, watch)?.first() {
        return Err(check::damaged(path, finding));
    }
    let meta = open::stored_meta(&raw).map_err(|error| damaged(&error))?;
    let Some(Meta { database_id, commit_seq, clock_us }) = meta else {
        return Err(check::damaged(path, "it says not which database it is"));
    };
    let read = || -> rusqlite::Result<(Option<i64>, BTreeMap<String, u64>)> { Ok((schema(&raw)?, count_rows(&raw)?)) };
    let (schema, rows) = read().map_err(|error| damaged(&error))?;
    Ok(Contents {
        database_id: hex::encode(&database_id),
        schema: schema.unwrap_or(0),
        commit_seq,
        commit_time: Time::from_micros(clock_us),
        rows,
    })
}

/// Of tables alone: an index for full text cannot be counted, and has nothing that is not in them.
fn count_rows(raw: &rusqlite::Connection) -> rusqlite::Result<BTreeMap<String, u64>> {
    const TABLES: &str = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' \
                          AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    let mut statement = raw.prepare(TABLES)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let count = |name: String| {
        let sql = format!("SELECT count(*) FROM \"{}\"", name.replace('"', "\"\""));
        let rows: i64 = raw.query_row(&sql, [], |row| row.get(0))?;
        Ok((name, u64::try_from(rows).unwrap_or(0)))
    };
    names.into_iter().map(count).collect()
}
