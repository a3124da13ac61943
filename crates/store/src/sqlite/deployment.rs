//! The database files that belong together: home's, and those of the shards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use waybill_kernel::{Code, Error, Result, hex};

use super::check;
use super::cut::{self, Snapshot};
use super::watch::Watch;

/// Which SQLite files a deployment has.
#[derive(Clone, Debug)]
pub struct Deployment {
    pub home: PathBuf,
    pub shards: Vec<ShardFile>,
    /// Asks home for the names of the stores that something was placed in. It is for those to say who place it.
    pub placed: Option<&'static str>,
}

/// A store beside home that is a SQLite file.
#[derive(Clone, Debug)]
pub struct ShardFile {
    pub name: String,
    pub path: PathBuf,
}

impl From<&Path> for Deployment {
    /// Home alone.
    fn from(home: &Path) -> Self {
        Self { home: home.to_owned(), shards: Vec::new(), placed: None }
    }
}

/// The stores of a deployment as of one instant.
pub(super) struct Stores {
    pub(super) home: Snapshot,
    /// By name.
    pub(super) shards: Vec<(String, Snapshot)>,
}

impl Deployment {
    /// Refuses stores that do not belong together, and a home that has more of them than are named here: what was
    /// copied would be of some of the messages alone.
    pub(super) fn snapshots(&self, watch: &Watch) -> Result<Stores> {
        let mut files: Vec<_> = self.shards.iter().collect();
        files.sort_by(|one, other| one.name.cmp(&other.name));
        let (there, absent): (Vec<_>, Vec<_>) = files.into_iter().partition(|shard| shard.path.is_file());
        let mut paths = vec![self.home.as_path()];
        paths.extend(there.iter().map(|shard| shard.path.as_path()));
        let mut snapshots = cut::snapshots(&paths, watch)?.into_iter();
        let home = snapshots.next().ok_or_else(|| Error::internal("there is no snapshot of home"))?;
        let known = known(&home)?;
        // One that no server has met yet is made by the next start.
        if let Some(shard) = absent.iter().find(|shard| known.contains_key(&shard.name)) {
            let message = format!("The shard {} has no file at {}.", shard.name, shard.path.display());
            return Err(Error::new(Code::NotFound, message).with_cure("Put the file back, or name the right one."));
        }
        let shards: Vec<_> = there.iter().map(|shard| shard.name.clone()).zip(snapshots).collect();
        for (name, snapshot) in &shards {
            belongs(name, snapshot, &known)?;
        }
        self.has_all(&home)?;
        Ok(Stores { home, shards })
    }

    fn has_all(&self, home: &Snapshot) -> Result<()> {
        let Some(placed) = self.placed else { return Ok(()) };
        let asked = || -> rusqlite::Result<Vec<String>> {
            home.raw.prepare(placed)?.query_map([], |row| row.get(0))?.collect()
        };
        // Tables of an older version have no places.
        if !home.raw.table_exists(None, SHARDS).map_err(|error| damaged(home, &error))? {
            return Ok(());
        }
        let names = asked().map_err(|error| damaged(home, &error))?;
        let is_named = |name: &String| self.shards.iter().any(|shard| shard.name == *name);
        match names.iter().find(|name| *name != crate::stores::HOME && !is_named(name)) {
            None => Ok(()),
            Some(name) => {
                let message =
                    format!("There are queues with partitions on the shard {name}, which [shards] does not have.");
                let cure = "Name the server's settings with --config.";
                Err(Error::new(Code::ConfigInvalid, message).with_cure(cure))
            }
        }
    }
}

/// The table in which home keeps which database goes by which name.
const SHARDS: &str = "shards";

fn known(home: &Snapshot) -> Result<BTreeMap<String, Vec<u8>>> {
    let read = || -> rusqlite::Result<BTreeMap<String, Vec<u8>>> {
        if !home.raw.table_exists(None, SHARDS)? {
            return Ok(BTreeMap::new());
        }
        let mut statement = home.raw.prepare("SELECT name, database_id FROM shards")?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    read().map_err(|error| damaged(home, &error))
}

/// As a start asks it (`stores.rs`).
fn belongs(name: &str, shard: &Snapshot, known: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    let id = &shard.meta.database_id;
    match known.get(name) {
        Some(known) if known[..] != id[..] => {
            let (id, known) = (hex::encode(id), hex::encode(known));
            let message =
                format!("The shard {name} is another database ({id}) than the one that home knows ({known}).");
            let cure = "Name the database that the shard was made with in [shards].";
            Err(Error::new(Code::ConfigInvalid, message).with_cure(cure))
        }
        _ => Ok(()),
    }
}

fn damaged(home: &Snapshot, error: &rusqlite::Error) -> Error {
    check::damaged(&home.path, &error.to_string())
}
