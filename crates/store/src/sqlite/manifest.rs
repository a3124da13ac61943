//! What a backup says of itself: which databases, up to which commit of each, and the hash of what it is made of.
//!
//! The manifest carries a hash of its own text, so that a digit that rotted is noticed like a page that did. It guards against
//! accidents, not against somebody who can write both: whoever needs that signs the folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use waybill_kernel::{Code, Error, Result, Time, hex};

use super::watch::{Step, Watch};
use crate::{private, stores};

/// The newest that this program knows, raised when an older one could no longer restore what is written.
pub(super) const FORMAT: u32 = 3;
/// Of a backup without shards, which older programs can restore.
const FORMAT_OF_HOME: u32 = 2;
pub(super) const FILE: &str = "manifest.json";
/// The name of the copy in a backup.
pub(super) const DATABASE: &str = "waybill.db";
/// The name of the server's own key, in a data folder and in a backup that was to have it.
pub(super) const SERVER_KEY: &str = "server.key";
/// One line; what is larger is no key.
const SERVER_KEY_BYTES_MAX: u64 = 4096;
/// The manifest's own hash, among its fields.
const SEAL: &str = "manifest_sha256";
/// A few hundred bytes per table; what is larger is no manifest.
const BYTES_MAX: u64 = 1 << 20;
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    pub program_version: String,
    pub created_at: Time,
    pub database_id: String,
    pub schema: i64,
    /// The newest commit in the copy …
    pub commit_seq: i64,
    /// … and its time, by the program's clock.
    pub commit_time: Time,
    /// The id of the server key that the data folder had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_key_id: Option<String>,
    pub files: Vec<Piece>,
    /// By table.
    pub rows: BTreeMap<String, u64>,
    /// The stores beside home, by name. All are of the same instant as home.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardCopy>,
}

/// What a backup has of a store beside home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardCopy {
    pub name: String,
    /// Its name in the data folder that was backed up. Only shown: where it is restored to the settings say.
    pub file: String,
    pub database_id: String,
    pub schema: i64,
    pub commit_seq: i64,
    pub commit_time: Time,
    pub rows: BTreeMap<String, u64>,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

/// The server's own key, as far as a backup has to know it.
#[derive(Clone)]
pub struct ServerKeyCopy {
    pub id: String,
    /// The file's text, when the backup is to have it.
    pub text: Option<String>,
}

/// What a copy was found to hold, to be compared with what its manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) database_id: String,
    pub(super) schema: i64,
    pub(super) commit_seq: i64,
    pub(super) commit_time: Time,
    pub(super) rows: BTreeMap<String, u64>,
}

impl ShardCopy {
    pub(super) fn new(name: &str, file: String, contents: Contents) -> Self {
        Self {
            name: name.to_owned(),
            file,
            database_id: contents.database_id,
            schema: contents.schema,
            commit_seq: contents.commit_seq,
            commit_time: contents.commit_time,
            rows: contents.rows,
        }
    }

    pub(super) fn contents(&self) -> Contents {
        Contents {
            database_id: self.database_id.clone(),
            schema: self.schema,
            commit_seq: self.commit_seq,
            commit_time: self.commit_time,
            rows: self.rows.clone(),
        }
    }
}

/// The name of a shard's copy in a backup. It cannot be home's, nor lead anywhere: see [`stores::check_name`].
pub(super) fn shard_file(name: &str) -> String {
    format!("shard-{name}.db")
}

impl Manifest {
    pub(super) fn new(
        program_version: &str,
        created_at: Time,
        contents: Contents,
        shards: Vec<ShardCopy>,
        files: Vec<Piece>,
    ) -> Self {
        Self {
            format: if shards.is_empty() { FORMAT_OF_HOME } else { FORMAT },
            program_version: program_version.to_owned(),
            created_at,
            database_id: contents.database_id,
            schema: contents.schema,
            commit_seq: contents.commit_seq,
            commit_time: contents.commit_time,
            server_key_id: None,
            files,
            rows: contents.rows,
            shards,
        }
    }

