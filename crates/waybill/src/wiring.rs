//! Opens the store and makes the tasks that run beside the server: sweeps, the archive of mail, figures, watches.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_access::{Agreement, Key, ServerKey};
use waybill_archive::repo::Archive;
use waybill_archivist::Archivist;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Clock, Code, Entropy, Result, hex};
use waybill_mail::archive_health::ArchiveHealth;
use waybill_mail::archive_rows;
use waybill_mesh::limiter::Limits;
use waybill_mesh_door::redis::{Condition, Shared};
use waybill_queues::Limiter;
use waybill_store::{Backend, Hold, Holding, Settings, Store, StoreRole, Stores, effects};
use waybill_tasks::Process;

use crate::config::Config;
use crate::data::DataFolder;

/// The pause between two attempts to hold the archive of mail.
const HOLD_AGAIN: Duration = Duration::from_millis(500);

/// Starts everything that recurs, on every store.
pub fn sweeps(config: &Config, stores: &Stores) -> Vec<effects::Runner> {
    let lease = Duration::from_secs(config.background.sweep_lease_s.max(1));
    let start = |role, store: &Store| {
        waybill_domains::sweeps(role, effects::Runner::new(store.clone(), lease), store.settings())
    };
    let shards = stores.shards().map(|(_, store)| start(StoreRole::Shard, store));
    std::iter::once(start(StoreRole::Home, stores.home())).chain(shards).collect()
}

/// The writer of the archive of mail. None where another server writes it.
pub fn archivist(config: &Config, store: &Store) -> Option<Archivist> {
    let health = store.settings().find::<ArchiveHealth>()?.clone();
    let archive = Arc::new(Archive::new(config.archive_root(), config.mail_archive.limits()));
    Some(Archivist::new(store.clone(), archive, config.mail_archive.clone(), health))
}

/// Writes the archive as soon as this server holds it. A repair holds it alone, so this waits for its end.
pub async fn keep_archive(archivist: Archivist, store: Store, stopping: CancellationToken) {
    let hold = tokio::select! {
        () = stopping.cancelled() => return,
        hold = hold_archive(&store) => hold,
    };
    tokio::select! {
        () = archivist.keep_running(stopping) => {}
        () = keep_holding(&store, hold) => {}
    }
}

/// Never returns. After a lost connection it holds the archive again as soon as the database is back.
async fn keep_holding(store: &Store, mut hold: Hold) {
    loop {
        hold.lost().await;
        hold = hold_archive(store).await;
    }
}

async fn hold_archive(store: &Store) -> Hold {
    loop {
        match store.hold(archive_rows::owner(), Holding::Shared).await {
            Ok(Some(hold)) => return hold,
            Ok(None) => tracing::debug!("somebody repairs the archive of mail; it is written when that has ended"),
            Err(error) => tracing::debug!(%error, "the archive of mail could not be held; it is tried again"),
        }
        tokio::time::sleep(HOLD_AGAIN).await;
    }
}

/// Records at intervals which principals were seen, and once more when the program stops. Each node records its own callers, so this
/// is no sweep, which one node runs for all.
pub async fn record_seen(process: Process, store: Store, interval: Duration, stopping: CancellationToken) {
    while !stopping.is_cancelled() {
        tokio::select! {
            () = stopping.cancelled() => {}
            () = tokio::time::sleep(interval) => {}
        }
        if let Err(error) = process.flush(&store).await {
            tracing::warn!(%error, "who was seen could not be written down; it is tried again");
        }
    }
}

