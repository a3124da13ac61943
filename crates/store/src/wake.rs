//! Waking those who wait, after the commit that gives them something.
//!
//! # Contract
//! A waiter subscribes before its first run, so a commit after that run began always finds it. `n` items wake at most
//! `n` waiters, in the order they came; a waiter that was woken and found nothing passes its wake on to the next in line,
//! unless all who wait are after the same, and so does one that leaves with a wake unused. Spurious wakes are allowed, lost
//! ones are not.
//!
//! What becomes there to be found at a known time is noted once, with its topic: one wake when the time has come, instead of
//! one for each who waits when it is announced and again when it is due. Nobody knows how much there is by then: for as long as
//! somebody finds something one more waiter looks, and the first who finds nothing notes when there will be something again. So of
//! all times of a topic only the first needs to be known.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use waybill_kernel::{Clock, Tenant, Time};

/// Wakes for other nodes that may wait to be sent. Beyond it they are dropped: a poll stands behind every wait.
const OUTGOING_WAKES_MAX: usize = 4096;
/// Between two looks at what is due, in case the clock was moved.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Times that are noted. Beyond it whoever waits looks after the time by itself.
const DUE_MAX: usize = 65_536;

/// What is waited for: one thing of one tenant. A hash, so that it fits a notification; a collision wakes in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(pub(crate) u64);

impl Topic {
    pub fn new(kind: &'static str, tenant: Tenant, key: &[u8]) -> Self {
        // FNV-1a: stable between nodes and versions, which std's hasher does not promise.
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let parts =
            kind.as_bytes().iter().chain(&[0]).copied().chain(tenant.0.to_be_bytes()).chain(key.iter().copied());
        Topic(parts.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)))
    }
}

/// Sees a wake of its topic without waiting for it: for what is remembered until somebody says it has changed.
pub struct WakeFlag {
    subscription: Subscription,
    /// How often wakes may have been missed before it began.
    missed: u64,
}

impl WakeFlag {
    /// Of a hub of its own, where nobody wakes anybody: for tests.
    pub fn alone() -> Self {
        Hub::new().flag(Topic(0))
    }

    /// Stays true from the first wake on.
    pub fn woken(&self) -> bool {
        let Subscription { hub, waiter, .. } = &self.subscription;
        waiter.pending() != Given::NOTHING || hub.0.missed.load(Ordering::Relaxed) != self.missed
    }

    /// Ends with the first wake since it began, and never where none comes, also when the program stops.
    ///
    /// # Cancel safety
    /// A wake that arrived stays: the next wait ends at once.
    pub async fn wait(&self) {
        while !self.woken() {
            self.subscription.waiter.wake.notified().await;
        }
    }
}

impl Drop for WakeFlag {
    /// It takes nothing away, so it has nothing to pass on.
    fn drop(&mut self) {
        self.subscription.waiter.take();
    }
}

impl std::fmt::Debug for WakeFlag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WakeFlag").field(&self.subscription.topic).finish()
    }
}

/// What a commit has for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// So many of a topic's waiters have something to find.
    Now(Topic, u32),
    /// Some have, from this time on.
    At(Topic, Time),
}

/// What a waiter was given and has not used up. As bits: one that is busy with a look may be given more before the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Given(u8);

impl Given {
    const NOTHING: Self = Self(0);
    /// For one item: whoever finds nothing passes it on, and whoever finds something has used it up.
    const WAKE: Self = Self(1);
    /// For a look at whether there is more, after somebody has found something: it goes on from whoever finds something, and ends
    /// with the first who finds nothing.
    const PROBE: Self = Self(2);
    /// For a time that has come, and all that there is by then: a wake, and a probe from whoever finds something.
    const TIMED: Self = Self(3);

    fn has(self, part: Self) -> bool {
        self.0 & part.0 == part.0
    }
}

#[derive(Clone)]
pub(crate) struct Hub(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// How often wakes of other nodes may have been missed.
    missed: AtomicU64,
    /// The first of what is due has changed.
    sooner: Notify,
    /// To the task that tells other nodes, where there are any.
    outgoing: Option<mpsc::Sender<Wake>>,
}

#[derive(Default)]
struct State {
    next: u64,
    closed: bool,
    topics: HashMap<Topic, BTreeMap<u64, Arc<Waiter>>>,
    due: BTreeSet<(Time, Topic)>,
}

#[derive(Default)]
struct Waiter {
    wake: Notify,
    /// A [`Given`] of which it has not heard yet. Guarded by the hub's lock.
    pending: AtomicU8,
}

impl Waiter {
    fn pending(&self) -> Given {
        Given(self.pending.load(Ordering::Relaxed))
    }

    fn give(&self, given: Given) {
        self.pending.fetch_or(given.0, Ordering::Relaxed);
        self.wake.notify_one();
    }

    fn take(&self) -> Given {
        Given(self.pending.swap(Given::NOTHING.0, Ordering::Relaxed))
    }
}

