//! `waybill restore`

use std::fs;
use std::path::Path;

use serde_json::json;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Error, Result};
use waybill_store::Backend;
use waybill_store::safety::{self, Address, Deployment, Manifest, Restored};

use super::backup::{deployment, shards_of, summary, to_json, unsupported};
use super::watched::watched;
use crate::cli::Restore;
use crate::config::Config;
use crate::data::{self, DataFolder};
use crate::output;

/// What a folder may hold and count as empty: what every command leaves, what says that a restore was killed, and the
/// server's key, put there by hand for a backup that has none.
const LEFTOVERS: &[&str] = &["waybill.lock", safety::UNFINISHED, data::SERVER_KEY];
/// What a restore that was killed may have left of a database besides.
const PARTS: &[&str] = &[".part", ".part-journal"];

pub async fn run(flags: Restore) -> Result<()> {
    let config = Config::at(&flags.location)?;
    let files = match config.backend {
        Backend::Sqlite(options) => deployment(&options.path, &config.shards),
        Backend::Postgres(options) => {
            let Address { host, port, database } = Address::of(&options)?;
            let at = format!("--host={host} --port={port} --username=postgres");
            return Err(unsupported(format!(
                "A PostgreSQL database is restored with PostgreSQL's own tools: start the server on the folder that \
                 `pg_basebackup` made. A dump goes with `createdb {at} {database}` and `pg_restore {at} \
                 --dbname={database} {database}.dump` into a cluster that has the roles waybill_app and waybill_system and \
                 whose transaction numbers are past the dump's, as the one it was made in is."
            )));
        }
    };
    // Both before anything is made: a slip in either path costs nothing.
    Manifest::read(&flags.backup)?;
    let is_new = refuse_used(&config.data, &files)?;
    let folder = DataFolder::open_unfinished(&config.data)?;
    let outcome = restore(&flags, &config.data, &files).await;
    if outcome.is_err() && is_new {
        let _ = fs::remove_file(config.data.join("waybill.lock"));
        let _ = fs::remove_dir(&config.data);
    }
    drop(folder);
    show(&config.data, &outcome?, flags.json)
}

async fn restore(flags: &Restore, data: &Path, files: &Deployment) -> Result<Restored> {
    // Again, now that nobody else can put anything there.
    refuse_used(data, files)?;
    let (backup, files) = (flags.backup.clone(), files.clone());
    watched(move |watch| safety::restore(&backup, &files, waybill_domains::migrations_of, &OsEntropy, watch)).await
}

/// Refuses a folder that holds anything; true when there is none yet.
fn refuse_used(data: &Path, files: &Deployment) -> Result<bool> {
    let unusable = |error: std::io::Error| {
        let message = format!("The data folder {} cannot be used: {error}.", data.display());
        Error::new(Code::DataFolderUnusable, message)
    };
    let entries = match fs::read_dir(data) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        entries => entries.map_err(unusable)?,
    };
    let expected = leftovers(data, files);
    for entry in entries {
        let name = entry.map_err(unusable)?.file_name();
        if !expected.iter().any(|leftover| name == **leftover) {
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

/// The names that do not count. A restore that was killed may have given databases their names; this one removes them.
fn leftovers(data: &Path, files: &Deployment) -> Vec<String> {
    let mut names: Vec<_> = LEFTOVERS.iter().map(|name| (*name).to_owned()).collect();
    let was_killed = data.join(safety::UNFINISHED).exists();
    for path in std::iter::once(&files.home).chain(files.shards.iter().map(|shard| &shard.path)) {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        names.extend(PARTS.iter().map(|part| format!("{}{part}", name(path))));
        if was_killed {
            names.extend([name(path), name(&path.with_extension("mark"))]);
        }
    }
    names
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
    if !manifest.shards.is_empty() {
        let shards = shards_of(manifest);
        output::note(&format!(
            "Its shards are of the same instant: {shards}. Start it with the settings that name them."
        ))?;
    }
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
