//! Opening the file: pragmas, version, migrations, the meta row.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{ErrorCode, OpenFlags, OptionalExtension};
use waybill_kernel::{Code, Entropy, Error, Result, Time};

use super::check::{self, Verdict};
use super::{Connection, Options, mark};
use crate::migrate::{self, Engine};
#[cfg(feature = "sabotage")]
use crate::sabotage;
use crate::tenant_check::TenantTables;
use crate::{Migration, private};

/// Older ones can corrupt the database when the write-ahead log is reset under load (fixed in 3.51.3).
pub(super) const SQLITE_VERSION_MIN: i32 = 3_051_003;
const OWN_FILE: &str =
    "Check that it is a file of this user's, who may write it and its folder, and that its disk works.";
/// Only start-up and the checkpointer ever meet a lock.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub(super) database_id: [u8; 16],
    pub(super) commit_seq: i64,
    pub(super) clock_us: i64,
}

pub(super) fn write_connection(options: &Options, tables: Arc<TenantTables>) -> Result<Connection> {
    assert!(rusqlite::version_number() >= SQLITE_VERSION_MIN, "SQLite {} is too old", rusqlite::version());
    create_private(&options.path).map_err(|error| {
        let message = format!("The database file {} cannot be made: {error}.", options.path.display());
        Error::new(Code::DatabaseUnusable, message).with_cure(OWN_FILE)
    })?;
    let raw = open(&options.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let prepare = || -> rusqlite::Result<()> {
        raw.pragma_update(None, "journal_mode", "WAL")?;
        // The only setting under which an answer is honest after a power cut.
        raw.pragma_update(None, "synchronous", "FULL")?;
        #[cfg(feature = "sabotage")]
        unsynced(&raw)?;
        // Not on the commit path: see checkpoint.rs.
        raw.pragma_update(None, "wal_autocheckpoint", 0)?;
        raw.pragma_update(None, "temp_store", "MEMORY")?;
        raw.pragma_update(None, "cache_size", -8192)?;
        if let Some(pages) = options.pages_max {
            raw.pragma_update(None, "max_page_count", pages)?;
        }
        Ok(())
    };
    prepare().map_err(|error| unusable(&options.path, &error))?;
    Ok(Connection::new(raw, tables).that_remembers())
}

/// Makes a file that is its owner's alone, unless there is one: SQLite would make it readable for everybody. Its log and the
/// log's index are made like the file itself.
pub fn create_private(path: &Path) -> io::Result<()> {
    match private::open(File::options().write(true).create_new(true).mode(0o600), path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn read_connection(path: &Path, tables: Arc<TenantTables>) -> Result<Connection> {
    let raw = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    raw.pragma_update(None, "query_only", 1).map_err(|error| unusable(path, &error))?;
    raw.pragma_update(None, "cache_size", -2048).map_err(|error| unusable(path, &error))?;
    Ok(Connection::new(raw, tables))
}

pub(super) fn open(path: &Path, flags: OpenFlags) -> Result<rusqlite::Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    // SQLite refuses a link anywhere on the way; only the file itself may not be one.
    let raw = rusqlite::Connection::open_with_flags(private::with_real_folder(path), flags)
        .map_err(|error| unusable(path, &error))?;
    #[cfg(feature = "sabotage")]
    unsynced(&raw).map_err(|error| unusable(path, &error))?;
    let prepare = || {
        raw.busy_timeout(BUSY_TIMEOUT)?;
        // Without it SQLite peeks at bound values and plans a statement anew whenever they change: a fifth of the writer's
        // time went into that.
        raw.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
    };
    prepare().map_err(|error| unusable(path, &error))?;
    Ok(raw)
}

#[cfg(feature = "sabotage")]
fn unsynced(raw: &rusqlite::Connection) -> rusqlite::Result<()> {
    if sabotage::planted("no-fsync") { raw.pragma_update(None, "synchronous", "OFF") } else { Ok(()) }
}

pub(super) fn migrate(connection: &mut Connection, migrations: &[Migration]) -> Result<()> {
    let rendered = migrate::for_refinery(migrations, Engine::Sqlite)?;
    let runner = refinery::Runner::new(&rendered);
    let is_new = !connection.raw().table_exists(None, migrate::HISTORY).map_err(Error::internal)?;
    let applied = match is_new {
        true => Vec::new(),
        false => runner.get_applied_migrations(connection.raw()).map_err(|error| not_migrated(&error))?,
    };
    migrate::refuse_newer(&applied, migrations)?;
    if applied.len() < rendered.len() {
        runner.run(connection.raw()).map_err(|error| not_migrated(&error))?;
    }
    Ok(())
}

/// Refuses a file that has lost commits or is damaged, before anything is changed in it.
pub(super) fn verify(connection: &mut Connection, options: &Options) -> Result<Verdict> {
    // Closing the last connection would copy what is left of a damaged log into the database and delete the log, and
    // with it what could still be read from it.
    keep_log(connection.raw(), true, &options.path)?;
    let stored = stored_meta(connection.raw()).map_err(|error| check::damaged(&options.path, &error.to_string()))?;
    mark::compare(&mark::beside(&options.path), stored.as_ref())?;
    sync_log(&options.path)?;
    let verdict = check::within(connection.raw(), options.check_budget);
    if let Verdict::Damaged(finding) = &verdict {
        return Err(check::damaged(&options.path, finding));
    }
    keep_log(connection.raw(), false, &options.path)?;
    Ok(verdict)
}

/// What a killed process had written and not synced is read from memory like anything else, and a repeated call is answered
/// by it. Before anybody asks it has to be on the disk.
fn sync_log(database: &Path) -> Result<()> {
    let mut log = database.as_os_str().to_owned();
    log.push("-wal");
    let synced = match private::open(File::options().write(true), log.as_ref()) {
        Ok(log) => log.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    synced.map_err(|error| {
        let message = format!("The log of the database file {} cannot be made durable: {error}.", database.display());
        Error::new(Code::DatabaseUnusable, message)
    })
}

pub(super) fn keep_log(raw: &rusqlite::Connection, keep: bool, path: &Path) -> Result<()> {
    let set = raw.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep);
    set.map(drop).map_err(|error| unusable(path, &error))
}

/// None in a file that is new.
pub(super) fn stored_meta(raw: &rusqlite::Connection) -> rusqlite::Result<Option<Meta>> {
    if !raw.table_exists(None, "meta")? {
        return Ok(None);
    }
    let meta =
        |row: &rusqlite::Row<'_>| Ok(Meta { database_id: row.get(0)?, commit_seq: row.get(1)?, clock_us: row.get(2)? });
    raw.query_row("SELECT database_id, commit_seq, clock_us FROM meta WHERE id = 1", [], meta).optional()
}

pub(super) fn ensure_meta(connection: &mut Connection, now: Time, entropy: &dyn Entropy) -> Result<Meta> {
    let raw = connection.raw();
    if let Some(meta) = stored_meta(raw).map_err(Error::internal)? {
        return Ok(meta);
    }
    let mut database_id = [0; 16];
    entropy.fill(&mut database_id);
    raw.execute(
        "INSERT INTO meta (id, database_id, commit_seq, clock_us, probe_us) VALUES (1, ?1, 0, ?2, 0)",
        rusqlite::params![database_id, now.micros()],
    )
    .map_err(Error::internal)?;
    Ok(Meta { database_id, commit_seq: 0, clock_us: now.micros() })
}

fn unusable(path: &Path, error: &rusqlite::Error) -> Error {
    if matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)) {
        return check::damaged(path, &error.to_string());
    }
    if path.is_symlink() {
        let message = format!("The database file {} is a symbolic link, and those are not followed.", path.display());
        return Error::new(Code::DatabaseUnusable, message);
    }
    let message = format!("The database file {} cannot be opened: {error}.", path.display());
    Error::new(Code::DatabaseUnusable, message).with_cure(OWN_FILE)
}

fn not_migrated(error: &refinery::Error) -> Error {
    let message = format!("The database's schema could not be brought up to date: {error}.");
    Error::new(Code::DatabaseUnusable, message).with_cure(crate::migrate::WAY_BACK)
}
