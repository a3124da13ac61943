//! How many lines of each tenant are in hand on this node. A tenant whose endpoints are slow leaves hands to others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use waybill_kernel::Tenant;

/// A tenant may have one in so many of the hands. So no more tenants than this have all of theirs at a time.
pub(crate) const PARTS: usize = 4;
/// One that does not answer must not keep its tenant's only hand.
const LINES_MIN: usize = 2;

pub(crate) struct InHand {
    /// Of one tenant. Also claimed at a time, so that one claim does not take much more.
    lines_max: usize,
    lines: Mutex<HashMap<Tenant, usize>>,
}

impl InHand {
    pub(crate) fn new(at_once: usize) -> Self {
        Self { lines_max: at_once.div_ceil(PARTS).max(LINES_MIN), lines: Mutex::default() }
    }

    pub(crate) fn lines_max(&self) -> usize {
        self.lines_max
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Tenant, usize>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, tenant: Tenant) -> Held<'_> {
        *self.lines().entry(tenant).or_default() += 1;
        Held { in_hand: self, tenant }
    }

    /// Tenants that have all they may. Nobody, where there are fewer.
    pub(crate) fn full(&self) -> [Tenant; PARTS] {
        let lines = self.lines();
        let mut full = lines.iter().filter(|(_, count)| **count >= self.lines_max).map(|(tenant, _)| *tenant);
        std::array::from_fn(|_| full.next().unwrap_or(NOBODY))
    }
}

/// No tenant has this number.
const NOBODY: Tenant = Tenant(-1);

/// One line, until it is dropped.
pub(crate) struct Held<'a> {
    in_hand: &'a InHand,
    tenant: Tenant,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut lines = self.in_hand.lines();
        if let Some(count) = lines.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                lines.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_quarter_is_full_until_one_ends() {
        let in_hand = InHand::new(8);
        assert_eq!((in_hand.lines_max(), in_hand.full()), (2, [NOBODY; PARTS]));
        let one = in_hand.take(Tenant(7));
        let _two = in_hand.take(Tenant(7));
        let _other = in_hand.take(Tenant(8));
        assert_eq!(in_hand.full(), [Tenant(7), NOBODY, NOBODY, NOBODY]);
        drop(one);
        assert_eq!(in_hand.full(), [NOBODY; PARTS]);
        for at_once in 1..200 {
            assert!(at_once / InHand::new(at_once).lines_max() <= PARTS, "{at_once}");
        }
    }
}
