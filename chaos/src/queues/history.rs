//! What was asked of queues and what was answered: the sends with their numbers, the receives with all that they
//! brought, and what was done to each delivery. A number is given before its call, so a send whose fate is unknown keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::attempts::Repeat;
use super::budget::Spent;
use super::judge::Book;
use crate::history::{Event, Fate};
use crate::rng::{Rng, Stream};

/// Filling of a body, in characters.
const FILL_MAX: u64 = 300;

/// An answer of a server that is gone may arrive this long after another has taken its place.
const LATE_ANSWER: Duration = Duration::from_millis(500);

/// The queues of a run. Each round has one that is purged, or deleted and made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKind {
    Standard,
    Fifo,
    /// Nobody deletes much of what is here, so most of it ends as dead letters.
    Poison,
    Dead,
    /// Its sends have a budget.
    Throttled,
    Purged(u32),
    /// The same, with partitions.
    PurgedFifo(u32),
}

impl QueueKind {
    pub fn name(self, run: &str) -> String {
        match self {
            QueueKind::Standard => format!("{run}-standard"),
            QueueKind::Fifo => format!("{run}-line.fifo"),
            QueueKind::Poison => format!("{run}-poison"),
            QueueKind::Dead => format!("{run}-dead"),
            QueueKind::Throttled => format!("{run}-throttled"),
            QueueKind::Purged(round) => format!("{run}-purged-{round}"),
            QueueKind::PurgedFifo(round) => format!("{run}-purged-{round}.fifo"),
        }
    }

    /// Of one round.
    pub fn is_purged(self) -> bool {
        matches!(self, QueueKind::Purged(_) | QueueKind::PurgedFifo(_))
    }

    pub fn has_groups(self) -> bool {
        matches!(self, QueueKind::Fifo | QueueKind::PurgedFifo(_))
    }

    /// Where a message was sent that is found here.
    pub fn origin(self) -> QueueKind {
        if self == QueueKind::Dead { QueueKind::Poison } else { self }
    }

    fn number(self) -> u32 {
        match self {
            QueueKind::Standard => 0,
            QueueKind::Fifo => 1,
            QueueKind::Poison | QueueKind::Dead => 2,
            QueueKind::Throttled => 3,
            QueueKind::Purged(round) | QueueKind::PurgedFifo(round) => 4 + round,
        }
    }
}

/// A message: the `seq`th that the only writer of this group has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub kind: QueueKind,
    pub group: u32,
    pub seq: u32,
}

impl Key {
    /// `group:seq`, and a filling that follows from the seed.
    pub fn body(self, seed: u64) -> String {
        let conn = self.kind.number() << 8 | self.group;
        let mut rng = Rng::new(seed, Stream::Payload { conn, seq: self.seq });
        let length = rng.below(FILL_MAX) as usize;
        let mut fill = String::with_capacity(length + 16);
        while fill.len() < length {
            fill.push_str(&format!("{:016x}", rng.next()));
        }
        fill.truncate(length);
        format!("{}:{} {fill}", self.group, self.seq)
    }

    /// Of a message that was found there.
    pub fn read(kind: QueueKind, body: &str) -> Option<Key> {
        let (head, _) = body.split_once(' ')?;
        let (group, seq) = head.split_once(':')?;
        Some(Key { kind: kind.origin(), group: group.parse().ok()?, seq: seq.parse().ok()? })
    }

    pub fn dedup(self) -> String {
        format!("{}-{}", self.group, self.seq)
    }
}

/// As a server names a message; only FIFO queues number them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub id: String,
    pub sequence: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub fate: Fate,
    /// When it was first asked for, and last answered.
    pub began: Instant,
    pub ended: Option<Instant>,
    /// When its first acknowledgement came.
    pub acked: Option<Instant>,
    /// By which names its sends were acknowledged.
    pub names: BTreeSet<Name>,
    /// An acknowledgement of it was declared void: it may have been stored a second time, behind those that came after it.
    pub void: bool,
    /// When it was last asked to be deleted by a handle that a fault was declared to cost.
    pub perhaps_deleted: Option<Instant>,
}

