//! How long calls wait for a connection: a read for one of the readers, a write for its place at the writer or in a lane.
//!
//! Kept for a minute beside the metrics, so that whoever is asked how the server is can say it, and says so no longer when it is
//! over.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram};

/// Waits that are kept, the newest ones.
const KEPT_MAX: usize = 1_024;
/// How long each counts.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// What there is to know at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolFigures {
    /// Waits of the last minute, of which at most the newest thousand are judged.
    pub recent: usize,
    /// As long as 95 of 100 of them have waited at most; zero where there are none.
    pub wait_p95: Duration,
    pub wait_max: Duration,
    /// Connections that run something.
    pub active: usize,
    /// Since the start.
    pub acquires: u64,
    /// Calls that got none, since the start.
    pub errors: u64,
}

pub(crate) struct Waits {
    recent: Mutex<Recent>,
    active: AtomicUsize,
    acquires: AtomicU64,
    errors: AtomicU64,
    meters: Meters,
}

#[derive(Default)]
struct Recent {
    all: Vec<(Instant, Duration)>,
    /// Where the next one goes when there are as many as are kept.
    next: usize,
}

struct Meters {
    latency: Histogram,
    acquires: Counter,
    active: Gauge,
    /// Failures are counted from the first on, so that nobody looks at series of zeros.
    store: String,
}

impl Waits {
    pub(crate) fn new(store: &str) -> Self {
        use crate::metrics::{POOL_ACQUIRES, POOL_ACTIVE, POOL_LATENCY};
        let meters = Meters {
            latency: metrics::histogram!(POOL_LATENCY, "store" => store.to_owned()),
            acquires: metrics::counter!(POOL_ACQUIRES, "store" => store.to_owned()),
            active: metrics::gauge!(POOL_ACTIVE, "store" => store.to_owned()),
            store: store.to_owned(),
        };
        let (recent, zero) = (Mutex::new(Recent::default()), AtomicU64::new(0));
        Self { recent, active: AtomicUsize::new(0), acquires: zero, errors: AtomicU64::new(0), meters }
    }

    /// A call has got its connection, and has it until the answer is dropped.
    pub(crate) fn got(&self, asked: Instant) -> InUse<'_> {
        self.got_together([asked])
    }

    /// As [`Self::got`], for several calls on one connection.
    pub(crate) fn got_together(&self, asked: impl IntoIterator<Item = Instant>) -> InUse<'_> {
        for asked in asked {
            self.record(Instant::now(), asked.elapsed());
        }
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        self.meters.active.set(active as f64);
        InUse(self)
    }

    pub(crate) fn failed(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(crate::metrics::POOL_ERRORS, "store" => self.meters.store.clone()).increment(1);
    }

    fn record(&self, at: Instant, waited: Duration) {
        self.acquires.fetch_add(1, Ordering::Relaxed);
        self.meters.acquires.increment(1);
        self.meters.latency.record(waited.as_micros() as f64);
        let mut recent = self.lock();
        if recent.all.len() < KEPT_MAX {
            recent.all.push((at, waited));
            return;
        }
        let next = recent.next;
        recent.all[next] = (at, waited);
        recent.next = (next + 1) % KEPT_MAX;
    }

    pub(crate) fn figures(&self) -> PoolFigures {
        self.figures_at(Instant::now())
    }

    fn figures_at(&self, now: Instant) -> PoolFigures {
        let young = |(at, waited): &(Instant, Duration)| (now.duration_since(*at) < KEPT_FOR).then_some(*waited);
        let mut waits: Vec<Duration> = self.lock().all.iter().filter_map(young).collect();
        waits.sort_unstable();
        // Below it are 95 of 100.
        let rank = (waits.len() * 95).div_ceil(100).saturating_sub(1);
        PoolFigures {
            recent: waits.len(),
            wait_p95: waits.get(rank).copied().unwrap_or_default(),
            wait_max: waits.last().copied().unwrap_or_default(),
            active: self.active.load(Ordering::Relaxed),
            acquires: self.acquires.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that runs something.
pub(crate) struct InUse<'a>(&'a Waits);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let active = self.0.active.fetch_sub(1, Ordering::Relaxed) - 1;
        self.0.meters.active.set(active as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_counts_for_a_minute_and_the_newest_are_kept() {
        let (waits, now) = (Waits::new("home"), Instant::now());
        assert_eq!(waits.figures(), PoolFigures::default());
        for ms in 1..=100 {
            waits.record(now, Duration::from_millis(ms));
        }
        let figures = waits.figures_at(now);
        assert_eq!((figures.recent, figures.acquires), (100, 100));
        assert_eq!((figures.wait_p95, figures.wait_max), (Duration::from_millis(95), Duration::from_millis(100)));
        let later = waits.figures_at(now + KEPT_FOR);
        assert_eq!((later.recent, later.wait_p95, later.acquires), (0, Duration::ZERO, 100));
        for _ in 0..KEPT_MAX {
            waits.record(now, Duration::from_millis(1));
        }
        assert_eq!(waits.figures_at(now).wait_max, Duration::from_millis(1));
    }

    #[test]
    fn rule_47_what_is_in_use_returns_to_none() {
        let waits = Waits::new("home");
        let (one, two) = (waits.got(Instant::now()), waits.got(Instant::now()));
        assert_eq!(waits.figures().active, 2);
        drop((one, two));
        assert_eq!((waits.figures().active, waits.figures().errors), (0, 0));
        waits.failed();
        assert_eq!(waits.figures().errors, 1);
    }
}
