//! What was handed to daemons and what they answered. A message has its id and its body before its first call, and keeps both
//! through every retry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;

use crate::checker::{Invariant, Violation};
use crate::history::{Event, Fate};
use crate::rng::{Rng, Stream};

/// Filling of a body, in characters.
const FILL_MAX: u64 = 300;
pub const TOPIC: &str = "news";
/// What the id of a message says that was replaced by another.
const ABORTED: &str = "outbox_aborted_fingerprint_match";
/// Bodies of messages that only find out whether everybody hears everybody.
pub const WARM: &str = "warm ";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    Alice,
    Bob,
    Carol,
}

impl Peer {
    pub const ALL: [Peer; 3] = [Peer::Alice, Peer::Bob, Peer::Carol];

    pub fn name(self) -> &'static str {
        match self {
            Peer::Alice => "alice",
            Peer::Bob => "bob",
            Peer::Carol => "carol",
        }
    }

    fn named(name: &str) -> Option<Peer> {
        Peer::ALL.into_iter().find(|peer| peer.name() == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum To {
    Peer(Peer),
    Topic,
}

impl To {
    pub fn name(self) -> &'static str {
        match self {
            To::Peer(peer) => peer.name(),
            To::Topic => TOPIC,
        }
    }
}

/// Messages of one sender to one destination, handed over one after the other: each is acknowledged before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    pub from: Peer,
    pub to: To,
    pub number: u32,
}

impl Lane {
    /// In whose inbox its messages have to be.
    pub fn recipients(self) -> Vec<Peer> {
        match self.to {
            To::Peer(peer) => vec![peer],
            To::Topic => Peer::ALL.into_iter().filter(|peer| *peer != self.from).collect(),
        }
    }
}

/// A message: the `seq`th of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub lane: Lane,
    pub seq: u32,
}

impl Key {
    /// The client_message_id: one mesh is of one run.
    pub fn id(self) -> String {
        let Lane { from, to, number } = self.lane;
        format!("{}-{}-{number}-{}", from.name(), to.name(), self.seq)
    }

    /// The message that takes its place when it is replaced.
    pub fn replacement(self) -> Key {
        Key { seq: self.seq + 1, ..self }
    }

    /// The id, and a filling that follows from the seed.
    pub fn body(self, seed: u64) -> String {
        let conn = (self.lane.from as u32) << 16 | self.lane.number;
        let mut rng = Rng::new(seed, Stream::Payload { conn, seq: self.seq });
        let length = rng.below(FILL_MAX) as usize;
        let mut fill = String::with_capacity(length + 16);
        while fill.len() < length {
            fill.push_str(&format!("{:016x}", rng.next()));
        }
        fill.truncate(length);
        format!("{} {fill}", self.id())
    }

    /// Of a message that was found in an inbox.
    pub fn read(body: &str) -> Option<Key> {
        let mut parts = body.split_once(' ')?.0.split('-');
        let from = Peer::named(parts.next()?)?;
        let to = parts.next()?;
        let to = if to == TOPIC { To::Topic } else { To::Peer(Peer::named(to)?) };
        let (number, seq) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(Key { lane: Lane { from, to, number }, seq })
    }
}

/// As the broker has named a message, once it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub message: String,
    pub history: String,
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub fate: Fate,
    pub round: u32,
    /// What a repeated send was told once it was done.
    pub names: Option<Names>,
}

/// What a daemon made of a send, by the table of accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// 202
    Queued,
    /// 200
    Done(Names),
    /// 409, with its `conflict`.
    Conflict(String),
    /// Another 4xx, or 507: nothing was written.
    Refused(String),
    /// No answer, 5xx, or an answer of after the cut.
    Unknown(String),
}

/// Of a message that an operator has asked to replace by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// Nobody was told.
    Perhaps,
    Surely,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub seed: u64,
    pub sends: BTreeMap<Key, Sent>,
    /// These may arrive, for they may have been sent before, and need not.
    pub replaced: BTreeMap<Key, Replaced>,
    /// What a single answer has shown to be wrong.
    pub found: Vec<Violation>,
    /// Refusals and their number.
    pub refusals: BTreeMap<String, u64>,
}

impl History {
    pub fn invoke(&mut self, key: Key, round: u32) {
        let fate = Fate::after(self.sends.get(&key).map(|sent| sent.fate), Event::Invoke);
        self.sends.entry(key).or_insert(Sent { fate, round, names: None }).fate = fate;
    }

    /// How an operator was answered who had asked to replace a message.
    pub fn replace(&mut self, key: Key, event: Event, round: u32) {
        match event {
            Event::Ok => {
                self.replaced.insert(key, Replaced::Surely);
                let promised = Sent { fate: Fate::Promised, round, names: None };
                self.sends.entry(key.replacement()).or_insert(promised);
            }
            Event::Fail => drop(self.replaced.remove(&key)),
            _ => drop(self.replaced.insert(key, Replaced::Perhaps)),
        }
    }

    /// An answer to a request for a message that may have been replaced. None: it was not, and the answer is one like others.
    fn settle_replaced(&mut self, key: Key, verdict: &Verdict) -> Option<Event> {
        let (replaced, round) = (*self.replaced.get(&key)?, self.sends.get(&key)?.round);
        match (replaced, verdict) {
            // Both happen or neither: if its own id is given up, the other message is there.
            (_, Verdict::Conflict(why)) if why == ABORTED => self.replace(key, Event::Ok, round),
            (Replaced::Surely, Verdict::Queued | Verdict::Done(_)) => {
                let detail = "replaced by another, and then its id was taken as if it were new";
                self.found.push(violation(Invariant::Doubled, key, detail));
            }
            (Replaced::Perhaps, Verdict::Queued | Verdict::Done(_)) => {
                self.replaced.remove(&key);
                return None;
            }
            _ => return None,
        }
        Some(Event::Ok)
    }

