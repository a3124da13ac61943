//! `waybill server-key …`: while no server runs on the data folder, which has its key in memory.

use waybill_access::{Moved, ServerKey as Own};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Error, Result};
use waybill_store::Backend;

use crate::cli::{Location, ServerKey};
use crate::config::Config;
use crate::data::{self, DataFolder};
use crate::{output, wiring};

const MAKE_AGAIN: &str = "make the keys of those SQS clients (`waybill key create --sqs`) and those webhooks (`waybill webhook create`) again.";

pub async fn run(command: ServerKey) -> Result<()> {
    match command {
        ServerKey::Rotate { location } => rotate(&location).await,
        ServerKey::Adopt { location } => adopt(&location).await,
    }
}

async fn rotate(location: &Location) -> Result<()> {
    let (config, folder) = open(location)?;
    if let Some(path) = &config.server_key_file {
        let message = format!(
            "This node has the server key that {} holds. Rotate the one in a data folder without --server-key-file, put the \
             new server.key there, and start every node again.",
            path.display()
        );
        return Err(Error::new(Code::ConfigInvalid, message));
    }
    let key = Own::generate(&OsEntropy);
    // One that was left by a rotation which was cut off has more in its boxes than the one after it.
    if folder.old_server_key()?.is_none()
        && let Some(old) = data::server_key(&config.data, None)?
    {
        folder.keep_old_server_key(&old)?;
    }
    // The database last: whoever is cut off in between is told of the difference at the next start.
    folder.write_server_key(&key)?;
    note(&config, &folder, &key).await
}

async fn adopt(location: &Location) -> Result<()> {
    let (config, folder) = open(location)?;
    let Some(key) = data::server_key(&config.data, config.server_key_file.as_deref())? else {
        let message =
            format!("There is no server.key in {}; the next `waybill serve` makes one.", config.data.display());
        return Err(Error::new(Code::NotFound, message));
    };
    note(&config, &folder, &key).await
}

fn open(location: &Location) -> Result<(Config, DataFolder)> {
    let config = Config::at(location)?;
    super::session::refuse_absent(&config)?;
    let folder = DataFolder::open(&config.data)?;
    Ok((config, folder))
}

async fn note(config: &Config, folder: &DataFolder, key: &Own) -> Result<()> {
    let store = wiring::open(config, folder, Some(key)).await?.store;
    let old = folder.old_server_key()?;
    let moved = waybill_access::move_to_server_key(&store, waybill_domains::boxes(), old, key).await;
    let _ = tokio::task::spawn_blocking(move || store.close()).await;
    let Moved { lost, .. } = moved?;
    folder.forget_old_server_key();
    output::line(key.id())?;
    let others = match &config.backend {
        Backend::Sqlite(_) => "",
        Backend::Postgres(_) => " Copy server.key to every other node and start it again.",
    };
    output::note(&format!(
        "The database goes with the server key of this id. API keys are good as before and are verified in full at their next \
         use.{others}{}",
        if lost == 0 {
            String::new()
        } else {
            format!(" {lost} secrets were kept under a server key that is gone: {MAKE_AGAIN}")
        }
    ))
}
