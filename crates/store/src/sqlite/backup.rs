//! A copy of the database, taken while others read and write it.
//!
//! One read transaction is held from the first page to the last, so the copy is the database as of one commit: everything up
//! to it and nothing of what came after. The copy is then a file on its own: checked in full, counted, hashed as it was
//! read back, and only when all of it has reached the disk does the folder get its name.
//!
//! SQLite's own protocol lets another process read beside the server, so the command does it itself and the server is not
//! asked: it works when the server is stuck, and no caller can make a server write to a path of the caller's choosing.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::OpenFlags;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use waybill_kernel::{Code, Error, Result, Time};

use super::connection::is_full;
use super::inspect;
use super::manifest::{self, Begun, Manifest, ServerKeyCopy};
use super::open::{self, Meta};
use super::watch::{Step, Watch};
use super::{check, mark};

/// Between two looks at whether to stop: 4 MiB.
const PAGES_PER_STEP: i32 = 1024;

/// Copies the database file at `source` into the new folder `destination`.
pub fn take(
    source: &Path,
    destination: &Path,
    server_key: Option<&ServerKeyCopy>,
    program_version: &str,
    created_at: Time,
    watch: &Watch,
) -> Result<Manifest> {
    let destination = admissible(source, destination)?;
    let part = beside(&destination);
    make_folder(&part)?;
    let begun = Begun::new(vec![part.clone()]);
    let copy = part.join(manifest::DATABASE);
    copy_pages(source, &copy, watch)?;
    let contents = inspect::contents_of_copy(&copy, watch)
        .map_err(|error| Error::new(error.code(), format!("The copy is not sound: {}", error.message())))?;
    manifest::sync(&copy)?;
    let mut pieces = vec![manifest::measure(&copy, watch)?];
    if let Some(text) = server_key.and_then(|key| key.text.as_deref()) {
        pieces.push(manifest::add_server_key(&part, text)?);
    }
    let mut manifest = Manifest::new(program_version, created_at, contents, pieces);
    manifest.server_key_id = server_key.map(|key| key.id.clone());
    manifest.write(&part)?;
    manifest::sync(&part)?;
    publish(&part, &destination)?;
    begun.finish();
    Ok(manifest)
}

const DATA_FOLDER: &str = "Name the server's data folder with --data; its first start makes the database.";

/// Where the backup goes, with every link on the way resolved.
fn admissible(source: &Path, destination: &Path) -> Result<PathBuf> {
    if !source.is_file() {
        let message = format!("There is no database at {}.", source.display());
        return Err(Error::new(Code::NotFound, message).with_cure(DATA_FOLDER));
    }
    let name = destination.file_name().ok_or_else(|| Error::invalid("The backup needs the name of a new folder."))?;
    let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let resolve = |folder: &Path| folder.canonicalize().map_err(|error| manifest::unusable(folder, &error));
    let resolved = resolve(parent)?.join(name);
    let data = source.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    if resolved.starts_with(resolve(data)?) {
        let message = "The backup would lie in the data folder and be lost with it: choose a folder outside.";
        return Err(Error::invalid(message));
    }
    match resolved.symlink_metadata() {
        Ok(_) => Err(exists(&resolved)),
        Err(_) => Ok(resolved),
    }
}

fn beside(destination: &Path) -> PathBuf {
    let mut name = destination.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn make_folder(part: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(part).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let why = "another backup to the same place is under way, or one was killed: remove it if none is";
            Error::new(Code::AlreadyExists, format!("{} exists: {why}.", part.display()))
        }
        _ => manifest::unusable(part, &error),
    })
}

fn exists(destination: &Path) -> Error {
    let message = format!("{} exists already, and a backup replaces nothing.", destination.display());
    Error::new(Code::AlreadyExists, message)
}

fn copy_pages(source: &Path, copy: &Path, watch: &Watch) -> Result<()> {
    // Read before the snapshot is taken: the server moves both on, and the mark must not get ahead by that.
    let marked = mark::read(&mark::beside(source))?;
    let from = reader(source)?;
    let meta = begin_snapshot(&from, source)?;
    mark::judge(&mark::beside(source), marked.as_deref(), Some(&meta))?;

    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(copy)
        .map_err(|error| manifest::unusable(copy, &error))?;
    let mut to = open::open(copy, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let failed = |error: rusqlite::Error| failed(source, copy, &error);
    // A copy that is interrupted is thrown away, so it needs neither a journal nor an fsync before its end.
    to.pragma_update(None, "journal_mode", "OFF").map_err(failed)?;
    to.pragma_update(None, "synchronous", "OFF").map_err(failed)?;
    let backup = Backup::new(&from, &mut to).map_err(failed)?;
    loop {
        match backup.step(PAGES_PER_STEP).map_err(failed)? {
            StepResult::Done => return Ok(()),
            StepResult::More => {
                let progress = backup.progress();
                let pages = |count: i32| u64::try_from(count).unwrap_or(0) * PAGE_BYTES;
                watch.at(Step::Copying, pages(progress.pagecount - progress.remaining), pages(progress.pagecount))?;
            }
            // Nobody else knows the copy, and the snapshot is held.
            other => return Err(Error::internal(format!("the copy met a lock: {other:?}"))),
        }
    }
}

/// SQLite's default, which is ours; only shown, so that another would do no harm.
const PAGE_BYTES: u64 = 4096;

/// Opened for writing, because only then does SQLite tidy up its two helper files when the last one leaves; and told to
/// write nothing.
fn reader(source: &Path) -> Result<rusqlite::Connection> {
    let has_log = wal(source).metadata().is_ok_and(|log| log.len() > 0);
    let raw = open::open(source, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let prepare = || -> rusqlite::Result<()> {
        raw.pragma_update(None, "query_only", 1)?;
        // What a crash has left in the log stays there for the server's next start to judge.
        raw.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log).map(drop)
    };
    prepare().map_err(|error| check::damaged(source, &error.to_string()))?;
    Ok(raw)
}

pub(super) fn wal(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn begin_snapshot(from: &rusqlite::Connection, source: &Path) -> Result<Meta> {
    let damaged = |error: rusqlite::Error| check::damaged(source, &error.to_string());
    from.execute_batch("BEGIN").map_err(damaged)?;
    let meta = open::stored_meta(from).map_err(damaged)?;
    meta.ok_or_else(|| {
        let message = format!("{} holds no Waybill database yet.", source.display());
        Error::new(Code::NotFound, message).with_cure(DATA_FOLDER)
    })
}

fn failed(source: &Path, copy: &Path, error: &rusqlite::Error) -> Error {
    if is_full(error) {
        return manifest::full(copy);
    }
    let message = format!("Copying {} to {} failed: {error}.", source.display(), copy.display());
    Error::new(Code::PathUnusable, message)
}

/// Under its name, and only if nothing has taken that name meanwhile.
fn publish(part: &Path, destination: &Path) -> Result<()> {
    let renamed = match renameat_with(CWD, part, CWD, destination, RenameFlags::NOREPLACE) {
        // Some file systems cannot promise it.
        Err(Errno::INVAL | Errno::NOSYS) if destination.symlink_metadata().is_err() => fs::rename(part, destination),
        outcome => outcome.map_err(std::io::Error::from),
    };
    renamed.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(destination),
        _ => manifest::unusable(destination, &error),
    })?;
    manifest::sync(destination.parent().unwrap_or_else(|| Path::new("/")))
}
