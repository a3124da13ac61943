//! Connecting, preparing the database, and keeping our clock by the server's.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};
use waybill_kernel::{Clock, Code, Entropy, Error, Result, Time};

use super::failure::describe;
use super::fence::{self, Fence};
use super::{Options, roles};
use crate::Migration;
use crate::migrate::{self, Engine, ROLE_SYSTEM};

/// Row-level security on views and the xid8 functions are as we need them from here on.
pub(super) const SERVER_VERSION_MIN: i32 = 15;
/// Any number, the same in every version of the program: migrations of one database run one at a time.
const MIGRATION_LOCK: i64 = 0x7761_7962_696c;

pub(super) fn config(options: &Options) -> Result<Config> {
    let mut config: Config = options.url.parse().map_err(|error: tokio_postgres::Error| {
        // The address may hold a password: its text goes nowhere, not even into the log.
        Error::new(Code::ConfigInvalid, format!("--store is not a PostgreSQL address: {error}."))
    })?;
    let timeout_ms = options.statement_timeout.as_millis();
    config
        .connect_timeout(options.connect_timeout)
        // After a fail-over the old primary may still answer, as a standby.
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        // A link that has gone silent is found within half a minute, not by the system's hours.
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        // Plans do not depend on the values; with `auto` PostgreSQL may plan a statement anew for every call.
        .options(format!(
            "-c plan_cache_mode=force_generic_plan -c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms} \
             -c idle_in_transaction_session_timeout={timeout_ms} -c default_transaction_isolation=read\\ committed"
        ));
    if config.get_application_name().is_none() {
        config.application_name("waybill");
    }
    fence::spread(&mut config);
    Ok(config)
}

/// Uses of a connection after which its statements are planned anew, and again whenever their number has doubled.
const REPLAN_USES_MIN: usize = 32;

pub(super) fn pool(config: &Config, options: &Options, fence: &Arc<Fence>) -> Result<Pool> {
    let patience = options.patience();
    let manager =
        Manager::from_config(config.clone(), NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    Pool::builder(manager)
        .max_size(options.lanes + options.readers + 2)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(options.connect_timeout))
        .create_timeout(Some(options.connect_timeout))
        .post_create(fence.on_create())
        .pre_recycle(fence.on_recycle())
        .post_recycle(Hook::async_fn(move |client, metrics| {
            // Plans that were made over empty tables take any index for as good as another and are kept until the tables
            // are analyzed, a minute or more. Made again as the tables grow, they are right from the first seconds on.
            let is_due = metrics.recycle_count >= REPLAN_USES_MIN && metrics.recycle_count.is_power_of_two();
            Box::pin(async move {
                if is_due {
                    within(patience, client.batch_execute("DISCARD PLANS")).await?;
                }
                Ok(())
            })
        }))
        .post_create(Hook::async_fn(move |client, _| {
            // A role or database default below `on` would make every answer a guess, at a fail-over at the latest.
            let durable = "SELECT set_config('synchronous_commit', 'on', false) \
                           WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')";
            Box::pin(within(patience, async move { client.batch_execute(durable).await }))
        }))
        .build()
        .map_err(Error::internal)
}

/// The pool has no deadline for its hooks, and a link may go silent at any time.
async fn within(
    patience: Duration,
    sent: impl Future<Output = std::result::Result<(), tokio_postgres::Error>>,
) -> std::result::Result<(), HookError> {
    match tokio::time::timeout(patience, sent).await {
        Ok(answered) => answered.map_err(HookError::Backend),
        Err(_) => Err(HookError::message("the server was silent for too long")),
    }
}

/// Roles, schema and the meta row; safe to run on several nodes at once.
pub(super) async fn prepare_database(
    config: &Config,
    fence: &Fence,
    migrations: &[Migration],
    entropy: &dyn Entropy,
) -> Result<()> {
    let (mut client, connection) = fence.connect(config).await.map_err(|refused| refused.into_error(unreachable))?;
    let prepared = prepare(&mut client, migrations, entropy).await;
    drop(client);
    let _ = connection.await;
    prepared
}

async fn prepare(client: &mut Client, migrations: &[Migration], entropy: &dyn Entropy) -> Result<()> {
    check_server(client).await?;
    // Migrations may take longer than any statement of a request.
    client.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0").await.map_err(|error| unusable(&error))?;
    client.execute("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await.map_err(|error| unusable(&error))?;
    roles::prepare(client).await?;
    let rendered = migrate::for_refinery(migrations, Engine::Postgres)?;
    let runner = refinery::Runner::new(&rendered);
    let exists = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&migrate::HISTORY]).await;
    let applied = match exists.map_err(|error| unusable(&error))?.get(0) {
        true => runner.get_applied_migrations_async(client).await.map_err(|error| not_migrated(&error))?,
        false => Vec::new(),
    };
    migrate::refuse_newer(&applied, migrations)?;
    if applied.len() < rendered.len() {
        runner.run_async(client).await.map_err(|error| not_migrated(&error))?;
    }
    refuse_the_future(client).await?;
    let mut database_id = [0_u8; 16];
    entropy.fill(&mut database_id);
    let meta = "INSERT INTO meta (id, database_id, commit_seq, clock_us, probe_us) VALUES (1, $1, 0, 0, 0) \
                ON CONFLICT (id) DO NOTHING";
    client.execute(meta, &[&database_id.as_slice()]).await.map_err(|error| unusable(&error))?;
    Ok(())
}

