//! Files between members: encrypted here, kept by the broker, never whole in memory.
//!
//! The key of a file travels in the message that tells of it, sealed like every message. The broker has the ciphertext, its length
//! and when it ends.

mod note;
mod rows;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Entropy, Error, Result, Time};
use waybill_mesh_protocol::file::sealed_bytes;
use waybill_mesh_protocol::{Destination, DestinationKind, FileId, FileKey};
use waybill_store::Store;

pub use note::FileNote;
pub use rows::{FileRow, FileView};

use crate::config;
use crate::link::Broker;

/// Files of one list.
const LIST_MAX: usize = 1_000;

#[derive(Clone)]
pub struct Files {
    store: Store,
    broker: Broker,
    entropy: Arc<dyn Entropy>,
    settings: config::Files,
    /// What the broker takes, of ciphertext.
    bytes_max: Arc<AtomicU64>,
}

/// The broker's answer to an upload.
#[derive(Deserialize)]
struct Stored {
    file_id: FileId,
    #[serde(default)]
    expires_at: Option<Time>,
}

/// A file that the broker has. Nobody was told of it yet.
#[derive(Clone, Debug, Serialize)]
pub struct Shared {
    pub file_id: FileId,
    pub name: String,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// For the message that tells of it.
    #[serde(skip)]
    pub note: FileNote,
}

#[derive(Clone, Debug, Serialize)]
pub struct Fetched {
    pub file_id: String,
    pub name: String,
    pub bytes: u64,
    pub path: PathBuf,
}

impl Files {
    pub fn new(store: Store, broker: Broker, entropy: Arc<dyn Entropy>, settings: config::Files) -> Self {
        let bytes_max = Arc::new(AtomicU64::new(settings.bytes_max));
        Self { store, broker, entropy, settings, bytes_max }
    }

    /// What the broker takes; the operator may want less.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes.min(self.settings.bytes_max), Ordering::Relaxed);
    }

    fn within(&self) -> Duration {
        Duration::from_millis(self.settings.transfer_ms)
    }

    /// Encrypts the file and gives it to the broker, for a member, for a topic's subscribers or, without either, for everybody in
    /// the mesh: whoever else asks for the ciphertext does not get it. It is read twice: the signature of an upload covers all of it.
    pub async fn share(&self, path: &Path, whom: Option<&Destination>, persistent: bool) -> Result<Shared> {
        let name = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_absolute());
        let Some(name) = name else {
            return Err(Error::invalid("`path` must be the absolute path of a file."));
        };
        let key = FileKey::generate(self.entropy.as_ref());
        let source = transfer::Source::open(path, &key, self.entropy.as_ref()).await?;
        let max = self.bytes_max.load(Ordering::Relaxed);
        if sealed_bytes(source.bytes()).is_none_or(|sealed| sealed > max) {
            let message = format!("The file has {} bytes; with its seals it may have {max}.", source.bytes());
            return Err(Error::new(Code::PayloadTooLarge, message));
        }
        let digest = source.digest().await?;
        // Keys and names of topics have no character that a query would read as another.
        let whom = match whom.map(|whom| (whom.kind, &whom.reference)) {
            None => String::new(),
            Some((DestinationKind::Dm, key)) => format!("&to={key}"),
            Some((DestinationKind::Topic, topic)) => format!("&topic={topic}"),
            Some((DestinationKind::Queue, _)) => {
                return Err(Error::invalid("A file is for members, and not for a queue."));
            }
        };
        let target = format!("mesh/v1/files?persistent={persistent}{whom}");
        let body = source.body();
        let stored: Stored =
            self.broker.upload(&target, digest.sealed, digest.sealed_bytes, body, self.within()).await?;
        let note = FileNote {
            id: stored.file_id,
            name: name.to_owned(),
            bytes: digest.plain_bytes,
            sha256: digest.plain,
            key,
            expires_at: stored.expires_at,
        };
        self.store.system().run(rows::Insert(FileRow::own(&note))).await?;
        Ok(Shared { file_id: note.id, name: note.name.clone(), bytes: note.bytes, expires_at: note.expires_at, note })
    }

    /// Fetches a file that this member has shared or was told of. What is at `out` afterwards is whole, or it is not there.
    pub async fn get(&self, id: &str, out: &Path) -> Result<Fetched> {
        if !out.is_absolute() {
            return Err(Error::invalid("`out` must be an absolute path."));
        }
        let found = self.store.system().run(rows::Find(id.to_owned())).await?;
        let row = found.ok_or_else(|| Error::not_found("file that this member was told of"))?;
        let response = self.broker.download(&format!("mesh/v1/files/{}", row.file_id), self.within()).await?;
        let path = if out.is_dir() { out.join(row.safe_name()) } else { out.to_owned() };
        let part = transfer::part_beside(&path, self.entropy.as_ref());
        transfer::receive(response, &row, &path, part).await?;
        Ok(Fetched { file_id: row.file_id, name: row.name, bytes: row.bytes, path })
    }

    /// The newest first.
    pub async fn list(&self) -> Result<Vec<FileView>> {
        self.store.system().run(rows::List(LIST_MAX)).await
    }

    /// Forgets files that the broker does not have any more.
    pub async fn expire(&self) -> Result<()> {
        self.store.system().run(rows::Expire).await
    }
}
