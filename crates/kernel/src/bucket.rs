//! A token bucket as a pure function of its stored state and the time, so that it works the same in memory, in a
//! table, in a Redis script and under a test's clock.

use std::time::Duration;

use crate::Time;

/// Tokens are counted in millionths, so that slow refills lose nothing to rounding.
const MICRO: u128 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub capacity: u32,
    /// The time in which an empty bucket becomes full.
    pub window: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub tokens_micro: u64,
    pub at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    Granted {
        state: State,
        remaining: u32,
    },
    /// Nothing is taken. `retry_after` is None when `cost` exceeds what the bucket can ever hold.
    Denied {
        retry_after: Option<Duration>,
    },
}

impl State {
    pub fn full(limit: Limit, now: Time) -> Self {
        Self { tokens_micro: u64::from(limit.capacity) * MICRO as u64, at: now }
    }
}

pub fn take(state: State, limit: Limit, cost: u32, now: Time) -> Grant {
    let capacity = u128::from(limit.capacity) * MICRO;
    let window_us = limit.window.as_micros().max(1);
    let refill = now.since(state.at).as_micros() * capacity / window_us;
    let tokens = (u128::from(state.tokens_micro) + refill).min(capacity);
    let cost = u128::from(cost) * MICRO;

    let Some(rest) = tokens.checked_sub(cost) else {
        let retry_after = (cost <= capacity && capacity > 0).then(|| {
            let wait_us = ((cost - tokens) * window_us).div_ceil(capacity);
            Duration::from_micros(u64::try_from(wait_us).unwrap_or(u64::MAX))
        });
        return Grant::Denied { retry_after };
    };
    Grant::Granted {
        // A clock that has not moved must not lose the fraction of a token it has earned.
        state: State { tokens_micro: u64::try_from(rest).unwrap_or(u64::MAX), at: now.max(state.at) },
        remaining: u32::try_from(rest / MICRO).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { capacity: 100, window: Duration::from_secs(3600) };
    const NOW: Time = Time::from_micros(1_700_000_000_000_000);

    fn granted(state: State, cost: u32, now: Time) -> State {
        match take(state, LIMIT, cost, now) {
            Grant::Granted { state, .. } => state,
            Grant::Denied { retry_after } => panic!("denied, retry after {retry_after:?}"),
        }
    }

    #[test]
    fn a_full_bucket_gives_its_capacity_and_then_says_when() {
        let empty = granted(State::full(LIMIT, NOW), 100, NOW);
        assert_eq!(take(empty, LIMIT, 1, NOW), Grant::Denied { retry_after: Some(Duration::from_secs(36)) });
        let later = NOW.after(Duration::from_secs(36));
        assert_eq!(granted(empty, 1, later).tokens_micro, 0);
    }

    #[test]
    fn waiting_exactly_as_told_is_always_enough() {
        for (capacity, window_s, cost) in [(1, 1, 1), (3, 7, 2), (7, 3600, 5), (100_000, 3600, 1)] {
            let limit = Limit { capacity, window: Duration::from_secs(window_s) };
            let empty = State { tokens_micro: 0, at: NOW };
            let Grant::Denied { retry_after: Some(wait) } = take(empty, limit, cost, NOW) else { panic!() };
            assert!(matches!(take(empty, limit, cost, NOW.after(wait)), Grant::Granted { .. }), "{limit:?}");
        }
    }

    #[test]
    fn time_that_runs_back_gives_nothing_and_takes_nothing() {
        let half = granted(State::full(LIMIT, NOW), 50, NOW);
        let earlier = Time::from_micros(NOW.micros() - 10_000_000);
        let state = granted(half, 1, earlier);
        assert_eq!((state.tokens_micro, state.at), (49_000_000, NOW));
    }

    #[test]
    fn more_than_the_capacity_can_never_be_had() {
        assert_eq!(take(State::full(LIMIT, NOW), LIMIT, 101, NOW), Grant::Denied { retry_after: None });
    }
}
