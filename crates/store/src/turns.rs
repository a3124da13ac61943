//! Decides whose call is next. Tenants take turns, and so do the lines within a tenant: one for each of its callers, or for each thing
//! that calls are about. A line keeps its order. A caller that brings many calls waits behind its own and delays nobody else.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use waybill_kernel::Tenant;

/// Whose something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub(crate) tenant: i64,
    /// A digest of what the line is for. Two that had the same would share their turns.
    pub(crate) line: u64,
}

impl Owner {
    pub fn new(tenant: Tenant, line: impl Hash) -> Self {
        let mut digest = DefaultHasher::new();
        line.hash(&mut digest);
        Self { tenant: tenant.0, line: digest.finish() }
    }
}

pub(crate) trait Owned {
    fn owner(&self) -> Owner;
}

pub(crate) struct Turns<T> {
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

    /// Has `take` take from the first line, by its turn, that it wants to take from. It says whether the line is empty now.
    fn next<T>(&mut self, mut take: impl FnMut(K, &mut L) -> Option<(T, bool)>) -> Option<T> {
        for at in 0..self.order.len() {
            let key = self.order[at];
            if let Some((taken, is_empty)) = take(key, self.lines.get_mut(&key)?) {
                self.order.remove(at);
                if is_empty {
                    self.lines.remove(&key);
                } else {
                    self.order.push_back(key);
                }
                return Some(taken);
            }
        }
        None
    }

    /// As `next`, from the line of this key, which keeps its turn.
    fn of<T>(&mut self, key: K, take: impl FnOnce(&mut L) -> Option<(T, bool)>) -> Option<T> {
        let (taken, is_empty) = take(self.lines.get_mut(&key)?)?;
        if is_empty {
            self.lines.remove(&key);
            self.order.retain(|other| *other != key);
        }
        Some(taken)
    }
}

impl<T: Owned> Turns<T> {
    pub(crate) fn new() -> Self {
        Self { tenants: Ring::default(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, item: T) {
        let Owner { tenant, line } = item.owner();
        self.tenants.line(tenant, At::Back).line(line, At::Back).push_back(item);
        self.len += 1;
    }

    /// What was taken and not used is what is next, in the order in which it was taken.
    pub(crate) fn put_back(&mut self, items: impl DoubleEndedIterator<Item = T>) {
        for item in items.rev() {
            let Owner { tenant, line } = item.owner();
            self.tenants.line(tenant, At::Front).line(line, At::Front).push_front(item);
            self.len += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.take(1, |_| true).pop()
    }

    /// Up to `max` items of one owner: of the next that may have its turn.
    pub(crate) fn take(&mut self, max: usize, may: impl Fn(Owner) -> bool) -> Vec<T> {
        let taken = self.tenants.next(|tenant, lines| {
            let taken = lines.next(|line, items| {
                may(Owner { tenant, line }).then(|| {
                    let taken: Vec<T> = items.drain(..max.min(items.len())).collect();
                    (taken, items.is_empty())
                })
            })?;
            Some((taken, lines.lines.is_empty()))
        });
        let taken = taken.unwrap_or_default();
        self.len -= taken.len();
        taken
    }

    /// Takes out one that nobody has taken yet.
    pub(crate) fn withdraw(&mut self, owner: Owner, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let item = self.tenants.of(owner.tenant, |lines| {
            let item = lines.of(owner.line, |items| {
                let at = items.iter().position(is_it)?;
                Some((items.remove(at)?, items.is_empty()))
            })?;
            Some((item, lines.lines.is_empty()))
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
            Owner { tenant: self.0, line: self.1 }
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

    #[test]
    fn who_may_not_have_its_turn_is_passed_over_and_keeps_it() {
        let mut turns = Turns::new();
        for (tenant, caller, name) in [(1, 1, 'a'), (1, 1, 'b'), (1, 1, 'c'), (1, 2, 'd'), (2, 1, 'x')] {
            turns.push(Item(tenant, caller, name));
        }
        let names = |items: Vec<Item>| items.into_iter().map(|item| item.2).collect::<String>();
        assert_eq!(names(turns.take(2, |owner| owner.line != 1)), "d");
        assert_eq!(names(turns.take(2, |owner| owner.tenant == 1)), "ab", "as many as are wanted");
        assert_eq!(names(turns.take(2, |_| false)), "");
        assert_eq!(names(turns.take(2, |_| true)), "x");
        assert_eq!((names(turns.take(2, |_| true)).as_str(), turns.len()), ("c", 0));
        assert!(turns.tenants.lines.is_empty() && turns.tenants.order.is_empty());
    }

    #[test]
    fn one_that_is_withdrawn_is_not_taken() {
        let mut turns = Turns::new();
        for (tenant, name) in [(1, 'a'), (1, 'b'), (2, 'x')] {
            turns.push(Item(tenant, 1, name));
        }
        let owner = |tenant| Owner { tenant, line: 1 };
        assert_eq!(turns.withdraw(owner(1), |item| item.2 == 'a'), Some(Item(1, 1, 'a')));
        assert_eq!(turns.withdraw(owner(1), |item| item.2 == 'x'), None, "it is somebody else's");
        assert_eq!(turns.withdraw(owner(2), |item| item.2 == 'x'), Some(Item(2, 1, 'x')));
        assert_eq!((turns.len(), text(&mut turns).as_str()), (1, "b"));
        assert!(turns.tenants.lines.is_empty() && turns.tenants.order.is_empty());
    }
}