/// Rows are given out in the order of their transactions' numbers. A dump that was restored into a younger cluster has rows
/// of transactions that are still to come there: they would be withheld, and new ones passed over, until it has caught up.
async fn refuse_the_future(client: &mut Client) -> Result<()> {
    const TABLES: &str = "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'xact' \
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = current_schema() \
        AND EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum)";
    let tables = client.query(TABLES, &[]).await.map_err(|error| unusable(&error))?;
    let transaction = client.transaction().await.map_err(|error| unusable(&error))?;
    transaction.batch_execute(&format!("SET LOCAL ROLE {ROLE_SYSTEM}")).await.map_err(|error| unusable(&error))?;
    for table in tables.iter().map(|row| row.get::<_, String>(0)) {
        let sql = format!(
            "SELECT max(xact), pg_snapshot_xmax(pg_current_snapshot())::text::bigint FROM {table} \
             HAVING max(xact) >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        );
        if let Some(row) = transaction.query_opt(&sql, &[]).await.map_err(|error| unusable(&error))? {
            let (found, next): (i64, i64) = (row.get(0), row.get(1));
            let message = format!(
                "The table {table} holds rows of transaction {found}, and this PostgreSQL cluster has only come to {next}: the \
                 database was restored by pg_restore into a younger cluster. Restore a physical backup (pg_basebackup); or \
                 stop this cluster, advance it with `pg_resetwal --next-transaction-id` (and `--epoch`) past {found}, and \
                 start again."
            );
            return Err(Error::new(Code::DatabaseUnusable, message));
        }
    }
    transaction.commit().await.map_err(|error| unusable(&error))
}

async fn check_server(client: &Client) -> Result<()> {
    let sql = "SELECT current_setting('server_version_num')::int / 10000, current_setting('fsync')";
    let row = client.query_one(sql, &[]).await.map_err(|error| unusable(&error))?;
    let (version, fsync): (i32, String) = (row.get(0), row.get(1));
    if version < SERVER_VERSION_MIN {
        let message = format!("PostgreSQL {version} is too old: {SERVER_VERSION_MIN} or newer is needed.");
        return Err(Error::new(Code::DatabaseUnusable, message));
    }
    if fsync == "off" {
        tracing::warn!("PostgreSQL runs with fsync=off: what it has acknowledged does not survive a power cut");
    }
    Ok(())
}

/// The clock goes by the database's, and begins no earlier than any node is known to have been.
pub(super) async fn begin_clock(pool: &Pool, clock: &Clock) -> Result<()> {
    clock.begin_at(database_now(pool).await?);
    let stored = client(pool).await?.query_one("SELECT clock_us FROM meta WHERE id = 1", &[]).await;
    clock.raise_to(Time::from_micros(stored.map_err(|error| unusable(&error))?.get(0)));
    Ok(())
}

/// Also writes down how far time has come, for those who start after the database's clock was set back.
pub(super) async fn keep_anchored(pool: Pool, clock: Arc<Clock>, interval: Duration) {
    const STORE: &str = "UPDATE meta SET clock_us = $1 WHERE id = 1 AND clock_us < $1";
    loop {
        tokio::time::sleep(interval).await;
        let Ok(now) = database_now(&pool).await else { continue };
        clock.anchor(now);
        let Ok(client) = client(&pool).await else { continue };
        if let Err(error) = client.execute(STORE, &[&clock.now().micros()]).await {
            tracing::warn!(error = describe(&error), "the time could not be written down; the next attempt is to come");
        }
    }
}

async fn database_now(pool: &Pool) -> Result<Time> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let row = client(pool).await?.query_one(sql, &[]).await.map_err(|error| unusable(&error))?;
    Ok(Time::from_micros(row.get(0)))
}

async fn client(pool: &Pool) -> Result<deadpool_postgres::Object> {
    let unavailable = || Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title);
    pool.get().await.map_err(|error| unavailable().because(error))
}

pub(super) fn unreachable(error: &tokio_postgres::Error) -> Error {
    let message = format!("PostgreSQL cannot be reached: {}.", describe(error));
    Error::new(Code::StoreUnavailable, message).with_cure(way_in(error.code()))
}

/// What to do about a connection that PostgreSQL, or nobody, has answered like this.
fn way_in(state: Option<&SqlState>) -> &'static str {
    match state {
        None => "Start PostgreSQL, or correct the address in --store; then try again.",
        Some(state) if state.code().starts_with("28") => {
            "Correct the user or the password in --store, or what pg_hba.conf allows; then try again."
        }
        Some(&SqlState::INVALID_CATALOG_NAME) => "Make the database with `createdb`, or name another in --store.",
        Some(&SqlState::CANNOT_CONNECT_NOW) => {
            "PostgreSQL is starting or stopping: try again when it takes connections."
        }
        Some(&SqlState::TOO_MANY_CONNECTIONS) => "Raise max_connections, or end connections of others; then try again.",
        Some(_) => "See PostgreSQL's own log for the reason, then try again.",
    }
}

pub(super) fn unusable(error: &tokio_postgres::Error) -> Error {
    let message = format!("PostgreSQL refused: {}.", describe(error));
    let cure = match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            "Let the user in --store own the database, or grant it what the message names; then try again."
        }
        _ => "See PostgreSQL's own log for the reason, then try again.",
    };
    Error::new(Code::DatabaseUnusable, message).with_cure(cure)
}

fn not_migrated(error: &refinery::Error) -> Error {
    let message = format!("The database's schema could not be brought up to date: {error}.");
    Error::new(Code::DatabaseUnusable, message).with_cure(migrate::WAY_BACK)
}
