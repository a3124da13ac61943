//! CreateQueue: makes a queue, or agrees that there is one with the attributes that were named.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Code, Error, OperationSpec, Result, Scope};
use waybill_store::stores::HOME;
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Value};

use super::write;
use crate::capabilities::{self, HTFIFO};
use crate::catalog::{Entry, dead_letter_of, too_busy};
use crate::process::forget_rotation;
use crate::queue::is_alone;
use crate::rules::attributes::Attributes;
use crate::rules::{check_tags, names, throttle};
use crate::settings::refuse_hidden;
use crate::shards::{note_change, partitions_in};
use crate::throttle::Limiter;
use crate::{Settings, parts};

/// Times that it looks again because the queue was made or deleted by others at the same moment.
const TRIES_MAX: usize = 16;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct CreateQueue {
    #[serde(default)]
    pub queue_name: String,
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// SQS writes this one in lower case.
    #[serde(default, rename = "tags")]
    pub tags: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Created {
    pub queue_name: String,
    /// There was none before.
    #[serde(skip)]
    #[schemars(skip)]
    pub is_new: bool,
}

impl Operation for CreateQueue {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..write("CreateQueue", &[Scope::QueuesManage]) };
    type Output = Created;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Created>> {
        names::check_new(&self.queue_name)?;
        refuse_hidden(ctx, self.attributes.keys())?;
        let named = Attributes::checked_new(&self.queue_name, &self.attributes)?;
        check_tags(self.tags.iter())?;
        let mut is_alone = is_alone(tx);
        for _ in 0..TRIES_MAX {
            let entry = Entry::find(tx, &self.queue_name).await?;
            let is_new = entry.is_none();
            let is_there = match entry {
                Some(entry) => self.compare(&entry, &named).map(|()| true)?,
                None if is_alone => self.insert(ctx, tx, &named).await?,
                // Two who count at the same time would both find room for the last one. Whoever was before may have made
                // this very queue.
                None => {
                    tx.in_turn(Topic::new("queues", ctx.caller.tenant, b"count")).await?;
                    is_alone = true;
                    false
                }
            };
            if is_there {
                return Ok(Reply::Done(Created { queue_name: self.queue_name.clone(), is_new }));
            }
        }
        Err(too_busy())
    }

    /// Whoever agrees with a queue that is there must not fill its buckets again.
    fn committed(&self, caller: &Caller, settings: &waybill_store::Settings, output: &Created) {
        if output.is_new {
            Limiter::of_settings(settings).forget(caller.tenant, &self.queue_name);
        }
    }
}

impl CreateQueue {
    /// False when another was quicker.
    async fn insert(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, attributes: &Attributes) -> Result<bool> {
        const LAST: &str = "SELECT max(known.generation) FROM (SELECT p.generation FROM parts p WHERE p.tenant = $1 \
                            AND p.queue = $2 UNION ALL SELECT c.generation FROM shard_changes c WHERE c.tenant = $1 \
                            AND c.queue = $2) AS known";
        const QUEUE: &str = "INSERT INTO queues (tenant, name, generation, incarnation, attributes, tags, created_at, \
                             modified_at, dead_letter, spread, shards, here) VALUES ($1, $2, $3, $3, $4, $5, $6, $6, $7, $8, \
                             $9, $10) \
                             ON CONFLICT (tenant, name) DO NOTHING";
        throttle::check(attributes)?;
        refuse_too_many(ctx, tx).await?;
        let spread = attributes.spread();
        let shards = self.placement(ctx, attributes)?;
        let here = shards.as_ref().map(|shards| partitions_in(shards, HOME));
        let placed = shards.as_ref().map(serde_json::to_string).transpose().map_err(Error::internal)?;
        let dead_letter = dead_letter_of(ctx, tx, &self.queue_name, attributes, true).await?;
        let name = Value::from(&self.queue_name);
        // Higher than that of a queue of the same name whose messages are still to be deleted, also where another server
        // with another clock has made it.
        let last = tx.query_opt(LAST, &[name]).await?.map_or(Ok(None), |row| row.int_opt(0))?;
        let generation = ctx.now.micros().max(last.map_or(0, |last| last + 1));
        let tags = serde_json::to_string(&self.tags).map_err(Error::internal)?;
        if attributes.is_partitioned() {
            // The first write: what is refused after one costs its neighbours in the batch a second run.
            capabilities::require(ctx, tx, HTFIFO).await?;
        }
        let attributes = attributes.to_stored()?;
        let params = [
            name,
            generation.into(),
            Value::from(&attributes),
            Value::from(&tags),
            ctx.now.into(),
            Value::from(dead_letter.as_deref()),
            spread.into(),
            Value::from(placed.as_deref()),
            here.into(),
        ];
        if tx.execute(QUEUE, &params).await? == 0 {
            return Ok(false);
        }
        parts::give(tx, &self.queue_name, generation, (spread, here)).await?;
        note_change(tx, &self.queue_name, shards.as_deref(), (generation, 0)).await?;
        forget_rotation(ctx, &self.queue_name);
        Ok(true)
    }

    /// The store of each partition, where the operator has placed some elsewhere than in home. It is kept with the queue, and
    /// from then on that is where they are.
    fn placement(&self, ctx: &Ctx<'_>, attributes: &Attributes) -> Result<Option<Vec<String>>> {
        let (count, used) = (attributes.partitions() as usize, usize::try_from(attributes.spread()).unwrap_or(0) + 1);
        let map = &Settings::of(ctx).partition_map;
        map.placement(&names::account_of(ctx.caller), &self.queue_name, count, used)
    }

    /// A pair that no queue could have is wrong in itself, whatever this one has.
    fn compare(&self, entry: &Entry, named: &Attributes) -> Result<()> {
        if named.names().any(throttle::is_throttle) {
            throttle::check(&entry.attributes.changed_by(named))?;
        }
        match entry.attributes.first_difference(named) {
            None => Ok(()),
            Some(attribute) => {
                let message = format!("The queue {} exists with another {attribute}.", self.queue_name);
                Err(Error::new(Code::QueueNameExists, message))
            }
        }
    }
}

async fn refuse_too_many(ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
    const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM queues WHERE tenant = $1 LIMIT $2) AS known";
    let max = Settings::of(ctx).queues_per_tenant_max;
    let known = tx.query_opt(COUNT, &[max.into()]).await?.map_or(Ok(0), |row| row.int(0))?;
    if known < max {
        return Ok(());
    }
    let message = format!("There are {max} queues, and there may not be more.");
    Err(Error::new(Code::TooManyQueues, message).with("limit", max))
}
