//! A queue with a budget for its sends, and a few who send as fast as they are let: what is accepted is never more than the
//! bucket holds and what has come into it since.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::hands::{CALLS_MAX, Hand, TROUBLE};
use super::history::{History, Key, QueueKind};
use crate::checker::{Invariant, Violation};
use crate::history::Event;
use crate::workload::Count;

/// Used up within the shortest round, and refilled so slowly that a second bucket would show.
const CAPACITY: u32 = 20;
const REFILL_PER_S: u32 = 5;
/// Each with a group of its own.
pub const SPENDERS: u32 = 3;
/// Between two calls, in the sprint as well: refusals are cheap, and three of these could ask for nothing else.
const PAUSE: Duration = Duration::from_millis(5);
/// The server's clock may be slewed by one in a hundred.
const SLEWED: f64 = 1.01;
/// For what is rounded on either side.
const SPARE: f64 = 1.0;

/// One accepted send.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    pub round: u32,
    pub began: Instant,
    pub ended: Instant,
}

/// Only sends cost something: whoever empties the queue is free.
pub fn attributes() -> Value {
    let (capacity, refill) = (CAPACITY.to_string(), REFILL_PER_S.to_string());
    json!({"ThrottleSendCapacity": capacity, "ThrottleSendRefillPerSecond": refill})
}

/// Of each round, and so of each process: one that was started anew has full buckets, and whoever serves on has
/// none that are fuller.
pub fn judge(history: &History) -> Vec<Violation> {
    let mut rounds: BTreeMap<u32, (u32, Instant, Instant)> = BTreeMap::new();
    for one in &history.spent {
        let (count, began, ended) = rounds.entry(one.round).or_insert((0, one.began, one.ended));
        (*count, *began, *ended) = (*count + 1, one.began.min(*began), one.ended.max(*ended));
    }
    let over = rounds.into_iter().filter_map(|(round, (count, began, ended))| {
        let seconds = ended.duration_since(began).as_secs_f64();
        let most = f64::from(CAPACITY) + f64::from(REFILL_PER_S) * seconds * SLEWED + SPARE;
        let detail = format!("round {round}: {count} sends accepted in {seconds:.2} s, where {most:.1} are the most");
        (f64::from(count) > most).then(|| Violation::new(Invariant::Overspent, detail))
    });
    over.collect()
}

impl Hand {
    /// Sends to one group until it is told to stop. What was refused was not stored, and its number is given anew.
    pub async fn spend(mut self, round: u32, group: u32) -> Count {
        let kind = QueueKind::Throttled;
        let mut seq = self.record.lock().next_seq(kind, group);
        for _ in 0..CALLS_MAX {
            sleep(PAUSE).await;
            if self.signals.stopped() {
                break;
            }
            let (key, began) = (Key { kind, group, seq }, Instant::now());
            match self.send(key).await {
                Event::Fail => self.record.withdraw(key),
                event => {
                    seq += 1;
                    if event == Event::Ok {
                        self.record.spend(Spent { round, began, ended: Instant::now() });
                    } else {
                        sleep(TROUBLE).await;
                    }
                }
            }
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many sends, evenly over so many milliseconds.
    fn spent(history: &mut History, round: u32, count: u32, over_ms: u64) {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let moment = |number: u32| over_ms * u64::from(number) / u64::from(count);
        history.spent.extend((0..count).map(|number| {
            let (began, ended) = (at(moment(number)), at(moment(number + 1)));
            Spent { round, began, ended }
        }));
    }

    fn names(history: &History) -> Vec<&'static str> {
        judge(history).iter().map(|violation| violation.invariant.name()).collect()
    }

    #[test]
    fn a_round_spends_what_the_bucket_holds_and_what_came_in() {
        // 20, and 5 in each of two seconds.
        for (count, clean) in [(20, true), (30, true), (31, true), (32, false), (50, false)] {
            let mut history = History::default();
            spent(&mut history, 1, count, 2_000);
            assert_eq!(names(&history).is_empty(), clean, "{count}");
        }
        let mut history = History::default();
        spent(&mut history, 1, 40, 300);
        assert_eq!(names(&history), ["overspent"], "a bucket that was filled twice");
    }

    #[test]
    fn every_round_has_a_bucket_of_its_own() {
        let mut history = History::default();
        for round in 1..=3 {
            spent(&mut history, round, 20, 100);
        }
        assert!(names(&history).is_empty());
    }

    #[test]
    fn a_refused_number_is_given_anew() {
        let key = Key { kind: QueueKind::Throttled, group: 1, seq: 0 };
        let mut history = History::default();
        history.invoke(key, Instant::now());
        history.settle(key, Event::Fail, None, Instant::now());
        history.withdraw(key);
        assert_eq!((history.sends.len(), history.next_seq(key.kind, 1)), (0, 0));
        // One whose fate is unknown keeps it.
        history.invoke(key, Instant::now());
        history.settle(key, Event::Info, None, Instant::now());
        history.withdraw(key);
        assert_eq!(history.next_seq(key.kind, 1), 1);
    }
}
