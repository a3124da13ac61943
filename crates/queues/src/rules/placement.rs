//! Which store each partition of a queue is placed in, as the operator says it:
//! `[account/]queue.fifo:count=store,store,…`, one store for each partition.
//!
//! An entry without an account is for the default tenant's queue: another tenant may have one of the same name.

use std::collections::BTreeMap;

use waybill_kernel::{Code, Error, Result};
use waybill_store::stores::HOME;

use super::names::{DEFAULT_ACCOUNT, is_account, is_fifo, is_name};
use super::partitions;

/// Entries of one map.
pub const ENTRIES_MAX: usize = 4_096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionMap(BTreeMap<(String, String), Vec<String>>);

impl PartitionMap {
    /// What cannot be used is told in words for whoever has written it.
    pub fn parse<T: AsRef<str>>(entries: &[T]) -> std::result::Result<Self, String> {
        if entries.len() > ENTRIES_MAX {
            return Err(format!("sqs.fifo_partition_map has more than {ENTRIES_MAX} entries."));
        }
        let mut map = BTreeMap::new();
        for entry in entries {
            let entry = entry.as_ref();
            let refused = |why: String| format!("sqs.fifo_partition_map: the entry {entry:?} {why}.");
            let (queue, stores) = read(entry).map_err(refused)?;
            if map.insert(queue, stores).is_some() {
                return Err(refused("is the second for its queue".to_owned()));
            }
        }
        Ok(Self(map))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each entry: account, queue, stores.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str, &[String])> {
        self.0.iter().map(|((account, queue), stores)| (account.as_str(), queue.as_str(), stores.as_slice()))
    }

    /// Refuses a map that names a store which there is not.
    pub fn check_stores(&self, is_known: impl Fn(&str) -> bool) -> std::result::Result<(), String> {
        for (_, queue, stores) in self.entries() {
            if let Some(store) = stores.iter().find(|store| *store != HOME && !is_known(store)) {
                return Err(format!(
                    "sqs.fifo_partition_map places {queue} on the shard {store:?}, which [shards] does not have."
                ));
            }
        }
        Ok(())
    }

    /// The store of each partition of a queue that is made now, of which `used` are used. None where all of it is in home.
    pub fn placement(&self, account: &str, queue: &str, count: usize, used: usize) -> Result<Option<Vec<String>>> {
        if self.is_empty() {
            return Ok(None);
        }
        let Some(stores) = self.find(account, queue) else {
            return if count > 1 { Err(no_placement(1)) } else { Ok(None) };
        };
        if stores.len() < count {
            return Err(no_placement(stores.len()));
        }
        let placed = stores[..used.min(stores.len())].to_vec();
        Ok(Some(placed).filter(|placed| placed.iter().any(|store| store != HOME)))
    }

    pub fn find(&self, account: &str, queue: &str) -> Option<&[String]> {
        self.0.get(&(account.to_owned(), queue.to_owned())).map(Vec::as_slice)
    }
}

/// Partitions without a place are never put somewhere by themselves: they would stay there.
fn no_placement(most: usize) -> Error {
    let message =
        format!("PartitionCount must be at most {most}: the server has no place for more partitions of this queue.");
    Error::new(Code::InvalidAttributeValue, message)
        .because("sqs.fifo_partition_map has no entry with as many stores for this queue")
}

type Placed = ((String, String), Vec<String>);

