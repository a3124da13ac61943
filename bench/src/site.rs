//! Where a server of the product keeps what it stores, for those that are stopped, filled and started again.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio_postgres::NoTls;

use crate::fill::{Copier, Database};
use crate::process::Server;
use crate::product::{self, Keys, OWNER};

const RECEIPTS: u64 = 1_000_000;
const RECEIPTS_OF_OTHERS: u64 = 900_000;
/// Assigned, accepted, completed, result ready.
const RECEIPTS_OF_A_TASK: u64 = 4;
/// How many principals share those.
const OTHERS: u64 = 1_000;
const OTHER: &str = "agent:other";
/// Half of them are older than the rest of the ledger, half are newer.
const OPEN: usize = 10;

pub const OBLIGATIONS: &str = "/v1/obligations/open";

const UNMATCHED: u64 = 100_000;
const CAPABILITY: &str = "vision";

pub struct Site {
    pub waybill: PathBuf,
    pub data: PathBuf,
    /// The address of a PostgreSQL database; SQLite in the data folder when there is none.
    pub store: Option<String>,
}

/// A server of the product and the keys of those who call it.
pub struct Station {
    pub server: Server,
    pub keys: Keys,
}

impl Station {
    /// A server that has seen its callers: the first call with a key costs as much as a hundred others.
    async fn new(server: Server, keys: Keys) -> Result<Self> {
        for key in [&keys.owner, &keys.worker] {
            product::get(&server, OBLIGATIONS, key).await?;
        }
        Ok(Self { server, keys })
    }
}

impl Site {
    pub async fn start(&self) -> Result<Server> {
        Server::waybill(&self.waybill, &self.data, self.store.as_deref()).await
    }

    pub async fn open(&self) -> Result<Station> {
        let server = self.start().await?;
        let keys = Keys::make(&server).await?;
        Station::new(server, keys).await
    }

    async fn database(&self) -> Result<Database> {
        let Some(url) = &self.store else { return Ok(Database::Sqlite(self.data.join("waybill.db"))) };
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        // It ends with the client; its errors are seen by the client's calls.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Database::Postgres(client))
    }

    /// A ledger of a million receipts, of which ten are open obligations of the asking principal.
    pub async fn with_a_long_ledger(&self) -> Result<Station> {
        let Station { server, keys } = self.open().await?;
        let other = product::key_for(&server, OTHER).await?;
        let mut ended = Vec::new();
        for owner in [&keys.owner, &other] {
            product::create(&server, owner, &json!({ "type": "echo" })).await?;
            ended.push(product::work_one(&server, &keys.worker, &[]).await?);
        }
        create_open(&server, &keys, OPEN / 2).await?;
        server.stop().await?;

        let database = self.database().await?;
        let mut copier = Copier::new(&database);
        let own = (RECEIPTS - RECEIPTS_OF_OTHERS) / RECEIPTS_OF_A_TASK;
        let mut copied = copier.receipts(&ended[0], OWNER, &format!("'{OWNER}'"), own).await?;
        let owners = format!("'{OTHER}-' || (n.i % {OTHERS})");
        copied += copier.receipts(&ended[1], OTHER, &owners, RECEIPTS_OF_OTHERS / RECEIPTS_OF_A_TASK).await?;
        copier.finish().await.context("filling the ledger")?;
        if copied != RECEIPTS {
            bail!("an ended task has not {RECEIPTS_OF_A_TASK} receipts: {copied} were copied");
        }
        drop(database);

        let server = self.start().await?;
        create_open(&server, &keys, OPEN - OPEN / 2).await?;
        let answer = product::get(&server, OBLIGATIONS, &keys.owner).await?;
        let open = answer["open_obligations"].as_array().map_or(0, Vec::len);
        if open != OPEN {
            bail!("{open} obligations are open where {OPEN} were made");
        }
        Station::new(server, keys).await
    }

    /// A hundred thousand queued tasks of a higher priority that ask for what the worker cannot do.
    pub async fn with_a_backlog(&self) -> Result<Station> {
        let Station { server, keys } = self.open().await?;
        let unmatched = json!({ "type": "echo", "priority": 100, "requirements": { "capabilities": [CAPABILITY] } });
        let task = product::create(&server, &keys.owner, &unmatched).await?;
        server.stop().await?;

        let database = self.database().await?;
        let mut copier = Copier::new(&database);
        copier.queued(&task, UNMATCHED).await?;
        copier.finish().await.context("filling the queue")?;
        drop(database);

        let server = self.start().await?;
        // One is done by a worker that can: the copies are tasks like any other.
        product::work_one(&server, &keys.worker, &[CAPABILITY]).await?;
        Station::new(server, keys).await
    }
}

async fn create_open(server: &Server, keys: &Keys, count: usize) -> Result<()> {
    for _ in 0..count {
        product::create(server, &keys.owner, &json!({ "type": "echo" })).await?;
    }
    Ok(())
}
