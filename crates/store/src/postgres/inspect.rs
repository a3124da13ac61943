//! A look at a PostgreSQL database that changes nothing: is it set up as the program needs it, and does it keep its word?

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::{Client, NoTls, Row};
use waybill_kernel::{Code, Error, Result, Time};

use super::roles::{self, Login};
use super::{Options, connect};
use crate::effects::{DeadJobs, SweepState};
use crate::migrate::{HISTORY, ROLE_APP, ROLE_SYSTEM};
use crate::postgres::failure::describe;

/// Each rule's rows are findings; `$1` is the role of tenants, `$2` the system's.
const RULES: &[&str] = &[
    "SELECT r.name || ' does not exist' FROM unnest(ARRAY[$1, $2]) AS r (name) \
     WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = r.name)",
    "SELECT rolname || ' is a superuser, may log in, or is not bound by row-level security' FROM pg_roles \
     WHERE rolname IN ($1, $2) AND (rolsuper OR rolbypassrls OR rolcanlogin)",
    "SELECT current_user || ' may not become ' || rolname FROM pg_roles \
     WHERE rolname IN ($1, $2) AND NOT pg_has_role(current_user, oid, 'MEMBER')",
    "SELECT t.name || ': row-level security is not both enabled and forced' FROM tables t \
     WHERE t.has_tenant AND NOT (t.relrowsecurity AND t.relforcerowsecurity)",
    "SELECT t.name || ': tenants are not held apart by exactly one policy that compares the tenant' FROM tables t \
     WHERE t.has_tenant AND 1 <> (SELECT count(*) FROM pg_policies p WHERE p.schemaname = 'public' \
     AND p.tablename = t.name AND p.roles @> ARRAY[$1::name] AND p.cmd = 'ALL' AND p.qual = p.with_check AND p.qual = \
     '(tenant = (NULLIF(current_setting(''app.tenant_id''::text, true), ''''::text))::bigint)')",
    "SELECT p.tablename || ': policy ' || p.policyname || ' is not one of ours' FROM pg_policies p \
     WHERE p.schemaname = 'public' AND p.policyname NOT IN ('tenant_rows', 'system_rows')",
    "SELECT t.name || ': ' || $1 || ' may read or change a table that has no tenant' FROM tables t \
     JOIN pg_roles r ON r.rolname = $1 \
     WHERE NOT t.has_tenant AND has_table_privilege(r.oid, t.oid, 'SELECT, INSERT, UPDATE, DELETE')",
];

const TABLES: &str = "WITH tables AS (SELECT c.oid, c.relname AS name, c.relrowsecurity, c.relforcerowsecurity, \
     EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped) \
     AS has_tenant FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')), parameters AS (SELECT $1::text, $2::text) ";

/// Where a database is, without the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
    pub database: String,
}

impl Address {
    /// Of the first host the address names.
    pub fn of(options: &Options) -> Result<Self> {
        let config = connect::config(options)?;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(folder)) => folder.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let database = config.get_dbname().or_else(|| config.get_user()).unwrap_or("postgres").to_owned();
        Ok(Self { host, port, database })
    }
}

pub struct PostgresInspection {
    client: Client,
    connection: AbortHandle,
}

/// What the server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub version: String,
    pub is_supported: bool,
    pub fsync: bool,
    pub full_page_writes: bool,
    /// The setting a session of ours begins with.
    pub synchronous_commit: String,
    /// A standby takes no writes.
    pub is_standby: bool,
    pub connections_max: i64,
    pub now: Time,
}

/// A server that follows this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    pub name: String,
    pub state: String,
    /// `async`, `sync` or `quorum`.
    pub sync: String,
    /// How far behind, in bytes of the log; None while nobody can say.
    pub lag_bytes: Option<i64>,
}

/// A transaction that writes and has not ended. Feeds give out nothing of those that began after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWrite {
    /// None for one that is prepared: no process has it.
    pub pid: Option<i64>,
    pub database: String,
    /// None where this user may not see it.
    pub age: Option<Duration>,
}

impl PostgresInspection {
    pub async fn open(options: &Options) -> Result<Self> {
        let mut config = connect::config(options)?;
        // A standby is to be told of, not passed over.
        config.target_session_attrs(TargetSessionAttrs::Any);
        let (client, connection) = config.connect(NoTls).await.map_err(|error| connect::unreachable(&error))?;
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        let look = Self { client, connection: connection.abort_handle() };
        look.client.batch_execute("SET default_transaction_read_only = on").await.map_err(|error| refused(&error))?;
        Ok(look)
    }

    pub async fn server(&self) -> Result<Server> {
        const ASK: &str = "SELECT current_setting('server_version'), \
             current_setting('server_version_num')::bigint / 10000, current_setting('fsync') = 'on', \
             current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'), pg_is_in_recovery(), \
             current_setting('max_connections')::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let row = self.client.query_one(ASK, &[]).await.map_err(|error| refused(&error))?;
        Ok(Server {
            version: get(&row, 0)?,
            is_supported: get::<i64>(&row, 1)? >= i64::from(connect::SERVER_VERSION_MIN),
            fsync: get(&row, 2)?,
            full_page_writes: get(&row, 3)?,
            synchronous_commit: get(&row, 4)?,
            is_standby: get(&row, 5)?,
            connections_max: get(&row, 6)?,
            now: Time::from_micros(get(&row, 7)?),
        })
    }

