//! Those who send and receive in a round. One writer per group: the order of a group's numbers is the order of its sends.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::client::{Client, Outcome, name_of, of_batch};
use super::history::{Delivery, Key, QueueKind, Receive, Record, Try};
use crate::history::{Event, Fate};
use crate::rng::Rng;
use crate::workload::{Count, Signals};

/// What one receive may bring, and one batch may hold.
pub const BATCH: usize = 10;
/// Between two calls of a writer or receiver, on average, outside the sprint.
const PAUSE_US: u64 = 25_000;
/// After a call that was not answered, or not done.
pub const TROUBLE: Duration = Duration::from_millis(50);
/// One send in this many is a batch, of up to so many.
const BATCH_ONE_IN: u64 = 5;
const BATCH_MAX: u64 = 4;
/// One send in this many is of a message that was sent before, and recently.
const AGAIN_ONE_IN: u64 = 10;
const AGAIN_OF: u32 = 30;
/// The shortest that there is, and one receive in this many asks for twice as long.
const VISIBILITY_S: u64 = 1;
const LONGER_ONE_IN: u64 = 8;
/// One receive in this many waits for something to come, as long as the shortest wait is.
const WAIT_ONE_IN: u64 = 4;
pub const WAIT_S: u64 = 1;
/// One receive of a FIFO queue in this many is made again under the id of its attempt.
const TWICE_ONE_IN: u64 = 10;
/// Calls of one hand in a round.
pub const CALLS_MAX: u32 = 100_000;
const LOOK: Duration = Duration::from_millis(25);

/// Counts what became of entries.
pub fn count(count: &mut Count, event: Event, entries: u64) {
    match event {
        Event::Ok => count.acknowledged += entries,
        Event::Fail => count.refused += entries,
        _ => count.unknown += entries,
    }
}

/// What a receive is to be like.
pub struct Asked {
    pub kind: QueueKind,
    pub receiver: u32,
    pub visibility_s: u64,
    pub wait_s: u64,
    /// Its id, where it may be made again.
    pub attempt: Option<String>,
    pub calm: bool,
}

pub struct Hand {
    pub client: Client,
    pub record: Record,
    pub signals: Signals,
    pub rng: Rng,
    pub seed: u64,
    pub count: Count,
}

impl Hand {
    /// False when there is nothing more to do.
    async fn pause(&mut self) -> bool {
        if !self.signals.sprints() {
            sleep(Duration::from_micros(self.rng.below(2 * PAUSE_US))).await;
        }
        !self.signals.stopped()
    }

    /// What nobody should have been told goes into the record.
    pub fn note(&mut self, kind: QueueKind, what: &str, outcome: &Outcome) {
        let gone = matches!(outcome, Outcome::Refused(shape) if shape == "QueueDoesNotExist");
        let dear = matches!(outcome, Outcome::Refused(shape) if shape == "Throttling");
        let excused = gone && kind.is_purged() || dear && kind == QueueKind::Throttled;
        if let Some(unexpected) = outcome.unexpected().filter(|_| !excused) {
            self.record.unexpected(format!("{what} answered {unexpected}"));
        }
    }

    /// Sends a message, for the first time or again.
    pub async fn send(&mut self, key: Key) -> Event {
        self.record.invoke(key, Instant::now());
        let mut input = self.entry(key);
        input["QueueUrl"] = json!(self.client.url(key.kind));
        let outcome = self.client.call("SendMessage", &input).await;
        self.note(key.kind, "SendMessage", &outcome);
        let name = outcome.done().and_then(name_of);
        // An answer that does not say what it has stored promises nothing.
        let event = if outcome.done().is_some() && name.is_none() { Event::Info } else { outcome.event() };
        self.record.settle(key, event, name);
        count(&mut self.count, event, 1);
        event
    }

    /// Sends new messages together.
    pub async fn send_batch(&mut self, keys: &[Key]) -> Event {
        let Some(kind) = keys.first().map(|key| key.kind) else { return Event::Ok };
        let mut entries = Vec::with_capacity(keys.len());
        let began = Instant::now();
        for (number, key) in keys.iter().enumerate() {
            self.record.invoke(*key, began);
            let mut entry = self.entry(*key);
            entry["Id"] = json!(number.to_string());
            entries.push(entry);
        }
        let input = json!({"QueueUrl": self.client.url(kind), "Entries": entries});
        let outcome = self.client.call("SendMessageBatch", &input).await;
        self.note(kind, "SendMessageBatch", &outcome);
        let mut worst = Event::Ok;
        for (number, (key, event)) in keys.iter().zip(of_batch(&outcome, keys.len())).enumerate() {
            let stored = outcome.done().and_then(|answer| answer["Successful"].as_array());
            let id = number.to_string();
            let entry = stored.into_iter().flatten().find(|entry| entry["Id"] == id.as_str());
            self.record.settle(*key, event, entry.and_then(name_of));
            count(&mut self.count, event, 1);
            worst = if event == Event::Ok { worst } else { event };
        }
        worst
    }

