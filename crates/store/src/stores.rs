//! Several stores in one process: home, and others by name. Each has its own writer or lanes, readers, hub and clock; they
//! share the settings of the process.
//!
//! No transaction spans two of them. What has to happen in several is a [`crate::Procedure`], which says what becomes of it
//! when the program ends in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use waybill_kernel::{Clock, Code, Error, Mode, Result, hex};

use crate::{Backend, Ctx, Migration, Store, Tx, Value, Work};

/// The store that is always there.
pub const HOME: &str = "home";
const NAME_CHARS_MAX: usize = 32;
/// Beside home.
pub const SHARDS_MAX: usize = 64;

/// Which tables a store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRole {
    /// Everything.
    Home,
    /// Those of the domains that keep rows outside of home.
    Shard,
}

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Stores(Arc<Inner>);

struct Inner {
    home: Store,
    named: BTreeMap<String, Store>,
}

/// One store that is to be opened beside home.
#[derive(Clone, Debug)]
pub struct Shard {
    pub name: String,
    pub backend: Backend,
}

impl From<Store> for Stores {
    fn from(home: Store) -> Self {
        Self(Arc::new(Inner { home, named: BTreeMap::new() }))
    }
}

impl Stores {
    /// Opens the others beside `home`, each with a clock of its own. A database that was another shard before, or home
    /// itself, is refused.
    pub async fn open(
        home: Store,
        shards: &[Shard],
        migrations: &[Migration],
        clock: impl Fn() -> Arc<Clock>,
    ) -> Result<Self> {
        let mut named = BTreeMap::new();
        for shard in shards {
            check_name(&shard.name).map_err(|why| Error::new(Code::ConfigInvalid, why))?;
            let opened = Store::open_beside(&home, &shard.name, shard.backend.clone(), migrations, clock()).await;
            let store = match opened {
                Ok(store) => store,
                Err(error) => {
                    close_all(named.into_values()).await;
                    return Err(of_shard(&shard.name, error));
                }
            };
            named.insert(shard.name.clone(), store);
        }
        let stores = Self(Arc::new(Inner { home, named }));
        if let Err(error) = stores.recognise().await {
            close_all(stores.0.named.values().cloned()).await;
            return Err(error);
        }
        Ok(stores)
    }

    pub fn home(&self) -> &Store {
        &self.0.home
    }

    /// Home by its name, too.
    pub fn find(&self, name: &str) -> Option<&Store> {
        if name == HOME { Some(&self.0.home) } else { self.0.named.get(name) }
    }

    /// Those beside home.
    pub fn shards(&self) -> impl Iterator<Item = (&str, &Store)> {
        self.0.named.iter().map(|(name, store)| (name.as_str(), store))
    }

    pub fn has_shards(&self) -> bool {
        !self.0.named.is_empty()
    }

    /// Home comes first.
    pub fn all(&self) -> impl Iterator<Item = &Store> {
        std::iter::once(&self.0.home).chain(self.0.named.values())
    }

    pub fn stop_waiting(&self) {
        self.all().for_each(Store::stop_waiting);
    }

    /// As [`Store::close`]; home is the last.
    pub fn close(&self) {
        self.0.named.values().for_each(Store::close);
        self.0.home.close();
    }

    /// Each name belongs to one database for ever: two that were swapped would each look for the other's messages.
    async fn recognise(&self) -> Result<()> {
        let home = self.home().system().run(DatabaseId).await?;
        for (name, store) in self.shards() {
            let id = store.system().run(DatabaseId).await?;
            let known = self.home().system().run(Recognise { name: name.to_owned(), id: id.clone() }).await?;
            let refused = |why: String| {
                let cure = "Name the database that the shard was made with in [shards], or give a new one a new name.";
                Err(Error::new(Code::ConfigInvalid, why).with_cure(cure))
            };
            if id == home {
                return refused(format!("The shard {name} is the database of home."));
            }
            match known {
                Known::Same => {}
                Known::OtherName(other) => return refused(format!("The shard {name} is the database of {other}.")),
                Known::OtherId(other) => {
                    let (id, other) = (hex::encode(&id), hex::encode(&other));
                    return refused(format!("The shard {name} is another database ({id}) than before ({other})."));
                }
            }
        }
        Ok(())
    }
}

/// What a name may look like, in words for whoever has chosen it.
pub fn check_name(name: &str) -> std::result::Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    if name == HOME {
        return Err(format!("`{HOME}` is the store that is always there; shards have other names."));
    }
    if !(1..=NAME_CHARS_MAX).contains(&name.len()) || !name.bytes().all(allowed) {
        return Err(format!(
            "The shard {name:?} has no usable name: up to {NAME_CHARS_MAX} small letters, digits, hyphens and underscores."
        ));
    }
    Ok(())
}

fn of_shard(name: &str, error: Error) -> Error {
    let told = Error::new(error.code(), format!("The shard {name}: {}", error.message()));
    let told = match error.cause() {
        Some(cause) => told.because(cause),
        None => told,
    };
    match error.cure() {
        "" => told,
        cure => told.with_cure(cure),
    }
}

async fn close_all(stores: impl Iterator<Item = Store>) {
    for store in stores {
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }
}

struct DatabaseId;

impl Work for DatabaseId {
    type Output = Vec<u8>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<u8>> {
        let row = tx.query_opt("SELECT database_id FROM meta WHERE id = 1", &[]).await?;
        row.ok_or_else(|| Error::internal("a database has no id"))?.bytes(0).map(<[u8]>::to_vec)
    }
}

/// In home: is this the database that goes by this name? One that is new gets it.
struct Recognise {
    name: String,
    id: Vec<u8>,
}

enum Known {
    Same,
    OtherName(String),
    OtherId(Vec<u8>),
}

impl Work for Recognise {
    type Output = Known;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Known> {
        const NOTE: &str = "INSERT INTO shards (name, database_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        const FIND: &str = "SELECT name, database_id FROM shards WHERE name = $1 OR database_id = $2";
        let params = [Value::from(&self.name), Value::from(&self.id[..])];
        let mut rows = tx.query(FIND, &params).await?;
        if rows.is_empty() {
            tx.execute(NOTE, &params).await?;
            rows = tx.query(FIND, &params).await?;
        }
        for row in &rows {
            let (name, id) = (row.text(0)?, row.bytes(1)?);
            if name != self.name {
                return Ok(Known::OtherName(name.to_owned()));
            }
            if id != self.id {
                return Ok(Known::OtherId(id.to_vec()));
            }
        }
        Ok(Known::Same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_a_name_that_fits_a_label_and_is_not_home() {
        for good in ["a", "shard-1", "disk_2", &"x".repeat(32)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "home", "A", "a b", "a,b", "a=b", "ä", &"x".repeat(33)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