/// One call that deleted a delivery or changed when it is visible again.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    pub began: Instant,
    pub ended: Instant,
    pub event: Event,
}

#[derive(Clone, Debug)]
pub struct Delivery {
    /// The receive that brought it, and its position among what that brought.
    pub call: usize,
    pub index: usize,
    pub kind: QueueKind,
    pub key: Option<Key>,
    pub body: String,
    pub name: Name,
    pub group: Option<String>,
    pub handle: String,
    /// How often it was received, as the server says.
    pub count: u32,
    pub deletes: Vec<Try>,
    /// With the seconds that were asked for.
    pub changes: Vec<(u64, Try)>,
}

#[derive(Clone, Debug)]
pub struct Receive {
    pub kind: QueueKind,
    pub receiver: u32,
    pub began: Instant,
    pub ended: Instant,
    /// For so long nobody else is to get what it brought.
    pub visibility_s: u64,
    /// For so long it waits for something to come.
    pub wait_s: u64,
    /// There was no fault about, nor had there been one a moment ago.
    pub calm: bool,
    pub event: Event,
}

/// Of a queue that is emptied, or ended and made again under the same name.
#[derive(Clone, Copy, Debug)]
pub struct Purge {
    pub kind: QueueKind,
    pub began: Instant,
    /// None while nobody knows whether it happened.
    pub acked: Option<Instant>,
}

/// A handle of before a purge that was used after it.
#[derive(Clone, Debug)]
pub struct OldHandle {
    pub kind: QueueKind,
    pub what: &'static str,
    pub began: Instant,
    /// It was answered as if it were good.
    pub taken: bool,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub seed: u64,
    pub sends: BTreeMap<Key, Sent>,
    pub receives: Vec<Receive>,
    pub deliveries: Vec<Delivery>,
    pub purges: Vec<Purge>,
    pub old_handles: Vec<OldHandle>,
    /// What was accepted of a queue's budget.
    pub spent: Vec<Spent>,
    /// Receives that were made again under the id of their attempt.
    pub repeats: Vec<Repeat>,
    /// Messages that have surely ended, and of which nothing more is kept.
    pub ended: BTreeSet<Key>,
    /// Messages that were received, and of those the dead letters.
    pub received: u64,
    pub dead: u64,
    /// Answers that no fault excuses, and how often they came.
    pub unexpected: BTreeMap<String, u64>,
}

impl History {
    pub fn invoke(&mut self, key: Key, began: Instant) {
        let fate = Fate::after(self.sends.get(&key).map(|sent| sent.fate), Event::Invoke);
        let fresh =
            Sent { fate, began, ended: None, acked: None, names: BTreeSet::new(), void: false, perhaps_deleted: None };
        self.sends.entry(key).or_insert(fresh).fate = fate;
    }

    pub fn settle(&mut self, key: Key, event: Event, name: Option<Name>, ended: Instant) {
        let Some(sent) = self.sends.get_mut(&key) else { return };
        sent.fate = Fate::after(Some(sent.fate), event);
        sent.ended = Some(ended);
        if event == Event::Ok {
            sent.acked.get_or_insert(ended);
            sent.names.extend(name);
        }
    }

    /// Nothing was stored of what was refused at its only attempt, and its number is free.
    pub fn withdraw(&mut self, key: Key) {
        if self.sends.get(&key).is_some_and(|sent| sent.fate == Fate::Refused) {
            self.sends.remove(&key);
        }
    }

    /// The next number of a group.
    pub fn next_seq(&self, kind: QueueKind, group: u32) -> u32 {
        let of_group = Key { kind, group, seq: 0 }..=Key { kind, group, seq: u32::MAX };
        let sent = self.sends.range(of_group.clone()).next_back().map(|(key, _)| key.seq + 1);
        let ended = self.ended.range(of_group).next_back().map(|key| key.seq + 1);
        sent.max(ended).unwrap_or(0)
    }
}

