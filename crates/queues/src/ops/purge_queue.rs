//! PurgeQueue: the queue gets other parts, and what is in the old ones is deleted in the background. The handles of
//! before mean nothing any more.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::catalog::Entry;
use crate::parts;
use crate::queue::Queue;
use crate::rules::names::queue_name;
use crate::shards::note_change;

/// Between two purges of a queue.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PurgeQueue {
    #[serde(default)]
    pub queue_url: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Purged {
    /// Of the handles that were given out before, and of those that will be.
    #[serde(skip)]
    #[schemars(skip)]
    pub generations: (i64, i64),
}

impl Operation for PurgeQueue {
    const SPEC: OperationSpec =
        OperationSpec { destructive: true, relieves: true, ..write("PurgeQueue", &[Scope::QueuesManage]) };
    type Output = Purged;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Purged>> {
        const PURGE: &str = "UPDATE queues SET generation = $3, purged_at = $4 WHERE tenant = $1 AND name = $2";
        let name = queue_name(&self.queue_url)?;
        Queue::exclude_senders(tx, name).await?;
        let entry = Entry::load(tx, name).await?;
        if let Some(allowed_at) = entry.purged_at.map(|at| at.after(PAUSE)).filter(|at| *at > ctx.now)
            && !is_unfinished(tx, &entry).await?
        {
            let wait_s = allowed_at.since(ctx.now).as_secs() + 1;
            let message = format!("The queue {name} was purged less than {} seconds ago.", PAUSE.as_secs());
            return Err(Error::new(Code::PurgeQueueInProgress, message).with("retry_after", wait_s));
        }
        let generation = ctx.now.micros().max(entry.generation + 1);
        tx.execute(PURGE, &[Value::from(name), generation.into(), ctx.now.into()]).await?;
        parts::retire(tx, name, entry.generation, ctx.now).await?;
        parts::give(tx, name, generation, (entry.spread, entry.here)).await?;
        note_change(tx, name, entry.shards.as_deref(), (generation, entry.version)).await?;
        Ok(Reply::Done(Purged { generations: (entry.generation, generation) }))
    }
}

/// One that other stores have not followed does not count as the last: its caller makes it again, and what was sent meanwhile
/// goes as well. Any change that is left to follow is taken for it, which at worst allows a purge too early.
async fn is_unfinished(tx: &mut Tx<'_>, entry: &Entry) -> Result<bool> {
    const LEFT: &str = "SELECT 1 FROM shard_changes WHERE tenant = $1 AND queue = $2 AND generation = $3 LIMIT 1";
    if entry.shards.is_none() {
        return Ok(false);
    }
    Ok(tx.query_opt(LEFT, &[Value::from(&entry.name), entry.generation.into()]).await?.is_some())
}
