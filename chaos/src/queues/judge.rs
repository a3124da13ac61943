//! The judge of queues: pure functions from what was asked and answered to named violations.
//!
//! Of a call it is known that the server has made it between its beginning and its end, and no more. An unknown send may
//! be there or not, an unknown delete may have deleted, an unknown receive may have taken what nobody saw. What is
//! called a violation is one whatever became of these.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::history::{Delivery, History, Key, Name, QueueKind, Receive, Try};
use super::{attempts, budget, order};
use crate::checker::{Invariant, Violation};
use crate::history::{Event, Fate};

/// After so many receives the next one makes a message a dead letter.
pub const RECEIVES_MAX: u32 = 3;
/// The server's clock may be slewed by one in a hundred, and windows are a few seconds long.
pub const SLACK: Duration = Duration::from_millis(100);
/// A machine with other work stands still for a second now and then; who waits without an end is later than this.
const LATE_MAX: Duration = Duration::from_secs(5);

pub fn violation(invariant: Invariant, key: Key, detail: impl std::fmt::Display) -> Violation {
    Violation::new(invariant, format!("{:?} {}:{}: {detail}", key.kind, key.group, key.seq))
}

/// The history with what all rules look up.
pub struct Book<'a> {
    pub history: &'a History,
    /// Of each message, by the count that they bear; dead letters after all others.
    pub deliveries: BTreeMap<Key, Vec<&'a Delivery>>,
    /// Receives of which nobody knows what they took.
    blind: BTreeMap<QueueKind, Vec<&'a Receive>>,
}

impl<'a> Book<'a> {
    pub fn open(history: &'a History) -> Self {
        let mut deliveries: BTreeMap<Key, Vec<&Delivery>> = BTreeMap::new();
        for one in &history.deliveries {
            if let Some(key) = one.key {
                deliveries.entry(key).or_default().push(one);
            }
        }
        for of_key in deliveries.values_mut() {
            of_key.sort_by_key(|one| (one.kind == QueueKind::Dead, one.count));
        }
        let mut blind: BTreeMap<QueueKind, Vec<&Receive>> = BTreeMap::new();
        for receive in history.receives.iter().filter(|receive| receive.event == Event::Info) {
            blind.entry(receive.kind).or_default().push(receive);
        }
        Book { history, deliveries, blind }
    }

    pub fn call(&self, delivery: &Delivery) -> &'a Receive {
        &self.history.receives[delivery.call]
    }

    fn of(&self, key: Key) -> &[&'a Delivery] {
        self.deliveries.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The one that was received last: only its handle can delete the message.
    pub fn latest(&self, key: Key) -> Option<&'a Delivery> {
        self.of(key).last().copied()
    }

    /// Receives of this kind that may have taken something between these moments without anybody seeing it.
    fn unseen(&self, kind: QueueKind, from: Instant, to: Instant) -> usize {
        let blind = self.blind.get(&kind).map(Vec::as_slice).unwrap_or_default();
        blind.iter().filter(|receive| receive.began < to && receive.ended > from).count()
    }

    /// Until when nobody else can get it, at least.
    pub fn held_until(&self, delivery: &Delivery) -> Instant {
        let call = self.call(delivery);
        let mut until = call.began + Duration::from_secs(call.visibility_s);
        for (seconds, change) in &delivery.changes {
            let changed = change.began + Duration::from_secs(*seconds);
            match change.event {
                Event::Ok => until = changed,
                Event::Fail => {}
                _ => until = until.min(changed),
            }
        }
        until
    }

    /// Did this delete surely end the message? Not if its handle may have been overtaken.
    fn surely_ended(&self, delivery: &Delivery, delete: &Try) -> bool {
        let call = self.call(delivery);
        let overtaken = self.unseen(delivery.kind, call.began, delete.ended) > 0;
        let buried = delivery.kind == QueueKind::Poison && self.held_until(delivery) <= delete.ended;
        delete.event == Event::Ok && !overtaken && !buried
    }

    /// Was it acknowledged, or seen?
    fn stored(&self, key: Key) -> bool {
        self.history.sends.get(&key).is_some_and(|sent| sent.acked.is_some()) || !self.of(key).is_empty()
    }

    pub fn surely_gone(&self, key: Key) -> bool {
        self.latest(key).is_some_and(|last| last.deletes.iter().any(|delete| self.surely_ended(last, delete)))
    }

    fn perhaps_gone(&self, key: Key) -> bool {
        self.perhaps_gone_from(key).is_some()
    }

    /// From when on a message may be gone: since its latest handle was first used to delete it. A delete by an older handle
    /// has ended nothing, or it would not have come again.
    pub fn perhaps_gone_from(&self, key: Key) -> Option<Instant> {
        let last = self.latest(key);
        let deletes = last.into_iter().flat_map(|last| &last.deletes).filter(|delete| delete.event != Event::Fail);
        let void = self.history.sends.get(&key).and_then(|sent| sent.perhaps_deleted);
        let void = void.filter(|void| last.is_none_or(|last| self.call(last).began < *void));
        deletes.map(|delete| delete.began).chain(void).min()
    }

    /// How many messages these queues have, at least and at most.
    pub fn bounds(&self, places: &[QueueKind]) -> (u64, u64) {
        let (mut least, mut most) = (0, 0);
        for (key, sent) in self.history.sends.iter().filter(|(key, _)| places.contains(&key.kind)) {
            let stored = self.stored(*key);
            least += u64::from(stored && !self.perhaps_gone(*key));
            most += u64::from((stored || sent.fate.open()) && !self.surely_gone(*key));
        }
        (least, most)
    }

    /// By which names a message is known.
    pub fn names(&self, key: Key) -> BTreeSet<&'a Name> {
        let sent = self.history.sends.get(&key).into_iter().flat_map(|sent| &sent.names);
        sent.chain(self.of(key).iter().map(|one| &one.name)).collect()
    }
}

