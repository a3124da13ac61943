//! A lock of the database that a process keeps for as long as it wants, beside its calls.
//!
//! It is the lock of a transaction that stays open and has written nothing: such a one holds back neither feeds nor vacuum, and
//! it ends with its connection, however the process ends. Behind a proxy that pools transactions a lock of the session would be
//! left to whoever gets the connection next.

use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config};
use waybill_kernel::Result;

use super::connect;
use super::fence::Fence;
use crate::Topic;
use crate::hold::Holding;

/// Given back when dropped.
pub(crate) struct Hold {
    /// Its transaction is open.
    client: Client,
    connection: JoinHandle<()>,
}

impl Hold {
    pub(super) async fn take(config: &Config, fence: &Fence, topic: Topic, holding: Holding) -> Result<Option<Self>> {
        let connected = fence.connect(config).await;
        let (client, connection) = connected.map_err(|refused| refused.into_error(connect::unreachable))?;
        let is_ours = begin(&client, topic, holding).await.map_err(|error| connect::unusable(&error))?;
        Ok(is_ours.then_some(Self { client, connection }))
    }

    pub(crate) async fn lost(self) {
        let Self { client, connection } = self;
        let _ = connection.await;
        drop(client);
    }
}

async fn begin(client: &Client, topic: Topic, holding: Holding) -> std::result::Result<bool, tokio_postgres::Error> {
    const SHARED: &str = "SELECT pg_try_advisory_xact_lock_shared($1)";
    const ALONE: &str = "SELECT pg_try_advisory_xact_lock($1)";
    // Connections of ours are ended when a transaction of theirs does nothing for some seconds; this one does nothing else.
    client.batch_execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0").await?;
    let sql = if holding == Holding::Alone { ALONE } else { SHARED };
    client.query_one(sql, &[&topic.0.cast_signed()]).await?.try_get(0)
}
