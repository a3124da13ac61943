//! The text of a statement, checked once when it is first prepared.
//!
//! In a tenant's transaction `$1` is the tenant and Tx binds it. A statement that reads or writes a tenant table
//! without saying so would reach across tenants (SQLite has no row-level security), so it is refused here: every
//! mention of a tenant table must be matched by a mention of `$1`.

use std::collections::HashSet;

use waybill_kernel::{Error, Result};

/// The names of the tables that carry a tenant, read from the migrations.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantTables(HashSet<String>);

impl TenantTables {
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    /// # Contract
    /// Lexical and strict: whatever looks like a tenant table counts as one, so a doubtful statement is refused rather
    /// than sent. Comments are not used in our statements.
    pub(crate) fn check(&self, sql: &str) -> Result<()> {
        let tables = words(sql).filter(|word| self.0.contains(&word.to_ascii_lowercase())).count();
        if tables > parameters(sql).filter(|number| *number == 1).count() {
            return Err(Error::internal(format!("a statement on a tenant table does not use $1: {sql}")));
        }
        Ok(())
    }
}

/// The words but for those before a dot: `tasks.owner` is a column of a table that is named elsewhere.
fn words(sql: &str) -> impl Iterator<Item = &str> {
    let separates = |c: char| !(c.is_alphanumeric() || c == '_' || c == '$');
    sql.split_inclusive(separates)
        .filter(|piece| !piece.ends_with('.'))
        .map(move |piece| piece.trim_end_matches(separates))
}

/// The numbers of the `$n` in the text, in order.
fn parameters(sql: &str) -> impl Iterator<Item = usize> + '_ {
    sql.split('$').skip(1).filter_map(|rest| {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    })
}

/// Rows that another transaction is about to change are passed over, and the others kept for this one. SQLite's writer
/// is alone and has nobody to pass over.
const ROW_LOCK: &str = "FOR UPDATE SKIP LOCKED";

/// A feed over all tenants. On SQLite `xact` is 0 in every row and `seq` is the rowid, so its order needs no index.
const FEED_ORDER: &str = "(xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq";
const FEED_ORDER_SQLITE: &str = "$1 = 0 AND seq > $2 AND $3 > 0 ORDER BY seq";

/// `$n` is a named parameter to SQLite, numbered by first appearance; `?n` keeps its number.
pub(crate) fn for_sqlite(sql: &str) -> String {
    sql.replace(ROW_LOCK, "").replace(FEED_ORDER, FEED_ORDER_SQLITE).replace('$', "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_must_bind_the_tenant_once_per_tenant_table() {
        let tables = TenantTables::new(["tasks".to_owned(), "receipts".to_owned()]);
        for good in [
            "SELECT id FROM tasks WHERE tenant = $1 AND id = $2",
            "INSERT INTO tasks (tenant, id) VALUES ($1, $2)",
            "UPDATE tasks SET status = $2 WHERE tenant = $1",
            "SELECT 1 FROM tasks t JOIN receipts r ON r.tenant = $1 AND r.task_id = t.id WHERE t.tenant = $1",
            "SELECT tasks.id FROM tasks WHERE tasks.tenant = $1",
            "SELECT value FROM meta WHERE id = 1",
        ] {
            tables.check(good).unwrap();
        }
        for bad in [
            "SELECT id FROM tasks WHERE id = $2",
            "SELECT id FROM tasks WHERE id = $11",
            "DELETE FROM receipts",
            "SELECT 1 FROM tasks t JOIN receipts r ON r.task_id = t.id WHERE t.tenant = $1",
            "SELECT 1 FROM tasks, receipts WHERE tasks.tenant = $1",
            "UPDATE tasks SET status = $2 WHERE id IN (SELECT task_id FROM receipts WHERE tenant = $1)",
            "select id from Tasks",
            "SELECT id FROM public.tasks",
            "SELECT id FROM \"tasks\"",
            "DELETE FROM tasks USING receipts WHERE tasks.tenant = $1",
        ] {
            assert!(tables.check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_feed_over_all_tenants_follows_the_rowid_on_sqlite() {
        let sql =
            "SELECT xact, seq FROM receipts WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4";
        let text = "SELECT xact, seq FROM receipts WHERE ?1 = 0 AND seq > ?2 AND ?3 > 0 ORDER BY seq LIMIT ?4";
        assert_eq!(for_sqlite(sql), text);
    }

    #[test]
    fn parameters_keep_their_numbers_on_sqlite() {
        assert_eq!(for_sqlite("SELECT $2, $1, $10"), "SELECT ?2, ?1, ?10");
        assert_eq!(for_sqlite("SELECT 1 LIMIT $1 FOR UPDATE SKIP LOCKED"), "SELECT 1 LIMIT ?1 ");
    }
}
