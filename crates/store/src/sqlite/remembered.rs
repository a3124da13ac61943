//! What a transaction of the writer has read, for the operations of the same batch that would read it again: sixty sends to
//! one queue are one read of the queue.
//!
//! # Contract
//! Nothing outlives its transaction: beginning, ending, and undoing a part of one empty it. Within a transaction nobody
//! else writes, and whatever writes to a table forgets all that was read from it. Which tables a statement writes is found
//! in its text once.

use std::any::Any;
use std::sync::Arc;

use waybill_kernel::Tenant;

use crate::lexer::{Piece, pieces};

/// More than a batch has different ones of as a rule; one more takes the place of the oldest.
const ENTRIES_MAX: usize = 16;

/// What kind of thing is remembered, and from which tables it was read.
#[derive(Debug)]
pub struct Kind {
    pub tables: &'static [&'static str],
}

#[derive(Default)]
pub(crate) struct Remembered {
    entries: Vec<Entry>,
    /// Whose place the next one takes when there is no room.
    next: usize,
}

struct Entry {
    kind: &'static Kind,
    tenant: Option<Tenant>,
    key: Box<str>,
    value: Arc<dyn Any + Send + Sync>,
}

impl Remembered {
    pub(crate) fn find(
        &self,
        kind: &'static Kind,
        tenant: Option<Tenant>,
        key: &str,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        let is_it = |entry: &&Entry| std::ptr::eq(entry.kind, kind) && entry.tenant == tenant && &*entry.key == key;
        self.entries.iter().find(is_it).map(|entry| Arc::clone(&entry.value))
    }

    pub(crate) fn keep(
        &mut self,
        kind: &'static Kind,
        tenant: Option<Tenant>,
        key: &str,
        value: Arc<dyn Any + Send + Sync>,
    ) {
        let entry = Entry { kind, tenant, key: key.into(), value };
        if self.entries.len() < ENTRIES_MAX {
            return self.entries.push(entry);
        }
        self.entries[self.next] = entry;
        self.next = (self.next + 1) % ENTRIES_MAX;
    }

    pub(crate) fn forget_all(&mut self) {
        self.entries.clear();
    }

    /// A statement that writes to these has been run.
    pub(crate) fn forget(&mut self, written: &[Box<str>]) {
        if written.is_empty() || self.entries.is_empty() {
            return;
        }
        self.entries
            .retain(|entry| !entry.kind.tables.iter().any(|table| written.iter().any(|name| **name == **table)));
        self.next = 0;
    }
}

/// The tables that a statement writes to, in small letters.
pub(crate) fn written(sql: &str) -> Vec<Box<str>> {
    let code = pieces(sql).filter_map(|piece| match piece {
        Piece::Code(code) => Some(code),
        Piece::Quoted(_) | Piece::Comment(_) => None,
    });
    let words: Vec<String> = code
        .flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let mut tables = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| words[before].as_str());
        let is_write = match word.as_str() {
            "into" => true,
            // Not that of ON CONFLICT, which writes to the table that was named before.
            "update" => before != Some("do"),
            "from" => before == Some("delete"),
            _ => false,
        };
        // UPDATE OR IGNORE and its like.
        let skipped = if words.get(at + 1).is_some_and(|next| next == "or") { 3 } else { 1 };
        if let Some(table) = words.get(at + skipped).filter(|_| is_write) {
            tables.push(table.as_str().into());
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    static QUEUES: Kind = Kind { tables: &["queues", "parts"] };
    static OTHERS: Kind = Kind { tables: &["others"] };

    fn has(remembered: &Remembered, kind: &'static Kind, tenant: i64, key: &str) -> Option<i64> {
        remembered.find(kind, Some(Tenant(tenant)), key).and_then(|value| value.downcast_ref().copied())
    }

    fn remembered() -> Remembered {
        let mut remembered = Remembered::default();
        remembered.keep(&QUEUES, Some(Tenant(1)), "a", Arc::new(1_i64));
        remembered.keep(&QUEUES, Some(Tenant(2)), "a", Arc::new(2_i64));
        remembered.keep(&OTHERS, Some(Tenant(1)), "a", Arc::new(3_i64));
        remembered
    }

    #[test]
    fn whoever_writes_to_a_table_forgets_what_was_read_from_it() {
        let mut remembered = remembered();
        assert_eq!(has(&remembered, &QUEUES, 2, "a"), Some(2));
        assert_eq!((has(&remembered, &QUEUES, 2, "b"), has(&remembered, &QUEUES, 3, "a")), (None, None));
        remembered.forget(&written("INSERT INTO messages (mid) SELECT p.head FROM parts p"));
        assert_eq!(has(&remembered, &QUEUES, 1, "a"), Some(1));
        remembered.forget(&written("UPDATE parts SET head = $2"));
        assert_eq!((has(&remembered, &QUEUES, 1, "a"), has(&remembered, &OTHERS, 1, "a")), (None, Some(3)));
        remembered.forget_all();
        assert_eq!(has(&remembered, &OTHERS, 1, "a"), None);
    }

    #[test]
    fn there_is_a_most_that_is_remembered() {
        let mut remembered = Remembered::default();
        for number in 0..=ENTRIES_MAX as i64 {
            remembered.keep(&QUEUES, Some(Tenant(number)), "a", Arc::new(number));
        }
        assert_eq!(remembered.entries.len(), ENTRIES_MAX);
        assert_eq!((has(&remembered, &QUEUES, 0, "a"), has(&remembered, &QUEUES, 16, "a")), (None, Some(16)));
    }

    #[test]
    fn the_tables_that_a_statement_writes_to() {
        for (sql, tables) in [
            ("SELECT a FROM parts", &[][..]),
            ("SELECT 'DELETE FROM parts' -- UPDATE parts", &[]),
            ("INSERT INTO parts (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET a = $2", &["parts"]),
            ("insert or ignore into Parts (a) select b from queues", &["parts"]),
            ("UPDATE parts SET a = 1", &["parts"]),
            ("UPDATE OR IGNORE parts SET a = 1", &["parts"]),
            ("WITH gone AS (SELECT 1 FROM others) DELETE FROM queues WHERE name IN (SELECT 1 FROM gone)", &["queues"]),
        ] {
            assert_eq!(written(sql).iter().map(|table| &**table).collect::<Vec<_>>(), tables, "{sql}");
        }
    }
}
