//! The inbox: every message that arrived, once, in `inbox.db`.
//!
//! The file is a store of its own, as the server's is: one writer, group commit, an answer only after the commit. Its work runs
//! as the program's own ([`waybill_store::System`]), because the file belongs to one member and has no tenants to keep apart.
//!
//! The directory of members and keys is in the same file ([`crate::directory`]): both can be filled again from the broker, so a
//! damaged file is moved aside and a fresh one begins.

mod insert;
mod message;
mod page;
mod sealed;
mod search;
mod seen;
mod sweep;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use waybill_kernel::{Clock, Code, Entropy, Result, Time};
use waybill_store::{Backend, Migration, Settings as StoreSettings, SqliteOptions, Store};

use crate::config::Inbox as Settings;

pub use insert::{Arrived, Insert, Inserted, NewMessage};
pub use message::Message;
pub use page::{LIMIT_MAX, Page, Query, Since};
pub use sealed::Held;
pub use sweep::Pruned;

/// Numbered above those of the store itself; no other file has these tables.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 101, name: "inbox", sql: include_str!("../../schema/inbox/V0101__inbox.sql") },
    Migration { version: 102, name: "directory", sql: include_str!("../../schema/inbox/V0102__directory.sql") },
    Migration { version: 103, name: "files", sql: include_str!("../../schema/inbox/V0103__files.sql") },
    Migration { version: 104, name: "seen", sql: include_str!("../../schema/inbox/V0104__seen.sql") },
];

/// Room kept for a full disk: the sweep that gives room needs little.
const BALLAST_BYTES: u64 = 1 << 20;

/// Opens `inbox.db`. A file that is damaged is moved to `inbox.db.corrupt-<time>` with everything beside it, and a new one
/// begins; the path it was moved to comes along.
pub async fn open_store(
    path: &Path,
    clock: &Arc<Clock>,
    entropy: &Arc<dyn Entropy>,
) -> Result<(Store, Option<PathBuf>)> {
    match open_file(path, clock, entropy).await {
        Err(error) if error.code() == Code::DatabaseUnusable => {
            let aside = move_aside(path, clock.now())?;
            tracing::error!(inbox.moved_to = %aside.display(), %error, "inbox.db is damaged; a new one is filled from the broker's history");
            Ok((open_file(path, clock, entropy).await?, Some(aside)))
        }
        opened => opened.map(|store| (store, None)),
    }
}

async fn open_file(path: &Path, clock: &Arc<Clock>, entropy: &Arc<dyn Entropy>) -> Result<Store> {
    let options = SqliteOptions { name: "inbox".to_owned(), ballast_bytes: BALLAST_BYTES, ..SqliteOptions::at(path) };
    let settings = StoreSettings::default();
    Store::open(Backend::Sqlite(options), MIGRATIONS, settings, Arc::clone(clock), Arc::clone(entropy)).await
}

/// The file and what SQLite and the store keep beside it: a log or a mark of the old file would speak about the new one.
fn move_aside(path: &Path, now: Time) -> Result<PathBuf> {
    let with = |path: &Path, suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = with(path, &format!(".corrupt-{}", now.micros() / 1_000_000));
    let beside = [
        (with(path, "-wal"), with(&aside, "-wal")),
        (with(path, "-shm"), with(&aside, "-shm")),
        (path.with_extension("mark"), with(&aside, ".mark")),
        (path.with_extension("ballast"), with(&aside, ".ballast")),
        // The last: a crash in between leaves a file that is still found to be damaged.
        (path.to_owned(), aside.clone()),
    ];
    for (from, to) in beside {
        match std::fs::rename(&from, &to) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let message = format!("{} is damaged and cannot be moved aside: {error}.", from.display());
                return Err(waybill_kernel::Error::new(Code::PathUnusable, message));
            }
            _ => {}
        }
    }
    Ok(aside)
}

#[derive(Clone)]
pub struct Inbox {
    store: Store,
    settings: Settings,
    /// The file began anew in this run, and the broker's history is not all here.
    filling: Arc<AtomicBool>,
}

impl Inbox {
    pub fn new(store: Store, settings: Settings) -> Self {
        Self { store, settings, filling: Arc::default() }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Answers after the commit. One transaction for all of them. A caller that needs them afterwards keeps its share.
    pub async fn insert(&self, insert: impl Into<Arc<Insert>>) -> Result<Inserted> {
        self.store.system().run(insert::Write(insert.into())).await
    }

    /// Up to which sequence number everything has been seen.
    pub async fn position(&self) -> Result<i64> {
        self.store.system().run(insert::Position).await
    }

    /// Whether messages are missing that are older than those which the broker pushes, on a connection that begins with this
    /// position: the file began anew, and what was read over a connection before may have been a part.
    pub fn is_filling(&self, position: i64) -> bool {
        self.filling.fetch_or(position == 0, Ordering::Relaxed) || position == 0
    }

    /// The history up to the present is here.
    pub fn filled(&self) {
        self.filling.store(false, Ordering::Relaxed);
    }

    pub async fn page(&self, query: Query) -> Result<Page> {
        self.store.system().run(page::Read::new(query)?).await
    }

    /// The newest first. With a cursor from where an earlier page for the same words has ended.
    pub async fn search(&self, query: &str, limit: usize, cursor: Option<&str>) -> Result<Page> {
        match search::Search::read(query, limit, cursor)? {
            Some(search) => self.store.system().run(search).await,
            None => Ok(Page { messages: Vec::new(), next_cursor: None }),
        }
    }

    /// Whether a message with this id is here already, opened.
    pub async fn has(&self, client_message_id: &str) -> Result<bool> {
        self.store.system().run(insert::Has(client_message_id.to_owned())).await
    }

    /// Messages that could not be opened, the oldest first, after the one named.
    pub async fn held(&self, after: i64, limit: i64) -> Result<Vec<Held>> {
        self.store.system().run(sealed::ReadHeld { after, limit }).await
    }

    /// Removes what is too old or too much; several transactions when there is much.
    pub async fn prune(&self) -> Result<Pruned> {
        sweep::prune(&self.store, &self.settings).await
    }

    /// Bytes of the file that hold something, of the bytes it may have.
    pub async fn bytes(&self) -> Result<(u64, u64)> {
        Ok((self.store.system().run(sweep::Measure).await?, self.settings.bytes_max))
    }

    /// Between two looks for messages to remove.
    pub fn sweep_interval(&self) -> Duration {
        Duration::from_millis(self.settings.sweep_ms)
    }
}
