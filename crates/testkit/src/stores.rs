//! A whole store for one test: fresh database, every migration, the default tenant, callers.
//!
//! Tenants and keys are made by the real operations, so that a test starts from what a server would have made.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use waybill_access::ServerKey;
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Caller, Clock, Error, Mode, Principal, Result, Role, Roles, Scope, Scopes, Tenant};
use waybill_store::{
    Backend, Ctx, PostgresOptions, Registry, Row, Settings, Shard, SqliteOptions, Store, StoreRole, StoredCaps, Stores,
    Tx, Value, Work,
};
use waybill_tasks::Process;

use crate::postgres::{Database, Postgres};

/// Longer than any test keeps a transaction open, and shorter than a race waits for its sides.
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// A machine that stands still for some seconds is no failure of the database.
const CONNECT_MAX: Duration = Duration::from_secs(20);
const STATEMENT_MAX: Duration = Duration::from_secs(60);
const RETRY_FOR: Duration = Duration::from_secs(30);

/// Longer than any wait.
const NO_POLL: Duration = Duration::from_secs(60);

/// A receive looks into every partition, also on a machine that is busy with other tests.
const PASS_MAX: Duration = Duration::from_secs(60);

/// SQLite's stores begin here; PostgreSQL's begin at the database's own time.
const START_US: i64 = 1_700_000_000_000_000;

pub struct TestStore {
    /// Home.
    pub store: Store,
    /// Home, and those beside it.
    pub stores: Stores,
    /// The clock's source. On PostgreSQL the clock begins at the database's time and then moves only by this one.
    pub time: ManualSource,
    /// What the server remembers beside its database.
    pub process: Process,
    /// Every operation of the product.
    pub registry: Registry,
    /// The admin of the default tenant.
    pub admin: Caller,
    home: Home,
    /// The databases of those beside home.
    shards: Vec<Database>,
}

enum Home {
    Folder(TempDir),
    Database(Database),
}

/// What an operation answered, decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    pub json: Json,
    pub replay: bool,
}

pub async fn open_sqlite() -> anyhow::Result<TestStore> {
    open_sqlite_with(|_| {}).await
}

/// Settings that a test may want to be other than the usual ones.
#[derive(Default)]
pub struct Chosen {
    pub tasks: waybill_tasks::Settings,
    pub queues: waybill_queues::Settings,
    pub mail: waybill_mail::Settings,
    pub mesh: waybill_mesh::Settings,
    pub mesh_limits: waybill_mesh::Limits,
    pub stored: StoredCaps,
}

impl From<StoredCaps> for Chosen {
    fn from(stored: StoredCaps) -> Self {
        Self { stored, ..Self::default() }
    }
}

impl From<waybill_mesh::Settings> for Chosen {
    fn from(mesh: waybill_mesh::Settings) -> Self {
        Self { mesh, ..Self::default() }
    }
}

impl From<waybill_mail::Settings> for Chosen {
    fn from(mail: waybill_mail::Settings) -> Self {
        Self { mail, ..Self::default() }
    }
}

impl From<waybill_tasks::Settings> for Chosen {
    fn from(tasks: waybill_tasks::Settings) -> Self {
        Self { tasks, ..Self::default() }
    }
}

impl From<waybill_queues::Settings> for Chosen {
    fn from(queues: waybill_queues::Settings) -> Self {
        Self { queues, ..Self::default() }
    }
}

/// With settings that are not the usual ones.
pub async fn open_sqlite_set(chosen: impl Into<Chosen>) -> anyhow::Result<TestStore> {
    let folder = tempfile::tempdir()?;
    let options = SqliteOptions::at(folder.path().join("waybill.db"));
    TestStore::open_set(Backend::Sqlite(options), Home::Folder(folder), chosen.into()).await
}

pub async fn open_postgres_set(chosen: impl Into<Chosen>) -> anyhow::Result<TestStore> {
    let database = Postgres::shared().await?.migrated().await?;
    let options = postgres_options(&database.url);
    TestStore::open_set(Backend::Postgres(options), Home::Database(database), chosen.into()).await
}

/// For the macro `both`.
pub fn usual_settings() -> Chosen {
    Chosen::default()
}

/// How a test reaches its database: with patience, and by a clock that is the test's own.
pub fn postgres_options(url: &str) -> PostgresOptions {
    let mut options = PostgresOptions::at(url);
    options.connect_timeout = CONNECT_MAX;
    options.statement_timeout = STATEMENT_MAX;
    options.retry_for = RETRY_FOR;
    // A race holds its transactions open for as long as it wants.
    options.settle_max = SETTLE_MAX;
    // Drawn to the database's, the clock would pass fewer seconds than it is told.
    options.clock_interval = Duration::MAX;
    options
}

