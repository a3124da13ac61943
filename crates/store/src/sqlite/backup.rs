//! A copy of the database, or of all databases of a deployment, taken while others read and write them.
//!
//! One read transaction on each file is held from the first page to the last, so each copy is its database as of one commit:
//! everything up to it and nothing of what came after. Those of several files are begun at one instant (`cut.rs`); then home is
//! copied, and the shards by their names. A copy is a file on its own: checked in full, counted, hashed as it was read back,
//! and only when all of it has reached the disk does the folder get its name.
//!
//! SQLite's own protocol lets another process read beside the server, so the command does it itself and the server is not
//! asked: it works when the server is stuck, and no caller can make a server write to a path of the caller's choosing.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::OpenFlags;
use rusqlite::backup::{Backup, StepResult};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use waybill_kernel::{Code, Error, Result, Time};

use super::connection::is_full;
use super::cut::Snapshot;
use super::deployment::{Deployment, Stores};
use super::manifest::{self, Begun, Contents, Manifest, ServerKeyCopy, ShardCopy};
use super::watch::{Step, Watch};
use super::{inspect, open};

/// Between two looks at whether to stop: 4 MiB.
const PAGES_PER_STEP: i32 = 1024;

/// Copies the files of a deployment into the new folder `destination`.
pub fn take(
    deployment: &Deployment,
    destination: &Path,
    server_key: Option<&ServerKeyCopy>,
    program_version: &str,
    created_at: Time,
    watch: &Watch,
) -> Result<Manifest> {
    let destination = admissible(&deployment.home, destination)?;
    let part = beside(&destination);
    make_folder(&part)?;
    let begun = Begun::new(vec![part.clone()]);
    let copies = copy_all(deployment.snapshots(watch)?, &part, watch)?;
    let mut contents = check_all(&copies, &part, watch)?.into_iter();
    let home = contents.next().ok_or_else(|| Error::internal("there is no copy of home"))?;
    let shard = |(copy, contents): (&Copied, Contents)| {
        copy.shard.as_ref().map(|(name, file)| ShardCopy::new(name, file.clone(), contents))
    };
    let shards = copies.iter().skip(1).zip(contents).filter_map(shard).collect();
    let mut pieces = hash_all(&copies, &part, watch)?;
    if let Some(text) = server_key.and_then(|key| key.text.as_deref()) {
        pieces.push(manifest::add_server_key(&part, text)?);
    }
    let mut manifest = Manifest::new(program_version, created_at, home, shards, pieces);
    manifest.server_key_id = server_key.map(|key| key.id.clone());
    manifest.write(&part)?;
    manifest::sync(&part)?;
    publish(&part, &destination)?;
    begun.finish();
    Ok(manifest)
}

/// One copy in the folder.
struct Copied {
    /// In the folder.
    name: String,
    bytes: u64,
    /// Its name, and that of its file in the data folder; None for home.
    shard: Option<(String, String)>,
}

/// Each snapshot ends when its pages are copied, so that the log of its database can begin anew.
fn copy_all(stores: Stores, part: &Path, watch: &Watch) -> Result<Vec<Copied>> {
    let mut snapshots = vec![(None, stores.home)];
    snapshots.extend(stores.shards.into_iter().map(|(name, snapshot)| (Some(name), snapshot)));
    let mut all = 0;
    for (_, snapshot) in &snapshots {
        all += bytes_of(snapshot)?;
    }
    let mut copies = Vec::new();
    let mut before = 0;
    for (shard, snapshot) in snapshots {
        let bytes = bytes_of(&snapshot)?;
        let name = shard.as_deref().map_or_else(|| manifest::DATABASE.to_owned(), manifest::shard_file);
        copy_pages(&snapshot, &part.join(&name), &watch.within(before, all))?;
        let file = snapshot.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        copies.push(Copied { name, bytes, shard: shard.map(|shard| (shard, file)) });
        before += bytes;
    }
    Ok(copies)
}

/// What each copy holds, once it has been found sound.
fn check_all(copies: &[Copied], part: &Path, watch: &Watch) -> Result<Vec<Contents>> {
    let check = |copy: &Copied| {
        let contents = inspect::contents_of_copy(&part.join(&copy.name), watch);
        contents.map_err(|error| match error.code() {
            Code::Interrupted => error,
            code => Error::new(code, format!("The copy is not sound: {}", error.message())),
        })
    };
    copies.iter().map(check).collect()
}

fn hash_all(copies: &[Copied], part: &Path, watch: &Watch) -> Result<Vec<manifest::Piece>> {
    let all = copies.iter().map(|copy| copy.bytes).sum();
    let mut before = 0;
    let mut pieces = Vec::new();
    for copy in copies {
        manifest::sync(&part.join(&copy.name))?;
        pieces.push(manifest::measure(part, &copy.name, &watch.within(before, all))?);
        before += copy.bytes;
    }
    Ok(pieces)
}

pub(super) const DATA_FOLDER: &str = "Name the server's data folder with --data; its first start makes the database.";

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

fn copy_pages(snapshot: &Snapshot, copy: &Path, watch: &Watch) -> Result<()> {
    let source = snapshot.path.as_path();
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
    let backup = Backup::new(&snapshot.raw, &mut to).map_err(failed)?;
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

/// Of the snapshot, whatever is written meanwhile.
fn bytes_of(snapshot: &Snapshot) -> Result<u64> {
    let pages = snapshot.raw.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0));
    let pages = pages.map_err(|error| super::check::damaged(&snapshot.path, &error.to_string()))?;
    Ok(u64::try_from(pages).unwrap_or(0) * PAGE_BYTES)
}

pub(super) fn wal(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
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
