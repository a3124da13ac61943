//! Who is next. Tenants take turns, and so do the callers of each tenant; what one caller brings keeps its order. Whoever brings
//! much waits behind itself, and nobody else does.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Whose something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub tenant: i64,
    /// A digest of who it is within the tenant. Two that had the same would share their turns.
    pub caller: u64,
}

pub(crate) trait Owned {
    fn owner(&self) -> Owner;
}

pub(super) struct Turns<T> {
    tenants: Ring<i64, Ring<u64, VecDeque<T>>>,
    len: usize,
}

/// Lines that are not empty, in the order of their turns.
struct Ring<K, L> {
    order: VecDeque<K>,
    lines: HashMap<K, L>,
}

impl<K, L> Default for Ring<K, L> {
    fn default() -> Self {
        Self { order: VecDeque::new(), lines: HashMap::new() }
    }
}

/// Where a line that did not exist gets its turn.
#[derive(Clone, Copy)]
enum At {
    Front,
    Back,
}

impl<K: Copy + Eq + Hash, L: Default> Ring<K, L> {
    fn line(&mut self, key: K, at: At) -> &mut L {
        match self.lines.entry(key) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(line) => {
                match at {
                    At::Front => self.order.push_front(key),
                    At::Back => self.order.push_back(key),
                }
                line.insert(L::default())
            }
        }
    }

    /// Has `take` take from the line whose turn it is. It says whether the line is empty now.
    fn next<T>(&mut self, take: impl FnOnce(&mut L) -> (Option<T>, bool)) -> Option<T> {
        let key = self.order.pop_front()?;
        let (taken, is_empty) = take(self.lines.get_mut(&key)?);
        if is_empty {
            self.lines.remove(&key);
        } else {
            self.order.push_back(key);
        }
        taken
    }
}

impl<T: Owned> Turns<T> {
    pub(super) fn new() -> Self {
        Self { tenants: Ring::default(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, item: T) {
        let Owner { tenant, caller } = item.owner();
        self.tenants.line(tenant, At::Back).line(caller, At::Back).push_back(item);
        self.len += 1;
    }

    /// What was taken and not used is what is next, in the order in which it was taken.
    pub(super) fn put_back(&mut self, items: impl DoubleEndedIterator<Item = T>) {
        for item in items.rev() {
            let Owner { tenant, caller } = item.owner();
            self.tenants.line(tenant, At::Front).line(caller, At::Front).push_front(item);
            self.len += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let item = self.tenants.next(|callers| {
            let item = callers.next(|items| {
                let item = items.pop_front();
                (item, items.is_empty())
            });
            (item, callers.lines.is_empty())
        })?;
        self.len -= 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Item(i64, u64, char);

    impl Owned for Item {
        fn owner(&self) -> Owner {
            Owner { tenant: self.0, caller: self.1 }
        }
    }

    fn text(turns: &mut Turns<Item>) -> String {
        std::iter::from_fn(|| turns.pop()).map(|item| item.2).collect()
    }

    #[test]
    fn tenants_take_turns_and_so_do_their_callers() {
        let mut turns = Turns::new();
        for (tenant, caller, name) in
            [(1, 1, 'a'), (1, 1, 'b'), (1, 1, 'c'), (1, 2, 'd'), (2, 1, 'x'), (2, 1, 'y'), (3, 9, 'z')]
        {
            turns.push(Item(tenant, caller, name));
        }
        assert_eq!(turns.len(), 7);
        assert_eq!(text(&mut turns), "axzdybc");
        assert!(turns.is_empty() && turns.tenants.lines.is_empty() && turns.tenants.order.is_empty());
    }

    #[test]
    fn a_lone_callers_items_keep_their_order() {
        let mut turns = Turns::new();
        "abcd".chars().for_each(|name| turns.push(Item(1, 1, name)));
        assert_eq!(text(&mut turns), "abcd");
    }

    #[test]
    fn what_is_put_back_is_next_in_its_order() {
        let mut turns = Turns::new();
        for (tenant, name) in [(1, 'a'), (1, 'b'), (1, 'c'), (2, 'x')] {
            turns.push(Item(tenant, 1, name));
        }
        let taken: Vec<Item> = std::iter::from_fn(|| turns.pop()).take(3).collect();
        assert_eq!(taken.iter().map(|item| item.2).collect::<String>(), "axb");
        turns.put_back(taken.into_iter());
        assert_eq!(turns.len(), 4);
        let order = text(&mut turns);
        let of_first: String = order.chars().filter(|name| *name != 'x').collect();
        assert_eq!((of_first.as_str(), order.len()), ("abc", 4), "{order}");
    }
}