impl History {
    /// Nobody is bound by what was answered between these moments: sends and deletes are unknown again, and receives are as if
    /// nobody had seen what they brought.
    pub fn void(&mut self, since: Instant, until: Instant) {
        let is_void = |began: Instant, ended: Instant| began <= until && ended >= since;
        for sent in self.sends.values_mut() {
            if sent.acked.is_some_and(|acked| (since..=until + LATE_ANSWER).contains(&acked)) {
                (sent.fate, sent.acked, sent.void) = (Fate::Unknown, None, true);
                sent.names.clear();
            }
        }
        for receive in self.receives.iter_mut().filter(|receive| receive.event == Event::Ok) {
            if is_void(receive.began, receive.ended) {
                receive.event = Event::Info;
            }
        }
        let receives = &self.receives;
        let kept = |one: &Delivery| receives[one.call].event == Event::Ok;
        for one in self.deliveries.iter().filter(|one| !kept(one)) {
            let deletes = one.deletes.iter().filter(|delete| delete.event != Event::Fail);
            if let Some(sent) = one.key.and_then(|key| self.sends.get_mut(&key)) {
                sent.perhaps_deleted = sent.perhaps_deleted.max(deletes.map(|delete| delete.began).max());
            }
        }
        self.deliveries.retain(kept);
        for one in &mut self.deliveries {
            let tries = one.deletes.iter_mut().chain(one.changes.iter_mut().map(|(_, change)| change));
            for attempt in tries.filter(|attempt| is_void(attempt.began, attempt.ended) && attempt.event == Event::Ok) {
                attempt.event = Event::Info;
            }
        }
        for purge in &mut self.purges {
            purge.acked = purge.acked.filter(|acked| !is_void(purge.began, *acked));
        }
        self.old_handles.retain(|old| !is_void(old.began, old.began));
        self.repeats.retain(|repeat| !is_void(repeat.began, repeat.ended));
    }

    /// Nobody looks at this queue any more.
    pub fn close(&mut self, kind: QueueKind) {
        self.sends.retain(|key, _| key.kind != kind);
        self.deliveries.retain(|one| one.kind != kind);
        self.purges.retain(|purge| purge.kind != kind);
        self.old_handles.retain(|old| old.kind != kind);
    }

    /// Lets go of what has surely ended before this moment: should it be received again, it is known all the same.
    pub fn forget(&mut self, before: Instant) {
        let over: BTreeSet<Key> = {
            let book = Book::open(self);
            let is_over = |key: &Key| {
                let last = book.latest(*key).map(|last| last.deletes.iter().all(|delete| delete.ended < before));
                last == Some(true) && book.surely_gone(*key)
            };
            self.sends.keys().copied().filter(is_over).collect()
        };
        self.sends.retain(|key, _| !over.contains(key));
        self.deliveries.retain(|one| one.key.is_none_or(|key| !over.contains(&key)));
        self.ended.extend(over);
        self.spent.retain(|spent| spent.ended >= before);
        self.repeats.retain(|repeat| repeat.ended >= before);
    }
}

/// The history, and the file that tells it to whoever keeps the run's folder.
#[derive(Clone)]
pub struct Record {
    path: PathBuf,
    began: Instant,
    inner: Arc<Mutex<(History, File)>>,
}

