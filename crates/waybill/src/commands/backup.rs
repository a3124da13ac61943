//! `waybill backup`

use std::path::Path;

use serde_json::{Value as Json, json};
use waybill_kernel::{Clock, Code, Error, Result};
use waybill_store::safety::{self, Address, Deployment, Manifest, ServerKeyCopy, ShardFile};
use waybill_store::{Backend, PostgresOptions, Shard};

use super::watched::watched;
use crate::cli::Backup;
use crate::config::Config;
use crate::{data, output};

pub async fn run(flags: Backup) -> Result<()> {
    let config = Config::at(&flags.location)?;
    let home = match &config.backend {
        Backend::Sqlite(options) => options.path.as_path(),
        Backend::Postgres(options) => return Err(dump_instead(options, &config.shards)?),
    };
    if let Some(refusal) = postgres_shards(&config.shards)? {
        return Err(refusal);
    }
    let files = deployment(home, &config.shards);
    let server_key = server_key(&config, flags.with_keys)?;
    let created_at = Clock::system().now();
    let destination = flags.destination.clone();
    let take = move |watch: &safety::Watch| {
        safety::take(&files, &destination, server_key.as_ref(), env!("CARGO_PKG_VERSION"), created_at, watch)
    };
    let manifest = watched(take).await?;
    show(&flags.destination, &manifest, flags.json)
}

/// The SQLite files that belong together.
pub fn deployment(home: &Path, shards: &[Shard]) -> Deployment {
    let file = |shard: &Shard| match &shard.backend {
        Backend::Sqlite(options) => Some(ShardFile { name: shard.name.clone(), path: options.path.clone() }),
        Backend::Postgres(_) => None,
    };
    let placed = Some(waybill_queues::shards::PLACED.sqlite);
    Deployment { home: home.to_owned(), shards: shards.iter().filter_map(file).collect(), placed }
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
    if !manifest.shards.is_empty() {
        output::note(&format!("All stores are of the same instant: home, {}.", shards_of(manifest)))?;
    }
    if manifest.has_server_key() {
        output::note("The server's own key is in it: keep it where only those may read who may read the data folder.")?;
    } else if let Some(id) = &manifest.server_key_id {
        output::note(&format!("The server's own key ({id}) is not in it; --with-keys takes it along."))?;
    }
    let settings = if manifest.shards.is_empty() { "" } else { " --config <settings with [shards]>" };
    let command = format!("waybill restore {} --data <new folder>{settings}", destination.display());
    output::note(&format!("Restore it with: {command}"))
}

/// Those beside home, each with its newest commit.
pub fn shards_of(manifest: &Manifest) -> String {
    let shown = manifest.shards.iter().map(|shard| format!("{} (commit {})", shard.name, shard.commit_seq));
    shown.collect::<Vec<_>>().join(", ")
}

/// The tables people ask about.
pub fn summary(manifest: &Manifest) -> String {
    let count = |table: &str| manifest.rows.get(table).copied().unwrap_or(0);
    format!("{} tasks, {} receipts, {} keys", count("tasks"), count("receipts"), count("api_keys"))
}

/// PostgreSQL has its own tools, which know replicas and fail-over; a second way would only be a worse one.
fn dump_instead(options: &PostgresOptions, shards: &[Shard]) -> Result<Error> {
    let Tools { base_backup, dump } = Tools::of(options)?;
    let names: Vec<_> = shards.iter().map(|shard| shard.name.as_str()).collect();
    let together = match names.is_empty() {
        true => String::new(),
        false => format!(
            " Its shards ({}) must be of the same instant: stop the server before the first is copied, and start it after \
             the last; those in SQLite files are in the data folder.",
            names.join(", ")
        ),
    };
    Ok(unsupported(format!(
        "A PostgreSQL database is backed up with PostgreSQL's own tools, by a superuser or a role with BYPASSRLS (to others \
         row-level security shows nothing). To restore from: `{base_backup}`. To look into elsewhere: `{dump}`; Waybill \
         refuses to serve a dump from a cluster that is younger than the one it was made in.{together}"
    )))
}

/// What of PostgreSQL's own copies a database.
struct Tools {
    base_backup: String,
    dump: String,
}

impl Tools {
    fn of(options: &PostgresOptions) -> Result<Self> {
        let Address { host, port, database } = Address::of(options)?;
        let at = format!("--host={host} --port={port} --username=postgres");
        Ok(Self {
            base_backup: format!("pg_basebackup {at} --wal-method=stream --pgdata=<folder>"),
            dump: format!("pg_dump {at} --format=custom --file={database}.dump {database}"),
        })
    }
}

/// The messages of all stores must be of one instant, and a database that is elsewhere cannot be held still with files that
/// are here.
fn postgres_shards(shards: &[Shard]) -> Result<Option<Error>> {
    let mut commands = Vec::new();
    for shard in shards {
        if let Backend::Postgres(options) = &shard.backend {
            commands.push(format!("for {} `{}`", shard.name, Tools::of(options)?.dump));
        }
    }
    if commands.is_empty() {
        return Ok(None);
    }
    Ok(Some(unsupported(format!(
        "This deployment has shards on PostgreSQL, and nothing was backed up: its stores must be copied as of one instant, or \
         messages that move between them are lost or there twice. Stop the server; then copy the whole data folder, and each \
         of those databases with PostgreSQL's own tools, by a superuser or a role with BYPASSRLS: {}. To restore, put all of \
         them back together while the server is stopped.",
        commands.join(", ")
    ))))
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
        "shards": manifest.shards,
    })
}
