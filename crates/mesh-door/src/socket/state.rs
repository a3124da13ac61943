//! What a socket may be told, and when: the order of its first frames, which deliveries are on their way, and whether the other
//! side is there. No I/O and no clock: the time is handed in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use waybill_mesh_protocol::frames::{ClientFrame, Delivered, EpochBoxes, Hello, HistoryRequest, Send};
use waybill_mesh_protocol::negotiation::FeatureRequest;
use waybill_mesh_protocol::{CloseCode, DeliveryId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The challenge was sent.
    Challenged,
    /// The member is known; what both sides can do is not agreed on.
    Greeted,
    Open,
}

/// What a frame asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Greet(Hello),
    Negotiate(FeatureRequest),
    Send(Box<Send>),
    Acknowledge(DeliveryId),
    History(HistoryRequest),
    Boxes(EpochBoxes),
    Pong,
    Nothing,
}

impl Phase {
    /// # Errors
    /// With what the socket is closed.
    pub(crate) fn step(self, frame: ClientFrame) -> Result<Step, CloseCode> {
        match (self, frame) {
            (_, ClientFrame::Ping {}) => Ok(Step::Pong),
            (_, ClientFrame::Pong {}) => Ok(Step::Nothing),
            (Phase::Challenged, ClientFrame::Hello(hello)) => Ok(Step::Greet(hello)),
            // A challenge is good for one answer.
            (_, ClientFrame::Hello(_)) => Err(CloseCode::Unauthorized),
            (Phase::Greeted, ClientFrame::FeatureNegotiationRequest(request)) => Ok(Step::Negotiate(request)),
            (Phase::Open, ClientFrame::Send(send)) => Ok(Step::Send(send)),
            (Phase::Open, ClientFrame::Delivered(Delivered { delivery_id })) => Ok(Step::Acknowledge(delivery_id)),
            (Phase::Open, ClientFrame::History(request)) => Ok(Step::History(request)),
            (Phase::Open, ClientFrame::EpochBoxes(boxes)) => Ok(Step::Boxes(boxes)),
            _ => Err(CloseCode::FrameInvalid),
        }
    }
}

/// Deliveries that were pushed and not acknowledged, by their sequence number.
#[derive(Debug)]
pub(crate) struct Window {
    most: usize,
    again_after: Duration,
    pushed: BTreeMap<u64, Pushed>,
    /// Everything up to here was pushed or acknowledged.
    after: u64,
}

#[derive(Debug)]
struct Pushed {
    id: DeliveryId,
    at: Instant,
    times: u32,
}

impl Window {
    pub(crate) fn new(most: usize, again_after: Duration) -> Self {
        Self { most, again_after, pushed: BTreeMap::new(), after: 0 }
    }

    /// How many more may be pushed.
    pub(crate) fn room(&self) -> usize {
        self.most.saturating_sub(self.pushed.len())
    }

    /// Enough of it was acknowledged for reading on to be worth its while: there is room for a page, or for half of all, or
    /// nothing is on its way.
    pub(crate) fn is_roomy(&self, page: usize) -> bool {
        self.pushed.is_empty() || self.room() >= page.min(self.most.div_ceil(2))
    }

    /// Where to read on.
    pub(crate) fn after(&self) -> u64 {
        self.after
    }

    /// Some of what was pushed is to be read again.
    pub(crate) fn is_rewound(&self) -> bool {
        self.pushed.last_key_value().is_some_and(|(last, _)| *last > self.after)
    }

    /// Whether this one may be pushed, now or again.
    pub(crate) fn has_room_for(&self, seq: u64) -> bool {
        self.room() > 0 || self.pushed.contains_key(&seq)
    }