pub(crate) struct Subscription {
    hub: Hub,
    topic: Topic,
    number: u64,
    waiter: Arc<Waiter>,
    /// It was taken, and the run after it has not yet been judged.
    holding: Given,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self::with(None)
    }

    /// A hub whose wakes other nodes hear as well; the receiver is what must be told to them.
    pub(crate) fn shared_with_others() -> (Self, mpsc::Receiver<Wake>) {
        let (sender, receiver) = mpsc::channel(OUTGOING_WAKES_MAX);
        (Self::with(Some(sender)), receiver)
    }

    fn with(outgoing: Option<mpsc::Sender<Wake>>) -> Self {
        let (state, missed, sooner) = (Mutex::default(), AtomicU64::new(0), Notify::new());
        Hub(Arc::new(Shared { state, missed, sooner, outgoing }))
    }

    /// Wakes one waiter for each time that has come. Ends with the hub.
    pub(crate) fn keep_time(&self, clock: Arc<Clock>) -> impl Future<Output = ()> + use<> {
        let hub: Weak<Shared> = Arc::downgrade(&self.0);
        async move {
            while let Some(pause) = hub.upgrade().map(|shared| Hub(shared).fire(clock.now())) {
                let Some(shared) = hub.upgrade() else { return };
                // A time that was noted meanwhile has left its word, and ends the wait at once.
                let _ = tokio::time::timeout(pause.min(LOOK_AGAIN), shared.sooner.notified()).await;
            }
        }
    }

    /// How long until the next.
    fn fire(&self, now: Time) -> Duration {
        let mut state = self.lock();
        while let Some((at, topic)) = state.due.first().copied() {
            if at > now {
                return at.since(now);
            }
            state.due.pop_first();
            state.wake_from(topic, 0, 1, Given::TIMED);
        }
        Duration::MAX
    }

    /// False when there is no room to note it.
    pub(crate) fn due(&self, topic: Topic, at: Time) -> bool {
        let mut state = self.lock();
        // Nobody is here to be told, and whoever comes looks for itself.
        if !state.topics.contains_key(&topic) || state.due.contains(&(at, topic)) {
            return true;
        }
        if state.due.len() >= DUE_MAX {
            return false;
        }
        state.due.insert((at, topic));
        if state.due.first() == Some(&(at, topic)) {
            self.0.sooner.notify_one();
        }
        true
    }

    pub(crate) fn subscribe(&self, topic: Topic) -> Subscription {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        let waiter = Arc::<Waiter>::default();
        state.topics.entry(topic).or_default().insert(number, Arc::clone(&waiter));
        if state.closed {
            waiter.wake.notify_one();
        }
        Subscription { hub: self.clone(), topic, number, waiter, holding: Given::NOTHING }
    }

    /// From now on; whoever remembers something subscribes before reading it.
    pub(crate) fn flag(&self, topic: Topic) -> WakeFlag {
        let missed = self.0.missed.load(Ordering::Relaxed);
        WakeFlag { subscription: self.subscribe(topic), missed }
    }

    /// Called after a commit, with what the transaction collected.
    pub(crate) fn release(&self, wakes: &[Wake]) {
        for wake in wakes {
            self.wake_here(*wake);
            if let Some(outgoing) = &self.0.outgoing {
                let _ = outgoing.try_send(*wake);
            }
        }
    }

    pub(crate) fn wake_here(&self, wake: Wake) {
        match wake {
            Wake::Now(topic, count) => self.lock().wake_from(topic, 0, count, Given::WAKE),
            Wake::At(topic, at) => {
                if !self.due(topic, at) {
                    self.lock().wake_from(topic, 0, 1, Given::WAKE);
                }
            }
        }
    }

    /// Wakes of other nodes may have been missed: everybody looks once, whatever they wait for. Nobody holds a wake for it:
    /// passed on from each who finds nothing, those of one topic would wake each other again and again.
    pub(crate) fn look_again(&self) {
        self.0.missed.fetch_add(1, Ordering::Relaxed);
        self.lock().notify_all();
    }

    /// Everybody goes home: used once, when the program stops.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn notify_all(&self) {
        for waiter in self.topics.values().flat_map(BTreeMap::values) {
            waiter.wake.notify_one();
        }
    }

    /// Passes over those that have been given something already: they look in any case, and after this.
    fn wake_from(&mut self, topic: Topic, after: u64, count: u32, given: Given) {
        let Some(waiters) = self.topics.get(&topic) else { return };
        let idle =
            waiters.range(after + 1..).map(|(_, waiter)| waiter).filter(|waiter| waiter.pending() == Given::NOTHING);
        for waiter in idle.take(count as usize) {
            waiter.give(given);
        }
    }
}

impl Subscription {
    /// # Cancel safety
    /// A wake that arrived stays with the subscription and is passed on when it is dropped.
    pub(crate) async fn woken(&mut self) {
        self.waiter.wake.notified().await;
        let _state = self.hub.lock();
        self.holding = Given(self.holding.0 | self.waiter.take().0);
    }

    /// The run found something for later. False when it has to look after the time itself.
    pub(crate) fn due(&self, at: Time) -> bool {
        self.hub.due(self.topic, at)
    }

    /// The run after a wake found nothing: somebody else may. A run that did not look everywhere does not end a probe: this waiter
    /// looks again by itself.
    pub(crate) fn found_nothing(&mut self, looked_everywhere: bool) {
        let given = self.holding;
        if given.has(Given::WAKE) {
            self.hub.lock().wake_from(self.topic, self.number, 1, given);
        }
        if given.has(Given::WAKE) || looked_everywhere {
            self.holding = Given::NOTHING;
        }
    }

    /// The run after a wake found nothing, nor would anybody else who waits: what it was given before it is used up.
    pub(crate) fn nothing_is_there(&mut self) {
        self.holding = Given::NOTHING;
    }

    /// The run found what it waited for: its wake is used up. After a time that has come there may be more.
    pub(crate) fn satisfied(&mut self) {
        if std::mem::take(&mut self.holding).has(Given::PROBE) {
            self.hub.lock().wake_from(self.topic, self.number, 1, Given::PROBE);
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(waiters) = state.topics.get_mut(&self.topic) {
            waiters.remove(&self.number);
            if waiters.is_empty() {
                state.topics.remove(&self.topic);
            }
        }
        for unused in [self.holding, self.waiter.take()] {
            if unused != Given::NOTHING {
                state.wake_from(self.topic, self.number, 1, unused);
            }
        }
    }
}

#[cfg(test)]
mod tests;