    /// Those that follow, as far as this user may see them.
    pub async fn replicas(&self) -> Result<Vec<Replica>> {
        const ASK: &str = "SELECT coalesce(application_name, ''), coalesce(state, 'not shown to this user'), \
             coalesce(sync_state, 'unknown'), \
             CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint END \
             FROM pg_stat_replication ORDER BY 1";
        let rows = self.client.query(ASK, &[]).await.map_err(|error| refused(&error))?;
        let replica = |row: &Row| {
            Ok(Replica { name: get(row, 0)?, state: get(row, 1)?, sync: get(row, 2)?, lag_bytes: get(row, 3)? })
        };
        rows.iter().map(replica).collect()
    }

    /// The oldest of this database, of whichever program: the horizon of feeds is that of all of them.
    pub async fn oldest_write(&self) -> Result<Option<OpenWrite>> {
        const ASK: &str = "SELECT pid::bigint, coalesce(database, 'unknown'), \
             extract(epoch FROM clock_timestamp() - began)::bigint FROM \
             (SELECT pid, datname::text, xact_start, backend_xid FROM pg_stat_activity WHERE backend_xid IS NOT NULL \
             UNION ALL SELECT NULL, database::text, prepared, transaction FROM pg_prepared_xacts) \
             AS writes (pid, database, began, xid) WHERE database = current_database() ORDER BY age(xid) DESC LIMIT 1";
        let Some(row) = self.client.query_opt(ASK, &[]).await.map_err(|error| refused(&error))? else {
            return Ok(None);
        };
        let age_s: Option<i64> = get(&row, 2)?;
        let age = age_s.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        Ok(Some(OpenWrite { pid: get(&row, 0)?, database: get(&row, 1)?, age }))
    }

    /// The newest migration the database has seen; None before the first start.
    pub async fn schema(&self) -> Result<Option<i64>> {
        let exists = self.client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&HISTORY]).await;
        if !get::<bool>(&exists.map_err(|error| refused(&error))?, 0)? {
            return Ok(None);
        }
        let newest = format!("SELECT max(version)::bigint FROM {HISTORY}");
        get(&self.client.query_one(&newest, &[]).await.map_err(|error| refused(&error))?, 0)
    }

    /// Who the server logs in as, and whether it is held to the policies.
    pub async fn login(&self) -> Result<Login> {
        roles::standing(&self.client).await
    }

    /// What is wrong with roles, policies and grants.
    pub async fn access_findings(&self) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        for rule in RULES {
            let sql = format!("{TABLES}{rule}");
            let rows = self.client.query(&sql, &[&ROLE_APP, &ROLE_SYSTEM]).await.map_err(|error| refused(&error))?;
            for row in &rows {
                findings.push(get(row, 0)?);
            }
        }
        Ok(findings)
    }

    pub async fn sweeps(&self) -> Result<Vec<SweepState>> {
        let rows = self.as_system(SweepState::SELECT).await?;
        let state = |row: &Row| {
            Ok(SweepState {
                name: get(row, 0)?,
                interval_us: get(row, 1)?,
                next_at: Time::from_micros(get(row, 2)?),
                last_error: get(row, 3)?,
            })
        };
        rows.iter().map(state).collect()
    }

    pub async fn dead_jobs(&self) -> Result<Vec<DeadJobs>> {
        let rows = self.as_system(DeadJobs::SELECT).await?;
        rows.iter().map(|row| Ok(DeadJobs { kind: get(row, 0)?, count: get(row, 1)? })).collect()
    }

    /// Runs an audit query that a domain supplies and returns at most `max` of the ids it finds.
    pub async fn ids(&self, sql: &str, max: usize) -> Result<Vec<Vec<u8>>> {
        let rows = self.as_system(&format!("{sql} LIMIT {max}")).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// Runs an audit query that a domain supplies and returns the one text it finds.
    pub async fn text(&self, sql: &str) -> Result<Option<String>> {
        self.as_system(sql).await?.first().map(|row| get(row, 0)).transpose()
    }

    /// Runs an audit query that a domain supplies and returns the texts it finds.
    pub async fn texts(&self, sql: &str) -> Result<Vec<String>> {
        self.as_system(sql).await?.iter().map(|row| get(row, 0)).collect()
    }

    /// The owner of the tables is bound by their policies and sees nothing. A look at whole tables may take longer than a
    /// request may.
    async fn as_system(&self, sql: &str) -> Result<Vec<Row>> {
        let begin = format!("BEGIN READ ONLY; SET LOCAL ROLE {ROLE_SYSTEM}; SET LOCAL statement_timeout = 0");
        self.client.batch_execute(&begin).await.map_err(|error| refused(&error))?;
        let rows = self.client.query(sql, &[]).await;
        let _ = self.client.batch_execute("ROLLBACK").await;
        rows.map_err(|error| refused(&error))
    }
}

impl Drop for PostgresInspection {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T> {
    row.try_get(at).map_err(Error::internal)
}

fn refused(error: &tokio_postgres::Error) -> Error {
    Error::new(Code::DatabaseUnusable, format!("PostgreSQL refused: {}.", describe(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_without_its_password() {
        let options = Options::at("postgres://me:hunter2@db.example:6432,other/waybill");
        let address = Address::of(&options).unwrap();
        assert_eq!((address.host.as_str(), address.port, address.database.as_str()), ("db.example", 6432, "waybill"));
        assert!(!format!("{address:?}").contains("hunter2"));
    }
}
