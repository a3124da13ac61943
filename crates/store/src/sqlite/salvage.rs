//! A damaged database becomes one that can be opened, with whatever can still be read.
//!
//! First the whole of it by `VACUUM INTO`. Where that fails, be it because of an index alone, a new database gets the rows table by table, from
//! both ends of each up to the damage. The files as they were found go to quarantine; nothing of them is changed or deleted. What comes
//! out has an id of its own, as after a restore.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::OpenFlags;
use rusqlite::types::Value;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Entropy, Error, Result, Time};

use super::check::{self, Verdict};
use super::open::{self, Meta};
use super::watch::{Step, Watch};
use super::{Options, inspect, manifest, mark};
use crate::{Migration, migrate};

/// Long enough for any file: whoever salvages waits.
const CHECK_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Rows between two looks at whether to stop.
const ROWS_PER_LOOK: u64 = 4_096;

/// How what was salvaged came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// All of it.
    Whole,
    /// Row by row, where they could be read.
    Rows,
}

/// A table that was read row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SalvagedTable {
    pub table: String,
    pub rows: u64,
    /// What the reading ended at; absent where all of it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Salvaged {
    /// Why the database could not be used.
    pub finding: String,
    pub way: Way,
    /// Empty when all of it came out.
    pub tables: Vec<SalvagedTable>,
    /// Where the files lie that were found.
    pub quarantine: PathBuf,
}

impl Salvaged {
    /// Tables that lack rows.
    pub fn incomplete(&self) -> impl Iterator<Item = &SalvagedTable> {
        self.tables.iter().filter(|table| table.damage.is_some())
    }
}

/// What is wrong with the database; None when nothing is. Looks through all of it and changes nothing.
pub fn finding(database: &Path) -> Result<Option<String>> {
    let look = || -> Result<Option<String>> {
        let mut raw = open::open(database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        open::keep_log(&raw, true, database)?;
        let meta = open::stored_meta(&raw).map_err(|error| check::damaged(database, &error.to_string()))?;
        mark::compare(&mark::beside(database), meta.as_ref())?;
        match check::within(&mut raw, CHECK_MAX) {
            Verdict::Damaged(found) => Ok(Some(found)),
            Verdict::Sound | Verdict::Unfinished => Ok(None),
        }
    };
    match look() {
        Err(error) if error.code() == Code::DatabaseUnusable => Ok(Some(error.message().to_owned())),
        other => other,
    }
}

/// What a run needs.
pub struct Salvage<'a> {
    /// The file, whose folder the caller holds.
    pub database: &'a Path,
    /// A folder that does not exist yet.
    pub quarantine: &'a Path,
    pub finding: String,
    /// Those of the domains, as for [`crate::Store::open`].
    pub migrations: &'a [Migration],
    pub entropy: &'a dyn Entropy,
    pub now: Time,
}

impl Salvage<'_> {
    /// Before anything takes the place of what was found `accept` is asked whether what came out is enough; if not, everything stays
    /// as it was.
    pub fn run(&self, accept: impl FnOnce(&Salvaged) -> Result<()>, watch: &Watch) -> Result<Salvaged> {
        let part = with_ending(self.database, ".part");
        // Left by one that was killed: the folder is the caller's alone.
        remove(&part);
        let outcome = self.read(&part, watch).and_then(|salvaged| {
            accept(&salvaged)?;
            let meta = identify(&part, self.entropy, self.now)?;
            manifest::sync(&part)?;
            replace(self.database, &part, self.quarantine, &meta)?;
            Ok(salvaged)
        });
        if outcome.is_err() {
            remove(&part);
        }
        outcome
    }

    fn read(&self, part: &Path, watch: &Watch) -> Result<Salvaged> {
        let (way, tables) = match whole(self.database, part, watch) {
            Ok(()) => (Way::Whole, Vec::new()),
            Err(error) if error.code() == Code::Interrupted => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the database cannot be copied as a whole; its rows are read one by one");
                remove(part);
                (Way::Rows, self.rows(part, watch)?)
            }
        };
        Ok(Salvaged { finding: self.finding.clone(), way, tables, quarantine: self.quarantine.to_owned() })
    }

    /// A new database with the rows that can be read.
    fn rows(&self, part: &Path, watch: &Watch) -> Result<Vec<SalvagedTable>> {
        let migrations = migrate::ordered(&[crate::MIGRATIONS, self.migrations].concat());
        let tables = Arc::new(migrate::tenant_tables(&migrations));
        let mut to = open::write_connection(&Options::at(part), tables)?;
        open::migrate(&mut to, &migrations)?;
        let mut salvaged = Vec::new();
        for table in tables_of(to.raw()).map_err(Error::internal)? {
            // A connection of its own: one that has met damage may remember it.
            let read = match damaged_one(self.database) {
                Ok(from) => copy_table(&from, to.raw(), &table, watch)?,
                Err(error) => SalvagedTable { table, rows: 0, damage: Some(error.message().to_owned()) },
            };
            salvaged.push(read);
        }
        open::ensure_meta(&mut to, self.now, self.entropy)?;
        drop(to);
        inspect::contents_of_copy(part, watch)?;
        Ok(salvaged)
    }
}

