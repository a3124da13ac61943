//! The order within the groups of a FIFO queue, by the numbers that the server gives and by what was in which hands;
//! never by which of two receivers had its answer first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::history::{Delivery, Key, QueueKind};
use super::judge::{Book, violation};
use crate::checker::{Invariant, Violation};

pub fn judge(book: &Book<'_>) -> Vec<Violation> {
    let mut groups: BTreeMap<u32, Group<'_>> = BTreeMap::new();
    for key in book.history.sends.keys().filter(|key| key.kind == QueueKind::Fifo) {
        if let Some(number) = number(book, *key) {
            groups.entry(key.group).or_default().numbers.insert(*key, number);
        }
    }
    for one in book.history.deliveries.iter().filter(|one| one.kind == QueueKind::Fifo) {
        if let Some(group) = one.key.and_then(|key| groups.get_mut(&key.group)) {
            group.deliveries.push(one);
        }
    }
    groups
        .into_values()
        .flat_map(|mut group| {
            group.deliveries.sort_by_key(|one| book.call(one).ended);
            let mut violations = group.judge_numbers(book);
            violations.extend(group.judge_receives(book));
            violations.extend(group.judge_batches());
            violations
        })
        .collect()
}

/// The server's number of a message. One that has several is somebody else's finding.
fn number(book: &Book<'_>, key: Key) -> Option<u64> {
    book.names(key).first()?.sequence.as_deref()?.parse().ok()
}

#[derive(Default)]
struct Group<'a> {
    numbers: BTreeMap<Key, u64>,
    /// By when their receives ended.
    deliveries: Vec<&'a Delivery>,
}

impl Group<'_> {
    /// A message whose predecessor was acknowledged before it was sent, or was sent in the same batch, has the higher number.
    fn judge_numbers(&self, book: &Book<'_>) -> Vec<Violation> {
        let mut violations = Vec::new();
        for ((before, lower), (key, higher)) in self.numbers.iter().zip(self.numbers.iter().skip(1)) {
            let (one, other) = (&book.history.sends[before], &book.history.sends[key]);
            let of_one_batch = one.began == other.began && !one.void;
            let is_earlier = of_one_batch || one.acked.is_some_and(|acked| acked <= other.began);
            if is_earlier && lower >= higher {
                let detail = format!("number {higher}, and {} before it has {lower}", before.seq);
                violations.push(violation(Invariant::Disordered, *key, detail));
            }
        }
        violations
    }

    /// Nobody receives a message while an earlier one is there that the same receive has not brought as well.
    fn judge_receives(&self, book: &Book<'_>) -> Vec<Violation> {
        let mut there: BTreeMap<u64, Key> = self.numbers.iter().map(|(key, number)| (*number, *key)).collect();
        let mut calls: BTreeMap<usize, BTreeSet<Key>> = BTreeMap::new();
        for one in &self.deliveries {
            calls.entry(one.call).or_default().extend(one.key);
        }
        let gone: BTreeMap<Key, Instant> =
            self.numbers.keys().filter_map(|key| Some((*key, book.perhaps_gone_from(*key)?))).collect();
        let mut violations = Vec::new();
        for one in &self.deliveries {
            let Some(key) = one.key else { continue };
            let Some(number) = self.numbers.get(&key) else { continue };
            let ended = book.call(one).ended;
            there.retain(|_, key| gone.get(key).is_none_or(|gone| *gone > ended));
            let earlier = there.range(..number).map(|(_, earlier)| earlier);
            if let Some(earlier) = earlier.into_iter().find(|earlier| !calls[&one.call].contains(earlier)) {
                let detail = format!("received while {} was still there", earlier.seq);
                violations.push(violation(Invariant::Disordered, key, detail));
            }
        }
        violations
    }

    /// What one receive brings of a group is in the order of its numbers.
    fn judge_batches(&self) -> Vec<Violation> {
        let mut calls: BTreeMap<usize, Vec<&Delivery>> = BTreeMap::new();
        for one in &self.deliveries {
            calls.entry(one.call).or_default().push(one);
        }
        let mut violations = Vec::new();
        for brought in calls.values_mut() {
            brought.sort_by_key(|one| one.index);
            for pair in brought.windows(2) {
                let numbers = [pair[0], pair[1]].map(|one| one.key.and_then(|key| self.numbers.get(&key)));
                if let ([Some(first), Some(second)], Some(key)) = (numbers, pair[1].key)
                    && first >= second
                {
                    violations.push(violation(Invariant::Disordered, key, "behind a later one in one receive"));
                }
            }
        }
        violations
    }
}
