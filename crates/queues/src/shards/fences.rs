//! What those who look at the files of several stores have to know of queues: which stores there must be, and whether their
//! copies of queues' rows go with home's.

use waybill_store::Sql;

use crate::queue::ENDED;

/// The names of the stores that partitions are in, home among them. Asked of home.
pub const PLACED: Sql = Sql {
    sqlite: "SELECT DISTINCT shard.value FROM queues q, json_each(q.shards) AS shard WHERE q.shards IS NOT NULL",
    postgres: "SELECT DISTINCT shard FROM queues q, json_array_elements_text(q.shards::json) AS shard \
               WHERE q.shards IS NOT NULL",
};

/// A text for each queue that has partitions elsewhere: in home its row, in another store the copy of it. For
/// [`Fence::read`].
pub const FENCES: &str = "SELECT tenant || ' ' || generation || ' ' || version || ' ' || incarnation || ' ' || name FROM queues \
                          WHERE shards IS NOT NULL OR here IS NOT NULL";

/// Where a queue stands in one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    tenant: i64,
    pub queue: String,
    generation: i64,
    version: i64,
    incarnation: i64,
}

impl Fence {
    /// None where it is no such text.
    pub fn read(text: &str) -> Option<Self> {
        let mut fields = text.splitn(5, ' ');
        let mut number = || fields.next()?.parse().ok();
        let (tenant, generation, version, incarnation) = (number()?, number()?, number()?, number()?);
        Some(Self { tenant, queue: fields.next()?.to_owned(), generation, version, incarnation })
    }

    /// A copy moves forward only, as home has gone before: one that is ahead of home's row will never follow it
    /// (`follow.rs`).
    pub fn is_ahead_of(&self, home: &Self) -> bool {
        if (self.tenant, &self.queue) != (home.tenant, &home.queue) {
            return false;
        }
        match self.incarnation {
            ENDED => self.generation >= home.generation,
            _ => (self.generation, self.version) > (home.generation, home.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_may_be_behind_and_not_ahead() {
        let fence = |text: &str| Fence::read(text).unwrap();
        let home = fence("1 5 2 4 orders.fifo");
        for behind in ["1 5 2 4 orders.fifo", "1 5 1 4 orders.fifo", "1 4 9 4 orders.fifo", "1 4 0 0 orders.fifo"] {
            assert!(!fence(behind).is_ahead_of(&home), "{behind}");
        }
        for ahead in ["1 5 3 4 orders.fifo", "1 6 0 4 orders.fifo", "1 5 0 0 orders.fifo", "1 6 0 0 orders.fifo"] {
            assert!(fence(ahead).is_ahead_of(&home), "{ahead}");
        }
        for other in ["2 9 9 4 orders.fifo", "1 9 9 4 other.fifo"] {
            assert!(!fence(other).is_ahead_of(&home), "{other}");
        }
        assert_eq!((Fence::read("1 2 3 orders.fifo"), Fence::read("")), (None, None));
    }
}