    /// Some when it is to be pushed now: it is not on its way, or has been for too long.
    pub(crate) fn offer(&mut self, seq: u64, id: DeliveryId, now: Instant) -> Option<IsFirst> {
        self.after = self.after.max(seq);
        match self.pushed.get_mut(&seq) {
            Some(pushed) if now.saturating_duration_since(pushed.at) < self.again_after => None,
            Some(pushed) => {
                (pushed.at, pushed.times) = (now, pushed.times + 1);
                Some(IsFirst(false))
            }
            None => {
                self.pushed.insert(seq, Pushed { id, at: now, times: 1 });
                Some(IsFirst(true))
            }
        }
    }

    /// The member has it.
    pub(crate) fn acknowledge(&mut self, id: DeliveryId) {
        self.pushed.retain(|_, pushed| pushed.id != id);
    }

    /// When the first of them is to be pushed again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pushed.values().map(|pushed| pushed.at + self.again_after).min()
    }

    /// Reads again from the first that is late. True when there is one.
    pub(crate) fn rewind(&mut self, now: Instant) -> bool {
        let is_late = |pushed: &Pushed| now.saturating_duration_since(pushed.at) >= self.again_after;
        let Some((seq, _)) = self.pushed.iter().find(|(_, pushed)| is_late(pushed)) else { return false };
        self.after = self.after.min(seq.saturating_sub(1));
        true
    }

    /// What was read says nothing of these any more: another connection has acknowledged them, or they are pruned.
    pub(crate) fn forget_missing(&mut self, from: u64, to: u64, found: &[u64]) {
        self.pushed.retain(|seq, _| *seq <= from || *seq > to || found.contains(seq));
    }
}

/// Whether a delivery is pushed for the first time on this socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IsFirst(pub(crate) bool);

/// Whether the other side is there.
#[derive(Debug)]
pub(crate) struct Liveness {
    ping_after: Duration,
    dead_after: Duration,
    heard: Instant,
    asked: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    Fine,
    Ask,
    Dead,
}

impl Liveness {
    pub(crate) fn new(ping_after: Duration, dead_after: Duration, now: Instant) -> Self {
        Self { ping_after, dead_after, heard: now, asked: None }
    }

    /// Something has come.
    pub(crate) fn heard(&mut self, now: Instant) {
        (self.heard, self.asked) = (now, None);
    }

    pub(crate) fn pulse(&mut self, now: Instant) -> Pulse {
        if now.saturating_duration_since(self.heard) >= self.dead_after {
            return Pulse::Dead;
        }
        if now.saturating_duration_since(self.asked.unwrap_or(self.heard)) < self.ping_after {
            return Pulse::Fine;
        }
        self.asked = Some(now);
        Pulse::Ask
    }

