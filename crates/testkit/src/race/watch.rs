//! A look at the database beside both sides: what is in its tables, and whether somebody waits for a lock.
//!
//! It is taken twice for every schedule and at every step of it, which would cost more than the schedule itself: so the statements
//! are prepared once, one of them reads all tables, and it leaves out what is of earlier worlds and was not touched since.

use std::collections::BTreeSet;

use tokio_postgres::{Client, Row, Statement};
use waybill_kernel::Tenant;

use crate::postgres::Database;

/// Rows, as `table` and JSON.
pub(super) type Contents = BTreeSet<(String, String)>;

/// Every table, and whether its rows are tenants'.
const TABLES: &str = "SELECT c.relname::text, EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant') \
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'public' AND c.relkind = 'r' AND c.relname <> 'meta' AND c.relname NOT LIKE 'refinery%'";

/// Of this database, however many others the cluster has. A lock that was given counts as given at once, which it does not in what
/// `pg_stat_activity` says of the backend.
const WAITING: &str = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
                       WHERE NOT l.granted AND a.datname = current_database()";

/// The number of the next transaction. Clusters of tests are too young for more than 32 bits of it.
const NEXT: &str = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";

pub(super) struct Watcher {
    client: Client,
    contents: Statement,
    waiting: Statement,
    next: Statement,
}

/// What a tenant had, and from which transaction on.
pub(super) struct Before {
    pub(super) contents: Contents,
    tenant: Tenant,
    next: i64,
}

impl Watcher {
    pub(super) async fn new(database: &Database) -> anyhow::Result<Self> {
        let client = database.connect().await?;
        // Else the first looks at all tables would each be planned anew.
        client.batch_execute("SET plan_cache_mode = force_generic_plan").await?;
        let mut looks = Vec::new();
        for table in client.query(TABLES, &[]).await? {
            looks.push(look(table.try_get(0)?, table.try_get(1)?));
        }
        let contents = client.prepare(&looks.join(" UNION ALL ")).await?;
        let (waiting, next) = (client.prepare(WAITING).await?, client.prepare(NEXT).await?);
        Ok(Self { client, contents, waiting, next })
    }

    /// What is there of a tenant and of nobody.
    pub(super) async fn before(&self, tenant: Tenant) -> anyhow::Result<Before> {
        let next = self.client.query_one(&self.next, &[]).await?.try_get(0)?;
        let contents = self.contents(tenant, next).await?;
        Ok(Before { contents, tenant, next })
    }

    /// The same now, and whatever was written since for anybody else.
    pub(super) async fn after(&self, before: &Before) -> anyhow::Result<Contents> {
        self.contents(before.tenant, before.next).await
    }

    async fn contents(&self, tenant: Tenant, since: i64) -> anyhow::Result<Contents> {
        let rows = self.client.query(&self.contents, &[&tenant.0, &since]).await?;
        let entry = |row: &Row| -> anyhow::Result<(String, String)> { Ok((row.try_get(0)?, row.try_get(1)?)) };
        rows.iter().map(entry).collect()
    }

    /// Sides that wait for a lock.
    pub(super) async fn waiting(&self) -> anyhow::Result<i64> {
        Ok(self.client.query_one(&self.waiting, &[]).await?.try_get(0)?)
    }
}

/// The part of the statement that reads one table.
fn look(table: &str, is_tenants: bool) -> String {
    const WANTED: &str = "WHERE r.tenant = $1 OR age(r.xmin) <= (SELECT age($2::bigint::text::xid))";
    let wanted = if is_tenants { WANTED } else { "" };
    let rows = match table {
        // In which of its rows a connection counts says nothing.
        "stored_bytes" => {
            format!("(SELECT tenant, kind, sum(bytes) AS bytes FROM {table} r {wanted} GROUP BY tenant, kind) r")
        }
        table => format!("{table} r {wanted}"),
    };
    format!("SELECT '{table}'::text, to_jsonb(r)::text FROM {rows}")
}
