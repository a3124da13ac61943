//! Events for local programs: a bounded ring that every reader follows at its own pace.
//!
//! An event is told after whatever it speaks of is committed. The ring is memory alone: a message whose event a reader has
//! missed is in the inbox.
//!
//! Ids begin at the microsecond the daemon started, so a `Last-Event-ID` from an earlier run of it is simply an old one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;
use waybill_kernel::Time;

/// Bytes of the texts of the events that are kept.
pub const RING_BYTES_MAX: usize = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Message,
    PeerJoin,
    PeerLeave,
    MemberRenamed,
    MemberRevoked,
    FileShared,
    DaemonDisconnect,
    DaemonReconnect,
    HookExecuted,
    FeatureNegotiationFailed,
    OutboxPressureHigh,
    /// A request that only an attacker or a mistake makes: a token in a query string, a foreign Host or Origin.
    Security,
}

impl EventKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::PeerJoin => "peer_join",
            Self::PeerLeave => "peer_leave",
            Self::MemberRenamed => "member_renamed",
            Self::MemberRevoked => "member_revoked",
            Self::FileShared => "file_shared",
            Self::DaemonDisconnect => "daemon_disconnect",
            Self::DaemonReconnect => "daemon_reconnect",
            Self::HookExecuted => "hook_executed",
            Self::FeatureNegotiationFailed => "feature_negotiation_failed",
            Self::OutboxPressureHigh => "outbox_pressure_high",
            Self::Security => "security",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Event {
    pub id: i64,
    pub kind: EventKind,
    pub at: Time,
    pub data: Value,
    /// `{"id", "event", "at", "data"}` on one line.
    pub text: String,
}

/// The text of an event, written without a copy of its data.
#[derive(Serialize)]
struct Wording<'a> {
    at: Time,
    data: &'a Value,
    event: &'static str,
    id: String,
}

/// Somebody in the process who acts on events, such as the hooks. Called after the ring has the event.
///
/// # Contract
/// Returns at once: the caller is on its way to the next message.
pub trait Listener: Send + Sync {
    fn on_event(&self, event: &Arc<Event>);
}

#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    ring: Mutex<Ring>,
    /// The id of the newest event; readers wait for it to change.
    newest: watch::Sender<i64>,
    listeners: RwLock<Vec<Arc<dyn Listener>>>,
}

struct Ring {
    /// Events kept for readers that come back.
    events_max: usize,
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    last_id: i64,
}

impl Events {
    pub fn new(now: Time, events_max: usize) -> Self {
        let last_id = now.micros();
        let ring = Mutex::new(Ring { events_max, events: VecDeque::new(), bytes: 0, last_id });
        let inner = Inner { ring, newest: watch::Sender::new(last_id), listeners: RwLock::default() };
        Self(Arc::new(inner))
    }

    pub fn add_listener(&self, listener: Arc<dyn Listener>) {
        self.0.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    pub fn publish(&self, kind: EventKind, at: Time, data: Value) -> Arc<Event> {
        let event = {
            let mut ring = self.0.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.push(kind, at, data)
        };
        self.0.newest.send_replace(event.id);
        let listeners = self.0.listeners.read().unwrap_or_else(PoisonError::into_inner).clone();
        for listener in listeners {
            listener.on_event(&event);
        }
        event
    }

    /// What comes after the event with this id; without one, what comes from now on.
    pub fn subscribe(&self, after: Option<i64>) -> Subscription {
        let newest = self.0.newest.subscribe();
        // An id from the future was never given out: its reader begins with the present.
        let now = *newest.borrow();
        let position = after.filter(|id| *id <= now).unwrap_or(now);
        Subscription { events: self.clone(), newest, position }
    }

    fn after(&self, position: i64) -> Next {
        let ring = self.0.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let at = ring.events.partition_point(|event| event.id <= position);
        let Some(event) = ring.events.get(at) else { return Next::Nothing };
        // Ids are without gaps from the first one of this run.
        let missed = at == 0 && event.id > position + 1;
        Next::Event { event: Arc::clone(event), missed }
    }
}

impl Ring {
    fn push(&mut self, kind: EventKind, at: Time, data: Value) -> Arc<Event> {
        self.last_id += 1;
        let id = self.last_id;
        let told = Wording { at, data: &data, event: kind.name(), id: id.to_string() };
        // Nothing in it can fail to be written.
        let text = serde_json::to_string(&told).unwrap_or_default();
        self.bytes += text.len();
        let event = Arc::new(Event { id, kind, at, data, text });
        self.events.push_back(Arc::clone(&event));
        // The newest stays, however large it is.
        while self.events.len() > self.events_max || (self.bytes > RING_BYTES_MAX && self.events.len() > 1) {
            self.bytes -= self.events.pop_front().map_or(0, |event| event.text.len());
        }
        event
    }
}

enum Next {
    Nothing,
    Event { event: Arc<Event>, missed: bool },
}

/// One reader. It keeps a position and no events of its own, so a slow one costs nothing.
pub struct Subscription {
    events: Events,
    newest: watch::Receiver<i64>,
    position: i64,
}

/// What a reader gets.
#[derive(Clone, Debug)]
pub struct Told {
    pub event: Arc<Event>,
    /// There were others before it that the ring no longer has. The inbox has their messages.
    pub missed: bool,
}

impl Subscription {
    /// None once the daemon has ended.
    ///
    /// # Cancel safety
    /// An event is taken only when it is returned.
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            self.newest.borrow_and_update();
            if let Next::Event { event, missed } = self.events.after(self.position) {
                self.position = event.id;
                return Some(Told { event, missed });
            }
            self.newest.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: usize = 100;

