//! The buckets of this process, by tenant, queue, action and incarnation.
//!
//! # Locks
//! A shard of the map is locked for a look or a change, a bucket for a decision or its removal. Whoever has a shard waits
//! for no bucket; whoever removes a bucket holds it and then takes its shard. So there is no circle.

use std::sync::Arc;

use waybill_kernel::{Tenant, Time};

use super::bucket::{Bucket, Charge, Tokens};
use super::known::Known;
use super::shards::Shards;
use crate::rules::throttle::{Action, Rate};

/// Looks at a bucket that others remove at the same moment. Beyond it the call is refused: letting it pass would be a limit
/// that a crowd can step over.
const TRIES_MAX: usize = 4;
/// Queues that have buckets, about 300 bytes each. Beyond it a new one takes the place of another that was not used lately.
const QUEUES_MAX: usize = 1 << 20;
/// Queues that are looked at for one whose place to take.
const NEIGHBOURS_MAX: usize = 16;

/// What became of a call's wish for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Taken,
    /// Nothing was taken.
    Refused {
        retry_after_s: u64,
    },
    /// What was known of the queue is known no longer: nothing was decided.
    Outdated,
}

/// The buckets of one queue, of which there are three at a time, and those of its former incarnations until they are
/// removed.
type Slots = Vec<Slot>;

#[derive(Clone, Debug)]
struct Slot {
    action: Action,
    incarnation: i64,
    account: Arc<str>,
    bucket: Arc<Bucket>,
}

/// Where to find a bucket that is to be removed.
struct Found {
    tenant: Tenant,
    queue: Arc<str>,
    slot: Slot,
}

/// What a bucket has left, for the figures.
pub(super) struct Reading {
    pub(super) account: Arc<str>,
    pub(super) queue: Arc<str>,
    pub(super) action: Action,
    pub(super) left: f64,
}

#[derive(Default)]
pub(super) struct Buckets(Shards<Slots>);

impl Buckets {
    pub(super) fn take(&self, known: &Known, wanted: (Action, Rate), tokens: u32, now: Time) -> Decision {
        let (action, rate) = wanted;
        for _ in 0..TRIES_MAX {
            if known.is_retired() {
                return Decision::Outdated;
            }
            let Some(bucket) = self.find(known, action).or_else(|| self.build(known, action, rate, now)) else {
                return Decision::Outdated;
            };
            // Another configuration than it was built by: it is another bucket, and a full one.
            if bucket.rate != rate {
                self.remove(known.tenant, &known.queue, &bucket, |_| true);
                continue;
            }
            match bucket.charge(tokens, now) {
                Charge::Taken => return Decision::Taken,
                #[cfg(feature = "sabotage")]
                Charge::Short { .. } if evicts_once(known) => {
                    self.remove(known.tenant, &known.queue, &bucket, |_| true);
                }
                Charge::Short { retry_after_s } => return Decision::Refused { retry_after_s },
                Charge::Evicted => {}
            }
        }
        Decision::Refused { retry_after_s: 1 }
    }

    /// Every action and incarnation.
    pub(super) fn drop_queue(&self, tenant: Tenant, queue: &Arc<str>) {
        self.drop_of_queue(tenant, queue, |_| true);
    }

    /// Those that this queue as it is now would not have built.
    pub(super) fn drop_unfit(&self, known: &Known) {
        self.drop_of_queue(known.tenant, &known.queue, |slot| {
            let fits = |(action, rate)| slot.action == action && slot.bucket.rate == rate;
            let wanted = [Action::Send, Action::Receive].map(|wanted| known.throttle.bucket(wanted));
            // Another has taken its place meanwhile, and the bucket may be of that one.
            let is_known = !known.is_retired();
            is_known && (slot.incarnation != known.incarnation || !wanted.into_iter().flatten().any(fits))
        });
    }

    /// Those that nobody has used for long. Answers with how many.
    pub(super) fn sweep(&self, now: Time) -> usize {
        let mut idle = self.all();
        idle.retain(|found| found.slot.bucket.lock().is_idle(now));
        // Somebody may have used one since.
        let removed =
            |found: &Found| self.remove(found.tenant, &found.queue, &found.slot.bucket, |tokens| tokens.is_idle(now));
        idle.iter().filter(|found| removed(found)).count()
    }