pub async fn open_sqlite_with(adjust: impl FnOnce(&mut SqliteOptions)) -> anyhow::Result<TestStore> {
    let folder = tempfile::tempdir()?;
    let mut options = SqliteOptions::at(folder.path().join("waybill.db"));
    adjust(&mut options);
    TestStore::open(Backend::Sqlite(options), Home::Folder(folder)).await
}

/// On the file of a folder that may hold one already.
pub async fn open_sqlite_in(folder: TempDir) -> anyhow::Result<TestStore> {
    let options = SqliteOptions::at(folder.path().join("waybill.db"));
    TestStore::open(Backend::Sqlite(options), Home::Folder(folder)).await
}

pub async fn open_postgres() -> anyhow::Result<TestStore> {
    open_postgres_with(|_| {}).await
}

pub async fn open_postgres_with(adjust: impl FnOnce(&mut PostgresOptions)) -> anyhow::Result<TestStore> {
    open_postgres_in(Postgres::shared().await?.migrated().await?, adjust).await
}

/// Where no wait looks again by itself: only a wake ends it in time.
pub async fn open_postgres_unpolled() -> anyhow::Result<TestStore> {
    open_postgres_with(|options| options.wait_poll = NO_POLL).await
}

/// In a database of the caller's choosing: on a private cluster, say.
pub async fn open_postgres_in(
    database: Database,
    adjust: impl FnOnce(&mut PostgresOptions),
) -> anyhow::Result<TestStore> {
    let mut options = postgres_options(&database.url);
    adjust(&mut options);
    TestStore::open(Backend::Postgres(options), Home::Database(database)).await
}

/// A store alone, as a second node opens it.
pub async fn open(backend: Backend, time: &ManualSource) -> Result<Store> {
    open_as(backend, time, Process::default(), Chosen::default()).await
}

/// As `open`, with settings of domains beside the usual ones.
pub async fn open_with(
    backend: Backend,
    time: &ManualSource,
    more: impl FnOnce(Settings) -> Settings,
) -> Result<Store> {
    let clock = Arc::new(Clock::new(time.clone()));
    let settings = more(usual(Process::default(), Chosen::default()));
    Store::open(backend, &waybill_domains::migrations(), settings, clock, Arc::new(OsEntropy)).await
}

async fn open_as(backend: Backend, time: &ManualSource, process: Process, chosen: Chosen) -> Result<Store> {
    let clock = Arc::new(Clock::new(time.clone()));
    let settings = usual(process, chosen);
    Store::open(backend, &waybill_domains::migrations(), settings, clock, Arc::new(OsEntropy)).await
}

fn usual(process: Process, chosen: Chosen) -> Settings {
    Settings::default()
        .with(chosen.tasks)
        .with(chosen.queues)
        .with(chosen.mail)
        .with(chosen.mesh)
        .with(chosen.mesh_limits)
        .with(chosen.stored)
        .with(process)
        .with(waybill_webhooks::Settings::default())
        .with(waybill_mail::archive_health::ArchiveHealth::default())
        .with(waybill_queues::Limiter::default())
        .with(waybill_queues::Process::default().with_pass_max(PASS_MAX))
        .with(ServerKey::generate(&OsEntropy))
}

impl TestStore {
    async fn open(backend: Backend, home: Home) -> anyhow::Result<Self> {
        Self::open_set(backend, home, Chosen::default()).await
    }

    async fn open_set(backend: Backend, home: Home, chosen: Chosen) -> anyhow::Result<Self> {
        let time = ManualSource::at(START_US);
        let process = Process::default();
        let store = open_as(backend, &time, process.clone(), chosen).await.map_err(readable)?;
        waybill_access::ensure_default_tenant(&store).await?;
        let admin = waybill_access::admin_caller(&store).await?;
        let (stores, registry) = (Stores::from(store.clone()), waybill_domains::registry());
        Ok(Self { store, stores, time, process, registry, admin, home, shards: Vec::new() })
    }

    /// The database behind a PostgreSQL store.
    pub fn database(&self) -> anyhow::Result<&Database> {
        match &self.home {
            Home::Database(database) => Ok(database),
            Home::Folder(_) => anyhow::bail!("this store is on SQLite"),
        }
    }

    /// The file behind a SQLite store.
    pub fn file(&self) -> anyhow::Result<PathBuf> {
        match &self.home {
            Home::Folder(folder) => Ok(folder.path().join("waybill.db")),
            Home::Database(_) => anyhow::bail!("this store is on PostgreSQL"),
        }
    }