    fn hub() -> Events {
        Events::new(Time::from_micros(1_000), RING)
    }

    fn publish(events: &Events, number: usize) -> i64 {
        events.publish(EventKind::Message, Time::EPOCH, serde_json::json!({ "n": number })).id
    }

    #[tokio::test]
    async fn a_reader_that_comes_back_gets_what_it_missed_in_order() {
        let events = hub();
        let mut reader = events.subscribe(None);
        let ids: Vec<i64> = (0..3).map(|number| publish(&events, number)).collect();
        assert_eq!(ids, [1_001, 1_002, 1_003]);
        let told = reader.next().await.unwrap();
        assert_eq!((told.event.id, told.missed), (1_001, false));
        let mut again = events.subscribe(Some(1_001));
        for id in [1_002, 1_003] {
            let told = again.next().await.unwrap();
            assert_eq!((told.event.id, told.missed), (id, false));
        }
        assert!(told.event.text.contains("\"event\":\"message\"") && !told.event.text.contains('\n'));
    }

    #[tokio::test]
    async fn a_ring_that_has_gone_round_says_that_something_was_missed() {
        let events = hub();
        for number in 0..RING + 10 {
            publish(&events, number);
        }
        let mut reader = events.subscribe(Some(1_000));
        let first = reader.next().await.unwrap();
        assert!(first.missed);
        assert_eq!(first.event.id, 1_011);
        assert!(!reader.next().await.unwrap().missed);
        // Of an earlier run of the daemon.
        assert!(events.subscribe(Some(5)).next().await.unwrap().missed);
    }

    #[tokio::test]
    async fn large_events_push_out_older_ones() {
        let events = hub();
        let large = "x".repeat(RING_BYTES_MAX / 4);
        for _ in 0..8 {
            events.publish(EventKind::Message, Time::EPOCH, serde_json::json!({ "body": large }));
        }
        assert!(events.0.ring.lock().unwrap().events.len() <= 4);
    }

    #[tokio::test]
    async fn an_id_from_the_future_begins_with_the_present() {
        let events = hub();
        publish(&events, 0);
        let mut reader = events.subscribe(Some(i64::MAX));
        let id = publish(&events, 1);
        assert_eq!(reader.next().await.unwrap().event.id, id);
    }

    struct Seen(Mutex<Vec<i64>>, Events);

    impl Listener for Seen {
        fn on_event(&self, event: &Arc<Event>) {
            assert_eq!(*self.1.0.newest.borrow(), event.id, "the ring has it first");
            self.0.lock().unwrap().push(event.id);
        }
    }

    #[test]
    fn listeners_are_called_after_the_ring_has_it() {
        let events = hub();
        let seen = Arc::new(Seen(Mutex::default(), events.clone()));
        events.add_listener(Arc::clone(&seen) as Arc<dyn Listener>);
        publish(&events, 0);
        assert_eq!(*seen.0.lock().unwrap(), [1_001]);
    }
}