    pub(super) fn readings(&self) -> Vec<Reading> {
        let read = |Found { queue, slot, .. }: Found| Reading {
            left: slot.bucket.left(),
            account: slot.account,
            queue,
            action: slot.action,
        };
        self.all().into_iter().map(read).collect()
    }

    fn find(&self, known: &Known, action: Action) -> Option<Arc<Bucket>> {
        self.0.look(known.tenant, &known.queue, |slots| slot_of(slots, known, action))?
    }

    /// A full one, or the one that somebody else was quicker to build. None when `known` is retired: who retires it
    /// removes the buckets after that, and would miss this one.
    fn build(&self, known: &Known, action: Action, rate: Rate, now: Time) -> Option<Arc<Bucket>> {
        self.make_room(known);
        self.0.change(known.tenant, &known.queue, |slots| {
            let mut slots = slots.unwrap_or_default();
            let there = slot_of(&slots, known, action);
            let bucket = match there {
                Some(there) => Some(there),
                None if known.is_retired() => None,
                None => {
                    let bucket = Arc::new(Bucket::new(rate, now));
                    let (incarnation, account) = (known.incarnation, Arc::clone(&known.account));
                    slots.push(Slot { action, incarnation, account, bucket: Arc::clone(&bucket) });
                    Some(bucket)
                }
            };
            ((!slots.is_empty()).then_some(slots), bucket)
        })
    }

    fn make_room(&self, known: &Known) {
        if self.0.names() < QUEUES_MAX {
            return;
        }
        let used_at = |slots: &Slots| slots.iter().map(|slot| slot.bucket.lock().used_at()).max();
        let neighbours = self.0.neighbours(known.tenant, &known.queue, NEIGHBOURS_MAX);
        if let Some((tenant, queue, _)) = neighbours.iter().min_by_key(|(_, _, slots)| used_at(slots)) {
            self.drop_queue(*tenant, queue);
        }
    }

    fn drop_of_queue(&self, tenant: Tenant, queue: &Arc<str>, unwanted: impl Fn(&Slot) -> bool) {
        let slots = self.0.look(tenant, queue, Clone::clone).unwrap_or_default();
        for slot in slots.iter().filter(|slot| unwanted(slot)) {
            self.remove(tenant, queue, &slot.bucket, |_| true);
        }
    }

    /// The only way out of the map. False when it is gone already, or `still` says that it is to stay.
    fn remove(
        &self,
        tenant: Tenant,
        queue: &Arc<str>,
        bucket: &Arc<Bucket>,
        still: impl FnOnce(&Tokens) -> bool,
    ) -> bool {
        let mut held = bucket.lock();
        if held.evicted || !still(&held) {
            return false;
        }
        self.0.change(tenant, queue, |slots| {
            let mut slots = slots.unwrap_or_default();
            slots.retain(|slot| !Arc::ptr_eq(&slot.bucket, bucket));
            ((!slots.is_empty()).then_some(slots), ())
        });
        held.evicted = true;
        true
    }

    /// A remover that never comes to its end.
    #[cfg(test)]
    pub(super) fn mark_evicted(&self, known: &Known) {
        for slot in self.0.look(known.tenant, &known.queue, Clone::clone).unwrap_or_default() {
            slot.bucket.lock().evicted = true;
        }
    }

    fn all(&self) -> Vec<Found> {
        let mut found = Vec::new();
        self.0.each(|tenant, queue, slots| {
            found.extend(slots.iter().map(|slot| Found { tenant, queue: Arc::clone(queue), slot: slot.clone() }));
        });
        found
    }
}

/// The planted bug: true for the first that finds the bucket of a queue empty.
#[cfg(feature = "sabotage")]
fn evicts_once(known: &Known) -> bool {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    static EVICTED: Mutex<BTreeSet<(i64, String)>> = Mutex::new(BTreeSet::new());
    waybill_store::sabotage::planted("throttle-budget-doubled")
        && EVICTED.lock().unwrap_or_else(PoisonError::into_inner).insert((known.tenant.0, known.queue.to_string()))
}

fn slot_of(slots: &Slots, known: &Known, action: Action) -> Option<Arc<Bucket>> {
    let is_it = |slot: &&Slot| slot.action == action && slot.incarnation == known.incarnation;
    slots.iter().find(is_it).map(|slot| Arc::clone(&slot.bucket))
}
