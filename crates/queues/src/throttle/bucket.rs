//! One bucket: its tokens under a lock of its own, and whether it is still the one that counts.
//!
//! # Eviction
//! Whoever removes a bucket from the map marks it under its lock. A caller that has found the bucket before and gets
//! the lock after is told so and looks again: tokens of a bucket that nobody else sees would be a second burst.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use waybill_kernel::Time;
use waybill_kernel::bucket::{self, Grant, State};

use crate::rules::throttle::Rate;

/// A bucket that nobody has used for longer is full again, or as good as: nobody is told to wait for longer.
pub(super) const IDLE: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) rate: Rate,
    tokens: Mutex<Tokens>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    state: State,
    /// The last decision, whichever it was.
    used_at: Time,
    /// Of that decision, for the figures.
    left: f64,
    pub(super) evicted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    Taken,
    /// Nothing was taken.
    Short {
        retry_after_s: u64,
    },
    /// It is no longer the queue's bucket.
    Evicted,
}

impl Bucket {
    /// Full.
    pub(super) fn new(rate: Rate, now: Time) -> Self {
        let state = State::full(rate.limit(), now);
        Self { rate, tokens: Mutex::new(Tokens { state, used_at: now, left: rate.capacity, evicted: false }) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of the tokens or none.
    pub(super) fn charge(&self, tokens: u32, now: Time) -> Charge {
        let mut held = self.lock();
        if held.evicted {
            return Charge::Evicted;
        }
        held.used_at = held.used_at.max(now);
        let (limit, cost) = (self.rate.limit(), Rate::cost(tokens));
        match bucket::take(held.state, limit, cost, now) {
            Grant::Granted { state, remaining } => {
                held.state = state;
                held.left = f64::from(remaining) / f64::from(Rate::cost(1));
                Charge::Taken
            }
            Grant::Denied { retry_after } => {
                if let Grant::Granted { remaining, .. } = bucket::take(held.state, limit, 0, now) {
                    held.left = f64::from(remaining) / f64::from(Rate::cost(1));
                }
                Charge::Short { retry_after_s: retry_after_s(retry_after) }
            }
        }
    }

    /// As the last decision left it.
    pub(super) fn left(&self) -> f64 {
        self.lock().left
    }
}

impl Tokens {
    pub(super) fn is_idle(&self, now: Time) -> bool {
        now.since(self.used_at) > IDLE
    }

    pub(super) fn used_at(&self) -> Time {
        self.used_at
    }
}

/// In whole seconds, never none and never longer than a bucket is kept.
fn retry_after_s(wait: Option<Duration>) -> u64 {
    let wait = wait.unwrap_or(IDLE).min(IDLE);
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_700_000_000_000_000);

    fn later(seconds: f64) -> Time {
        NOW.after(Duration::from_secs_f64(seconds))
    }

    fn bucket(capacity: f64, per_second: f64) -> Bucket {
        Bucket::new(Rate { capacity, per_second }, NOW)
    }

    fn short(retry_after_s: u64) -> Charge {
        Charge::Short { retry_after_s }
    }

    #[test]
    fn rule_05_all_or_nothing_and_a_rejection_takes_nothing() {
        let bucket = bucket(10.0, 1.0);
        assert_eq!(bucket.charge(1, NOW), Charge::Taken);
        assert_eq!(bucket.charge(10, NOW), short(1));
        assert_eq!(bucket.left(), 9.0);
        assert_eq!(bucket.charge(9, NOW), Charge::Taken);
        assert_eq!((bucket.left(), bucket.charge(1, NOW)), (0.0, short(1)));
    }

    #[test]
    fn rule_07_it_starts_full_refills_by_the_time_and_never_beyond_its_capacity() {
        let bucket = bucket(10.0, 1.0);
        assert_eq!(bucket.charge(10, NOW), Charge::Taken);
        assert_eq!(bucket.charge(1, later(0.999)), short(1));
        assert_eq!(bucket.charge(1, later(1.0)), Charge::Taken);
        assert_eq!(bucket.charge(2, later(2.5)), short(1));
        assert_eq!(bucket.charge(2, later(3.0)), Charge::Taken);
        assert_eq!(bucket.charge(10, later(3600.0)), Charge::Taken);
        assert_eq!(bucket.charge(1, later(3600.0)), short(1), "an hour is no more than what it holds");
        // A clock that shows less than before gives nothing and takes nothing.
        assert_eq!(bucket.charge(1, later(100.0)), short(1));
        assert_eq!(bucket.charge(1, later(3601.0)), Charge::Taken);
    }

    #[test]
    fn rule_07_small_steps_lose_nothing() {
        let bucket = bucket(10.0, 0.1);
        assert_eq!(bucket.charge(10, NOW), Charge::Taken);
        for step in 1..1_000 {
            assert_eq!(
                bucket.charge(1, later(f64::from(step) / 100.0)),
                short(if step == 900 { 1 } else { 10 - u64::try_from(step).unwrap() / 100 }),
                "{step}"
            );
        }
        assert_eq!(bucket.charge(1, later(10.0)), Charge::Taken);
    }

    #[test]
    fn rule_10_the_wait_is_for_what_was_asked_and_has_its_bounds() {
        for (capacity, per_second, tokens, retry_after_s) in [
            (10.0, 0.1, 1, 10),
            (10.0, 1.0, 10, 10),
            (10.0, 1.0, 1, 1),
            (10.0, 10.0, 1, 1),
            (10.0, 3.0, 10, 4),
            (100_000.0, 100_000.0, 1, 1),
            (10.0, 0.001, 1, 1_000),
            (10.0, 0.001, 10, 3_600),
            (100_000.0, f64::MIN_POSITIVE, 1, 3_600),
        ] {
            let bucket = bucket(capacity, per_second);
            for _ in 0..10 {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 10,000")]
                let tenth = (capacity / 10.0) as u32;
                assert_eq!(bucket.charge(tenth, NOW), Charge::Taken);
            }
            assert_eq!(bucket.charge(tokens, NOW), short(retry_after_s), "{capacity} {per_second} {tokens}");
            if retry_after_s < 3_600 {
                let told = later(retry_after_s as f64);
                assert_eq!(bucket.charge(tokens, told), Charge::Taken, "who waits as told is served");
            }
        }
        // Half a token that is there already shortens the wait.
        let bucket = bucket(10.0, 0.1);
        assert_eq!(bucket.charge(10, NOW), Charge::Taken);
        assert_eq!(bucket.charge(1, later(5.0)), short(5));
    }

    #[test]
    fn an_evicted_bucket_gives_nothing() {
        let bucket = bucket(10.0, 1.0);
        bucket.lock().evicted = true;
        assert_eq!(bucket.charge(1, NOW), Charge::Evicted);
    }
}
