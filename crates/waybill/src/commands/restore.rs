//! `waybill restore`

use std::fs;
use std::path::Path;

use serde_json::json;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Error, Result};
use waybill_store::Backend;
use waybill_store::safety::{self, Address, Manifest, Restored};

use super::backup::{summary, to_json, unsupported};
use super::watched::watched;
use crate::cli::Restore;
use crate::config::Config;
use crate::data::{self, DataFolder};
use crate::output;

/// What a folder may hold and count as empty: what every command leaves, the rest of a restore that was killed, and the
/// server's key, put there by hand for a backup that has none.
const LEFTOVERS: &[&str] = &["waybill.lock", "waybill.db.part", "waybill.db.part-journal", data::SERVER_KEY];

pub async fn run(flags: Restore) -> Result<()> {
    let config = Config::at(&flags.location)?;
    let database = match config.backend {
        Backend::Sqlite(options) => options.path,
        Backend::Postgres(options) => {
            let Address { host, port, database } = Address::of(&options)?;
            let at = format!("--host={host} --port={port} --username=postgres");
            return Err(unsupported(format!(
                "A PostgreSQL database is restored with PostgreSQL's own tools: start the server on the folder that \
                 `pg_basebackup` made. A dump goes with `createdb {at} {database}` and `pg_restore {at} \
                 --dbname={database} waybill.dump` into a cluster that has the roles waybill_app and waybill_system and \
                 whose transaction numbers are past the dump's, as the one it was made in is."
            )));
        }
    };
    // Both before anything is made: a slip in either path costs nothing.
    Manifest::read(&flags.backup)?;
    let is_new = refuse_used(&config.data)?;
    let folder = DataFolder::open(&config.data)?;
    let outcome = restore(&flags, &config.data, &database).await;
    if outcome.is_err() && is_new {
        let _ = fs::remove_file(config.data.join("waybill.lock"));
        let _ = fs::remove_dir(&config.data);
    }
    drop(folder);
    show(&config.data, &outcome?, flags.json)
}

async fn restore(flags: &Restore, data: &Path, database: &Path) -> Result<Restored> {
    // Again, now that nobody else can put anything there.
    refuse_used(data)?;
    let (backup, database) = (flags.backup.clone(), database.to_owned());
    watched(move |watch| safety::restore(&backup, &database, &waybill_domains::migrations(), &OsEntropy, watch)).await
}

/// Refuses a folder that holds anything; true when there is none yet.
fn refuse_used(data: &Path) -> Result<bool> {
    let unusable = |error: std::io::Error| {
        let message = format!("The data folder {} cannot be used: {error}.", data.display());
        Error::new(Code::DataFolderUnusable, message)
    };
    let entries = match fs::read_dir(data) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        entries => entries.map_err(unusable)?,
    };
    for entry in entries {
        let name = entry.map_err(unusable)?.file_name();
        if !LEFTOVERS.iter().any(|leftover| name == *leftover) {
            let message = format!(
                "The data folder {} is not empty (it holds {}), and a restore replaces nothing. Stop the server that uses it \
                 and move the folder away, or restore into another with --data.",
                data.display(),
                name.display()
            );
            return Err(Error::new(Code::AlreadyExists, message));
        }
    }
    Ok(false)
}

fn show(data: &Path, restored: &Restored, as_json: bool) -> Result<()> {
    let manifest = &restored.manifest;
    if as_json {
        let mut answer = to_json(manifest);
        answer["data"] = json!(data.display().to_string());
        answer["database_id"] = json!(restored.database_id);
        return output::json(&answer);
    }
    let shown = data.display();
    output::line(&shown.to_string())?;
    output::note(&format!(
        "Restored up to commit {}, made at {}: {}. What was done after that is not in it.\n\
         Its keys are those of that time. admin.key is not part of a backup: put the old one back as {shown}/admin.key, or \
         make another key: waybill key create --data {shown} --principal human:me --role admin\n\
         Start it: waybill serve --data {shown}",
        manifest.commit_seq,
        manifest.commit_time,
        summary(manifest),
    ))?;
    match missing_server_key(data, manifest) {
        None => Ok(()),
        Some(id) => output::note(&format!(
            "The server's own key ({id}) did not travel with the backup: put the old server.key into {shown} before the start. \
             Without it a new one is made, and every API key is verified in full at its next use."
        )),
    }
}

/// The id of the key that the database went with, where the folder does not have it.
fn missing_server_key<'a>(data: &Path, manifest: &'a Manifest) -> Option<&'a str> {
    let present = data::server_key(data, None).ok().flatten();
    manifest.server_key_id.as_deref().filter(|id| present.is_none_or(|key| key.id() != *id))
}