    /// As it is sent each time: even groups give the id of a message, odd ones leave it to the contents.
    fn entry(&self, key: Key) -> Value {
        let mut entry = json!({"MessageBody": key.body(self.seed)});
        if key.kind.has_groups() {
            entry["MessageGroupId"] = json!(key.group.to_string());
            if key.group.is_multiple_of(2) {
                entry["MessageDeduplicationId"] = json!(key.dedup());
            }
        }
        entry
    }

    /// Receives up to ten without waiting, and writes down what came. Answers with their places in the history.
    pub async fn receive(&mut self, kind: QueueKind, receiver: u32, visibility_s: u64) -> Range<usize> {
        self.receive_as(&Asked { kind, receiver, visibility_s, wait_s: 0, attempt: None, calm: false }).await
    }

    pub async fn receive_as(&mut self, asked: &Asked) -> Range<usize> {
        let (receive, brought) = self.ask(asked).await;
        self.record.receive(receive, brought)
    }

    /// One call, of which the record does not know yet.
    pub async fn ask(&mut self, asked: &Asked) -> (Receive, Vec<Delivery>) {
        let Asked { kind, receiver, visibility_s, wait_s, ref attempt, calm } = *asked;
        let mut input = json!({
            "QueueUrl": self.client.url(kind), "MaxNumberOfMessages": BATCH, "VisibilityTimeout": visibility_s,
            "MessageSystemAttributeNames": ["All"], "WaitTimeSeconds": wait_s,
        });
        if let Some(attempt) = attempt {
            input["ReceiveRequestAttemptId"] = json!(attempt);
        }
        let began = Instant::now();
        let outcome = self.client.call("ReceiveMessage", &input).await;
        let ended = Instant::now();
        self.note(kind, "ReceiveMessage", &outcome);
        let messages = outcome.done().and_then(|answer| answer["Messages"].as_array()).map_or(&[][..], Vec::as_slice);
        let brought: Vec<Delivery> = messages.iter().filter_map(|message| delivery(kind, message)).collect();
        if brought.len() < messages.len() {
            self.record.unexpected("ReceiveMessage brought messages without id, handle or count".to_owned());
        }
        (Receive { kind, receiver, began, ended, visibility_s, wait_s, calm, event: outcome.event() }, brought)
    }

    /// Deletes these together.
    pub async fn delete(&mut self, kind: QueueKind, deliveries: &[usize]) -> Event {
        self.batch(kind, "DeleteMessageBatch", deliveries, None).await
    }

    /// Makes these visible again after so many seconds.
    pub async fn change(&mut self, kind: QueueKind, deliveries: &[usize], seconds: u64) -> Event {
        self.batch(kind, "ChangeMessageVisibilityBatch", deliveries, Some(seconds)).await
    }

    async fn batch(&mut self, kind: QueueKind, action: &str, deliveries: &[usize], seconds: Option<u64>) -> Event {
        if deliveries.is_empty() {
            return Event::Ok;
        }
        let entries: Vec<Value> = {
            let history = self.record.lock();
            let entry = |(number, delivery): (usize, &usize)| {
                let handle = history.deliveries.get(*delivery).map(|one| one.handle.clone());
                let mut entry = json!({"Id": number.to_string(), "ReceiptHandle": handle});
                if let Some(seconds) = seconds {
                    entry["VisibilityTimeout"] = json!(seconds);
                }
                entry
            };
            deliveries.iter().enumerate().map(entry).collect()
        };
        let began = Instant::now();
        let outcome = self.client.call(action, &json!({"QueueUrl": self.client.url(kind), "Entries": entries})).await;
        let ended = Instant::now();
        self.note(kind, action, &outcome);
        for (delivery, event) in deliveries.iter().zip(of_batch(&outcome, deliveries.len())) {
            let attempt = Try { began, ended, event };
            match seconds {
                None => self.record.delete(*delivery, attempt),
                Some(seconds) => self.record.change(*delivery, seconds, attempt),
            }
            count(&mut self.count, event, 1);
        }
        outcome.event()
    }

