//! Waking those who wait, after the commit that gives them something.
//!
//! # Contract
//! A waiter subscribes before its first run, so a commit after that run began always finds it. `n` items wake at most
//! `n` waiters, in the order they came; a waiter that was woken and found nothing passes its wake on to the next in line,
//! and so does one that leaves with a wake unused. Spurious wakes are allowed, lost ones are not.
//!
//! What becomes there to be found at a known time is noted once, with its topic: one wake when the time has come, instead of
//! one for each who waits when it is announced and again when it is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
        waiter.pending.load(Ordering::Relaxed) || hub.0.missed.load(Ordering::Relaxed) != self.missed
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
        self.subscription.waiter.pending.store(false, Ordering::Relaxed);
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
    /// One has, from this time on.
    At(Topic, Time),
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
    /// Given and not yet used. Guarded by the hub's lock.
    pending: AtomicBool,
}

pub(crate) struct Subscription {
    hub: Hub,
    topic: Topic,
    number: u64,
    waiter: Arc<Waiter>,
    /// A wake was taken and the run after it has not yet been judged.
    holding: bool,
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
            state.wake_from(topic, 0, 1);
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
        Subscription { hub: self.clone(), topic, number, waiter, holding: false }
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
            Wake::Now(topic, count) => self.lock().wake_from(topic, 0, count),
            Wake::At(topic, at) => {
                if !self.due(topic, at) {
                    self.lock().wake_from(topic, 0, 1);
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

    fn wake_from(&mut self, topic: Topic, after: u64, count: u32) {
        let Some(waiters) = self.topics.get(&topic) else { return };
        let idle = waiters
            .range(after + 1..)
            .map(|(_, waiter)| waiter)
            .filter(|waiter| !waiter.pending.load(Ordering::Relaxed));
        for waiter in idle.take(count as usize) {
            waiter.pending.store(true, Ordering::Relaxed);
            waiter.wake.notify_one();
        }
    }
}

impl Subscription {
    /// # Cancel safety
    /// A wake that arrived stays with the subscription and is passed on when it is dropped.
    pub(crate) async fn woken(&mut self) {
        self.waiter.wake.notified().await;
        let _state = self.hub.lock();
        self.holding |= self.waiter.pending.swap(false, Ordering::Relaxed);
    }

    /// The run found something for later. False when it has to look after the time itself.
    pub(crate) fn due(&self, at: Time) -> bool {
        self.hub.due(self.topic, at)
    }

    /// The run after a wake found nothing: somebody else may.
    pub(crate) fn found_nothing(&mut self) {
        if std::mem::take(&mut self.holding) {
            self.hub.lock().wake_from(self.topic, self.number, 1);
        }
    }

    /// The run found what it waited for: its wake is used up.
    pub(crate) fn satisfied(&mut self) {
        self.holding = false;
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
        let unused = self.waiter.pending.load(Ordering::Relaxed);
        if self.holding || unused {
            state.wake_from(self.topic, self.number, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: Topic = Topic(1);

    async fn is_woken(subscription: &mut Subscription) -> bool {
        tokio::time::timeout(Duration::from_millis(1), subscription.woken()).await.is_ok()
    }

    async fn is_set(flag: &WakeFlag) -> bool {
        tokio::time::timeout(Duration::from_millis(1), flag.wait()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn n_items_wake_the_first_n_in_order() {
        let hub = Hub::new();
        let mut waiters: Vec<_> = (0..4).map(|_| hub.subscribe(TOPIC)).collect();
        hub.release(&[Wake::Now(TOPIC, 2)]);
        let mut woken = Vec::new();
        for waiter in &mut waiters {
            woken.push(is_woken(waiter).await);
        }
        assert_eq!(woken, [true, true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_finds_nothing_passes_its_wake_on_and_the_chain_ends() {
        let hub = Hub::new();
        let (mut first, mut second) = (hub.subscribe(TOPIC), hub.subscribe(TOPIC));
        hub.release(&[Wake::Now(TOPIC, 1)]);
        assert!(is_woken(&mut first).await);
        first.found_nothing();
        assert!(is_woken(&mut second).await);
        second.found_nothing();
        assert!(!is_woken(&mut first).await && !is_woken(&mut second).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_leaves_with_a_wake_passes_it_on() {
        let hub = Hub::new();
        let (first, mut second) = (hub.subscribe(TOPIC), hub.subscribe(TOPIC));
        hub.release(&[Wake::Now(TOPIC, 1)]);
        drop(first);
        assert!(is_woken(&mut second).await);
        second.satisfied();
        drop(second);
        assert!(hub.lock().topics.is_empty(), "nothing is kept for topics nobody waits for");
    }

    #[tokio::test(start_paused = true)]
    async fn who_looks_again_for_what_may_have_been_missed_wakes_nobody_else() {
        let hub = Hub::new();
        let mut waiters: Vec<_> = (0..3).map(|_| hub.subscribe(TOPIC)).collect();
        hub.look_again();
        for waiter in &mut waiters {
            assert!(is_woken(waiter).await);
            waiter.found_nothing();
        }
        for waiter in &mut waiters {
            assert!(!is_woken(waiter).await);
        }
    }

    #[test]
    fn a_flag_shows_wakes_since_it_began_and_keeps_them() {
        let hub = Hub::new();
        hub.release(&[Wake::Now(TOPIC, u32::MAX)]);
        let (flag, other) = (hub.flag(TOPIC), hub.flag(Topic(2)));
        assert!(!flag.woken());
        hub.release(&[Wake::Now(TOPIC, u32::MAX)]);
        assert!(flag.woken() && flag.woken() && !other.woken());
        let next = hub.flag(TOPIC);
        drop(flag);
        assert!(!next.woken());
        hub.look_again();
        assert!(other.woken() && !hub.flag(TOPIC).woken());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flag_can_be_waited_for_and_the_end_of_the_program_is_no_wake() {
        let hub = Hub::new();
        let (flag, other) = (hub.flag(TOPIC), hub.flag(Topic(2)));
        assert!(!is_set(&flag).await);
        hub.release(&[Wake::Now(TOPIC, u32::MAX)]);
        assert!(is_set(&flag).await && is_set(&flag).await);
        hub.close();
        assert!(!is_set(&other).await && !is_set(&hub.flag(TOPIC)).await);
        hub.look_again();
        assert!(is_set(&other).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_between_two_runs_is_not_lost() {
        let hub = Hub::new();
        let mut waiter = hub.subscribe(TOPIC);
        hub.release(&[Wake::Now(TOPIC, 1)]);
        assert!(is_woken(&mut waiter).await);
        hub.release(&[Wake::Now(TOPIC, 1)]);
        waiter.found_nothing();
        assert!(is_woken(&mut waiter).await);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_who_wait_one_is_woken_when_the_time_has_come() {
        let (hub, time) = (Hub::new(), waybill_kernel::clock::manual::ManualSource::at(1_000_000));
        let clock = Arc::new(Clock::new(time.clone()));
        let keeper = tokio::spawn(hub.keep_time(Arc::clone(&clock)));
        let mut waiters: Vec<_> = (0..100).map(|_| hub.subscribe(TOPIC)).collect();
        let at = Time::from_micros(clock.now().micros() + 2_000_000);
        hub.release(&[Wake::At(TOPIC, at)]);
        // Each of them may have found the same time by itself.
        waiters.iter().for_each(|_| assert!(hub.due(TOPIC, at)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!is_woken(&mut waiters[0]).await);
        time.pass(Duration::from_secs(2));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut woken = 0;
        for waiter in &mut waiters {
            woken += usize::from(is_woken(waiter).await);
        }
        assert_eq!(woken, 1);
        assert!(hub.lock().due.is_empty());
        drop((waiters, hub));
        tokio::time::timeout(Duration::from_secs(60), keeper).await.expect("it goes on without a hub").unwrap();
    }

    #[test]
    fn a_time_that_nobody_waits_for_is_not_kept() {
        let hub = Hub::new();
        assert!(hub.due(TOPIC, Time::from_micros(7)));
        assert!(hub.lock().due.is_empty());
    }
}
