//! The table of connections: since when each is idle, and which answers it has not read. It bounds connections in all and per
//! address, and closes idle ones to make room for others.
//!
//! # Contract
//! An answer is *unread* from when it is made until the last byte of it has been given to the socket. A connection with an
//! answer older than `write_ms` is closed, whatever else its client does: a client that never reads may still answer HTTP/2's
//! pings. A connection without requests and unread answers is idle. After a while, with nothing half read and nothing half written,
//! it is told to rest: hyper and its buffers are dropped, and only the socket is kept.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::Gauge;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Settings;

const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// A search for idle connections looks at all of them, and keeps this many for the next callers who need room.
const VICTIMS_MAX: usize = 256;

/// One of so many connections may be a newcomer's, and these at least.
const NEWCOMERS_PART: usize = 4;
const NEWCOMERS_MIN: usize = 64;

/// Long enough that a busy client pays nothing, short enough that one that calls each minute costs little.
const REST_AFTER: Duration = Duration::from_secs(2);

/// Registered at the first event, so that `/metrics` shows no series of zeros.
fn closed(why: &'static str) {
    metrics::counter!(crate::metrics::CONNECTIONS_CLOSED, "why" => why).increment(1);
}

#[derive(Clone)]
pub(crate) struct Connections(Arc<Inner>);

struct Inner {
    connections_max: usize,
    /// None behind a proxy, which is the one address of all clients.
    per_address_max: Option<usize>,
    unread_max: usize,
    first_request: Duration,
    idle: Duration,
    write: Duration,
    table: Mutex<Table>,
    /// Connections that have not sent a request yet. Honest clients send one at once, and a silent connection costs as much as a
    /// working one, so only a part of all may be silent.
    newcomers: AtomicUsize,
    newcomers_max: usize,
    /// Unread answers of all connections.
    unread: AtomicUsize,
    open: Gauge,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, usize>,
    /// The connections that were idle longest at the last search.
    victims: HashMap<Among, VecDeque<(u64, Instant)>>,
}

/// Which connections may be closed to make room.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Among {
    All,
    Address(IpAddr),
    /// Those that have not sent a request yet.
    Newcomers,
}

/// One connection, shared by its task, its requests and the table.
pub(crate) struct Connection {
    number: u64,
    pub(crate) peer: IpAddr,
    connections: Connections,
    told: Notify,
    is_to_close: AtomicBool,
    /// Bytes have come since the last request was done. They may be half of the next one.
    has_read: AtomicBool,
    /// hyper has begun a write and has not ended it.
    is_writing: AtomicBool,
    is_resting: AtomicBool,
    activity: Mutex<Activity>,
}

/// What the table tells a connection to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Close,
    Rest,
}

struct Activity {
    asked: bool,
    requests: usize,
    /// When it became idle.
    idle_since: Instant,
    /// When each of the unread answers was made, in that order.
    unread: VecDeque<(u64, Instant)>,
    next: u64,
}

/// In the table as long as this lives.
pub(crate) struct Entered(pub(crate) Arc<Connection>);

/// A request without an answer yet.
pub(crate) struct UnderWay(Arc<Connection>);

/// An answer, or the part of one, that the socket has not taken.
pub(crate) struct Unread {
    connection: Arc<Connection>,
    number: u64,
}

impl Connections {
    pub(crate) fn new(settings: &Settings) -> Self {
        let per_address = (!settings.trusted_proxy).then_some(settings.connections_per_address_max);
        Self(Arc::new(Inner {
            connections_max: settings.connections_max,
            per_address_max: per_address,
            unread_max: settings.answers_unread_max,
            first_request: Duration::from_millis(settings.header_read_ms),
            idle: Duration::from_millis(settings.idle_ms),
            write: Duration::from_millis(settings.write_ms),
            table: Mutex::default(),
            newcomers: AtomicUsize::new(0),
            newcomers_max: (settings.connections_max / NEWCOMERS_PART).max(NEWCOMERS_MIN),
            unread: AtomicUsize::new(0),
            open: metrics::gauge!(crate::metrics::CONNECTIONS),
        }))
    }

