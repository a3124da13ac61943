//! `waybill backup`

use std::path::Path;

use serde_json::{Value as Json, json};
use waybill_kernel::{Clock, Code, Error, Result};
use waybill_store::safety::{self, Address, Manifest, ServerKeyCopy};
use waybill_store::{Backend, PostgresOptions};

use super::watched::watched;
use crate::cli::Backup;
use crate::config::Config;
use crate::{data, output};

pub async fn run(flags: Backup) -> Result<()> {
    let config = Config::at(&flags.location)?;
    let source = match &config.backend {
        Backend::Sqlite(options) => options.path.clone(),
        Backend::Postgres(options) => return Err(dump_instead(options)?),
    };
    if !config.shards.is_empty() {
        return Err(whole_folder_instead());
    }
    let server_key = server_key(&config, flags.with_keys)?;
    let created_at = Clock::system().now();
    let destination = flags.destination.clone();
    let take = move |watch: &safety::Watch| {
        safety::take(&source, &destination, server_key.as_ref(), env!("CARGO_PKG_VERSION"), created_at, watch)
    };
    let manifest = watched(take).await?;
    show(&flags.destination, &manifest, flags.json)
}

/// Its id in any case; the key itself only where whoever takes the backup wants both in one place.
fn server_key(config: &Config, with_keys: bool) -> Result<Option<ServerKeyCopy>> {
    let key = data::server_key(&config.data, config.server_key_file.as_deref());
    match (key, with_keys) {
        (Ok(Some(key)), _) => {
            Ok(Some(ServerKeyCopy { id: key.id().to_owned(), text: with_keys.then(|| key.reveal()) }))
        }
        (Ok(None), true) => {
            let message = format!("There is no server.key in {} for --with-keys to take along.", config.data.display());
            Err(Error::new(Code::NotFound, message))
        }
        (Err(error), true) => Err(error),
        // A key that cannot be read is no reason to go without a backup.
        (Ok(None) | Err(_), false) => Ok(None),
    }
}

fn show(destination: &Path, manifest: &Manifest, as_json: bool) -> Result<()> {
    if as_json {
        let mut answer = serde_json::to_value(manifest).map_err(Error::internal)?;
        answer["backup"] = json!(destination.display().to_string());
        return output::json(&answer);
    }
    output::line(&destination.display().to_string())?;
    let bytes: u64 = manifest.files.iter().map(|piece| piece.bytes).sum();
    let commit = format!("Everything up to commit {}, made at {}", manifest.commit_seq, manifest.commit_time);
    output::note(&format!("{commit}: {}, {bytes} bytes, checked and on the disk.", summary(manifest)))?;
    if manifest.has_server_key() {
        output::note("The server's own key is in it: keep it where only those may read who may read the data folder.")?;
    } else if let Some(id) = &manifest.server_key_id {
        output::note(&format!("The server's own key ({id}) is not in it; --with-keys takes it along."))?;
    }
    output::note(&format!("Restore it with: waybill restore {} --data <new folder>", destination.display()))
}

/// The tables people ask about.
pub fn summary(manifest: &Manifest) -> String {
    let count = |table: &str| manifest.rows.get(table).copied().unwrap_or(0);
    format!("{} tasks, {} receipts, {} keys", count("tasks"), count("receipts"), count("api_keys"))
}

/// PostgreSQL has its own tools, which know replicas and fail-over; a second way would only be a worse one.
fn dump_instead(options: &PostgresOptions) -> Result<Error> {
    let Address { host, port, database } = Address::of(options)?;
    let at = format!("--host={host} --port={port} --username=postgres");
    Ok(unsupported(format!(
        "A PostgreSQL database is backed up with PostgreSQL's own tools, by a superuser or a role with BYPASSRLS (to others \
         row-level security shows nothing). To restore from: `pg_basebackup {at} --wal-method=stream --pgdata=<folder>`. To \
         look into elsewhere: `pg_dump {at} --format=custom --file=waybill.dump {database}`; Waybill refuses to serve a dump \
         from a cluster that is younger than the one it was made in."
    )))
}

/// A backup of home alone would be of other messages than those it says where to find.
fn whole_folder_instead() -> Error {
    unsupported(
        "This deployment has stores beside its database ([shards]), and a backup would be of the database alone. Stop the \
         server and copy the whole data folder; back up PostgreSQL shards with PostgreSQL's own tools meanwhile."
            .to_owned(),
    )
}

pub fn unsupported(message: String) -> Error {
    Error::new(Code::UnsupportedStore, message)
}

pub fn to_json(manifest: &Manifest) -> Json {
    json!({
        "commit_seq": manifest.commit_seq,
        "commit_time": manifest.commit_time,
        "backup_created_at": manifest.created_at,
        "rows": manifest.rows,
        "server_key_id": manifest.server_key_id,
        "has_server_key": manifest.has_server_key(),
    })
}
