//! A store with a default tenant on either engine, and short ways to call operations.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use waybill_access::{Access, MIGRATIONS, NewAdminKey, ServerKey, Settings, admin_caller, ensure_default_tenant};
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Caller, Clock, Code, Result};
use waybill_store::{Backend, Operation, Reply, SqliteOptions, Store};
use waybill_testkit::postgres::{Database, Postgres};
use waybill_testkit::stores::postgres_options;

const START_US: i64 = 1_700_000_000_000_000;

pub struct World {
    pub store: Store,
    pub time: ManualSource,
    pub access: Access,
    pub server_key: ServerKey,
    pub first_key: NewAdminKey,
    pub admin: Caller,
    home: Home,
}

/// What is removed when the test ends.
#[expect(dead_code, reason = "held until dropped")]
enum Home {
    Folder(tempfile::TempDir),
    Database(Database),
}

impl World {
    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backend = Backend::Sqlite(SqliteOptions::at(folder.path().join("waybill.db")));
        Self::on(backend, Home::Folder(folder)).await
    }

    pub async fn postgres() -> Self {
        let database = Postgres::shared().await.unwrap().database().await.unwrap();
        let backend = Backend::Postgres(postgres_options(&database.url));
        Self::on(backend, Home::Database(database)).await
    }

    async fn on(backend: Backend, home: Home) -> Self {
        let time = ManualSource::at(START_US);
        let server_key = ServerKey::generate(&OsEntropy);
        let store = open(backend, &time, &server_key).await;
        let first_key = ensure_default_tenant(&store).await.unwrap().unwrap();
        let access = Access::new(store.clone(), Settings::default(), &server_key);
        let admin = admin_caller(&store).await.unwrap();
        Self { store, time, access, server_key, first_key, admin, home }
    }

    /// As after a restart: whatever a process remembers is gone.
    pub fn another_access(&self) -> Access {
        Access::new(self.store.clone(), Settings::default(), &self.server_key)
    }

    /// Another process on the same PostgreSQL. Both listen by then, so that what follows is heard as it is said.
    pub async fn another_node(&self) -> Store {
        let Home::Database(database) = &self.home else { panic!("SQLite has one process") };
        let node = open(Backend::Postgres(postgres_options(&database.url)), &self.time, &self.server_key).await;
        let client = database.connect().await.unwrap();
        let sql = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'";
        let both_listen = async {
            while client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), both_listen).await.unwrap();
        node
    }

    pub fn pass(&self, seconds: u64) {
        self.time.pass(Duration::from_secs(seconds));
    }

    /// As the admin of the default tenant.
    pub async fn run<O: Operation>(&self, input: Json) -> Result<O::Output> {
        self.run_as::<O>(&self.admin, input).await
    }

    pub async fn run_as<O: Operation>(&self, caller: &Caller, input: Json) -> Result<O::Output> {
        let operation: O = serde_json::from_value(input).unwrap();
        match self.store.run(operation, caller.clone()).await? {
            Reply::Done(output) => Ok(output),
            _ => panic!("no operation on keys replays or waits"),
        }
    }

    /// The error code of an attempt to come in with this key, if it is refused.
    pub async fn refusal(&self, key: &str) -> Option<Code> {
        self.access.authenticate(key).await.err().map(|error| error.code())
    }
}

pub async fn open(backend: Backend, time: &ManualSource, server_key: &ServerKey) -> Store {
    let clock = Arc::new(Clock::new(time.clone()));
    let settings = waybill_store::Settings::default().with(server_key.clone());
    Store::open(backend, MIGRATIONS, settings, clock, Arc::new(OsEntropy)).await.unwrap()
}

pub fn code<T>(result: Result<T>) -> Code {
    match result {
        Ok(_) => panic!("it was allowed"),
        Err(error) => error.code(),
    }
}