    /// None when there is no room and no idle connection that could be closed for it.
    pub(crate) fn enter(&self, peer: IpAddr) -> Option<Entered> {
        let mut table = self.lock();
        let address = peer.to_canonical();
        let of_address = table.by_address.get(&address).copied().unwrap_or(0);
        let is_address_full = self.0.per_address_max.is_some_and(|most| of_address >= most);
        let full = if is_address_full {
            Some(Among::Address(address))
        } else if table.open.len() >= self.0.connections_max {
            Some(Among::All)
        } else if self.0.newcomers.load(Ordering::Relaxed) >= self.0.newcomers_max {
            Some(Among::Newcomers)
        } else {
            None
        };
        if full.is_some_and(|among| !self.make_room(&mut table, among)) {
            closed("refused");
            return None;
        }
        self.0.newcomers.fetch_add(1, Ordering::Relaxed);
        table.next += 1;
        let number = table.next;
        let activity =
            Activity { asked: false, requests: 0, idle_since: Instant::now(), unread: VecDeque::new(), next: 0 };
        let connection = Arc::new(Connection {
            number,
            peer,
            connections: self.clone(),
            told: Notify::new(),
            is_to_close: AtomicBool::new(false),
            has_read: AtomicBool::new(false),
            is_writing: AtomicBool::new(false),
            is_resting: AtomicBool::new(false),
            activity: Mutex::new(activity),
        });
        *table.by_address.entry(address).or_default() += 1;
        table.open.insert(number, Arc::clone(&connection));
        self.0.open.set(table.open.len() as f64);
        Some(Entered(connection))
    }

    /// Closes who has been idle longest among those who are meant.
    fn make_room(&self, table: &mut Table, among: Among) -> bool {
        for _ in 0..2 {
            let known = table.victims.remove(&among).unwrap_or_default();
            let mut known = known.into_iter();
            while let Some((number, since)) = known.next() {
                let Some(connection) = table.open.get(&number) else { continue };
                if connection.idle_since() == Some(since) {
                    connection.close();
                    table.remove(number);
                    table.victims.insert(among, known.collect());
                    closed("room");
                    return true;
                }
            }
            let victims = table.idle_longest(among);
            if victims.is_empty() {
                return false;
            }
            table.victims.insert(among, victims);
        }
        false
    }

