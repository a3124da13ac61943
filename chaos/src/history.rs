//! What the client has asked for and what it was promised: the journal, folded.
//!
//! An operation is `invoke`d, then ends as `ok` (promised), `fail` (a definite refusal before any write) or `info`
//! (timeout, reset, 5xx: it may or may not have happened). Only `ok` counts as promised. A promise is final; an unknown
//! stays unknown until a retry with the same key is answered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::leases::{Leases, Word};
use crate::rng::{Rng, Stream};

/// Filling of a payload, in characters: small enough for thousands a round, varied enough to cross database pages.
const FILL_MAX: u64 = 600;
/// Where somebody works: some tasks may fail twice and be tried again, some may not fail at all.
const ATTEMPTS_MAX: u32 = 3;
/// One task in this many is of a type that `waybill worker run` can do.
const ECHO_ONE_IN: u32 = 4;

/// One create, and with it the task it makes: the idempotency key and the payload follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Op {
    pub conn: u32,
    pub seq: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Create,
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    Invoke,
    Ok,
    Fail,
    Info,
    /// A promise that the fault was declared to cost: from here on it binds nobody.
    Void,
    /// Too late: the task had ended in another way. Whatever was sent before has not happened and never will.
    Late,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub round: u32,
    pub event: Event,
    pub verb: Verb,
    #[serde(flatten)]
    pub op: Op,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A line is about a task or about a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    Lease(Word),
    Task(Entry),
}

impl From<Entry> for Line {
    fn from(entry: Entry) -> Self {
        Line::Task(entry)
    }
}

impl From<Word> for Line {
    fn from(word: Word) -> Self {
        Line::Lease(word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Sent once, no outcome yet. A definite refusal still means that nothing was written.
    Invoked,
    Promised,
    Refused,
    Unknown,
}

impl Fate {
    pub fn after(before: Option<Fate>, event: Event) -> Fate {
        match (before, event) {
            (Some(Fate::Promised), _) | (_, Event::Ok) => Fate::Promised,
            (_, Event::Late) => Fate::Refused,
            (None, Event::Invoke) => Fate::Invoked,
            (Some(Fate::Invoked), Event::Fail) => Fate::Refused,
            // A refused retry says nothing about the attempt before it.
            (_, Event::Invoke | Event::Info | Event::Fail | Event::Void) => Fate::Unknown,
        }
    }

    pub fn open(self) -> bool {
        matches!(self, Fate::Invoked | Fate::Unknown)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub round: u32,
    pub create: Fate,
    /// The first id promised for this key; a later, different one is a violation and never replaces it.
    pub task_id: Option<String>,
    pub cancel: Option<Fate>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct History {
    pub run: String,
    pub seed: u64,
    tasks: BTreeMap<Op, Task>,
    /// Empty where nobody works.
    pub leases: Leases,
}

impl History {
    pub fn new(run: String, seed: u64) -> Self {
        History { run, seed, tasks: BTreeMap::new(), leases: Leases::default() }
    }

    pub fn apply_line(&mut self, line: &Line) {
        match line {
            Line::Lease(word) => self.leases.apply(word),
            Line::Task(entry) => self.apply(entry),
        }
    }

    pub fn apply(&mut self, entry: &Entry) {
        let known = self.tasks.get(&entry.op);
        match entry.verb {
            Verb::Create if entry.event == Event::Void => drop(self.tasks.remove(&entry.op)),
            Verb::Cancel if entry.event == Event::Void => {
                if let Some(task) = self.tasks.get_mut(&entry.op) {
                    task.cancel = None;
                }
            }
            Verb::Create => {
                let create = Fate::after(known.map(|task| task.create), entry.event);
                let fresh = Task { round: entry.round, create, task_id: None, cancel: None };
                let task = self.tasks.entry(entry.op).or_insert(fresh);
                task.create = create;
                if entry.event == Event::Ok && task.task_id.is_none() {
                    task.task_id.clone_from(&entry.task_id);
                }
            }
            Verb::Cancel => {
                if let Some(task) = self.tasks.get_mut(&entry.op) {
                    task.cancel = Some(Fate::after(task.cancel, entry.event));
                }
            }
        }
    }

    pub fn get(&self, op: Op) -> Option<&Task> {
        self.tasks.get(&op)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Op, &Task)> {
        self.tasks.iter().map(|(op, task)| (*op, task))
    }

    /// The operations whose task satisfies the predicate.
    pub fn select(&self, wanted: impl Fn(&Task) -> bool) -> Vec<Op> {
        self.iter().filter(|(_, task)| wanted(task)).map(|(op, _)| op).collect()
    }

    /// Zero before the first operation.
    pub fn last_round(&self) -> u32 {
        self.tasks.values().map(|task| task.round).max().unwrap_or(0)
    }

    fn key(&self, op: Op) -> String {
        format!("{}-{}-{}", self.run, op.conn, op.seq)
    }

    /// The whole create, the same each time it is sent.
    pub fn request(&self, op: Op) -> Value {
        json!({
            "type": if op.seq.is_multiple_of(ECHO_ONE_IN) { "echo" } else { "chaos" },
            "payload": self.payload(op),
            "idempotency_key": self.key(op),
            "max_attempts": 1 + op.seq % ATTEMPTS_MAX,
            "retry_backoff_seconds": 0,
        })
    }

    /// The payload follows from the seed, so equality is checked without storing it in the journal.
    pub fn payload(&self, op: Op) -> Value {
        let mut rng = Rng::new(self.seed, Stream::Payload { conn: op.conn, seq: op.seq });
        let length = rng.below(FILL_MAX) as usize;
        let mut fill = String::with_capacity(length + 16);
        while fill.len() < length {
            fill.push_str(&format!("{:016x}", rng.next()));
        }
        fill.truncate(length);
        json!({"run": self.run, "conn": op.conn, "seq": op.seq, "fill": fill})
    }

    /// The operation that a payload names, when it is one of this run.
    pub fn named_by(&self, payload: &Value) -> Option<Op> {
        if payload.get("run")?.as_str()? != self.run {
            return None;
        }
        let part = |name: &str| u32::try_from(payload.get(name)?.as_u64()?).ok();
        Some(Op { conn: part("conn")?, seq: part("seq")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(events: &[Event]) -> Option<Fate> {
        events.iter().fold(None, |before, event| Some(Fate::after(before, *event)))
    }

    #[test]
    fn fates() {
        use Event::*;
        for (events, fate) in [
            (&[Invoke][..], Fate::Invoked),
            (&[Invoke, Ok], Fate::Promised),
            (&[Invoke, Fail], Fate::Refused),
            (&[Invoke, Info], Fate::Unknown),
            (&[Invoke, Info, Invoke, Fail], Fate::Unknown),
            (&[Invoke, Invoke, Fail], Fate::Unknown),
            (&[Invoke, Info, Invoke, Ok], Fate::Promised),
            (&[Invoke, Ok, Invoke, Info], Fate::Promised),
            (&[Invoke, Info, Invoke, Late], Fate::Refused),
            (&[Invoke, Ok, Invoke, Late], Fate::Promised),
        ] {
            assert_eq!(fold(events), Some(fate), "{events:?}");
        }
    }

    #[test]
    fn payload_names_its_operation_and_is_stable() {
        let history = History::new("kill-1".into(), 1);
        let op = Op { conn: 3, seq: 9 };
        assert_eq!(history.named_by(&history.payload(op)), Some(op));
        assert_eq!(history.payload(op), history.payload(op));
        assert_eq!(History::new("kill-2".into(), 1).named_by(&history.payload(op)), None);
    }
}
