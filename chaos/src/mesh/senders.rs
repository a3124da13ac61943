//! Programs beside their daemons: each lane hands one message over after the other, a message of unknown fate again until it is
//! acknowledged, and now and then one of before, the same, twice at once, or with another body under its id. Some that wait
//! are replaced by another message under another id, as an operator does.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::ipc::Local;
use super::record::{Key, Lane, Names, Peer, Record, To, Verdict};
use crate::client::Answer;
use crate::history::Event;
use crate::rng::Rng;
use crate::workload::{Count, Signals};

/// Numbers of a round; 4,000 rounds of them fit the type. Of a daemon's lane every second one is for a replacement.
pub const SEQ_PER_ROUND: u32 = 100_000;
/// The longest pause between two messages of a lane, outside the sprint and within it.
const PAUSE_US: u64 = 30_000;
const SPRINT_PAUSE_US: u64 = 6_000;
/// After a refusal or without an answer: a daemon that is gone must not fill the journal.
const AGAIN_AFTER: Duration = Duration::from_millis(30);
const REPEAT_ONE_IN: u64 = 8;
const CONTRADICT_ONE_IN: u64 = 12;
const TWICE_ONE_IN: u64 = 10;
/// Only one that waits can be replaced, and most are sent at once.
const REPLACE_ONE_IN: u64 = 4;
const REQUEUE: &str = "/v1/admin/outbox/requeue";

/// Direct messages both ways, to one who hardly sends, and posts of two.
pub const LANES: [Lane; 9] = [
    Lane { from: Peer::Alice, to: To::Peer(Peer::Bob), number: 0 },
    Lane { from: Peer::Alice, to: To::Peer(Peer::Bob), number: 1 },
    Lane { from: Peer::Alice, to: To::Peer(Peer::Carol), number: 2 },
    Lane { from: Peer::Alice, to: To::Topic, number: 3 },
    Lane { from: Peer::Alice, to: To::Topic, number: 4 },
    Lane { from: Peer::Bob, to: To::Peer(Peer::Alice), number: 5 },
    Lane { from: Peer::Bob, to: To::Peer(Peer::Carol), number: 6 },
    Lane { from: Peer::Bob, to: To::Topic, number: 7 },
    Lane { from: Peer::Carol, to: To::Peer(Peer::Alice), number: 8 },
];

/// The request of a message.
pub fn request(to: To, message: &str, id: &str) -> (&'static str, Value) {
    match to {
        To::Peer(peer) => ("/v1/send", json!({ "to": peer.name(), "message": message, "client_message_id": id })),
        To::Topic => ("/v1/topic/post", json!({ "topic": to.name(), "message": message, "client_message_id": id })),
    }
}

fn read(answer: anyhow::Result<Answer>, cut: bool) -> Verdict {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Verdict::Unknown(format!("{error:#}")),
    };
    let text = |name: &str| answer.text(name).unwrap_or_default().to_owned();
    match answer.status {
        409 if !cut => Verdict::Conflict(text("conflict")),
        409 => Verdict::Unknown("answered after the cut".to_owned()),
        _ if answer.refused() => Verdict::Refused(answer.brief()),
        _ if cut => Verdict::Unknown("answered after the cut".to_owned()),
        202 => Verdict::Queued,
        200 if answer.body["duplicate"] == true => {
            Verdict::Done(Names { message: text("broker_message_id"), history: text("history_id") })
        }
        _ => Verdict::Unknown(answer.brief()),
    }
}

pub struct Sender {
    pub lane: Lane,
    pub round: u32,
    pub local: Local,
    /// Hands the same message over at the same time.
    pub twin: Local,
    pub record: Record,
    pub signals: Signals,
    pub rng: Rng,
    pub seed: u64,
    pub count: Count,
}

impl Sender {
    pub async fn run(mut self) -> Count {
        let mut taken: Vec<Key> = Vec::new();
        for n in (0..SEQ_PER_ROUND).step_by(2) {
            if self.signals.stopped() {
                break;
            }
            let pause = if self.signals.sprints() { SPRINT_PAUSE_US } else { PAUSE_US };
            sleep(Duration::from_micros(self.rng.below(pause))).await;
            let before = taken.get(self.rng.below(taken.len() as u64) as usize).copied();
            if let Some(key) = before {
                if self.rng.below(REPEAT_ONE_IN) == 0 {
                    self.hand_over(key).await;
                } else if self.rng.below(CONTRADICT_ONE_IN) == 0 {
                    self.contradict(key).await;
                }
            }
            let key = Key { lane: self.lane, seq: self.round * SEQ_PER_ROUND + n };
            if !self.until_taken(key).await {
                break;
            }
            if self.rng.below(REPLACE_ONE_IN) == 0 && !self.replace(key).await {
                break;
            }
            let replaced = self.record.with(|history| history.replaced.contains_key(&key));
            taken.push(if replaced { key.replacement() } else { key });
        }
        self.count
    }