/// Keeps gauges of the database up to date. Every node measures the same, so `/metrics` of any one of them has them.
pub async fn measure(stores: Stores, interval: Duration, stopping: CancellationToken) {
    let mut queues = waybill_queues::Figures::default();
    while !stopping.is_cancelled() {
        let stored = waybill_access::measure_stored(&stores).await;
        for outcome in [waybill_tasks::measure(stores.home()).await, queues.measure(&stores).await, stored] {
            if let Err(error) = outcome {
                tracing::debug!(%error, "how much there is to do could not be read");
            }
        }
        tokio::select! {
            () = stopping.cancelled() => {}
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// Stops the program, with an error that says why, when another server has stored something that this version cannot serve.
pub async fn watch_capabilities(store: Store, interval: Duration, stopping: CancellationToken) -> Result<()> {
    loop {
        tokio::select! {
            () = stopping.cancelled() => return Ok(()),
            () = tokio::time::sleep(interval) => {}
        }
        match waybill_queues::check_capabilities(&store).await {
            Err(error) if error.code() == Code::SchemaTooNew => {
                tracing::error!(%error, "stopping");
                stopping.cancel();
                return Err(error);
            }
            // A database that cannot be read is somebody else's concern.
            _ => {}
        }
    }
}

/// An open store, and the path of the admin key if this start has made it.
pub struct Opened {
    /// Home.
    pub store: Store,
    /// Home, and those beside it.
    pub stores: Stores,
    pub admin_key: Option<PathBuf>,
    pub process: Process,
    pub limiter: Limiter,
    /// How the messages of meshes are counted.
    pub mesh_limiter: Condition,
}

/// Without a server key, keys that are made get their digest at their first use.
pub async fn open(config: &Config, data: &DataFolder, server_key: Option<&ServerKey>) -> Result<Opened> {
    let mut tasks = config.tasks.clone();
    if tasks.instance_id.is_empty() {
        tasks.instance_id = data.instance_id(|| new_instance_id(&OsEntropy))?;
    }
    let (process, limiter) = (Process::default(), Limiter::default());
    let settings = Settings::default().with(tasks).with(config.access.clone()).with(process.clone());
    let settings = settings.with(config.access.stored_caps());
    let settings = settings.with(config.queues.clone()).with(waybill_queues::Process::default()).with(limiter.clone());
    let (limits, mesh_limiter) = mesh_limits(config)?;
    let mail = waybill_mail::Settings { closed: closed_to_mail(config), ..config.mail.clone() };
    let settings = settings.with(mail).with(config.webhooks.clone());
    let mut settings = settings.with(config.mesh.clone()).with(limits);
    if config.writes_archive() {
        settings = settings.with(ArchiveHealth::default());
    }
    if let Some(server_key) = server_key {
        settings = settings.with(server_key.clone());
    }
    let clock = Arc::new(Clock::system());
    let store =
        Store::open(config.backend.clone(), &waybill_domains::migrations(), settings, clock, Arc::new(OsEntropy))
            .await?;
    waybill_queues::check_capabilities(&store).await?;
    waybill_access::ensure_default_tenant_keeping(&store, |made| data.write_new_admin_key(made.key.expose())).await?;
    let admin_key = settle_admin_key(&store, data).await?;
    let stores = open_shards(config, store.clone()).await?;
    Ok(Opened { store, stores, admin_key, process, limiter, mesh_limiter })
}

/// Paths that the tools of mail never touch, whichever folders the operator opens to them: keys, databases, other tenants' mail.
fn closed_to_mail(config: &Config) -> Vec<PathBuf> {
    let mut closed = vec![config.data.clone(), config.archive_root()];
    for backend in std::iter::once(&config.backend).chain(config.shards.iter().map(|shard| &shard.backend)) {
        if let Backend::Sqlite(options) = backend {
            closed.extend(options.path.parent().map(Path::to_owned));
        }
    }
    if let Some(key) = &config.server_key_file {
        // Beside it may lie other secrets; but a folder that has a project root in it is no folder of secrets.
        let has_root = |folder: &Path| config.mail.project_roots.iter().any(|root| root.starts_with(folder));
        closed.extend(key.parent().filter(|folder| !has_root(folder)).map(Path::to_owned));
        closed.push(key.clone());
    }
    closed.extend(config.file.clone());
    closed
}

/// Limits that all servers share through Redis where there is one, else those of this process.
fn mesh_limits(config: &Config) -> Result<(Limits, Condition)> {
    let Some(address) = &config.mesh_door.redis else { return Ok((Limits::default(), Condition::default())) };
    let shared = Shared::new(address, &config.mesh_door)?;
    let condition = shared.condition();
    Ok((Limits(Arc::new(shared)), condition))
}

/// Opens the shards beside home. If the queues do not fit the shards, closes all stores again.
async fn open_shards(config: &Config, home: Store) -> Result<Stores> {
    let migrations = waybill_domains::migrations_of(StoreRole::Shard);
    let clock = || Arc::new(Clock::system());
    let stores = Stores::open(home, &config.shards, &migrations, clock).await?;
    if let Err(error) = waybill_queues::shards::check_placement(&stores).await {
        let _ = tokio::task::spawn_blocking(move || stores.close()).await;
        return Err(error);
    }
    Ok(stores)
}

/// Compares the server's own key with the one that the database goes with. Returns what the operator must know, if anything. A SQLite
/// file goes with whatever key its only server has; nodes that share a database must share the key, or each undoes what the others
/// have made.
pub async fn agree_on_server_key(config: &Config, store: &Store, key: &ServerKey) -> Result<Option<String>> {
    let Agreement::Other(noted) = waybill_access::agree_on_server_key(store, key).await? else { return Ok(None) };
    if matches!(config.backend, Backend::Sqlite(_)) {
        waybill_access::adopt_server_key(store, key).await?;
        return Ok(Some(format!(
            "The server key is another one ({}) than this database went with until now ({noted}). Every API key is good \
             as before and is verified in full at its next use. If that was not meant, stop the server and put the old \
             server.key back.",
            key.id()
        )));
    }
    Ok(Some(format!(
        "This node's server key ({}) is not the one that the database goes with ({noted}). API keys are good all the same, but \
         each is verified in full whenever it comes to a node with another server key. Copy server.key from the node that \
         has {noted} to this one's data folder, or name it with --server-key-file, and start again. If it is lost: \
         `waybill server-key adopt` on one node, and copy that one's to the others.",
        key.id()
    )))
}

/// A key that was written before its transaction, just now or by a start that was cut off, becomes the admin key if the
/// database has it. The database is asked rather than the transaction, whose answer may have been lost.
async fn settle_admin_key(store: &Store, data: &DataFolder) -> Result<Option<PathBuf>> {
    let Some(text) = data.new_admin_key()? else { return Ok(None) };
    let is_known = match Key::parse(&text) {
        Some(key) => waybill_access::is_key_of_default_tenant(store, key.id).await?,
        None => false,
    };
    if is_known {
        return data.keep_new_admin_key().map(Some);
    }
    data.remove_new_admin_key()?;
    Ok(None)
}

fn new_instance_id(entropy: &dyn Entropy) -> String {
    let mut bytes = [0; 6];
    entropy.fill(&mut bytes);
    format!("waybill-{}", hex::encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Location;

    #[test]
    fn what_holds_secrets_of_the_server_is_closed_to_mail() {
        let folder = tempfile::tempdir().unwrap();
        let [file, data, keys] = ["waybill.toml", "data", "keys"].map(|name| folder.path().join(name));
        let key = keys.join("server.key");
        std::fs::write(&file, format!("[mail]\nproject_roots = [{:?}]\n", folder.path())).unwrap();
        let location = Location {
            data: Some(data.clone()),
            config: Some(file.clone()),
            server_key_file: Some(key.clone()),
            ..Location::default()
        };
        let closed = closed_to_mail(&Config::at(&location).unwrap());
        for path in [&file, &data, &keys, &key] {
            assert!(closed.contains(path), "{}", path.display());
        }
    }
}