    /// Another node on the same PostgreSQL database.
    pub async fn second_node(&self, adjust: impl FnOnce(&mut PostgresOptions)) -> anyhow::Result<Store> {
        let mut options = postgres_options(&self.database()?.url);
        adjust(&mut options);
        open(Backend::Postgres(options), &self.time).await.map_err(readable)
    }

    /// An agent of the default tenant.
    pub fn agent(&self, id: &str) -> anyhow::Result<Caller> {
        caller(&self.admin, &format!("agent:{id}"), &[Role::Agent])
    }

    /// Makes a tenant and answers with its admin.
    pub async fn tenant(&self, name: &str) -> anyhow::Result<Caller> {
        self.call(&self.admin, "create_tenant", json!({ "name": name })).await.map_err(readable)?;
        let (sql, params) = ("SELECT tenant, tenant_id FROM tenants WHERE name = $1", vec![name.to_owned()]);
        let rows = self.store.system().run(Statement { sql, params, mode: Mode::Read }).await?;
        let row = rows.first().context("the tenant has no row")?;
        let (tenant, tenant_id) = (Tenant(row.int(0)?), Uuid::from_slice(row.bytes(1)?)?);
        caller(&Caller { tenant, tenant_id, ..self.admin.clone() }, "human:admin", &[Role::Admin])
    }

    /// An operation by its name, decoded and encoded as a door does it.
    pub async fn call(&self, caller: &Caller, name: &str, input: Json) -> Result<Answered> {
        self.call_in(&self.stores, caller, name, input).await
    }

    /// As `call`, on another node.
    pub async fn call_on(&self, store: &Store, caller: &Caller, name: &str, input: Json) -> Result<Answered> {
        self.call_in(&Stores::from(store.clone()), caller, name, input).await
    }

    async fn call_in(&self, stores: &Stores, caller: &Caller, name: &str, input: Json) -> Result<Answered> {
        let entry = self.registry.find(name).ok_or_else(|| Error::internal(format!("there is no operation {name}")))?;
        let answer = entry.call(stores, caller, &input.to_string()).await?;
        let json = serde_json::from_str(&answer.json).map_err(Error::internal)?;
        Ok(Answered { json, replay: answer.replay })
    }

    /// Rows of every tenant in all stores, home first, as the program's own work sees them.
    pub async fn rows(&self, sql: &str) -> Result<Vec<Row>> {
        self.rows_with(sql, &[]).await
    }

    pub async fn rows_with(&self, sql: &str, params: &[&str]) -> Result<Vec<Row>> {
        let (params, sql): (Vec<String>, _) = (params.iter().map(|text| (*text).to_owned()).collect(), leak(sql));
        let mut rows = Vec::new();
        for store in self.stores.all() {
            rows.extend(store.system().run(Statement { sql, params: params.clone(), mode: Mode::Read }).await?);
        }
        Ok(rows)
    }

    /// What every tenant has stored is what was counted, in all stores.
    pub async fn check_stored_bytes(&self) {
        for (index, store) in self.stores.all().enumerate() {
            let role = if index == 0 { StoreRole::Home } else { StoreRole::Shard };
            let found = store.system().run(waybill_domains::CompareStored(role)).await.map_err(readable);
            assert!(matches!(&found, Ok(found) if found.is_empty()), "{}: {found:?}", store.name());
        }
    }

    /// A statement of the program's own work that writes.
    pub async fn write(&self, sql: &str) -> Result<Vec<Row>> {
        let (mut rows, sql) = (Vec::new(), leak(sql));
        for store in self.stores.all() {
            rows.extend(store.system().run(Statement { sql, params: Vec::new(), mode: Mode::Write }).await?);
        }
        Ok(rows)
    }

    /// The one number a statement asks for, of all stores together.
    pub async fn count(&self, sql: &str) -> Result<i64> {
        let rows = self.rows(sql).await?;
        rows.first().ok_or_else(|| Error::internal("a count without a row"))?;
        rows.iter().map(|row| row.int(0)).sum()
    }

    /// With other stores beside home, on the same engine, by these names.
    pub async fn with_shards(mut self, names: &[&str]) -> anyhow::Result<Self> {
        if matches!(self.home, Home::Database(_)) {
            for _ in names {
                self.shards.push(Postgres::shared().await?.database().await?);
            }
        }
        self.stores = self.beside(self.store.clone(), &self.shards(names)).await.map_err(readable)?;
        Ok(self)
    }

    /// As they were opened by `with_shards`.
    pub fn shards(&self, names: &[&str]) -> Vec<Shard> {
        let backend = |index: usize, name: &str| match &self.home {
            Home::Folder(folder) => Backend::Sqlite(SqliteOptions::at(folder.path().join(format!("{name}.db")))),
            Home::Database(_) => Backend::Postgres(postgres_options(&self.shards[index].url)),
        };
        let shard = |(index, name): (usize, &&str)| Shard { name: (*name).to_owned(), backend: backend(index, name) };
        names.iter().enumerate().map(shard).collect()
    }