/// Everything that can be said at any time.
pub fn judge(history: &History) -> Vec<Violation> {
    let book = Book::open(history);
    let mut violations = judge_contents(&book);
    violations.extend(judge_names(&book));
    violations.extend(order::judge(&book));
    violations.extend(judge_windows(&book));
    for (key, deliveries) in book.deliveries.iter().filter(|(key, _)| !history.ended.contains(key)) {
        violations.extend(judge_deletes(&book, *key, deliveries));
        violations.extend(judge_counts(&book, *key, deliveries));
        violations.extend(judge_dead(&book, *key, deliveries));
        violations.extend(judge_purged(&book, *key, deliveries));
    }
    violations.extend(judge_handles(history));
    violations.extend(budget::judge(history));
    violations.extend(attempts::judge(history));
    violations.extend(judge_waits(history));
    let unexpected = history.unexpected.iter();
    violations.extend(unexpected.map(|(what, n)| Violation::new(Invariant::Unserved, format!("{n} × {what}"))));
    violations
}

/// What can be said when these queues have been emptied: whatever was acknowledged has been received and deleted.
pub fn judge_end(history: &History, places: &[QueueKind]) -> Vec<Violation> {
    let book = Book::open(history);
    let mut violations = Vec::new();
    let emptied = history.sends.keys().filter(|key| places.contains(&key.kind));
    for key in emptied.filter(|key| book.stored(**key) && !perhaps_purged(history, **key)) {
        if !book.perhaps_gone(*key) {
            let unseen = book.latest(*key).is_none();
            let detail =
                if unseen { "never received" } else { "not deleted when it was received, nor did it come again" };
            violations.push(violation(Invariant::Lost, *key, format!("acknowledged, and {detail}")));
        }
    }
    violations
}

/// Was the queue purged after the message was sent, or perhaps?
fn perhaps_purged(history: &History, key: Key) -> bool {
    let Some(sent) = history.sends.get(&key) else { return true };
    let mut purges = history.purges.iter().filter(|purge| purge.kind == key.kind);
    purges.any(|purge| purge.acked.is_none_or(|acked| sent.began <= acked))
}

/// What was received is what was sent.
fn judge_contents(book: &Book<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for one in &book.history.deliveries {
        let Some(key) = one.key else {
            let detail = format!("{:?}: a message that names none of ours: {:.60}", one.kind, one.body);
            violations.push(Violation::new(Invariant::Phantom, detail));
            continue;
        };
        let sent = book.history.sends.get(&key);
        if book.history.ended.contains(&key) {
            violations.push(violation(Invariant::Reverted, key, "received long after it was deleted"));
        } else if sent.is_none_or(|sent| sent.fate == Fate::Refused || sent.began > book.call(one).ended) {
            violations.push(violation(Invariant::Phantom, key, "received, and never sent, or refused"));
        } else if one.body != key.body(book.history.seed) {
            violations.push(violation(Invariant::Altered, key, format!("another body: {:.60}", one.body)));
        } else if one.kind == QueueKind::Fifo && one.group != Some(key.group.to_string()) {
            violations.push(violation(Invariant::Altered, key, format!("of the group {:?}", one.group)));
        }
    }
    violations
}