    /// When to look next.
    pub(crate) fn next(&self) -> Instant {
        (self.asked.unwrap_or(self.heard) + self.ping_after).min(self.heard + self.dead_after)
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::id::Uuid;
    use waybill_mesh_protocol::Framed;

    use super::*;

    fn frame(text: &str) -> ClientFrame {
        Framed::<ClientFrame>::read(text.as_bytes()).unwrap().frame
    }

    fn id(number: u64) -> DeliveryId {
        DeliveryId(Uuid::from_u128(number.into()))
    }

    #[test]
    fn each_phase_has_its_frames() {
        let nil = Uuid::nil();
        let hello = format!(
            r#"{{"t":"hello","mesh":"{nil}","key":"{}","time":1,"signature":"{}"}}"#,
            "0".repeat(64),
            "A".repeat(86)
        );
        let negotiate = r#"{"t":"feature_negotiation_request","require":[]}"#;
        let history = r#"{"t":"history","after":0,"limit":10}"#;
        let delivered = format!(r#"{{"t":"delivered","delivery_id":"{nil}"}}"#);
        use CloseCode::{FrameInvalid, Unauthorized};
        use Phase::{Challenged, Greeted, Open};
        for (text, refused) in [
            (hello.as_str(), [None, Some(Unauthorized), Some(Unauthorized)]),
            (negotiate, [Some(FrameInvalid), None, Some(FrameInvalid)]),
            (history, [Some(FrameInvalid), Some(FrameInvalid), None]),
            (&delivered, [Some(FrameInvalid), Some(FrameInvalid), None]),
            (r#"{"t":"ping"}"#, [None; 3]),
            (r#"{"t":"pong"}"#, [None; 3]),
        ] {
            let found = [Challenged, Greeted, Open].map(|phase| phase.step(frame(text)).err());
            assert_eq!(found, refused, "{text}");
        }
        assert_eq!(Open.step(frame(r#"{"t":"ping"}"#)), Ok(Step::Pong));
    }

    #[test]
    fn a_delivery_is_pushed_once_and_again_when_it_is_late() {
        let (start, again) = (Instant::now(), Duration::from_secs(30));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut window = Window::new(2, again);
        assert_eq!(
            (window.offer(5, id(5), at(0)), window.offer(7, id(7), at(10))),
            (Some(IsFirst(true)), Some(IsFirst(true)))
        );
        assert_eq!((window.room(), window.after(), window.due()), (0, 7, Some(at(30))));
        assert!(!window.rewind(at(29)) && window.after() == 7);
        // The first is late: it is read again, and the second, which comes with it, is left alone.
        assert!(!window.is_rewound());
        assert!(window.rewind(at(30)) && window.after() == 4);
        assert!(window.is_rewound() && window.has_room_for(5) && !window.has_room_for(6));
        assert_eq!(window.offer(5, id(5), at(30)), Some(IsFirst(false)));
        assert_eq!((window.offer(7, id(7), at(30)), window.after(), window.due()), (None, 7, Some(at(40))));
        window.acknowledge(id(7));
        assert_eq!((window.room(), window.due()), (1, Some(at(60))));
        // Twice changes nothing.
        window.acknowledge(id(7));
        assert_eq!(window.room(), 1);
    }

    #[test]
    fn reading_on_waits_for_room_for_a_page() {
        let now = Instant::now();
        let mut window = Window::new(8, Duration::from_secs(30));
        assert!(window.is_roomy(32));
        for seq in 1..=8 {
            window.offer(seq, id(seq), now);
        }
        let roomy = |window: &mut Window, acknowledged: u64| {
            window.acknowledge(id(acknowledged));
            (window.is_roomy(3), window.is_roomy(32))
        };
        assert_eq!(
            [1, 2, 3, 4].map(|seq| roomy(&mut window, seq)),
            [(false, false), (false, false), (true, false), (true, true)]
        );
        // However small the window is.
        let mut window = Window::new(1, Duration::from_secs(30));
        window.offer(1, id(1), now);
        assert!(!window.is_roomy(32));
        window.acknowledge(id(1));
        assert!(window.is_roomy(32));
    }

    #[test]
    fn what_is_not_found_any_more_is_not_waited_for() {
        let now = Instant::now();
        let mut window = Window::new(10, Duration::from_secs(30));
        for seq in [1, 2, 3, 9] {
            window.offer(seq, id(seq), now);
        }
        window.forget_missing(1, 3, &[3]);
        assert_eq!(window.room(), 7);
        assert_eq!(window.pushed.keys().copied().collect::<Vec<_>>(), [1, 3, 9]);
    }

    #[test]
    fn who_is_quiet_is_asked_and_then_taken_for_dead() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut live = Liveness::new(Duration::from_secs(10), Duration::from_secs(30), start);
        assert_eq!((live.pulse(at(9)), live.next()), (Pulse::Fine, at(10)));
        assert_eq!((live.pulse(at(10)), live.next()), (Pulse::Ask, at(20)));
        assert_eq!(live.pulse(at(15)), Pulse::Fine);
        live.heard(at(16));
        assert_eq!((live.pulse(at(25)), live.next()), (Pulse::Fine, at(26)));
        assert_eq!((live.pulse(at(26)), live.pulse(at(36)), live.pulse(at(45))), (Pulse::Ask, Pulse::Ask, Pulse::Fine));
        assert_eq!((live.next(), live.pulse(at(46))), (at(46), Pulse::Dead));
    }
}
