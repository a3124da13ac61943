//! Do the stores belong together? Home knows which database goes by which name, and a server starts with no others.
//!
//! Where each copy of a queue's row stands is compared as well. A store follows home and is never ahead of it: one that is
//! ahead was not put back together with home, and refuses every call about that queue. The stores are asked before home is,
//! so that what a server changes meanwhile looks like no fault.

use std::collections::BTreeMap;
use std::path::Path;

use waybill_kernel::{Error, Result, hex};
use waybill_queues::shards::{FENCES, Fence, PLACED};
use waybill_store::safety::{Beside, Inspection, PostgresInspection};
use waybill_store::stores::HOME;
use waybill_store::{Backend, Sql, StoreRole};

use super::{Check, Scene, list, work};
use crate::config::Config;

const NAME: &str = "shards";
/// Name and id.
const KNOWN: Sql = Sql {
    sqlite: "SELECT name || ' ' || lower(hex(database_id)) FROM shards",
    postgres: "SELECT name || ' ' || encode(database_id, 'hex') FROM shards",
};

/// Nothing where there are no shards and there need be none.
pub(super) async fn examine(config: &Config, scene: &Scene) -> Vec<Check> {
    let mut stores = Vec::new();
    for shard in &config.shards {
        stores.push((shard.name.as_str(), Look::at(&shard.backend, StoreRole::Shard, scene).await));
    }
    let home = match Look::at(&config.backend, StoreRole::Home, scene).await {
        Ok(home) => home,
        // What is wrong with it other checks have told.
        Err(_) if stores.is_empty() => return Vec::new(),
        Err(_) => return vec![Check::skipped(NAME, "home cannot be read, so nobody knows which stores are its own")],
    };
    let mut checks = Vec::new();
    for (name, look) in &stores {
        match look {
            Ok(look) => {
                checks.push(identity(name, &home, look).of_store(name));
                checks.push(fences(&home, look).of_store(name));
            }
            Err(error) if home.known.contains_key(*name) => {
                let found = format!("home knows it, and it cannot be read: {}", error.message());
                let cure = "Put the database back, or restore a backup of all stores.";
                checks.push(Check::failed(NAME, found, cure).of_store(name));
            }
            Err(_) => checks.push(Check::skipped(NAME, "home does not know it yet").of_store(name)),
        }
    }
    checks.extend(missing(&home, config));
    checks
}

/// What one store says of itself and of others. All but the first is empty in tables of another version.
#[derive(Default)]
struct Look {
    /// None in one that is new.
    database_id: Option<String>,
    /// In home: which database goes by which name.
    known: BTreeMap<String, String>,
    /// In home: stores that partitions are in.
    placed: Vec<String>,
    fences: Vec<Fence>,
}

impl Look {
    async fn at(backend: &Backend, role: StoreRole, scene: &Scene) -> Result<Self> {
        match backend {
            Backend::Sqlite(options) => {
                let (path, runs) = (options.path.clone(), scene.holder.is_some());
                let look = move || Self::at_file(&path, role, runs);
                tokio::task::spawn_blocking(look).await.map_err(Error::internal)?
            }
            Backend::Postgres(options) => Self::at_database(&PostgresInspection::open(options).await?, role).await,
        }
    }

    fn at_file(path: &Path, role: StoreRole, runs: bool) -> Result<Self> {
        let file = Inspection::open(path, if runs { Beside::Server } else { Beside::Nobody })?;
        let database_id = file.newest()?.map(|newest| newest.database_id);
        if file.schema()? != Some(work::schema_known(role)) {
            return Ok(Self { database_id, ..Self::default() });
        }
        let texts = [KNOWN.sqlite, PLACED.sqlite, FENCES].map(|sql| file.texts(sql));
        Self::read(database_id, texts)
    }

    async fn at_database(look: &PostgresInspection, role: StoreRole) -> Result<Self> {
        if look.schema().await? != Some(work::schema_known(role)) {
            return Ok(Self::default());
        }
        let id = look.ids("SELECT database_id FROM meta WHERE id = 1", 1).await?;
        let texts = [look.texts(KNOWN.postgres).await, look.texts(PLACED.postgres).await, look.texts(FENCES).await];
        Self::read(id.first().map(|id| hex::encode(id)), texts)
    }

    fn read(database_id: Option<String>, texts: [Result<Vec<String>>; 3]) -> Result<Self> {
        let [known, placed, fences] = texts;
        let pair = |text: String| text.split_once(' ').map(|(name, id)| (name.to_owned(), id.to_owned()));
        let known = known?.into_iter().filter_map(pair).collect();
        let fences = fences?.iter().filter_map(|text| Fence::read(text)).collect();
        Ok(Self { database_id, known, placed: placed?, fences })
    }
}

/// The same that a start refuses.
fn identity(name: &str, home: &Look, shard: &Look) -> Check {
    let cure = "Name the database that the shard was made with in [shards], or give a new one a new name.";
    let Some(id) = &shard.database_id else { return Check::ok(NAME, "new; the next start makes it") };
    if shard.database_id == home.database_id {
        return Check::failed(NAME, "it is the database of home", cure);
    }
    if let Some((other, _)) = home.known.iter().find(|(other, known)| *known == id && *other != name) {
        return Check::failed(NAME, format!("it is the database of {other}"), cure);
    }
    match home.known.get(name) {
        Some(known) if known != id => {
            Check::failed(NAME, format!("it is another database ({id}) than the one that home knows ({known})"), cure)
        }
        Some(_) => Check::ok(NAME, "the database that home knows by this name"),
        None => Check::ok(NAME, "home does not know it yet; the next start tells it"),
    }
}

fn fences(home: &Look, shard: &Look) -> Check {
    const NAME: &str = "fences";
    let ahead: Vec<_> =
        shard.fences.iter().filter(|fence| home.fences.iter().any(|row| fence.is_ahead_of(row))).collect();
    if ahead.is_empty() {
        return Check::ok(NAME, format!("{} queues, none ahead of home", shard.fences.len()));
    }
    let names: Vec<_> = ahead.iter().map(|fence| fence.queue.clone()).collect();
    let found = format!("ahead of home, so that every call about them is refused: {}", list(&names));
    let cure = "Home or this store was put back without the other: restore all stores from one backup. Where there is none, \
                purge these queues; their messages are lost.";
    Check::failed(NAME, found, cure)
}

/// Partitions whose store is not named.
fn missing(home: &Look, config: &Config) -> Option<Check> {
    let is_named = |name: &str| name == HOME || config.shards.iter().any(|shard| shard.name == name);
    let missing: Vec<_> = home.placed.iter().filter(|name| !is_named(name)).cloned().collect();
    if missing.is_empty() {
        return None;
    }
    let found = format!("queues have partitions on stores that [shards] does not have: {}", list(&missing));
    Some(Check::failed(NAME, found, "Name the server's settings with --config, and the databases in [shards]."))
}
