//! Sockets that have been given a challenge and have not answered it. Anybody can open one, so there are only so many, in all and
//! of one address, and each has a deadline. Where there is no room for a newcomer, the one that has taken longest makes way: who
//! means it answers at once, and who only fills places meets itself.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Unfinished(Arc<Inner>);

struct Inner {
    most: usize,
    per_address_max: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// In the order in which they came.
    open: BTreeMap<u64, (IpAddr, CancellationToken)>,
    /// Only of those that have some.
    by_address: HashMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
pub(crate) struct Place {
    of: Unfinished,
    number: u64,
    making_way: CancellationToken,
}

impl Unfinished {
    pub(crate) fn new(most: usize, per_address_max: usize) -> Self {
        Self(Arc::new(Inner { most: most.max(1), per_address_max: per_address_max.max(1), table: Mutex::default() }))
    }

    pub(crate) fn enter(&self, from: IpAddr) -> Place {
        let address = from.to_canonical();
        let mut table = self.0.table.lock().unwrap_or_else(PoisonError::into_inner);
        // First its own: one address sends no other away.
        if table.by_address.get(&address).is_some_and(|count| *count >= self.0.per_address_max) {
            table.send_away(|of| of == address);
        } else if table.open.len() >= self.0.most {
            table.send_away(|_| true);
        }
        table.next += 1;
        let (number, making_way) = (table.next, CancellationToken::new());
        table.open.insert(number, (address, making_way.clone()));
        *table.by_address.entry(address).or_default() += 1;
        Place { of: self.clone(), number, making_way }
    }
}

impl Table {
    /// The first that is meant.
    fn send_away(&mut self, is_meant: impl Fn(IpAddr) -> bool) {
        let first = self.open.iter().find(|(_, (address, _))| is_meant(*address)).map(|(number, _)| *number);
        if let Some((_, making_way)) = first.and_then(|number| self.remove(number)) {
            making_way.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<(IpAddr, CancellationToken)> {
        let removed = self.open.remove(&number)?;
        if let Some(count) = self.by_address.get_mut(&removed.0) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&removed.0);
            }
        }
        Some(removed)
    }
}

impl Place {
    /// Ends when another needs the place.
    pub(crate) async fn made_way(&self) {
        self.making_way.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.0.table.lock().unwrap_or_else(PoisonError::into_inner).remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_an_address_makes_way_and_then_the_oldest_of_all() {
        let unfinished = Unfinished::new(3, 2);
        let from = |host: u8| unfinished.enter(IpAddr::from([10, 0, 0, host]));
        let gone = |places: &[&Place]| places.iter().map(|place| place.making_way.is_cancelled()).collect::<Vec<_>>();
        let (first, second) = (from(1), from(1));
        // The same address in IPv6's clothes.
        let third = unfinished.enter("::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(gone(&[&first, &second, &third]), [true, false, false]);
        let (other, another) = (from(2), from(3));
        assert_eq!(gone(&[&second, &third, &other, &another]), [true, false, false, false]);
        drop((first, second, third, other, another));
        let table = unfinished.0.table.lock().unwrap();
        assert!(table.open.is_empty() && table.by_address.is_empty());
    }
}
