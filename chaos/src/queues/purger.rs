//! A queue of its own in each round, which is purged, or deleted and made again, while somebody sends to it. Handles of
//! before must mean nothing afterwards.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::client::Outcome;
use super::hands::Hand;
use super::history::{Key, OldHandle, Purge, QueueKind};
use crate::history::Event;
use crate::workload::Count;

/// Messages before the purge, and after it.
const MESSAGES: u32 = 4;
/// Longer than the round, so that handles of before are of messages in flight.
const HELD_S: u64 = 30;
/// The purge comes at a random moment of the round.
const WITHIN_MS: u64 = 500;
const ATTEMPTS_MAX: u32 = 40;
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The own group of whoever purges; another sends to group 1 all the time.
pub const OWN: u32 = 0;
pub const OTHERS: u32 = 1;

/// What a round has left open.
#[derive(Clone, Debug, Default)]
pub struct Left {
    pub kind: Option<QueueKind>,
    /// Handles of before the purge.
    pub handles: Vec<String>,
    /// The purge is still to be made, or nobody knows whether it was.
    pub unknown: bool,
    /// The queue is to be deleted and made again, rather than purged.
    pub ends: bool,
}

fn attributes(kind: QueueKind) -> Value {
    if kind.has_groups() { super::fifo() } else { json!({}) }
}

impl Hand {
    /// Makes the queue, and purges it while `other` sends to it. Answers with what the check after the fault has to finish.
    pub async fn purge(mut self, other: Hand, kind: QueueKind, ends: bool) -> (Count, Left) {
        let made = self.client.create(kind, &attributes(kind)).await;
        self.note(kind, "CreateQueue", &made);
        if made.event() != Event::Ok {
            return (self.count, Left::default());
        }
        let ((mut count, left), others) = tokio::join!(self.purge_once(kind, ends), other.write(kind, OTHERS));
        count.acknowledged += others.acknowledged;
        count.refused += others.refused;
        count.unknown += others.unknown;
        (count, left)
    }

    async fn purge_once(mut self, kind: QueueKind, ends: bool) -> (Count, Left) {
        let mut left = Left { kind: Some(kind), ends, unknown: true, ..Left::default() };
        let keys = |from: u32| (from..from + MESSAGES).map(move |seq| Key { kind, group: OWN, seq });
        self.send_batch(&keys(0).collect::<Vec<_>>()).await;
        let came = self.receive(kind, u32::MAX, HELD_S).await;
        left.handles = self.record.lock().deliveries[came].iter().map(|one| one.handle.clone()).collect();
        sleep(Duration::from_millis(self.rng.below(WITHIN_MS))).await;
        if self.signals.stopped() {
            return (self.count, left);
        }
        let event = self.empty(kind, ends, false).await;
        left.unknown = event != Event::Ok;
        if event == Event::Ok {
            self.try_old(&left).await;
            self.send_batch(&keys(MESSAGES).collect::<Vec<_>>()).await;
            let came: Vec<usize> = self.receive(kind, u32::MAX, 1).await.collect();
            self.delete(kind, &came).await;
        }
        (self.count, left)
    }

    /// Purges the queue, or deletes it and makes it again. `again`: it was asked for before, and may have happened.
    async fn empty(&mut self, kind: QueueKind, ends: bool, again: bool) -> Event {
        let began = Instant::now();
        let action = if ends { "DeleteQueue" } else { "PurgeQueue" };
        let outcome = self.client.call(action, &json!({"QueueUrl": self.client.url(kind)})).await;
        let had_happened = matches!(&outcome, Outcome::Refused(shape)
            if shape == if ends { "QueueDoesNotExist" } else { "PurgeQueueInProgress" });
        if !(again && had_happened) {
            self.note(kind, action, &outcome);
        }
        let is_done = outcome.event() == Event::Ok || (again && had_happened);
        let acked = is_done.then(Instant::now);
        // What had happened happened by an attempt of before, and what was sent after that one is not purged.
        let before = self.record.lock().purges.iter().filter(|purge| purge.kind == kind).map(|purge| purge.began).min();
        let began = before.filter(|_| again && had_happened).unwrap_or(began);
        self.record.purge(Purge { kind, began, acked });
        super::hands::count(&mut self.count, outcome.event(), 1);
        if !is_done || !ends {
            return if is_done { Event::Ok } else { Event::Info };
        }
        let made = self.client.create(kind, &attributes(kind)).await;
        self.note(kind, "CreateQueue", &made);
        made.event()
    }

    /// Whoever holds a handle of before the purge can do nothing with it.
    async fn try_old(&mut self, left: &Left) {
        let Some(kind) = left.kind else { return };
        for (number, handle) in left.handles.iter().take(2).enumerate() {
            let (action, mut input) = match number {
                0 => ("DeleteMessage", json!({})),
                _ => ("ChangeMessageVisibility", json!({"VisibilityTimeout": 0})),
            };
            input["QueueUrl"] = json!(self.client.url(kind));
            input["ReceiptHandle"] = json!(handle);
            let began = Instant::now();
            let outcome = self.client.call(action, &input).await;
            self.note(kind, action, &outcome);
            if outcome.event() != Event::Info {
                let taken = outcome.event() == Event::Ok;
                self.record.old_handle(OldHandle { kind, what: action, began, taken });
            }
        }
    }

    /// After the fault: a purge that nobody knows of is made again, until it is certain, and handles of before are tried.
    pub async fn finish_purge(&mut self, left: &Left) {
        let Some(kind) = left.kind else { return };
        if left.unknown {
            // A fault that costs what was answered may have cost the queue.
            self.client.create(kind, &attributes(kind)).await;
            for _ in 0..ATTEMPTS_MAX {
                if self.empty(kind, left.ends, true).await == Event::Ok {
                    break;
                }
                sleep(AGAIN_AFTER).await;
            }
        }
        let is_purged = self.record.lock().purges.iter().any(|purge| purge.kind == kind && purge.acked.is_some());
        if is_purged {
            self.try_old(left).await;
        }
    }
}