    /// Refuses what is not a whole, unchanged manifest of a format this program knows.
    pub fn read(backup: &Path) -> Result<Self> {
        let path = backup.join(FILE);
        let wrong = |why: &str| invalid(backup, &format!("its {FILE} {why}"));
        let file = File::open(&path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
        let mut fields: Json = serde_json::from_str(&text).map_err(|_| wrong("is not whole"))?;
        match fields["format"].as_u64() {
            Some(format) if format > u64::from(FORMAT) => {
                return Err(wrong(&format!("has format {format}, of a newer program; this one knows {FORMAT}")));
            }
            Some(_) => {}
            None => return Err(wrong("does not say its format")),
        }
        let seal = fields.as_object_mut().and_then(|fields| fields.remove(SEAL));
        let manifest: Self = serde_json::from_value(fields).map_err(|error| wrong(&format!("is wrong: {error}")))?;
        if seal != Some(Json::from(manifest.seal()?)) {
            return Err(wrong("was changed after it was written"));
        }
        manifest.check_names(backup)?;
        Ok(manifest)
    }

    pub(super) fn write(&self, backup: &Path) -> Result<()> {
        let mut fields = serde_json::to_value(self).map_err(Error::internal)?;
        fields[SEAL] = self.seal()?.into();
        let text = serde_json::to_string_pretty(&fields).map_err(Error::internal)?;
        let path = backup.join(FILE);
        let write = || -> std::io::Result<()> {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
            writeln!(file, "{text}")?;
            file.sync_all()
        };
        write().map_err(|error| unusable(&path, &error))
    }

    /// Names are ours and never the manifest's: a name can lead anywhere.
    fn check_names(&self, backup: &Path) -> Result<()> {
        let wrong = |why: &str| Err(invalid(backup, &format!("its {FILE} {why}")));
        let are_names = self.shards.iter().all(|shard| stores::check_name(&shard.name).is_ok());
        if !are_names || !self.shards.is_sorted_by(|one, next| one.name < next.name) {
            return wrong("names shards that there cannot be");
        }
        let mut expected = vec![DATABASE.to_owned()];
        expected.extend(self.shards.iter().map(|shard| shard_file(&shard.name)));
        if self.has_server_key() {
            expected.push(SERVER_KEY.to_owned());
        }
        match self.files.iter().map(|piece| &piece.name).eq(&expected) {
            true => Ok(()),
            false => wrong(&format!("lists other files than {DATABASE}, those of its shards, and {SERVER_KEY}")),
        }
    }

    /// What was written of one of its files.
    pub(super) fn piece(&self, backup: &Path, name: &str) -> Result<&Piece> {
        let piece = self.files.iter().find(|piece| piece.name == name);
        piece.ok_or_else(|| invalid(backup, &format!("its {FILE} does not list {name}")))
    }

    pub fn has_server_key(&self) -> bool {
        self.files.iter().any(|piece| piece.name == SERVER_KEY)
    }

    /// What the backup has of it, verified; None where it was taken without.
    pub(super) fn server_key(&self, backup: &Path) -> Result<Option<Vec<u8>>> {
        let Some(piece) = self.files.iter().find(|piece| piece.name == SERVER_KEY) else { return Ok(None) };
        let path = backup.join(SERVER_KEY);
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(SERVER_KEY_BYTES_MAX).read_to_end(&mut bytes));
        read.map_err(|error| invalid(backup, &format!("its {SERVER_KEY} cannot be read: {error}")))?;
        if measured(SERVER_KEY, &bytes) != *piece {
            return Err(invalid(backup, &format!("its {SERVER_KEY} is not what was written")));
        }
        Ok(Some(bytes))
    }

    pub(super) fn contents(&self) -> Contents {
        Contents {
            database_id: self.database_id.clone(),
            schema: self.schema,
            commit_seq: self.commit_seq,
            commit_time: self.commit_time,
            rows: self.rows.clone(),
        }
    }

    fn seal(&self) -> Result<String> {
        let text = serde_json::to_string(self).map_err(Error::internal)?;
        Ok(hex::encode(&Sha256::digest(text.as_bytes())))
    }
}

fn measured(name: &str, bytes: &[u8]) -> Piece {
    Piece { name: name.to_owned(), bytes: bytes.len() as u64, sha256: hex::encode(&Sha256::digest(bytes)) }
}

/// Makes a file that is its owner's alone, and puts it on the disk.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = private::open(File::options().write(true).create_new(true).mode(0o600), path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| unusable(path, &error))
}

/// Puts the server's key beside the copy.
pub(super) fn add_server_key(part: &Path, text: &str) -> Result<Piece> {
    write_private(&part.join(SERVER_KEY), text.as_bytes())?;
    Ok(measured(SERVER_KEY, text.as_bytes()))
}

/// A file of the backup that is being made.
pub(super) fn measure(part: &Path, name: &str, watch: &Watch) -> Result<Piece> {
    let path = part.join(name);
    let file = File::open(&path).map_err(|error| unusable(&path, &error))?;
    let total = file.metadata().map_err(|error| unusable(&path, &error))?.len();
    let (bytes, sha256) = pour(file, std::io::sink(), &path, total, Step::Hashing, watch)?;
    Ok(Piece { name: name.to_owned(), bytes, sha256 })
}

/// Copies, and measures what was copied: its length and its hash.
pub(super) fn pour(
    mut from: File,
    mut to: impl Write,
    path: &Path,
    total: u64,
    step: Step,
    watch: &Watch,
) -> Result<(u64, String)> {
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        watch.at(step, bytes, total)?;
        let read = from.read(&mut chunk).map_err(|error| unusable(path, &error))?;
        if read == 0 {
            return Ok((bytes, hex::encode(&hash.finalize())));
        }
        hash.update(&chunk[..read]);
        to.write_all(&chunk[..read]).map_err(|error| unusable(path, &error))?;
        bytes += read as u64;
    }
}

/// A file or a folder.
pub(super) fn sync(path: &Path) -> Result<()> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|error| unusable(path, &error))
}

pub(super) fn invalid(backup: &Path, why: &str) -> Error {
    let message = format!("The backup {} cannot be used: {why}. Take another backup.", backup.display());
    Error::new(Code::DatabaseUnusable, message)
}

pub(super) fn unusable(path: &Path, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => full(path),
        _ => Error::new(Code::PathUnusable, format!("{} cannot be used: {error}.", path.display())),
    }
}

pub(super) fn full(path: &Path) -> Error {
    let message = format!("There is no room for {} on its disk; nothing of it was left there.", path.display());
    Error::new(Code::StorageFull, message)
}

/// Removes what was begun, unless it was finished.
pub(super) struct Begun {
    paths: Vec<std::path::PathBuf>,
    finished: bool,
}

impl Begun {
    pub(super) fn new(paths: Vec<std::path::PathBuf>) -> Self {
        Self { paths, finished: false }
    }

    pub(super) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        for path in &self.paths {
            let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(%error, path = %path.display(), "what was begun cannot be removed");
                }
                _ => {}
            }
        }
    }
}
