//! Receives that are made again under the id of their attempt: because the answer was lost, and because somebody says so. As
//! long as what came the first time is held, nothing else comes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::hands::{Asked, Hand};
use super::history::{Delivery, History, QueueKind};
use super::judge::SLACK;
use crate::checker::{Invariant, Violation};
use crate::history::Event;

/// A receive that was answered, and answered again.
#[derive(Clone, Debug)]
pub struct Repeat {
    pub began: Instant,
    /// Until when what came first is surely held.
    pub held_until: Instant,
    /// Of the second.
    pub ended: Instant,
    /// Ids and handles.
    pub first: BTreeSet<(String, String)>,
    pub second: BTreeSet<(String, String)>,
}

impl Repeat {
    /// Whether the second was answered while what came first was held.
    fn is_in_time(&self) -> bool {
        self.ended + SLACK < self.held_until
    }

    /// Nothing that the first has not brought.
    fn is_same(&self) -> bool {
        self.second.is_subset(&self.first)
    }
}

/// Whoever asks again gets what it had been given, or less, or an error, and never something else.
pub fn judge(history: &History) -> Vec<Violation> {
    let other = history.repeats.iter().filter(|repeat| repeat.is_in_time() && !repeat.is_same());
    let told = |repeat: &Repeat| {
        let ids: Vec<&str> = repeat.second.difference(&repeat.first).map(|(id, _)| id.as_str()).collect();
        let detail = format!("a receive was made again under its attempt's id and has brought others: {ids:?}");
        Violation::new(Invariant::Doubled, detail)
    };
    other.map(told).collect()
}

fn named(brought: &[Delivery]) -> BTreeSet<(String, String)> {
    brought.iter().map(|one| (one.name.id.clone(), one.handle.clone())).collect()
}

impl Hand {
    /// As `receive`, under an id, and made again: once when the answer was lost, and once more when there was one.
    pub async fn receive_twice(&mut self, kind: QueueKind, receiver: u32, visibility_s: u64) -> Range<usize> {
        let attempt = format!("{:016x}", self.rng.next());
        let asked = Asked { kind, receiver, visibility_s, wait_s: 0, attempt: Some(attempt), calm: false };
        let (mut first, mut brought) = self.ask(&asked).await;
        if first.event == Event::Info {
            let lost = first;
            self.record.receive(lost.clone(), Vec::new());
            if self.signals.stopped() {
                return 0..0;
            }
            (first, brought) = self.ask(&asked).await;
            // What was taken by the one that was lost is held from there on.
            first.began = lost.began;
        }
        if first.event != Event::Ok || brought.is_empty() {
            return self.record.receive(first, brought);
        }
        let (again, second) = self.ask(&asked).await;
        let repeat = Repeat {
            began: first.began,
            held_until: first.began + Duration::from_secs(visibility_s),
            ended: again.ended,
            first: named(&brought),
            second: named(&second),
        };
        let came = self.record.receive(first, brought);
        if again.event != Event::Ok {
            self.record.receive(again, second);
            return came;
        }
        let is_receive = !repeat.is_in_time() && !repeat.is_same();
        self.record.repeat(repeat);
        // Too late for what came first: a receive like any other.
        if is_receive { self.record.receive(again, second) } else { came }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(held_ms: u64, first: &[&str], second: &[&str]) -> Vec<&'static str> {
        let (start, set) =
            (Instant::now(), |names: &[&str]| names.iter().map(|id| ((*id).into(), "h".into())).collect());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (first, second) = (set(first), set(second));
        let repeat = Repeat { began: start, held_until: at(held_ms), ended: at(500), first, second };
        let history = History { repeats: vec![repeat], ..History::default() };
        judge(&history).iter().map(|violation| violation.invariant.name()).collect()
    }

    #[test]
    fn an_attempt_that_is_made_again_brings_the_same_or_less() {
        assert!(names(1_000, &["a", "b"], &["b", "a"]).is_empty());
        assert!(names(1_000, &["a", "b"], &["a"]).is_empty());
        assert!(names(1_000, &["a", "b"], &[]).is_empty());
        assert_eq!(names(1_000, &["a", "b"], &["a", "c"]), ["doubled"]);
        assert!(names(550, &["a"], &["c"]).is_empty(), "what came first may be visible again");
    }
}
