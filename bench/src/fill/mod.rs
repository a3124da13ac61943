//! A long history, made in seconds: what the product itself has written for one task is copied by SQL, with new ids. So the
//! rows are the product's own in every column, and a column added later is copied as well.
//!
//! The server does not run meanwhile.

mod database;

use anyhow::{Context, Result, bail};

pub use database::Database;

/// The first half of every id made here: its time lies before that of any id the product mints. The second half counts.
const IDS_FROM: u64 = 0x0180_0000_0000_7000;

/// Copies the rows of tasks. One for all copies into a database: it knows which ids are taken.
pub struct Copier<'a> {
    database: &'a Database,
    taken: u64,
    statements: Vec<String>,
}

/// A receipt of the task that is copied, and the ids its copies get.
struct Original {
    receipt_id: String,
    parents: String,
    ids: u64,
}

impl<'a> Copier<'a> {
    pub fn new(database: &'a Database) -> Self {
        Self { database, taken: IDS_FROM, statements: Vec::new() }
    }

    /// `times` copies of all receipts of a task, with their links. Where the receipts name `owner`, a copy names
    /// `new_owner`, an SQL expression over the copy's number `n.i`.
    pub async fn receipts(&mut self, task: &str, owner: &str, new_owner: &str, times: u64) -> Result<u64> {
        let task_ids = self.take();
        let assigned_ids = self.take();
        let copied = self.receipts_of(task, task_ids, assigned_ids, times, owner, new_owner).await?;
        Ok(copied * times)
    }

    /// `times` copies of a queued task that has nothing but the receipt of its creation.
    pub async fn queued(&mut self, task: &str, times: u64) -> Result<()> {
        let (task_ids, assigned_ids) = (self.take(), self.take());
        let replaced = [
            ("task_id", self.database.ids(&[task_ids])),
            ("assigned_receipt", self.database.ids(&[assigned_ids])),
            ("idempotency_key", "NULL".to_owned()),
        ];
        let filter = format!("o.task_id = {}", self.database.blob(task));
        self.copy("tasks", &filter, &replaced, times).await?;
        match self.receipts_of(task, task_ids, assigned_ids, times, "", "''").await? {
            1 => Ok(()),
            receipts => bail!("a queued task has {receipts} receipts"),
        }
    }

    /// Runs what was collected. The history counts as sealed long ago, or sealing it would run beside the measurement.
    pub async fn finish(mut self) -> Result<()> {
        self.statements.push(
            "INSERT INTO feeds (name, xact, seq, updated_at) \
             SELECT 'receipts.chain', xact, seq, created_at FROM receipts WHERE true ORDER BY xact DESC, seq DESC LIMIT 1 \
             ON CONFLICT (name) DO UPDATE SET xact = excluded.xact, seq = excluded.seq"
                .to_owned(),
        );
        self.database.run(self.statements).await
    }

    fn take(&mut self) -> u64 {
        self.taken += 1;
        self.taken
    }

    async fn receipts_of(
        &mut self,
        task: &str,
        task_ids: u64,
        assigned_ids: u64,
        times: u64,
        owner: &str,
        new_owner: &str,
    ) -> Result<u64> {
        let originals = self.originals(task, assigned_ids).await?;
        let lease_ids = self.take();
        for original in &originals {
            let parents = original.parents_in(&originals)?;
            let renamed =
                |column: &str| format!("CASE WHEN o.{column} = '{owner}' THEN {new_owner} ELSE o.{column} END");
            let unless_null = |column: &str, ids: u64| {
                format!("CASE WHEN o.{column} IS NULL THEN NULL ELSE {} END", self.database.ids(&[ids]))
            };
            let replaced = [
                ("receipt_id", self.database.ids(&[original.ids])),
                ("task_id", unless_null("task_id", task_ids)),
                ("lease_id", unless_null("lease_id", lease_ids)),
                ("parents", self.database.ids(&parents)),
                ("sender", renamed("sender")),
                ("addressee", renamed("addressee")),
            ];
            let filter = format!("o.receipt_id = {}", self.database.blob(&original.receipt_id));
            self.copy("receipts", &filter, &replaced, times).await?;
            for parent in parents {
                let replaced =
                    [("parent_id", self.database.ids(&[parent])), ("child_id", self.database.ids(&[original.ids]))];
                let filter = format!("o.child_id = {}", self.database.blob(&original.receipt_id));
                self.copy("receipt_parents", &filter, &replaced, times).await?;
            }
        }
        Ok(originals.len() as u64)
    }

    async fn originals(&mut self, task: &str, assigned_ids: u64) -> Result<Vec<Original>> {
        let database = self.database;
        let sql = format!(
            "SELECT {}, {}, receipt_type FROM receipts WHERE task_id = {} ORDER BY seq",
            database.hex("receipt_id"),
            database.hex("parents"),
            database.blob(task)
        );
        let mut originals = Vec::new();
        for row in database.texts(&sql).await? {
            let [receipt_id, parents, kind] = &row[..] else { bail!("three columns were asked for") };
            let ids = if kind == "task.assigned" { assigned_ids } else { self.take() };
            originals.push(Original { receipt_id: receipt_id.clone(), parents: parents.clone(), ids });
        }
        if originals.is_empty() {
            bail!("the task {task} has no receipts");
        }
        Ok(originals)
    }

    async fn copy(&mut self, table: &str, filter: &str, replaced: &[(&str, String)], times: u64) -> Result<()> {
        let columns = self.database.columns(table).await?;
        // These two number the row itself.
        let columns: Vec<_> = columns.iter().filter(|column| *column != "seq" && *column != "xact").collect();
        let values = columns.iter().map(|column| {
            let replaced = replaced.iter().find(|(name, _)| name == column);
            replaced.map_or_else(|| format!("o.{column}"), |(_, value)| value.clone())
        });
        let values = values.collect::<Vec<_>>().join(", ");
        let names = columns.iter().map(|column| column.as_str()).collect::<Vec<_>>().join(", ");
        // From a table of its own: a statement that reads what it writes would be run over a copy of everything.
        self.statements.push("DROP TABLE IF EXISTS original".to_owned());
        self.statements.push(format!("CREATE TEMPORARY TABLE original AS SELECT o.* FROM {table} o WHERE {filter}"));
        self.statements.push(format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {times}) \
             INSERT INTO {table} ({names}) SELECT {values} FROM n CROSS JOIN original o"
        ));
        Ok(())
    }
}

impl Original {
    /// The ids of the copies of its parents. All of them are receipts of the same task.
    fn parents_in(&self, originals: &[Original]) -> Result<Vec<u64>> {
        const HEX_CHARS: usize = 32;
        let parents = self.parents.as_bytes().chunks(HEX_CHARS);
        let ids = parents.map(|parent| {
            let found = originals.iter().find(|original| original.receipt_id.as_bytes() == parent);
            found.map(|found| found.ids).context("a receipt refers to one of another task")
        });
        ids.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_become_the_copies_of_themselves() {
        let receipt = |digit: &str, parents: String, ids| Original { receipt_id: digit.repeat(32), parents, ids };
        let both = format!("{}{}", "B".repeat(32), "A".repeat(32));
        let originals = [receipt("A", String::new(), 1), receipt("B", "A".repeat(32), 2), receipt("C", both, 3)];
        let parents = originals.each_ref().map(|original| original.parents_in(&originals).unwrap());
        assert_eq!(parents, [vec![], vec![1], vec![2, 1]]);
        assert!(receipt("D", "E".repeat(32), 4).parents_in(&originals).is_err());
    }
}
