//! Work on a database that no server has open: what reads archives into it, or compares it with one.

use std::time::Duration;

use waybill_kernel::{Code, Error, Result};
use waybill_mail::archive_rows;
use waybill_store::{Hold, Holding, Store, Stores};

use crate::cli::Location;
use crate::commands::session::refuse_absent;
use crate::config::Config;
use crate::data::{self, DataFolder};
use crate::wiring;

/// Of a process that has just ended the database may know for a moment that it held the archive.
const HOLD_TRIES: usize = 20;
const HOLD_PAUSE: Duration = Duration::from_millis(100);

/// The database of a data folder on which no server runs; where several share it, none of those that do writes the archive.
pub struct Offline {
    pub config: Config,
    stores: Stores,
    _archive: Hold,
    folder: DataFolder,
}

impl Offline {
    /// `alone` says what to do where a server runs.
    pub async fn open(location: &Location, alone: &str) -> Result<Self> {
        let config = Config::at(location)?;
        refuse_absent(&config)?;
        let cured = |error: Error| match error.code() {
            Code::DataFolderLocked => error.with_cure(alone),
            _ => error,
        };
        let folder = DataFolder::open(&config.data).map_err(cured)?;
        let key = data::server_key(&config.data, config.server_key_file.as_deref())?;
        let stores = wiring::open(&config, &folder, key.as_ref()).await?.stores;
        match hold_archive(stores.home()).await {
            Ok(archive) => Ok(Self { config, stores, _archive: archive, folder }),
            Err(error) => {
                close(stores).await;
                Err(cured(error))
            }
        }
    }

    pub fn store(&self) -> &Store {
        self.stores.home()
    }

    pub fn folder(&self) -> &DataFolder {
        &self.folder
    }

    pub async fn close(self) {
        close(self.stores).await;
    }
}

async fn hold_archive(store: &Store) -> Result<Hold> {
    for _ in 0..HOLD_TRIES {
        if let Some(hold) = store.hold(archive_rows::owner(), Holding::Alone).await? {
            return Ok(hold);
        }
        tokio::time::sleep(HOLD_PAUSE).await;
    }
    let message = "A server with another data folder has the same database and writes the archive of mail.";
    Err(Error::new(Code::DataFolderLocked, message))
}

async fn close(stores: Stores) {
    let _ = tokio::task::spawn_blocking(move || stores.close()).await;
}