    /// Sends to one group until it is told to stop.
    pub async fn write(mut self, kind: QueueKind, group: u32) -> Count {
        // Unknown sends of FIFO queues, which are sent again before anything else of the group.
        let mut open: VecDeque<Key> = VecDeque::new();
        let mut next = self.record.lock().next_seq(kind, group);
        let first = next;
        for _ in 0..CALLS_MAX {
            if !self.pause().await {
                break;
            }
            let key = |seq| Key { kind, group, seq };
            let again = kind == QueueKind::Fifo && next > first && self.rng.below(AGAIN_ONE_IN) == 0;
            let event = if let Some(key) = open.front().copied() {
                let event = self.send(key).await;
                if event == Event::Ok {
                    open.pop_front();
                }
                event
            } else if again {
                let back = 1 + self.rng.below(u64::from(AGAIN_OF.min(next - first))) as u32;
                self.send(key(next - back)).await
            } else {
                let some = if self.rng.below(BATCH_ONE_IN) == 0 { 1 + self.rng.below(BATCH_MAX) as u32 } else { 1 };
                let keys: Vec<Key> = (next..next + some).map(key).collect();
                next += some;
                let event = match keys.as_slice() {
                    [one] => self.send(*one).await,
                    several => self.send_batch(several).await,
                };
                if kind == QueueKind::Fifo {
                    let history = self.record.lock();
                    open.extend(keys.into_iter().filter(|key| history.sends[key].fate == Fate::Unknown));
                }
                event
            };
            if event != Event::Ok {
                sleep(TROUBLE).await;
            }
        }
        self.count
    }

    /// Receives until it is told to stop, and does with what comes what consumers do.
    pub async fn consume(mut self, kind: QueueKind, receiver: u32) -> Count {
        for _ in 0..CALLS_MAX {
            if !self.pause().await {
                break;
            }
            let longer = u64::from(self.rng.below(LONGER_ONE_IN) == 0);
            let unknown = self.count.unknown;
            let visibility_s = VISIBILITY_S * (1 + longer);
            let wait_s = if self.rng.below(WAIT_ONE_IN) == 0 { WAIT_S } else { 0 };
            let came = if kind == QueueKind::Fifo && self.rng.below(TWICE_ONE_IN) == 0 {
                self.receive_twice(kind, receiver, visibility_s).await
            } else {
                self.receive_as(&Asked { kind, receiver, visibility_s, wait_s, attempt: None, calm: false }).await
            };
            let came: Vec<usize> = came.collect();
            match kind {
                QueueKind::Poison => self.spoil(kind, &came).await,
                QueueKind::Dead => drop(self.delete(kind, &came).await),
                _ => self.treat(kind, &came).await,
            }
            if self.count.unknown > unknown {
                sleep(TROUBLE).await;
            }
        }
        self.count
    }

    /// Most of it is made visible again at once, to be received too often.
    async fn spoil(&mut self, kind: QueueKind, came: &[usize]) {
        if self.rng.below(6) == 0 {
            self.delete(kind, came).await;
        } else {
            self.change(kind, came, 0).await;
        }
    }

    async fn treat(&mut self, kind: QueueKind, came: &[usize]) {
        let (front, back) = came.split_at(came.len() / 2);
        match self.rng.below(24) {
            // Left to come back.
            0 => {}
            1 => drop(self.change(kind, came, 0).await),
            2 => drop(self.delete(kind, front).await),
            3 => drop(self.delete(kind, back).await),
            4 => {
                self.change(kind, came, 2 * VISIBILITY_S).await;
                self.rest(Duration::from_millis(100)).await;
                self.delete(kind, came).await;
            }
            // Too late, perhaps: others may have received it meanwhile.
            5 => {
                self.rest(Duration::from_millis(VISIBILITY_S * 1_100)).await;
                self.delete(kind, came).await;
            }
            _ => drop(self.delete(kind, came).await),
        }
    }

    async fn rest(&self, longest: Duration) {
        let began = Instant::now();
        while began.elapsed() < longest && !self.signals.stopped() {
            sleep(LOOK).await;
        }
    }
}

/// A message as a receive brings it. Without id, handle or count it is none.
fn delivery(kind: QueueKind, message: &Value) -> Option<Delivery> {
    let text = |name: &str| message.get(name)?.as_str().map(str::to_owned);
    let attribute = |name: &str| message.get("Attributes")?.get(name)?.as_str().map(str::to_owned);
    let body = text("Body")?;
    Some(Delivery {
        call: 0,
        index: 0,
        kind,
        key: Key::read(kind, &body),
        name: name_of(message)?,
        group: attribute("MessageGroupId"),
        handle: text("ReceiptHandle")?,
        count: attribute("ApproximateReceiveCount")?.parse().ok()?,
        body,
        deletes: Vec::new(),
        changes: Vec::new(),
    })
}
