//! A map by queue that many threads use at once: it is cut into shards, each under a lock of its own that is held for a
//! look or a change and never while anything else is waited for.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use waybill_kernel::Tenant;

/// Locks. With some dozens of threads two rarely want the same one.
const SHARDS: usize = 64;

/// The queues of one shard, by tenant first, so that a look by a borrowed name allocates nothing.
type Names<V> = HashMap<Tenant, HashMap<Arc<str>, V>>;

pub(super) struct Shards<V> {
    shards: Box<[RwLock<Names<V>>]>,
    hasher: RandomState,
    /// Names in all shards together.
    names: AtomicUsize,
}

impl<V> Default for Shards<V> {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, hasher: RandomState::new(), names: AtomicUsize::new(0) }
    }
}

impl<V> Shards<V> {
    pub(super) fn names(&self) -> usize {
        self.names.load(Ordering::Relaxed)
    }

    /// None where there is nothing by that name.
    pub(super) fn look<R>(&self, tenant: Tenant, name: &str, look: impl FnOnce(&V) -> R) -> Option<R> {
        // The only thing that a program without throttled queues does.
        if self.names() == 0 {
            return None;
        }
        self.read(self.shard(tenant, name)).get(&tenant)?.get(name).map(look)
    }

    /// `change` gets what is there and says what shall be.
    pub(super) fn change<R>(
        &self,
        tenant: Tenant,
        name: &Arc<str>,
        change: impl FnOnce(Option<V>) -> (Option<V>, R),
    ) -> R {
        let mut shard = self.shards[self.shard(tenant, name)].write().unwrap_or_else(PoisonError::into_inner);
        let of_tenant = shard.entry(tenant).or_default();
        let before = of_tenant.remove_entry(name);
        let was_there = before.is_some();
        let (key, before) = before.map_or((None, None), |(key, value)| (Some(key), Some(value)));
        let (after, answer) = change(before);
        match (was_there, after.is_some()) {
            (false, true) => self.names.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.names.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        if let Some(after) = after {
            of_tenant.insert(key.unwrap_or_else(|| Arc::clone(name)), after);
        } else if of_tenant.is_empty() {
            shard.remove(&tenant);
        }
        answer
    }

    /// Shard by shard: what is added meanwhile may be missing.
    pub(super) fn each(&self, mut visit: impl FnMut(Tenant, &Arc<str>, &V)) {
        for shard in 0..SHARDS {
            for (tenant, names) in self.read(shard).iter() {
                for (name, value) in names {
                    visit(*tenant, name, value);
                }
            }
        }
    }

    /// Up to `max` neighbours of a name, which share its lock.
    pub(super) fn neighbours(&self, tenant: Tenant, name: &str, max: usize) -> Vec<(Tenant, Arc<str>, V)>
    where
        V: Clone,
    {
        let shard = self.read(self.shard(tenant, name));
        let all = shard.iter().flat_map(|(tenant, names)| names.iter().map(move |(name, value)| (tenant, name, value)));
        all.take(max).map(|(tenant, name, value)| (*tenant, Arc::clone(name), value.clone())).collect()
    }

    fn read(&self, shard: usize) -> RwLockReadGuard<'_, Names<V>> {
        self.shards[shard].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, tenant: Tenant, name: &str) -> usize {
        usize::try_from(self.hasher.hash_one((tenant, name)) % SHARDS as u64).unwrap_or(0)
    }
}
