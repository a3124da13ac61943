//! What is remembered of a project between its turns.

use tokio::time::Instant;

use crate::breaker::Breaker;
use crate::walk::Walk;

pub(crate) struct Slot {
    pub breaker: Breaker,
    pub in_hand: bool,
    pub walk: Option<Walk>,
    /// Messages whose files the probe has missed.
    pub missing: u64,
}

/// Whether a turn may begin.
pub(crate) enum Readiness {
    Now,
    InHand,
    /// Where it is open, its rows are passed over meanwhile.
    Rests {
        until: Instant,
        is_open: bool,
    },
}

impl Slot {
    pub(crate) fn new(now: Instant) -> Self {
        Self { breaker: Breaker::new(now), in_hand: false, walk: None, missing: 0 }
    }

    /// Nothing of it is begun for a while, for another reason than its window.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        self.in_hand || (self.breaker.is_failing() && !self.breaker.may_write(now))
    }

    /// `at_once` does not wait for a window to end. Without room nothing is written.
    pub(crate) fn readiness(&self, now: Instant, at_once: bool, has_room: bool) -> Readiness {
        if self.in_hand {
            return Readiness::InHand;
        }
        let is_open = !has_room || self.breaker.is_open(now);
        let may_write = self.breaker.may_write(now) || (at_once && !self.breaker.is_failing());
        if is_open || !may_write {
            return Readiness::Rests { until: self.breaker.rests_until(), is_open };
        }
        Readiness::Now
    }
}