    /// An answer to the same request, the first or a repeated one.
    pub fn settle(&mut self, key: Key, verdict: &Verdict) -> Event {
        if let Some(event) = self.settle_replaced(key, verdict) {
            return event;
        }
        let Some(sent) = self.sends.get_mut(&key) else { return Event::Info };
        let mut wrong = |invariant, detail: String| self.found.push(violation(invariant, key, detail));
        let event = match verdict {
            Verdict::Queued => {
                if sent.names.is_some() {
                    wrong(Invariant::Doubled, "done, and then queued as if it were new".to_owned());
                }
                Event::Ok
            }
            Verdict::Done(names) => {
                if sent.names.as_ref().is_some_and(|known| known != names) {
                    wrong(Invariant::Doubled, format!("done as {:?}, and then as {names:?}", sent.names));
                }
                sent.names.get_or_insert_with(|| names.clone());
                Event::Ok
            }
            // Nothing that these messages are gives a daemon reason to give one up.
            Verdict::Conflict(why) => {
                let invariant = if why.contains("mismatch") { Invariant::Altered } else { Invariant::Lost };
                wrong(invariant, format!("the same request is refused: {why}"));
                Event::Info
            }
            Verdict::Refused(why) => {
                *self.refusals.entry(why.clone()).or_default() += 1;
                Event::Fail
            }
            Verdict::Unknown(_) => Event::Info,
        };
        sent.fate = Fate::after(Some(sent.fate), event);
        event
    }

    /// An answer to another request under an id that was acknowledged.
    pub fn contradicted(&mut self, key: Key, verdict: &Verdict) {
        let done = self.sends.get(&key).is_some_and(|sent| sent.names.is_some());
        let wrong = match verdict {
            Verdict::Conflict(why) if !why.ends_with("_fingerprint_mismatch") => format!("refused as {why}"),
            Verdict::Conflict(why) if done && why != "outbox_done_fingerprint_mismatch" => {
                format!("done, and refused as {why}")
            }
            Verdict::Queued | Verdict::Done(_) => format!("taken: {verdict:?}"),
            Verdict::Conflict(_) | Verdict::Refused(_) | Verdict::Unknown(_) => return,
        };
        self.found.push(violation(Invariant::Altered, key, format!("another request under its id was {wrong}")));
    }

    /// Not yet known to be either there or not.
    pub fn open(&self) -> Vec<Key> {
        let open = self.sends.iter().filter(|(_, sent)| sent.fate.open()).map(|(key, _)| *key);
        let perhaps = self.replaced.iter().filter(|(_, replaced)| **replaced == Replaced::Perhaps).map(|(key, _)| *key);
        open.chain(perhaps).collect::<BTreeSet<Key>>().into_iter().collect()
    }
}

pub fn violation(invariant: Invariant, key: Key, detail: impl std::fmt::Display) -> Violation {
    Violation::new(invariant, format!("{}: {detail}", key.id()))
}

/// The history, and the file that tells it to whoever keeps the run's folder.
#[derive(Clone)]
pub struct Record {
    began: Instant,
    inner: Arc<Mutex<(History, File)>>,
}

impl Record {
    pub fn create(path: PathBuf, seed: u64) -> Result<Record> {
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("creating the journal {}", path.display()))?;
        let history = History { seed, ..History::default() };
        Ok(Record { began: Instant::now(), inner: Arc::new(Mutex::new((history, file))) })
    }

    fn lock(&self) -> MutexGuard<'_, (History, File)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut History) -> T) -> T {
        look(&mut self.lock().0)
    }

    /// One line; times are in milliseconds of the run. What cannot be told is judged all the same.
    fn tell(file: &mut File, began: Instant, key: Key, event: &str, note: Option<&Verdict>) {
        let line = json!({
            "ms": began.elapsed().as_millis() as u64, "id": key.id(), "event": event,
            "note": note.map(|note| format!("{note:?}")),
        });
        let _ = writeln!(file, "{line}");
    }

    /// Before the call.
    pub fn invoke(&self, key: Key, round: u32) {
        let mut guard = self.lock();
        guard.0.invoke(key, round);
        Self::tell(&mut guard.1, self.began, key, "invoke", None);
    }

    pub fn settle(&self, key: Key, verdict: &Verdict) -> Event {
        let mut guard = self.lock();
        let event = guard.0.settle(key, verdict);
        let name = match event {
            Event::Ok => "ok",
            Event::Fail => "fail",
            _ => "info",
        };
        Self::tell(&mut guard.1, self.began, key, name, Some(verdict));
        event
    }

    /// Before the call nobody was told; after it, as the answer says.
    pub fn replace(&self, key: Key, event: Event, round: u32) {
        let mut guard = self.lock();
        guard.0.replace(key, event, round);
        let told = match event {
            Event::Ok => "replaced",
            Event::Fail => "not-replaced",
            _ => "replace",
        };
        Self::tell(&mut guard.1, self.began, key, told, None);
    }

    pub fn contradicted(&self, key: Key, verdict: &Verdict) {
        let mut guard = self.lock();
        guard.0.contradicted(key, verdict);
        Self::tell(&mut guard.1, self.began, key, "contradict", Some(verdict));
    }
}
