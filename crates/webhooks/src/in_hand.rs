//! Shares this node's hands (lines of deliveries in work at a time) among tenants. A tenant may always have a quarter of the hands,
//! and more only as long as it leaves as many free, so that slow endpoints of one tenant leave hands to others. A tenant that is alone
//! therefore gets half of them, enough to pass many silent endpoints, and the next tenant still finds a free hand.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use waybill_kernel::Tenant;

/// Every tenant may have this fraction of the hands, whatever the others have. So no more tenants than this are full at a time.
pub(crate) const PARTS: usize = 4;
/// At least two, so that an endpoint that does not answer does not hold its tenant's only hand.
const LINES_MIN: usize = 2;

pub(crate) struct InHand {
    hands: usize,
    lines: Mutex<HashMap<Tenant, usize>>,
}

impl InHand {
    pub(crate) fn new(at_once: usize) -> Self {
        Self { hands: at_once, lines: Mutex::default() }
    }

    /// What one tenant may always have.
    fn lines_min(&self) -> usize {
        self.hands.div_ceil(PARTS).max(LINES_MIN)
    }

    fn free(&self, lines: &HashMap<Tenant, usize>) -> usize {
        self.hands.saturating_sub(lines.values().sum())
    }

    /// What one tenant may have now.
    fn lines_max(&self, lines: &HashMap<Tenant, usize>) -> usize {
        self.lines_min().max(self.free(lines))
    }

    /// How many lines to claim at a time. All of them may belong to one tenant, so the tenant nearest to being full sets the bound.
    pub(crate) fn claim_max(&self) -> usize {
        let lines = self.lines();
        let most = self.lines_max(&lines);
        let has = lines.values().copied().filter(|count| *count < most).max().unwrap_or(0);
        (most - has).min(self.free(&lines) / 2).max(1)
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Tenant, usize>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, tenant: Tenant) -> Held<'_> {
        *self.lines().entry(tenant).or_default() += 1;
        Held { in_hand: self, tenant }
    }

    /// The tenants that have all they may, filled up with nobody.
    pub(crate) fn full(&self) -> [Tenant; PARTS] {
        let lines = self.lines();
        let most = self.lines_max(&lines);
        let mut full = lines.iter().filter(|(_, count)| **count >= most).map(|(tenant, _)| *tenant);
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
    fn who_is_alone_has_half_and_in_a_crowd_a_quarter() {
        let in_hand = InHand::new(8);
        let take = |tenant, count| (0..count).map(|_| in_hand.take(Tenant(tenant))).collect::<Vec<_>>();
        assert_eq!((in_hand.claim_max(), in_hand.full()), (4, [NOBODY; PARTS]));
        let mut alone = take(7, 3);
        assert_eq!((in_hand.claim_max(), in_hand.full()), (2, [NOBODY; PARTS]), "5 are free");
        alone.extend(take(7, 1));
        assert_eq!(in_hand.full(), [Tenant(7), NOBODY, NOBODY, NOBODY], "as many as are free");
        let _other = take(8, 2);
        assert_eq!(in_hand.claim_max(), 1);
        let mut full = in_hand.full();
        full.sort();
        assert_eq!(full, [NOBODY, NOBODY, Tenant(7), Tenant(8)], "2 are free, and a quarter is taken");
        alone.clear();
        assert_eq!(in_hand.full(), [NOBODY; PARTS]);
        for hands in 1..200 {
            assert!(hands / InHand::new(hands).lines_min() <= PARTS, "{hands}");
        }
    }
}