    /// Tends all connections until the server has stopped.
    pub(crate) async fn watch(self, stopped: CancellationToken) {
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(SWEEP_INTERVAL) => self.sweep(Instant::now()),
            }
        }
    }

    fn sweep(&self, now: Instant) {
        let mut table = self.lock();
        table.victims.clear();
        for connection in table.open.values() {
            if connection.has_overstayed(now) {
                connection.close();
            } else if connection.may_rest(now) {
                connection.told.notify_one();
            }
        }
    }

    /// Too many answers are unread in all: closes the connection that has left the most.
    fn close_who_reads_least(&self) {
        let table = self.lock();
        let worst = table.open.values().max_by_key(|connection| connection.lock().unread.len());
        if let Some(worst) = worst {
            closed("unread");
            worst.close();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remove(&mut self, number: u64) {
        let Some(connection) = self.open.remove(&number) else { return };
        connection.is_no_newcomer(&mut connection.lock());
        let address = connection.peer.to_canonical();
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Takes from addresses with more than their share first, so that a client that opens connections without end closes its own.
    fn idle_longest(&self, among: Among) -> VecDeque<(u64, Instant)> {
        let share = self.open.len() / self.by_address.len().max(1);
        let candidate = |connection: &Arc<Connection>| {
            let address = connection.peer.to_canonical();
            let is_modest = self.by_address.get(&address).is_none_or(|count| *count <= share);
            let is_meant = match among {
                Among::All => true,
                Among::Address(meant) => address == meant,
                Among::Newcomers => !connection.lock().asked,
            };
            is_meant.then_some((is_modest, connection.idle_since()?, connection.number))
        };
        let mut idle: Vec<_> = self.open.values().filter_map(candidate).collect();
        idle.sort_unstable();
        idle.truncate(VICTIMS_MAX);
        idle.into_iter().map(|(_, since, number)| (number, since)).collect()
    }
}

impl Connection {
    /// A request has come.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        let mut activity = self.lock();
        activity.requests += 1;
        self.is_no_newcomer(&mut activity);
        drop(activity);
        UnderWay(Arc::clone(self))
    }

    fn is_no_newcomer(&self, activity: &mut Activity) {
        if !std::mem::replace(&mut activity.asked, true) {
            self.connections.0.newcomers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// An answer is there to be written.
    pub(crate) fn unread(self: &Arc<Self>) -> Unread {
        let mut activity = self.lock();
        activity.next += 1;
        let number = activity.next;
        activity.unread.push_back((number, Instant::now()));
        drop(activity);
        let Inner { unread, unread_max, .. } = &*self.connections.0;
        if unread.fetch_add(1, Ordering::Relaxed) >= *unread_max {
            self.connections.close_who_reads_least();
        }
        Unread { connection: Arc::clone(self), number }
    }

    /// Ends when the connection is to be closed or may rest.
    pub(crate) async fn told(&self) -> Order {
        self.told.notified().await;
        if self.is_to_close.load(Ordering::Acquire) { Order::Close } else { Order::Rest }
    }

    /// Ends when the connection is to be closed.
    pub(crate) async fn closed(&self) {
        while self.told().await != Order::Close {}
    }

    fn close(&self) {
        self.is_to_close.store(true, Ordering::Release);
        self.told.notify_one();
    }

    pub(crate) fn has_read(&self) {
        self.has_read.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_writing(&self) {
        self.is_writing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_written(&self) {
        self.is_writing.store(false, Ordering::Relaxed);
    }

    /// Until what is returned is dropped.
    pub(crate) fn rest(&self) -> Resting<'_> {
        self.is_resting.store(true, Ordering::Relaxed);
        Resting(self)
    }

    /// Whether nothing would be lost if hyper were dropped now.
    pub(crate) fn may_rest(&self, now: Instant) -> bool {
        let [resting, read, writing] =
            [&self.is_resting, &self.has_read, &self.is_writing].map(|flag| flag.load(Ordering::Relaxed));
        let is_still = !resting && !read && !writing;
        is_still && self.idle_since().is_some_and(|since| now.saturating_duration_since(since) >= REST_AFTER)
    }

    fn idle_since(&self) -> Option<Instant> {
        let activity = self.lock();
        (activity.requests == 0 && activity.unread.is_empty()).then_some(activity.idle_since)
    }

    fn has_overstayed(&self, now: Instant) -> bool {
        let Inner { first_request, idle, write, .. } = &*self.connections.0;
        let activity = self.lock();
        if let Some((_, made)) = activity.unread.front() {
            let is_late = now.duration_since(*made) >= *write;
            if is_late {
                closed("unread");
            }
            return is_late;
        }
        let patience = if activity.asked { idle } else { first_request };
        activity.requests == 0 && now.duration_since(activity.idle_since) >= *patience
    }

    /// Everything read so far belongs to requests that are done.
    fn becomes_idle(&self, activity: &mut Activity) {
        activity.idle_since = Instant::now();
        if activity.requests == 0 && activity.unread.is_empty() {
            self.has_read.store(false, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection of which only the socket is kept.
pub(crate) struct Resting<'a>(&'a Connection);

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.is_resting.store(false, Ordering::Relaxed);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let connections = &self.0.connections;
        let mut table = connections.lock();
        table.remove(self.0.number);
        connections.0.open.set(table.open.len() as f64);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut activity = self.0.lock();
        activity.requests -= 1;
        self.0.becomes_idle(&mut activity);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let mut activity = self.connection.lock();
        // Nearly always the first: answers are written in the order in which they were made.
        if let Some(found) = activity.unread.iter().position(|(number, _)| *number == self.number) {
            activity.unread.remove(found);
        }
        self.connection.becomes_idle(&mut activity);
        self.connection.connections.0.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(adjust: impl FnOnce(&mut Settings)) -> Connections {
        let mut settings = Settings { connections_max: 4, connections_per_address_max: 2, ..Settings::default() };
        adjust(&mut settings);
        Connections::new(&settings)
    }

    fn peer(host: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, host])
    }

    fn is_told_to_close(entered: &Entered) -> bool {
        let mut closed = std::pin::pin!(entered.0.closed());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        closed.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn an_address_at_its_bound_makes_room_from_its_own() {
        let connections = connections(|_| {});
        let other = connections.enter(peer(9)).unwrap();
        let (first, second) = (connections.enter(peer(1)).unwrap(), connections.enter(peer(1)).unwrap());
        let _busy = first.0.begin();
        let third = connections.enter(peer(1)).unwrap();
        assert!(is_told_to_close(&second) && !is_told_to_close(&first) && !is_told_to_close(&other));
        let _also_busy = third.0.begin();
        assert!(connections.enter(peer(1)).is_none(), "nobody of that address is idle");
        drop((first, second, third, other));
        assert!(connections.lock().open.is_empty() && connections.lock().by_address.is_empty());
    }

    #[test]
    fn when_all_places_are_taken_the_longest_idle_goes() {
        let connections = connections(|settings| settings.trusted_proxy = true);
        let held: Vec<_> = (0..4).map(|_| connections.enter(peer(1)).unwrap()).collect();
        // The first has just had something to do.
        drop(held[0].0.begin());
        let fifth = connections.enter(peer(2)).unwrap();
        let told: Vec<_> = held.iter().map(is_told_to_close).collect();
        assert_eq!(told, [false, true, false, false]);
        let _under_way: Vec<_> = held.iter().chain([&fifth]).map(|entered| entered.0.begin()).collect();
        assert!(connections.enter(peer(3)).is_none());
    }

    #[test]
    fn an_address_with_more_than_its_share_makes_way_before_one_that_has_been_idle_longer() {
        let connections = connections(|settings| settings.connections_per_address_max = 3);
        let modest = connections.enter(peer(1)).unwrap();
        let greedy: Vec<_> = (0..3).map(|_| connections.enter(peer(2)).unwrap()).collect();
        let _newcomer = connections.enter(peer(3)).unwrap();
        assert!(!is_told_to_close(&modest) && is_told_to_close(&greedy[0]) && !is_told_to_close(&greedy[1]));
    }

    #[test]
    fn who_has_not_asked_for_anything_makes_way_for_other_newcomers_alone() {
        let connections = connections(|settings| {
            (settings.connections_max, settings.connections_per_address_max) = (4 * NEWCOMERS_MIN, 2 * NEWCOMERS_MIN);
        });
        let known = connections.enter(peer(1)).unwrap();
        drop(known.0.begin());
        let newcomers: Vec<_> = (0..NEWCOMERS_MIN).map(|_| connections.enter(peer(2)).unwrap()).collect();
        assert!(!newcomers.iter().any(is_told_to_close));
        let _one_more = connections.enter(peer(3)).unwrap();
        let told: Vec<bool> = newcomers.iter().map(is_told_to_close).collect();
        assert_eq!((told[0], told.iter().filter(|told| **told).count()), (true, 1));
        assert!(!is_told_to_close(&known), "who has asked is no newcomer");
        drop((known, newcomers, _one_more));
        assert_eq!(connections.0.newcomers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_is_silent_idle_or_does_not_read_is_closed_in_its_time() {
        let connections = connections(|settings| {
            (settings.header_read_ms, settings.idle_ms, settings.write_ms) = (10_000, 60_000, 30_000);
            settings.connections_per_address_max = 9;
        });
        let [silent, idle, stuck, waiting] = [(); 4].map(|()| connections.enter(peer(1)).unwrap());
        drop(idle.0.begin());
        let _unread = stuck.0.unread();
        let _under_way = waiting.0.begin();
        let told = |after_s: u64| {
            connections.sweep(Instant::now() + Duration::from_secs(after_s));
            [&silent, &idle, &stuck, &waiting].map(is_told_to_close)
        };
        assert_eq!(told(9), [false; 4]);
        assert_eq!(told(11), [true, false, false, false]);
        assert_eq!(told(31), [true, false, true, false]);
        assert_eq!(told(61), [true, true, true, false]);
    }

    #[test]
    fn who_is_idle_rests_unless_something_is_under_way() {
        let connections = connections(|settings| settings.connections_per_address_max = 9);
        let idle = connections.enter(peer(1)).unwrap();
        let later = Instant::now() + REST_AFTER;
        let may_rest = || idle.0.may_rest(later + Duration::from_secs(1));
        assert!(may_rest() && !idle.0.may_rest(Instant::now()));
        idle.0.has_read();
        assert!(!may_rest(), "the half of a request may be in a buffer");
        let under_way = idle.0.begin();
        let unread = idle.0.unread();
        drop(under_way);
        assert!(!may_rest(), "an answer is on its way");
        drop(unread);
        assert!(may_rest(), "the request is done, and with it what was read");
        idle.0.is_writing();
        assert!(!may_rest());
        idle.0.has_written();
        let resting = idle.0.rest();
        assert!(!may_rest(), "it does already");
        drop(resting);
        connections.sweep(later + Duration::from_secs(1));
        let mut told = std::pin::pin!(idle.0.told());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert_eq!(told.as_mut().poll(&mut context), std::task::Poll::Ready(Order::Rest));
    }

    #[test]
    fn too_many_unread_answers_cost_the_connection_that_has_most() {
        let connections = connections(|settings| {
            (settings.answers_unread_max, settings.connections_per_address_max) = (4, 9);
        });
        let (many, few) = (connections.enter(peer(1)).unwrap(), connections.enter(peer(1)).unwrap());
        let _held = [many.0.unread(), many.0.unread(), many.0.unread(), few.0.unread()];
        assert!(!is_told_to_close(&many));
        let _one_more = few.0.unread();
        assert!(is_told_to_close(&many) && !is_told_to_close(&few));
    }
}
