//! What a server remembers about queues beside its database. Nothing of it is needed to be right, only to be fair.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use waybill_kernel::Tenant;
use waybill_store::{Ctx, Flow};

use crate::shards::Routes;

/// Partitioned queues whose turn is remembered. Beyond it all of them begin at their first partition again.
const QUEUES_MAX: usize = 4_096;

/// All partitions of a queue together are looked at by one receive for about so long. Those that are left come first the
/// next time.
const PASS_MAX: Duration = Duration::from_millis(100);

/// Attempts that are known before those that are over are looked for.
const ATTEMPTS_MAX: usize = 256;

/// By tenant, queue and the id of the attempt.
type Attempts = HashMap<(Tenant, String, String), Weak<tokio::sync::Mutex<()>>>;

/// Given to the store with the settings; its clones are one.
#[derive(Clone, Debug)]
pub struct Process {
    turns: Arc<Mutex<HashMap<(Tenant, String), i64>>>,
    pass_max: Duration,
    routes: Arc<Routes>,
    /// Stores that have failed when they were asked last.
    failing: Arc<Mutex<BTreeSet<String>>>,
    /// Receives that ask several stores and may be made again, while they ask.
    attempts: Arc<Mutex<Attempts>>,
}

impl Default for Process {
    fn default() -> Self {
        let (turns, routes, failing, attempts) = Default::default();
        Self { turns, pass_max: PASS_MAX, routes, failing, attempts }
    }
}

impl Process {
    /// For tests, whose machine may stand still for longer than a receive has.
    #[must_use]
    pub fn with_pass_max(self, pass_max: Duration) -> Self {
        Self { pass_max, ..self }
    }

    /// That of the process where the store was opened without.
    pub(crate) fn of<'a>(flow: &Flow<'a>) -> &'a Self {
        static USUAL: LazyLock<Process> = LazyLock::new(Process::default);
        flow.home().settings().find().unwrap_or(&*USUAL)
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    pub(crate) fn pass_max(&self) -> Duration {
        self.pass_max
    }

    pub(crate) fn is_failing(&self, store: &str) -> bool {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).contains(store)
    }

    /// True when it is news.
    pub(crate) fn set_failing(&self, store: &str, failing: bool) -> bool {
        let mut known = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if failing { known.insert(store.to_owned()) } else { known.remove(store) }
    }

    /// Until the guard is dropped nobody else of this process makes the same attempt: who asked a store that has been asked
    /// and then one that has not would take a part of the answer for the whole.
    pub(crate) async fn attempt(&self, tenant: Tenant, queue: &str, attempt: &str) -> OwnedMutexGuard<()> {
        let key = (tenant, queue.to_owned(), attempt.to_owned());
        let one = {
            let mut known = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= ATTEMPTS_MAX {
                known.retain(|_, one| one.strong_count() > 0);
            }
            let there = known.get(&key).and_then(Weak::upgrade);
            there.unwrap_or_else(|| {
                let one = Arc::default();
                known.insert(key, Arc::downgrade(&one));
                one
            })
        };
        one.lock_owned().await
    }

    /// The partition that the next receive from a queue begins with.
    pub(crate) fn turn(&self, tenant: Tenant, queue: &str) -> i64 {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.get(&(tenant, queue.to_owned())).copied().unwrap_or(0)
    }

    pub(crate) fn set_turn(&self, tenant: Tenant, queue: &str, partition: i64) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= QUEUES_MAX {
            turns.clear();
        }
        turns.insert((tenant, queue.to_owned()), partition);
    }

    fn forget(&self, tenant: Tenant, queue: &str) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).remove(&(tenant, queue.to_owned()));
    }
}

/// Where a receive from a partitioned queue begins, so that no partition is always the last to be looked at. Each queue has
/// its own count: with one for all, two queues that are received from in turn would each see every other partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotation<'a> {
    process: Option<&'a Process>,
    tenant: Tenant,
    queue: &'a str,
}

impl<'a> Rotation<'a> {
    pub(crate) fn of(ctx: &'a Ctx<'_>, queue: &'a str) -> Self {
        Self { process: ctx.settings_if_given(), tenant: ctx.caller.tenant, queue }
    }

    pub(crate) fn first(&self) -> i64 {
        self.process.map_or(0, |process| process.turn(self.tenant, self.queue))
    }

    pub(crate) fn pass_max(&self) -> Duration {
        self.process.map_or(PASS_MAX, |process| process.pass_max)
    }

    /// A run that is made again sets it again: that is no harm.
    pub(crate) fn set_next(&self, partition: i64) {
        if let Some(process) = self.process {
            process.set_turn(self.tenant, self.queue, partition);
        }
    }
}

/// Of a queue that ends or begins.
pub(crate) fn forget_rotation(ctx: &Ctx<'_>, queue: &str) {
    if let Some(process) = ctx.settings_if_given::<Process>() {
        process.forget(ctx.caller.tenant, queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_of_each_tenant_has_its_own_turn() {
        let process = Process::default();
        assert_eq!(process.turn(Tenant(1), "a.fifo"), 0);
        process.set_turn(Tenant(1), "a.fifo", 3);
        process.set_turn(Tenant(2), "a.fifo", 5);
        process.set_turn(Tenant(1), "b.fifo", 7);
        process.forget(Tenant(1), "b.fifo");
        let turn = |tenant, queue| process.turn(Tenant(tenant), queue);
        assert_eq!((turn(1, "a.fifo"), turn(2, "a.fifo"), turn(1, "b.fifo")), (3, 5, 0));
    }

    #[tokio::test]
    async fn attempts_are_made_one_at_a_time_and_forgotten() {
        let process = Process::default();
        let one = process.attempt(Tenant(1), "a.fifo", "one").await;
        let same = process.attempt(Tenant(1), "a.fifo", "one");
        tokio::pin!(same);
        assert!(futures_util::poll!(&mut same).is_pending());
        for (tenant, queue, attempt) in [(2, "a.fifo", "one"), (1, "b.fifo", "one"), (1, "a.fifo", "two")] {
            drop(process.attempt(Tenant(tenant), queue, attempt).await);
        }
        drop(one);
        let held = same.await;
        for number in 0..2 * ATTEMPTS_MAX {
            drop(process.attempt(Tenant(1), "a.fifo", &number.to_string()).await);
        }
        assert!(process.attempts.lock().unwrap().len() <= ATTEMPTS_MAX);
        assert!(futures_util::poll!(std::pin::pin!(process.attempt(Tenant(1), "a.fifo", "one"))).is_pending());
        drop(held);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let process = Process::default();
        for number in 0..=QUEUES_MAX {
            process.set_turn(Tenant(1), &format!("q{number}.fifo"), 1);
        }
        assert_eq!((process.turn(Tenant(1), "q0.fifo"), process.turns.lock().unwrap().len()), (0, 1));
    }
}