/// A message that was sent once, or several times under one deduplication id, is stored once.
fn judge_names(book: &Book<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut owners: BTreeMap<&str, Key> = BTreeMap::new();
    for key in book.history.sends.keys() {
        let names = book.names(*key);
        if names.len() > 1 {
            violations.push(violation(Invariant::Doubled, *key, format!("stored as {names:?}")));
        }
        for name in names {
            let owner = *owners.entry(&name.id).or_insert(*key);
            if owner != *key {
                violations.push(violation(Invariant::Altered, *key, format!("bears the id of {owner:?}")));
            }
        }
    }
    violations
}

/// What one receiver has nobody else gets before its time is over; of a FIFO queue nobody gets others of its group.
fn judge_windows(book: &Book<'_>) -> Vec<Violation> {
    let mut apart: BTreeMap<(QueueKind, u32, Option<u32>), Vec<&Delivery>> = BTreeMap::new();
    for one in &book.history.deliveries {
        let Some(key) = one.key else { continue };
        let seq = (one.kind != QueueKind::Fifo).then_some(key.seq);
        apart.entry((one.kind, key.group, seq)).or_default().push(one);
    }
    let mut violations = Vec::new();
    for together in apart.values_mut() {
        together.sort_by_key(|one| book.call(one).began);
        for (number, first) in together.iter().enumerate() {
            let held = book.held_until(first);
            let later = together[number + 1..].iter().take_while(|later| book.call(later).began < held);
            for other in later.filter(|other| overlap(book, first, other)) {
                let Some(key) = other.key else { continue };
                let detail =
                    format!("received while {:?} was held by receiver {}", first.key, book.call(first).receiver);
                violations.push(violation(Invariant::Shared, key, detail));
            }
        }
    }
    violations
}

/// Whichever of the two came first, the other came into its time.
fn overlap(book: &Book<'_>, one: &Delivery, other: &Delivery) -> bool {
    let into = |earlier: &Delivery, later: &Delivery| {
        let ended = book.call(later).ended;
        let released = earlier.deletes.iter().any(|delete| delete.event != Event::Fail && delete.began <= ended);
        ended + SLACK < book.held_until(earlier) && !released
    };
    one.call != other.call && into(one, other) && into(other, one)
}

/// Nothing whose delete was acknowledged is received again.
fn judge_deletes(book: &Book<'_>, key: Key, deliveries: &[&Delivery]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for one in deliveries {
        for delete in one.deletes.iter().filter(|delete| delete.event == Event::Ok) {
            let again = deliveries.iter().filter(|again| book.call(again).began > delete.ended);
            let again = again.filter(|again| again.call != one.call && !excused(book, deliveries, one, delete, again));
            violations.extend(again.map(|again| {
                let detail = format!("deleted at its receive {}, received again as {}", one.count, again.count);
                violation(Invariant::Reverted, key, detail)
            }));
        }
    }
    violations
}

/// May the handle have been an old one when it was used? Then the delete was answered and has ended nothing.
fn excused(book: &Book<'_>, deliveries: &[&Delivery], one: &Delivery, delete: &Try, again: &Delivery) -> bool {
    if again.kind != one.kind {
        // A receive has buried it before, which it can when its time is over.
        return book.held_until(one) <= delete.ended;
    }
    let overtaken =
        |other: &&Delivery| other.kind == one.kind && other.count > one.count && book.call(other).began < delete.ended;
    let unseen = again.count > one.count + 1 && book.unseen(one.kind, book.call(one).began, delete.ended) > 0;
    deliveries.iter().any(overtaken) || unseen
}

