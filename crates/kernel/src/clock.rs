//! The one clock. `now` starts at the later of the last stored time and the wall, then follows the monotonic clock
//! and is drawn towards the wall by at most 1 part in 100. It always advances: a wall clock that is stepped
//! back, forth or strobed by an operator changes no lease, window or order.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::Time;

/// The wall pulls at most one microsecond per this many elapsed.
const SLEW_DIVISOR: u64 = 100;

pub trait TimeSource: Send + Sync {
    fn monotonic_us(&self) -> u64;
    fn wall_us(&self) -> i64;
}

pub struct Clock {
    source: Box<dyn TimeSource>,
    state: Mutex<State>,
}

struct State {
    monotonic_us: u64,
    now_us: i64,
    /// What the reference clock shows beyond our wall: zero alone, the database's lead with PostgreSQL.
    reference_us: i64,
    /// Elapsed microseconds that have not yet earned a whole microsecond of slew.
    unspent_us: u64,
}

impl Clock {
    pub fn new(source: impl TimeSource + 'static) -> Self {
        let state =
            State { monotonic_us: source.monotonic_us(), now_us: source.wall_us(), reference_us: 0, unspent_us: 0 };
        Self { source: Box::new(source), state: Mutex::new(state) }
    }

    pub fn system() -> Self {
        Self::new(SystemSource { origin: Instant::now() })
    }

    pub fn now(&self) -> Time {
        let mut state = self.lock();
        state.advance(self.source.monotonic_us(), self.source.wall_us());
        Time::from_micros(state.now_us)
    }

    /// Never again earlier than `stored`: called with the last time a database remembers.
    pub fn raise_to(&self, stored: Time) {
        let mut state = self.lock();
        state.now_us = state.now_us.max(stored.micros());
    }

    /// Start over at another machine's time, which is the one that counts. Only before anybody has read this clock:
    /// it may move it back.
    pub fn begin_at(&self, reference: Time) {
        self.anchor(reference);
        self.lock().now_us = reference.micros();
    }

    /// The clock to be drawn to is another machine's, which just showed `reference`.
    pub fn anchor(&self, reference: Time) {
        let wall = self.source.wall_us();
        self.lock().reference_us = reference.micros().saturating_sub(wall);
    }

    /// How far the reference is ahead of us, in microseconds; negative when we are ahead.
    pub fn offset_us(&self) -> i64 {
        let mut state = self.lock();
        let wall_us = self.source.wall_us();
        state.advance(self.source.monotonic_us(), wall_us);
        wall_us.saturating_add(state.reference_us).saturating_sub(state.now_us)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn advance(&mut self, monotonic_us: u64, wall_us: i64) {
        let elapsed = monotonic_us.saturating_sub(self.monotonic_us);
        self.monotonic_us = self.monotonic_us.max(monotonic_us);
        self.unspent_us += elapsed;
        let slew_max = i64::try_from(self.unspent_us / SLEW_DIVISOR).unwrap_or(i64::MAX);
        self.unspent_us %= SLEW_DIVISOR;

        let free_running = self.now_us.saturating_add(i64::try_from(elapsed).unwrap_or(i64::MAX));
        let drift = wall_us.saturating_add(self.reference_us).saturating_sub(free_running);
        let drawn = free_running.saturating_add(drift.clamp(-slew_max, slew_max));
        self.now_us = drawn.max(self.now_us + 1);
    }
}

struct SystemSource {
    origin: Instant,
}

impl TimeSource for SystemSource {
    fn monotonic_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where wall time enters the program")]
    fn wall_us(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

/// A clock that moves only when told to.
pub mod manual {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    use std::time::Duration;

    use super::TimeSource;

    #[derive(Clone, Debug)]
    pub struct ManualSource {
        monotonic_us: Arc<AtomicU64>,
        wall_us: Arc<AtomicI64>,
    }

    impl ManualSource {
        pub fn at(wall_us: i64) -> Self {
            Self { monotonic_us: Arc::default(), wall_us: Arc::new(AtomicI64::new(wall_us)) }
        }

        /// Time passes, on both clocks.
        pub fn pass(&self, time: Duration) {
            let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            self.monotonic_us.fetch_add(us, Ordering::Relaxed);
            self.step_wall(i64::try_from(us).unwrap_or(i64::MAX));
        }

        /// Somebody sets the wall clock.
        pub fn step_wall(&self, by_us: i64) {
            self.wall_us.fetch_add(by_us, Ordering::Relaxed);
        }
    }

    impl TimeSource for ManualSource {
        fn monotonic_us(&self) -> u64 {
            self.monotonic_us.load(Ordering::Relaxed)
        }

        fn wall_us(&self) -> i64 {
            self.wall_us.load(Ordering::Relaxed)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::manual::ManualSource;
    use super::*;

    const START_US: i64 = 1_700_000_000_000_000;
    const HOUR_US: i64 = 3_600_000_000;

    #[test]
    fn it_always_advances_even_when_nothing_moves() {
        let clock = Clock::new(ManualSource::at(START_US));
        let first = clock.now();
        assert!(clock.now() > first);
    }

    #[test]
    fn a_wall_step_moves_it_by_one_part_in_a_hundred_and_no_more() {
        for step in [-5 * 24 * HOUR_US, -HOUR_US, HOUR_US, 5 * 24 * HOUR_US] {
            let source = ManualSource::at(START_US);
            let clock = Clock::new(source.clone());
            source.step_wall(step);
            let before = clock.now();
            source.pass(Duration::from_secs(100));
            let moved = clock.now().micros() - before.micros();
            let expected = 100_000_000 + step.signum() * 1_000_000;
            assert!((moved - expected).abs() <= 2, "step {step}: moved {moved}");
        }
    }

    #[test]
    fn small_readings_earn_slew_too() {
        let source = ManualSource::at(START_US);
        let clock = Clock::new(source.clone());
        source.step_wall(HOUR_US);
        let before = clock.now();
        for _ in 0..10_000 {
            source.pass(Duration::from_micros(10));
            clock.now();
        }
        let moved = clock.now().micros() - before.micros();
        assert!((100_990..=101_010).contains(&moved), "moved {moved}");
    }

    #[test]
    fn it_starts_at_the_stored_time_when_the_wall_is_behind() {
        let clock = Clock::new(ManualSource::at(START_US));
        clock.raise_to(Time::from_micros(START_US + HOUR_US));
        assert!(clock.now().micros() > START_US + HOUR_US);
        assert!(clock.offset_us() <= -HOUR_US);
    }

    #[test]
    fn anchored_it_is_drawn_to_the_reference_and_not_to_the_wall() {
        let source = ManualSource::at(START_US);
        let clock = Clock::new(source.clone());
        clock.anchor(Time::from_micros(START_US + 500_000));
        source.pass(Duration::from_secs(100));
        clock.now();
        assert_eq!(clock.now().micros() - START_US, 100_500_001);
        assert!(clock.offset_us().abs() <= 3, "{}", clock.offset_us());
    }
}