impl Record {
    pub fn create(path: PathBuf, seed: u64) -> Result<Record> {
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("creating the journal {}", path.display()))?;
        let history = History { seed, ..History::default() };
        Ok(Record { path, began: Instant::now(), inner: Arc::new(Mutex::new((history, file))) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn lock(&self) -> Guard<'_> {
        Guard(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One line; times are in milliseconds of the run.
    fn tell(&self, at: Instant, mut line: Value) {
        line["ms"] = json!(at.saturating_duration_since(self.began).as_millis() as u64);
        let mut guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // What cannot be told is judged all the same.
        let _ = writeln!(guard.1, "{line}");
    }

    /// Before the call. Those of one batch begin at one moment.
    pub fn invoke(&self, key: Key, began: Instant) {
        self.lock().invoke(key, began);
        self.tell(began, json!({"send": told(key), "event": Event::Invoke}));
    }

    pub fn settle(&self, key: Key, event: Event, name: Option<Name>) {
        let ended = Instant::now();
        let id = name.as_ref().map(|name| name.id.clone());
        let sequence = name.as_ref().and_then(|name| name.sequence.clone());
        self.lock().settle(key, event, name, ended);
        self.tell(ended, json!({"send": told(key), "event": event, "id": id, "sequence": sequence}));
    }

    /// Answers with the places of the deliveries in the history.
    pub fn receive(&self, receive: Receive, mut brought: Vec<Delivery>) -> std::ops::Range<usize> {
        let short = |one: &Delivery| format!("{}#{}", one.body.split(' ').next().unwrap_or_default(), one.count);
        let line = json!({
            "receive": format!("{:?}", receive.kind), "by": receive.receiver, "event": receive.event,
            "brought": brought.iter().map(short).collect::<Vec<_>>(),
            "took_ms": receive.ended.duration_since(receive.began).as_millis() as u64,
        });
        let ended = receive.ended;
        let range = {
            let mut guard = self.lock();
            let (call, first) = (guard.receives.len(), guard.deliveries.len());
            guard.received += brought.len() as u64;
            guard.dead += if receive.kind == QueueKind::Dead { brought.len() as u64 } else { 0 };
            guard.receives.push(receive);
            for (index, one) in brought.iter_mut().enumerate() {
                (one.call, one.index) = (call, index);
            }
            guard.deliveries.extend(brought);
            first..guard.deliveries.len()
        };
        self.tell(ended, line);
        range
    }

    pub fn delete(&self, delivery: usize, attempt: Try) {
        let line = {
            let mut guard = self.lock();
            let Some(one) = guard.deliveries.get_mut(delivery) else { return };
            one.deletes.push(attempt);
            json!({"delete": one.key.map(told), "count": one.count, "event": attempt.event})
        };
        self.tell(attempt.ended, line);
    }

    pub fn change(&self, delivery: usize, seconds: u64, attempt: Try) {
        let line = {
            let mut guard = self.lock();
            let Some(one) = guard.deliveries.get_mut(delivery) else { return };
            one.changes.push((seconds, attempt));
            json!({"change": one.key.map(told), "seconds": seconds, "event": attempt.event})
        };
        self.tell(attempt.ended, line);
    }

    pub fn purge(&self, purge: Purge) {
        self.lock().purges.push(purge);
        self.tell(purge.began, json!({"purge": format!("{:?}", purge.kind), "acknowledged": purge.acked.is_some()}));
    }

    pub fn old_handle(&self, old: OldHandle) {
        let line = json!({"old_handle": format!("{:?}", old.kind), "for": old.what, "taken": old.taken});
        let began = old.began;
        self.lock().old_handles.push(old);
        self.tell(began, line);
    }

    pub fn withdraw(&self, key: Key) {
        self.lock().withdraw(key);
    }

    /// An accepted send of a queue with a budget; the send itself is told by `settle`.
    pub fn spend(&self, spent: Spent) {
        self.lock().spent.push(spent);
    }

    pub fn repeat(&self, repeat: Repeat) {
        let line = json!({"again": repeat.second.len(), "of": repeat.first.len()});
        let ended = repeat.ended;
        self.lock().repeats.push(repeat);
        self.tell(ended, line);
    }

    pub fn unexpected(&self, what: String) {
        *self.lock().unexpected.entry(what).or_default() += 1;
    }
}

fn told(key: Key) -> String {
    format!("{:?} {}:{}", key.kind, key.group, key.seq)
}

pub struct Guard<'a>(MutexGuard<'a, (History, File)>);

impl std::ops::Deref for Guard<'_> {
    type Target = History;

    fn deref(&self) -> &History {
        &self.0.0
    }
}

impl std::ops::DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut History {
        &mut self.0.0
    }
}