    /// Opens stores beside a home.
    pub async fn beside(&self, home: Store, shards: &[Shard]) -> Result<Stores> {
        let time = self.time.clone();
        let clock = move || Arc::new(Clock::new(time.clone()));
        Stores::open(home, shards, &waybill_domains::migrations_of(StoreRole::Shard), clock).await
    }
}

/// Somebody of the same tenant as `of`, with the scopes those roles usually have.
pub fn caller(of: &Caller, principal: &str, roles: &[Role]) -> anyhow::Result<Caller> {
    let principal: Principal = principal.parse()?;
    let scopes: Vec<Scope> = roles.iter().flat_map(|role| role.default_scopes().iter().copied()).collect();
    ensure!(!roles.is_empty(), "a caller has a role");
    Ok(Caller { principal, roles: Roles::new(roles.iter().copied()), scopes: Scopes::new(scopes), ..of.clone() })
}

/// Somebody of the default tenant who may use mail, which no role brings along.
#[expect(clippy::expect_used, reason = "for tests alone, which name principals themselves")]
pub fn person(on: &TestStore, name: &str) -> Caller {
    let scopes = Scopes::new([Scope::MailRead, Scope::MailWrite]);
    Caller { scopes, ..caller(&on.admin, &format!("agent:{name}"), &[Role::Agent]).expect("a name of a principal") }
}

/// Which operations of the registry a suite has nothing for, and which it names that do not exist.
pub fn uncovered<'a>(wanted: impl Iterator<Item = &'a str>, covered: &[&'a str]) -> Vec<String> {
    let wanted: BTreeSet<&str> = wanted.collect();
    let covered: BTreeSet<&str> = covered.iter().copied().collect();
    let missing = wanted.difference(&covered).map(|name| format!("{name} has no case"));
    missing.chain(covered.difference(&wanted).map(|name| format!("{name} is no operation"))).collect()
}

/// Statements live for ever: the store knows a text by its address.
pub fn leak(sql: &str) -> &'static str {
    Box::leak(sql.to_owned().into_boxed_str())
}

struct Statement {
    sql: &'static str,
    params: Vec<String>,
    mode: Mode,
}

impl Work for Statement {
    type Output = Vec<Row>;

    fn mode(&self) -> Mode {
        self.mode
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Row>> {
        let params: Vec<Value<'_>> = self.params.iter().map(Value::from).collect();
        tx.query(self.sql, &params).await
    }
}

/// With the cause, which a caller of the product never sees and a failed test must show.
pub fn readable(error: Error) -> anyhow::Error {
    let cause = error.cause().map(|cause| format!(" ({cause})")).unwrap_or_default();
    anyhow::anyhow!("{error}{cause}")
}

/// Runs each case on both engines, every time on a fresh database: `sqlite::case` and `postgres::case`. `CASES` has
/// their names, so that a list of what is covered cannot name a case that does not run. `settings => …` runs them under
/// other settings of tasks or of queues than the usual ones; `settings, shards names => …` with stores beside home as well;
/// `unpolled => …` where no wait looks again by itself, which on PostgreSQL hides a wake that is lost.
#[macro_export]
macro_rules! both {
    ($($case:ident),+ $(,)?) => {
        $crate::both! { $crate::stores::usual_settings() => $($case),+ }
    };
    (unpolled => $($case:ident),+ $(,)?) => {
        pub const CASES: &[&str] = &[$(stringify!($case)),+];

        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case($crate::stores::open_sqlite().await.unwrap()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                super::$case($crate::stores::open_postgres_unpolled().await.unwrap()).await;
            })+
        }
    };
    ($settings:expr, shards $shards:expr => $($case:ident),+ $(,)?) => {
        pub const CASES: &[&str] = &[$(stringify!($case)),+];

        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                let on = $crate::stores::open_sqlite_set($settings).await.unwrap();
                super::$case(on.with_shards($shards).await.unwrap()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                let on = $crate::stores::open_postgres_set($settings).await.unwrap();
                super::$case(on.with_shards($shards).await.unwrap()).await;
            })+
        }
    };
    ($settings:expr => $($case:ident),+ $(,)?) => {
        pub const CASES: &[&str] = &[$(stringify!($case)),+];

        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case($crate::stores::open_sqlite_set($settings).await.unwrap()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                super::$case($crate::stores::open_postgres_set($settings).await.unwrap()).await;
            })+
        }
    };
}
