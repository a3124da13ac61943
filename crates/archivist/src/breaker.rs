//! When a project is written next: after its window, after a pause that doubles with each failure, or after the long rest of one that
//! failed too often. None of it outlives the process: what is not written is in the database.

use std::time::Duration;

use tokio::time::Instant;

use crate::Settings;

#[derive(Debug)]
pub(crate) struct Breaker {
    failures: u32,
    /// It failed too often: what comes until then is passed over.
    open: bool,
    /// Not written before.
    until: Instant,
}

/// What a failure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    TryAgain,
    GiveUp,
}

impl Breaker {
    pub(crate) fn new(now: Instant) -> Self {
        Self { failures: 0, open: false, until: now }
    }

    pub(crate) fn rests_until(&self) -> Instant {
        self.until
    }

    pub(crate) fn may_write(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Closed again by a success alone: a single try at a time is made until then.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.open && self.until > now
    }

    pub(crate) fn has_opened(&self) -> bool {
        self.open
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    pub(crate) fn worked(&mut self, now: Instant, window: Duration) {
        *self = Self { failures: 0, open: false, until: now + window };
    }

    /// Not its own fault: it is neither better nor worse than before.
    pub(crate) fn rest(&mut self, now: Instant, pause: Duration) {
        self.until = self.until.max(now + pause);
    }

    pub(crate) fn failed(&mut self, now: Instant, settings: &Settings) -> After {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= settings.tries_max.max(1) {
            self.open = true;
            self.until = now + Duration::from_secs(settings.breaker_s.max(1));
            return After::GiveUp;
        }
        let pause = Duration::from_millis(settings.backoff_ms).saturating_mul(1 << (self.failures - 1).min(16));
        self.until = now + pause.min(Duration::from_secs(settings.breaker_s.max(1)));
        After::TryAgain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_32_a_failing_project_is_tried_with_doubling_pauses_and_then_rests() {
        let settings = Settings { tries_max: 4, backoff_ms: 100, breaker_s: 60, ..Settings::default() };
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        assert!(breaker.may_write(now));
        for pause_ms in [100, 200, 400] {
            assert_eq!(breaker.failed(now, &settings), After::TryAgain);
            assert_eq!(breaker.rests_until() - now, Duration::from_millis(pause_ms));
            assert!(!breaker.is_open(now) && breaker.is_failing());
        }
        assert_eq!(breaker.failed(now, &settings), After::GiveUp);
        assert!(breaker.is_open(now) && !breaker.may_write(now));
        let later = now + Duration::from_secs(60);
        assert!(breaker.may_write(later) && !breaker.is_open(later), "one try is made");
        assert_eq!(breaker.failed(later, &settings), After::GiveUp, "and the rest begins again");
        breaker.worked(later, Duration::from_millis(50));
        assert!(!breaker.is_failing() && !breaker.has_opened());
    }
}