fn read(entry: &str) -> std::result::Result<Placed, String> {
    let (queue, stores) = entry.split_once('=').ok_or("is not like queue.fifo:4=a,b,a,b")?;
    let (queue, count) = queue.rsplit_once(':').ok_or("says no number of partitions before the =")?;
    let (account, queue) =
        queue.split_once('/').map_or((DEFAULT_ACCOUNT, queue), |(account, queue)| (account.trim(), queue));
    let (queue, count) = (queue.trim(), count.trim());
    if !is_account(account) {
        return Err(format!("has the account {account:?}, and accounts have twelve digits"));
    }
    if !is_name(queue) || !is_fifo(queue) {
        return Err(format!("is for {queue:?}, which is no name of a FIFO queue"));
    }
    let count = partitions::count(count).filter(|_| count != "0").ok_or_else(|| {
        format!("has {count:?} partitions, which is not a power of two up to {}", partitions::COUNT_MAX)
    })?;
    let stores: Vec<String> = stores.split(',').map(|store| store.trim().to_owned()).collect();
    if stores.iter().any(String::is_empty) {
        return Err("names a store that is empty".to_owned());
    }
    if stores.len() != count as usize {
        return Err(format!("has {count} partitions and {} stores", stores.len()));
    }
    Ok(((account.to_owned(), queue.to_owned()), stores))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "123456789012";

    fn map(entries: &[&str]) -> PartitionMap {
        PartitionMap::parse(entries).unwrap()
    }

    #[test]
    fn rule_13_an_entry_places_each_partition() {
        let map = map(&["orders.fifo:4=a,b, home ,a", "123456789012/orders.fifo:02=b,b", "one.fifo:1=a"]);
        let placement = |account: &str, queue: &str, count, used| map.placement(account, queue, count, used).unwrap();
        let stores = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(placement(DEFAULT_ACCOUNT, "orders.fifo", 4, 4), stores(&["a", "b", "home", "a"]));
        // More stores than partitions are allowed, and where all groups are in one partition one is used.
        assert_eq!(placement(DEFAULT_ACCOUNT, "orders.fifo", 2, 2), stores(&["a", "b"]));
        assert_eq!(placement(DEFAULT_ACCOUNT, "orders.fifo", 4, 1), stores(&["a"]));
        assert_eq!(placement(OTHER, "orders.fifo", 2, 2), stores(&["b", "b"]));
        assert_eq!(placement(DEFAULT_ACCOUNT, "one.fifo", 1, 1), stores(&["a"]));
        assert_eq!(placement(OTHER, "one.fifo", 1, 1), None);
    }

    #[test]
    fn rule_13_what_cannot_be_placed_is_refused() {
        for (bad, why) in [
            ("orders.fifo", "is not like"),
            ("orders.fifo=a", "no number"),
            ("orders.fifo:3=a,a,a", "power of two"),
            ("orders.fifo:64=a", "power of two"),
            ("orders.fifo:0=a", "power of two"),
            ("orders.fifo:x=a", "power of two"),
            ("orders.fifo:2=a", "2 partitions and 1 stores"),
            ("orders.fifo:2=a,b,a", "2 partitions and 3 stores"),
            ("orders.fifo:2=a,", "empty"),
            ("orders.fifo:1=", "empty"),
            ("orders:2=a,b", "no name of a FIFO queue"),
            ("or ders.fifo:1=a", "no name of a FIFO queue"),
            ("acme/orders.fifo:1=a", "twelve digits"),
        ] {
            let error = PartitionMap::parse(&[bad]).unwrap_err();
            assert!(error.contains(why) && error.contains(bad), "{bad}: {error}");
        }
        let twice = PartitionMap::parse(&["orders.fifo:1=a", "000000000000/orders.fifo:1=b"]).unwrap_err();
        assert!(twice.contains("second"), "{twice}");
        let many: Vec<String> = (0..=ENTRIES_MAX).map(|number| format!("q{number}.fifo:1=a")).collect();
        assert!(PartitionMap::parse(&many).is_err());
    }

    #[test]
    fn rule_13_an_unknown_shard_is_named() {
        let map = map(&["orders.fifo:2=home,b"]);
        assert_eq!(map.check_stores(|name| name == "b"), Ok(()));
        let error = map.check_stores(|name| name == "a").unwrap_err();
        assert!(error.contains("orders.fifo") && error.contains("\"b\""), "{error}");
    }

    #[test]
    fn rule_14_with_a_map_partitions_need_a_place() {
        let map = map(&["orders.fifo:2=a,b", "plain.fifo:2=home,home"]);
        let refused = |queue: &str, count| map.placement(DEFAULT_ACCOUNT, queue, count, count).unwrap_err().code();
        assert_eq!(refused("other.fifo", 2), Code::InvalidAttributeValue);
        assert_eq!(refused("orders.fifo", 4), Code::InvalidAttributeValue);
        // A queue of one partition is in home unless it is said otherwise, and home is a place like others.
        assert_eq!(map.placement(DEFAULT_ACCOUNT, "other.fifo", 1, 1).unwrap(), None);
        assert_eq!(map.placement(DEFAULT_ACCOUNT, "plain.fifo", 2, 2).unwrap(), None);
        assert_eq!(PartitionMap::default().placement(DEFAULT_ACCOUNT, "orders.fifo", 32, 32).unwrap(), None);
    }
}