/// The count of a message rises with each receive, by one.
fn judge_counts(book: &Book<'_>, key: Key, deliveries: &[&Delivery]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (number, one) in deliveries.iter().enumerate() {
        let call = book.call(one);
        let others = deliveries.iter().filter(|other| other.kind == one.kind && other.call != one.call);
        let before = others.filter(|other| book.call(other).began < call.ended).count();
        let began = book.history.sends.get(&key).map_or(call.began, |sent| sent.began);
        let most = 1 + before + book.unseen(one.kind, began, call.ended);
        if one.count == 0 || one.count as usize > most {
            let detail = format!("received {} times, of which {most} can be", one.count);
            violations.push(violation(Invariant::Miscounted, key, detail));
        }
        let Some(next) = deliveries.get(number + 1).filter(|next| next.kind == one.kind) else { continue };
        if next.count == one.count {
            let detail = format!("two receives have both counted {}", one.count);
            violations.push(violation(Invariant::Miscounted, key, detail));
        } else if book.call(next).ended < call.began {
            let detail = format!("received as number {} after number {}", one.count, next.count);
            violations.push(violation(Invariant::Miscounted, key, detail));
        }
    }
    violations
}

/// A message becomes a dead letter after exactly as many receives as the policy says, and is then in one queue only.
fn judge_dead(book: &Book<'_>, key: Key, deliveries: &[&Delivery]) -> Vec<Violation> {
    if key.kind != QueueKind::Poison {
        return Vec::new();
    }
    let (dead, alive): (Vec<&Delivery>, Vec<&Delivery>) =
        deliveries.iter().copied().partition(|one| one.kind == QueueKind::Dead);
    let mut violations = Vec::new();
    if let Some(often) = alive.iter().find(|one| one.count > RECEIVES_MAX) {
        let detail = format!("received {} times where {RECEIVES_MAX} are the most", often.count);
        violations.push(violation(Invariant::Miscounted, key, detail));
    }
    for letter in dead {
        let call = book.call(letter);
        let began = book.history.sends.get(&key).map_or(call.began, |sent| sent.began);
        let unseen = book.unseen(QueueKind::Poison, began, call.ended);
        if alive.len() + unseen < RECEIVES_MAX as usize {
            let detail = format!("a dead letter after {} receives, not {RECEIVES_MAX}", alive.len());
            violations.push(violation(Invariant::Miscounted, key, detail));
        }
        if alive.iter().any(|one| book.call(one).began > call.ended) {
            violations.push(violation(Invariant::Doubled, key, "in its queue after it had become a dead letter"));
        }
    }
    violations
}

/// Nothing of before a purge is received after it.
fn judge_purged(book: &Book<'_>, key: Key, deliveries: &[&Delivery]) -> Vec<Violation> {
    let Some(sent) = book.history.sends.get(&key) else { return Vec::new() };
    let purges = book.history.purges.iter().filter(|purge| purge.kind == key.kind);
    let before = purges.filter(|purge| sent.acked.is_some_and(|acked| acked < purge.began));
    let Some(purged) = before.filter_map(|purge| purge.acked).min() else { return Vec::new() };
    let after = deliveries.iter().filter(|one| book.call(one).began > purged);
    after.map(|_| violation(Invariant::Phantom, key, "received after its queue was purged")).collect()
}

/// No handle of before a purge is good after it.
fn judge_handles(history: &History) -> Vec<Violation> {
    let taken = history.old_handles.iter().filter(|old| {
        let mut purges = history.purges.iter().filter(|purge| purge.kind == old.kind);
        old.taken && purges.any(|purge| purge.acked.is_some_and(|acked| acked <= old.began))
    });
    taken
        .map(|old| {
            let detail = format!("{:?}: {} took a handle of before the purge", old.kind, old.what);
            Violation::new(Invariant::Stale, detail)
        })
        .collect()
}

/// Of the receives that were answered after they had waited: how many there were, and by how much the slowest was late.
pub fn waits(history: &History) -> (usize, Duration) {
    let waited = history.receives.iter().filter(|receive| receive.wait_s > 0 && receive.event == Event::Ok);
    (waited.clone().count(), waited.map(late).max().unwrap_or_default())
}

/// For how much longer than it wanted to wait a receive has waited.
fn late(receive: &Receive) -> Duration {
    receive.ended.duration_since(receive.began).saturating_sub(Duration::from_secs(receive.wait_s))
}

/// Whoever waits is told when its time is over. Judged where there is no fault about, and whatever the answer was.
fn judge_waits(history: &History) -> Vec<Violation> {
    let late = history.receives.iter().filter(|receive| receive.calm && late(receive) > LATE_MAX);
    let told = |receive: &Receive| {
        let took = receive.ended.duration_since(receive.began).as_secs_f64();
        let detail = format!("{:?}: a receive that waits for {} s took {took:.1} s", receive.kind, receive.wait_s);
        Violation::new(Invariant::Unserved, detail)
    };
    late.map(told).collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
