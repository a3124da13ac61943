//! Work on a database that no server has open: what reads archives into it, or compares it with one.

use waybill_kernel::{Code, Result};
use waybill_store::{Store, Stores};

use crate::cli::Location;
use crate::commands::session::refuse_absent;
use crate::config::Config;
use crate::data::{self, DataFolder};
use crate::wiring;

/// The database of a data folder on which no server runs.
pub struct Offline {
    pub config: Config,
    stores: Stores,
    _folder: DataFolder,
}

impl Offline {
    /// `alone` says what to do where a server runs.
    pub async fn open(location: &Location, alone: &str) -> Result<Self> {
        let config = Config::at(location)?;
        refuse_absent(&config)?;
        let folder = DataFolder::open(&config.data).map_err(|error| match error.code() {
            Code::DataFolderLocked => error.with_cure(alone),
            _ => error,
        })?;
        let key = data::server_key(&config.data, config.server_key_file.as_deref())?;
        let stores = wiring::open(&config, &folder, key.as_ref()).await?.stores;
        Ok(Self { config, stores, _folder: folder })
    }

    pub fn store(&self) -> &Store {
        self.stores.home()
    }

    pub async fn close(self) {
        let stores = self.stores;
        let _ = tokio::task::spawn_blocking(move || stores.close()).await;
    }
}
