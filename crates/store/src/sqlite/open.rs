//! Opening the file: pragmas, version, migrations, the meta row.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OpenFlags, OptionalExtension};
use waybill_kernel::{Code, Entropy, Error, Result, Time};

use super::{Connection, Options};
use crate::Migration;
use crate::migrate::{self, Engine};
use crate::statement::TenantTables;

/// Older ones can corrupt the database when the write-ahead log is reset under load (fixed in 3.51.3).
const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// Only start-up and the checkpointer ever meet a lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Meta {
    pub(super) clock_us: i64,
}

pub(super) fn write_connection(options: &Options, tables: Arc<TenantTables>) -> Result<Connection> {
    assert!(rusqlite::version_number() >= SQLITE_VERSION_MIN, "SQLite {} is too old", rusqlite::version());
    let raw = open(&options.path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    let prepare = || -> rusqlite::Result<()> {
        raw.pragma_update(None, "journal_mode", "WAL")?;
        // The only setting under which an answer is honest after a power cut.
        raw.pragma_update(None, "synchronous", "FULL")?;
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
    Ok(Connection::new(raw, tables))
}

pub(super) fn read_connection(path: &Path, tables: Arc<TenantTables>) -> Result<Connection> {
    let raw = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    raw.pragma_update(None, "query_only", 1).map_err(|error| unusable(path, &error))?;
    raw.pragma_update(None, "cache_size", -2048).map_err(|error| unusable(path, &error))?;
    Ok(Connection::new(raw, tables))
}

pub(super) fn open(path: &Path, flags: OpenFlags) -> Result<rusqlite::Connection> {
    let raw = rusqlite::Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|error| unusable(path, &error))?;
    raw.busy_timeout(BUSY_TIMEOUT).map_err(|error| unusable(path, &error))?;
    Ok(raw)
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

pub(super) fn ensure_meta(connection: &mut Connection, now: Time, entropy: &dyn Entropy) -> Result<Meta> {
    let raw = connection.raw();
    let found = raw
        .query_row("SELECT clock_us FROM meta WHERE id = 1", [], |row| row.get(0))
        .optional()
        .map_err(Error::internal)?;
    if let Some(clock_us) = found {
        return Ok(Meta { clock_us });
    }
    let mut database_id = [0; 16];
    entropy.fill(&mut database_id);
    raw.execute(
        "INSERT INTO meta (id, database_id, commit_seq, clock_us, probe_us) VALUES (1, ?1, 0, ?2, 0)",
        rusqlite::params![database_id, now.micros()],
    )
    .map_err(Error::internal)?;
    Ok(Meta { clock_us: now.micros() })
}

fn unusable(path: &Path, error: &rusqlite::Error) -> Error {
    let message = format!("The database file {} cannot be opened: {error}.", path.display());
    Error::new(Code::DatabaseUnusable, message)
}

fn not_migrated(error: &refinery::Error) -> Error {
    Error::new(Code::DatabaseUnusable, format!("The database's schema could not be brought up to date: {error}."))
}