    /// False when there is no time left: the check hands it over once more.
    async fn until_taken(&mut self, key: Key) -> bool {
        loop {
            let twice = self.rng.below(TWICE_ONE_IN) == 0;
            let event = if twice { self.hand_over_twice(key).await } else { self.hand_over(key).await };
            match event {
                Event::Ok => return true,
                _ if self.signals.stopped() => return false,
                _ => sleep(AGAIN_AFTER).await,
            }
        }
    }

    /// Has a message that was taken replaced by the next of its lane, if it still waits. Its own id stays taken. False as above.
    async fn replace(&mut self, key: Key) -> bool {
        let new = key.replacement();
        let patch = json!({ "message": new.body(self.seed) });
        let request = json!({ "id": key.id(), "new_client_id": new.id(), "patch": patch, "operator": "chaos" });
        self.record.replace(key, Event::Info, self.round);
        let event = match self.local.post(REQUEUE, &request).await {
            _ if self.signals.is_cut() => Event::Info,
            Ok(answer) if answer.success() => Event::Ok,
            Ok(answer) if answer.refused() => Event::Fail,
            _ => Event::Info,
        };
        self.record.replace(key, event, self.round);
        // Whoever was not told asks what became of it.
        event == Event::Fail || self.until_taken(key).await
    }

    async fn ask(local: &mut Local, key: Key, message: &str, signals: &Signals) -> Verdict {
        let (path, body) = request(key.lane.to, message, &key.id());
        let answer = local.post(path, &body).await;
        // Read after the answer arrived: one that came before the cut is a promise.
        read(answer, signals.is_cut())
    }

    pub async fn hand_over(&mut self, key: Key) -> Event {
        self.record.invoke(key, self.round);
        let verdict = Self::ask(&mut self.local, key, &key.body(self.seed), &self.signals).await;
        self.note(key, &verdict)
    }

    /// Two first sends of one id at once: one message, and both are told of it.
    async fn hand_over_twice(&mut self, key: Key) -> Event {
        let body = key.body(self.seed);
        self.record.invoke(key, self.round);
        self.record.invoke(key, self.round);
        let Self { local, twin, signals, .. } = self;
        let (one, other) = tokio::join!(Self::ask(local, key, &body, signals), Self::ask(twin, key, &body, signals));
        // Which was decided first nobody can tell from when they came: one that found it queued may be told after one that found
        // it done.
        let (one, other) = if matches!(other, Verdict::Queued) { (other, one) } else { (one, other) };
        let (one, other) = (self.note(key, &one), self.note(key, &other));
        if one == Event::Ok { one } else { other }
    }

    /// Another body under the id of a message that was acknowledged.
    async fn contradict(&mut self, key: Key) {
        let body = format!("{} contradicted", key.id());
        let verdict = Self::ask(&mut self.local, key, &body, &self.signals).await;
        self.record.contradicted(key, &verdict);
    }

    fn note(&mut self, key: Key, verdict: &Verdict) -> Event {
        let event = self.record.settle(key, verdict);
        match event {
            Event::Ok => self.count.acknowledged += 1,
            Event::Fail => self.count.refused += 1,
            _ => self.count.unknown += 1,
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: Value) -> anyhow::Result<Answer> {
        Ok(Answer { status, replay: false, body })
    }

    #[test]
    fn answers_are_read_by_their_promise() {
        let done = json!({ "duplicate": true, "broker_message_id": "m", "history_id": "h" });
        let names = Names { message: "m".to_owned(), history: "h".to_owned() };
        assert_eq!(read(answer(202, json!({})), false), Verdict::Queued);
        assert_eq!(read(answer(200, done), false), Verdict::Done(names));
        let conflict = json!({ "conflict": "outbox_dead_fingerprint_match" });
        assert_eq!(read(answer(409, conflict), false), Verdict::Conflict("outbox_dead_fingerprint_match".to_owned()));
        let late = json!({ "conflict": "outbox_aborted_fingerprint_match" });
        assert!(matches!(read(answer(409, late), true), Verdict::Unknown(_)));
        assert!(matches!(read(answer(507, json!({})), true), Verdict::Refused(_)));
        for (answer, cut) in
            [(answer(202, json!({})), true), (answer(503, json!({})), false), (answer(200, json!({})), false)]
        {
            assert!(matches!(read(answer, cut), Verdict::Unknown(_)));
        }
    }
}
