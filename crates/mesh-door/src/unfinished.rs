//! Sockets that have been given a challenge and have not answered it. Anybody can open one, so there are only so many, in all and
//! of one address, and each has a deadline.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use waybill_kernel::{Code, Error, Result};

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
    count: usize,
    /// Only of those that have some.
    by_address: HashMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
pub(crate) struct Place {
    of: Unfinished,
    address: IpAddr,
}

impl Unfinished {
    pub(crate) fn new(most: usize, per_address_max: usize) -> Self {
        Self(Arc::new(Inner { most, per_address_max, table: Mutex::default() }))
    }

    /// # Errors
    /// `overloaded`: nobody is sent away for a newcomer, because their deadline makes room soon.
    pub(crate) fn enter(&self, from: IpAddr) -> Result<Place> {
        let address = from.to_canonical();
        let mut table = self.0.table.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = table.by_address.get(&address).copied().unwrap_or(0);
        if table.count >= self.0.most || of_address >= self.0.per_address_max {
            return Err(Error::new(Code::Overloaded, "Too many sockets have not answered their challenge."));
        }
        table.count += 1;
        *table.by_address.entry(address).or_default() += 1;
        Ok(Place { of: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.of.0.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.count -= 1;
        if let Some(count) = table.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                table.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_part_and_what_is_dropped_is_given_back() {
        let unfinished = Unfinished::new(3, 2);
        let from = |host: u8| unfinished.enter(IpAddr::from([10, 0, 0, host]));
        let (first, second) = (from(1).unwrap(), from(1).unwrap());
        assert_eq!(from(1).err().unwrap().code(), Code::Overloaded);
        // The same address in IPv6's clothes.
        assert!(unfinished.enter("::ffff:10.0.0.1".parse().unwrap()).is_err());
        let other = from(2).unwrap();
        assert!(from(3).is_err(), "there are three in all");
        drop(first);
        let again = from(1).unwrap();
        drop((second, other, again));
        let table = unfinished.0.table.lock().unwrap();
        assert!(table.count == 0 && table.by_address.is_empty());
    }
}
