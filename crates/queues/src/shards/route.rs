//! Where the partitions of a queue are, as home says, and as this process remembers it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_store::stores::HOME;
use waybill_store::{Ctx, Store, Stores, Tx, Work};

use crate::catalog::Entry;
use crate::rules::partitions;

/// Queues whose place is remembered. Beyond it all are read again.
const QUEUES_MAX: usize = 16_384;

/// The bits of the partitions that are in one store.
pub(crate) fn partitions_in(shards: &[String], store: &str) -> i64 {
    shards.iter().enumerate().filter(|(_, shard)| *shard == store).fold(0, |bits, (partition, _)| bits | 1 << partition)
}

/// As the catalog has them.
pub(crate) fn read_shards(stored: Option<&str>) -> Result<Option<Vec<String>>> {
    stored.map(serde_json::from_str).transpose().map_err(Error::internal)
}

/// A queue that has partitions elsewhere than in home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub incarnation: i64,
    pub generation: i64,
    /// The store of each partition.
    shards: Vec<String>,
}

impl Route {
    pub(crate) fn new((incarnation, generation): (i64, i64), shards: Vec<String>) -> Self {
        Self { incarnation, generation, shards }
    }

    pub(crate) fn spread(&self) -> i64 {
        self.shards.len() as i64 - 1
    }

    pub(crate) fn of_group(&self, group: &str) -> &str {
        self.of_partition(partitions::route(group, self.spread()))
    }

    /// One that the queue does not have leads to some store, which refuses what it is asked.
    pub(crate) fn of_partition(&self, partition: i64) -> &str {
        usize::try_from(partition & self.spread())
            .ok()
            .and_then(|index| self.shards.get(index))
            .map_or(HOME, String::as_str)
    }

    /// Every store once, beginning with that of a partition.
    pub(crate) fn stores(&self, begin: i64) -> Vec<&str> {
        let mut stores = Vec::new();
        for partition in begin..=begin + self.spread() {
            let store = self.of_partition(partition);
            if !stores.contains(&store) {
                stores.push(store);
            }
        }
        stores
    }
}

/// What home has of a queue, for the other stores to follow.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub generation: i64,
    pub incarnation: i64,
    pub version: i64,
    pub spread: i64,
    pub attributes: String,
    pub created_at: Time,
    pub shards: Option<Vec<String>>,
}

impl Record {
    /// None where there is no such queue.
    pub(crate) async fn read(home: &Store, tenant: Tenant, queue: &str) -> Result<Option<Self>> {
        home.system().run(Read { tenant, queue: queue.to_owned() }).await
    }

    fn route(&self) -> Option<Arc<Route>> {
        let shards = self.shards.clone()?;
        Some(Arc::new(Route::new((self.incarnation, self.generation), shards)))
    }
}

struct Read {
    tenant: Tenant,
    queue: String,
}

impl Work for Read {
    type Output = Option<Record>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Record>> {
        let entry = Entry::find(&mut tx.as_tenant(self.tenant), &self.queue).await?;
        Ok(entry.map(|entry| Record {
            generation: entry.generation,
            incarnation: entry.incarnation,
            version: entry.version,
            spread: entry.spread,
            attributes: entry.stored_attributes().to_owned(),
            created_at: entry.created_at,
            shards: entry.shards,
        }))
    }
}

/// What this process remembers. Whether it is still true the store says that is asked by it.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<HashMap<Tenant, OfTenant>>);

/// By queue; none for one that has no partitions elsewhere.
type OfTenant = HashMap<String, Option<Arc<Route>>>;

impl Routes {
    /// None for a queue that is in home alone, and for one that there is not.
    pub(crate) async fn find(&self, stores: &Stores, tenant: Tenant, queue: &str) -> Result<Option<Arc<Route>>> {
        if let Some(known) = self.known(tenant, queue) {
            return Ok(known);
        }
        self.learn(stores, tenant, queue).await
    }

    /// As home has it now.
    pub(crate) async fn learn(&self, stores: &Stores, tenant: Tenant, queue: &str) -> Result<Option<Arc<Route>>> {
        let record = Record::read(stores.home(), tenant, queue).await?;
        let route = record.as_ref().and_then(Record::route);
        match record {
            Some(_) => self.keep(tenant, queue, route.clone()),
            // Anybody may ask for any name: what there is not is not remembered.
            None => self.forget(tenant, queue),
        }
        Ok(route)
    }

    fn known(&self, tenant: Tenant, queue: &str) -> Option<Option<Arc<Route>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&tenant)?.get(queue).cloned()
    }

    fn keep(&self, tenant: Tenant, queue: &str, route: Option<Arc<Route>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.values().map(HashMap::len).sum::<usize>() >= QUEUES_MAX {
            known.clear();
        }
        known.entry(tenant).or_default().insert(queue.to_owned(), route);
    }

    pub(crate) fn forget(&self, tenant: Tenant, queue: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queues) = known.get_mut(&tenant) {
            queues.remove(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(shards: &[&str]) -> Route {
        let shards = shards.iter().map(|shard| (*shard).to_owned()).collect();
        Route { incarnation: 1, generation: 1, shards }
    }

    #[test]
    fn a_group_leads_to_the_store_of_its_partition() {
        let route = route(&["a", "home", "b", "a"]);
        let stores = ["user-1", "g1", "g0", "g3"].map(|group| route.of_group(group));
        assert_eq!(stores, ["a", "home", "b", "a"]);
        assert_eq!((route.of_partition(6), route.of_partition(i64::from(u32::MAX))), ("b", "a"));
        assert_eq!(partitions_in(&route.shards, "a"), 0b1001);
        assert_eq!(partitions_in(&route.shards, "c"), 0);
    }

    #[test]
    fn every_store_is_asked_once_and_each_comes_first_in_its_turn() {
        let route = route(&["a", "b", "a", "home"]);
        assert_eq!(route.stores(0), ["a", "b", "home"]);
        assert_eq!(route.stores(1), ["b", "a", "home"]);
        assert_eq!(route.stores(3), ["home", "a", "b"]);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let routes = Routes::default();
        for number in 0..=QUEUES_MAX {
            routes.keep(Tenant(number as i64 % 3), &format!("q{number}"), None);
        }
        assert_eq!(routes.0.lock().unwrap().values().map(HashMap::len).sum::<usize>(), 1);
        routes.keep(Tenant(1), "q", None);
        routes.forget(Tenant(1), "q");
        assert!(routes.known(Tenant(1), "q").is_none());
    }
}