fn remove(part: &Path) {
    for ending in ["", "-wal", "-shm", "-journal"] {
        let _ = fs::remove_file(with_ending(part, ending));
    }
}

/// The database that was found, opened so that closing it changes nothing.
fn damaged_one(database: &Path) -> Result<rusqlite::Connection> {
    let raw = open::open(database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    open::keep_log(&raw, true, database)?;
    raw.pragma_update(None, "query_only", 1).map_err(|error| check::damaged(database, &error.to_string()))?;
    Ok(raw)
}

fn whole(database: &Path, part: &Path, watch: &Watch) -> Result<()> {
    let raw = open::open(database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    open::keep_log(&raw, true, database)?;
    open::create_private(part).map_err(|error| manifest::unusable(part, &error))?;
    let target = part.to_str().ok_or_else(|| Error::new(Code::PathUnusable, "The data folder's path is not UTF-8."))?;
    raw.execute("VACUUM INTO ?1", [target]).map_err(|error| check::damaged(database, &error.to_string()))?;
    drop(raw);
    // In full: what comes out is served.
    inspect::contents_of_copy(part, watch).map(drop)
}

/// What the schema makes, apart from what it fills itself and what full-text search keeps: that is made again from the messages.
fn tables_of(raw: &rusqlite::Connection) -> rusqlite::Result<Vec<String>> {
    const TABLES: &str = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' \
                          AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name <> ?1 ORDER BY name";
    raw.prepare(TABLES)?.query_map([migrate::HISTORY], |row| row.get(0))?.collect()
}

fn copy_table(
    from: &rusqlite::Connection,
    to: &rusqlite::Connection,
    table: &str,
    watch: &Watch,
) -> Result<SalvagedTable> {
    let columns = columns(to, table).map_err(Error::internal)?;
    // In the order in which the rows lie: any other would have all of them read before the first.
    let mut key: Vec<&Column> = columns.iter().filter(|column| column.in_key > 0).collect();
    key.sort_by_key(|column| column.in_key);
    let mut key: Vec<String> = key.into_iter().map(Column::quoted).collect();
    if key.is_empty() {
        key.push("rowid".to_owned());
    }
    let mut salvaged = SalvagedTable { table: table.to_owned(), rows: 0, damage: None };
    to.execute_batch("BEGIN").map_err(Error::internal)?;
    for direction in ["ASC", "DESC"] {
        let order: Vec<String> = key.iter().map(|column| format!("{column} {direction}")).collect();
        match copy_rows(from, to, table, &columns, &order.join(", "), watch) {
            // From the other end as well, up to the same place.
            Ok(Some(damage)) => salvaged.damage = Some(damage),
            Ok(None) => break,
            Err(error) => {
                let _ = to.execute_batch("ROLLBACK");
                return Err(error);
            }
        }
    }
    to.execute_batch("COMMIT").map_err(Error::internal)?;
    let count = to.query_row(&format!("SELECT count(*) FROM \"{table}\""), [], |row| row.get::<_, i64>(0));
    salvaged.rows = count.map_err(Error::internal)?.unsigned_abs();
    Ok(salvaged)
}

struct Column {
    name: String,
    /// Its place in the key, from 1 on; 0 outside of it.
    in_key: i64,
}

impl Column {
    fn quoted(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
    }
}

fn columns(raw: &rusqlite::Connection, table: &str) -> rusqlite::Result<Vec<Column>> {
    let mut statement = raw.prepare("SELECT name, pk FROM pragma_table_info(?1)")?;
    let column = |row: &rusqlite::Row<'_>| Ok(Column { name: row.get(0)?, in_key: row.get(1)? });
    statement.query_map([table], column)?.collect()
}

/// Copies until the end or the damage, which it answers with.
fn copy_rows(
    from: &rusqlite::Connection,
    to: &rusqlite::Connection,
    table: &str,
    columns: &[Column],
    order: &str,
    watch: &Watch,
) -> Result<Option<String>> {
    let names: Vec<String> = columns.iter().map(Column::quoted).collect();
    let (names, marks) = (names.join(", "), vec!["?"; columns.len()].join(", "));
    // Indexes may be what is damaged.
    let select = format!("SELECT {names} FROM \"{table}\" NOT INDEXED ORDER BY {order}");
    // In the place of what the schema has put there to begin with.
    let insert = format!("INSERT OR REPLACE INTO \"{table}\" ({names}) VALUES ({marks})");
    let mut insert = to.prepare(&insert).map_err(Error::internal)?;
    let mut read = match from.prepare(&select) {
        Ok(read) => read,
        Err(error) => return Ok(Some(error.to_string())),
    };
    let mut rows = match read.query([]) {
        Ok(rows) => rows,
        Err(error) => return Ok(Some(error.to_string())),
    };
    let mut damage = None;
    for nth in 1_u64.. {
        let values = match rows.next() {
            Ok(None) => break,
            Ok(Some(row)) => (0..columns.len()).map(|at| row.get::<_, Value>(at)).collect::<rusqlite::Result<Vec<_>>>(),
            Err(error) => Err(error),
        };
        match values {
            Err(error) => return Ok(Some(error.to_string())),
            // A row that the schema refuses is damage as well, and others follow it.
            Ok(values) => {
                if let Err(error) = insert.execute(rusqlite::params_from_iter(values)) {
                    damage = Some(error.to_string());
                }
            }
        }
        if nth.is_multiple_of(ROWS_PER_LOOK) {
            watch.at(Step::Copying, 0, 0)?;
        }
    }
    Ok(damage)
}

/// An id of its own, so that no mark of the old one is taken for its.
fn identify(part: &Path, entropy: &dyn Entropy, now: Time) -> Result<Meta> {
    let raw = open::open(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let stored = open::stored_meta(&raw).map_err(Error::internal)?;
    let stored = stored.ok_or_else(|| Error::internal("what was salvaged has no meta"))?;
    let mut meta = Meta { clock_us: stored.clock_us.max(now.micros()), ..stored };
    entropy.fill(&mut meta.database_id);
    let update = "UPDATE meta SET database_id = ?1, clock_us = ?2 WHERE id = 1";
    match raw.execute(update, rusqlite::params![meta.database_id, meta.clock_us]).map_err(Error::internal)? {
        1 => Ok(meta),
        other => Err(Error::internal(format!("{other} rows of meta"))),
    }
}

/// The old files go to quarantine, and what was salvaged takes their place. The mark goes last: as long as it is there, a start without
/// the database is refused.
fn replace(database: &Path, part: &Path, quarantine: &Path, meta: &Meta) -> Result<()> {
    let mark = mark::beside(database);
    let unusable = |path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| manifest::unusable(&path, &error)
    };
    DirBuilder::new().mode(0o700).create(quarantine).map_err(unusable(quarantine))?;
    let originals = [database.to_owned(), with_ending(database, "-wal"), with_ending(database, "-shm"), mark.clone()];
    // A second name first, so that at no moment there is none.
    for path in originals.iter().filter(|path| path.symlink_metadata().is_ok()) {
        let Some(name) = path.file_name() else { continue };
        fs::hard_link(path, quarantine.join(name)).map_err(unusable(path))?;
    }
    manifest::sync(quarantine)?;
    for path in originals.iter().filter(|path| **path != mark && path.symlink_metadata().is_ok()) {
        fs::remove_file(path).map_err(unusable(path))?;
    }
    fs::rename(part, database).map_err(unusable(database))?;
    if mark.symlink_metadata().is_ok() {
        fs::remove_file(&mark).map_err(unusable(&mark))?;
    }
    mark::begin(&mark, meta)?;
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    manifest::sync(folder)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
