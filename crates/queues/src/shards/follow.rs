//! How the other stores follow a change of a queue in home.
//!
//! The copy of a row moves forward only: to a later generation, or to a later version of the attributes. So it does no harm
//! that a store is told twice, by two servers at once, or late; what is left of a queue that has ended keeps its generation
//! for that reason until nobody can be that late any more.

use futures_util::future::join_all;
use waybill_kernel::{Code, Error, Mode, Result, Tenant, Time};
use waybill_store::stores::HOME;
use waybill_store::{Ctx, Row, Stores, Tx, Value, Work};

use super::route::{Record, partitions_in};
use crate::capabilities::{self, HTFIFO};
use crate::parts;
use crate::queue::{ENDED, Queue, topic};
use crate::rules::attributes::Attributes;

/// In the transaction in home that changes a queue: its other stores have to follow. `shards` is None for almost every
/// queue.
pub(crate) async fn note_change(
    tx: &mut Tx<'_>,
    queue: &str,
    shards: Option<&[String]>,
    (generation, version): (i64, i64),
) -> Result<()> {
    const NOTE: &str = "INSERT INTO shard_changes (tenant, queue, shard, generation, version) VALUES ($1, $2, $3, $4, $5) \
                        ON CONFLICT (tenant, queue, shard) DO UPDATE SET generation = excluded.generation, \
                        version = excluded.version";
    let mut noted: Vec<&String> = shards.unwrap_or_default().iter().filter(|shard| *shard != HOME).collect();
    noted.sort_unstable();
    noted.dedup();
    for shard in noted {
        tx.execute(NOTE, &[Value::from(queue), Value::from(shard), generation.into(), version.into()]).await?;
    }
    Ok(())
}

/// A store that may not have followed a change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub tenant: Tenant,
    pub queue: String,
    shard: String,
    generation: i64,
    version: i64,
}

impl Change {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            tenant: Tenant(row.int(0)?),
            queue: row.text(1)?.to_owned(),
            shard: row.text(2)?.to_owned(),
            generation: row.int(3)?,
            version: row.int(4)?,
        })
    }

    /// Has the store follow, and removes the note.
    pub(crate) async fn finish(&self, stores: &Stores) -> Result<()> {
        let store = stores.find(&self.shard).ok_or_else(|| unknown_shard(&self.shard))?;
        let record = Record::read(stores.home(), self.tenant, &self.queue).await?;
        let follow = Follow::new(self.tenant, &self.queue, &self.shard, record, self.generation);
        store.system().run(follow).await?;
        stores.home().system().run(Followed(self.clone())).await
    }
}

/// A queue with a partition in a store that this server was not told of.
pub(crate) fn unknown_shard(shard: &str) -> Error {
    let message = "The store that holds this is not there.";
    Error::new(Code::StoreUnavailable, message).because(format!("the shard {shard} is not in [shards]"))
}

/// What one store still has to follow.
pub(crate) async fn changes_in(stores: &Stores, shard: &str, limit: i64) -> Result<Vec<Change>> {
    stores.home().system().run(Changes::In { shard: shard.to_owned(), limit }).await
}

/// In home.
enum Changes {
    /// Of one queue, in all of its stores.
    Of { tenant: Tenant, queue: String },
    /// Of all queues, in one store: those of one that is away hide those of no other.
    In { shard: String, limit: i64 },
}

impl Work for Changes {
    type Output = Vec<Change>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Change>> {
        const OF: &str = "SELECT tenant, queue, shard, generation, version FROM shard_changes \
                          WHERE tenant = $1 AND queue = $2 ORDER BY shard";
        const IN: &str = "SELECT tenant, queue, shard, generation, version FROM shard_changes WHERE shard = $1 \
                          ORDER BY tenant, queue LIMIT $2";
        let rows = match self {
            Self::Of { tenant, queue } => tx.query(OF, &[tenant.0.into(), Value::from(queue)]).await?,
            Self::In { shard, limit } => tx.query(IN, &[Value::from(shard), Value::from(*limit)]).await?,
        };
        rows.iter().map(Change::read).collect()
    }
}

/// Unless there was another change meanwhile.
struct Followed(Change);

impl Work for Followed {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const DONE: &str = "DELETE FROM shard_changes WHERE tenant = $1 AND queue = $2 AND shard = $3 AND generation = $4 \
                            AND version = $5";
        let Change { tenant, queue, shard, generation, version } = &self.0;
        let tx = &mut *tx.as_tenant(*tenant);
        let params = [Value::from(queue), Value::from(shard), Value::from(*generation), Value::from(*version)];
        tx.execute(DONE, &params).await.map(drop)
    }
}

/// Has all stores follow what was changed about a queue. Succeeds when all have.
pub(crate) async fn finish(stores: &Stores, tenant: Tenant, queue: &str) -> Result<usize> {
    let changes = stores.home().system().run(Changes::Of { tenant, queue: queue.to_owned() }).await?;
    for outcome in join_all(changes.iter().map(|change| change.finish(stores))).await {
        outcome?;
    }
    Ok(changes.len())
}

/// In a store other than home: makes its copy of a queue's row what home has, if that is later.
pub(crate) struct Follow {
    tenant: Tenant,
    queue: String,
    shard: String,
    /// None where the queue has ended, or has no partition in this store any more.
    record: Option<Record>,
    /// Up to this generation the queue has ended.
    ended: i64,
}

impl Follow {
    pub(crate) fn new(tenant: Tenant, queue: &str, shard: &str, record: Option<Record>, ended: i64) -> Self {
        let is_here = |record: &Record| record.shards.as_ref().is_some_and(|shards| partitions_in(shards, shard) != 0);
        let (queue, shard_name) = (queue.to_owned(), shard.to_owned());
        Self { tenant, queue, shard: shard_name, record: record.filter(is_here), ended }
    }
}

const FIND: &str = "SELECT generation, version, incarnation FROM queues WHERE tenant = $1 AND name = $2";
const MAKE: &str = "INSERT INTO queues (tenant, name, generation, incarnation, version, spread, here, attributes, tags, \
                    created_at, modified_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '{}', $9, $10)";
const CHANGE: &str = "UPDATE queues SET generation = $3, incarnation = $4, version = $5, spread = $6, here = $7, \
                      attributes = $8, created_at = $9, modified_at = $10 WHERE tenant = $1 AND name = $2";
const END: &str = "INSERT INTO queues (tenant, name, generation, incarnation, spread, here, attributes, tags, created_at, \
                   modified_at) VALUES ($1, $2, $3, 0, 0, 0, '{}', '{}', $4, $4) ON CONFLICT (tenant, name) DO UPDATE SET \
                   generation = excluded.generation, incarnation = 0, here = 0, modified_at = excluded.modified_at";

impl Work for Follow {
    /// Whether there was something to follow.
    type Output = bool;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<bool> {
        let tx = &mut *tx.as_tenant(self.tenant);
        // Almost always there is nothing to follow, and no sender is kept waiting to find that out.
        if !self.is_behind(self.copy(tx).await?) {
            return Ok(false);
        }
        Queue::exclude_senders(tx, &self.queue).await?;
        let before = self.copy(tx).await?;
        if !self.is_behind(before) {
            return Ok(false);
        }
        match &self.record {
            Some(record) => {
                // A program that does not know partitions must not take this store for a home of its own.
                if Attributes::from_stored(&record.attributes)?.is_partitioned() {
                    capabilities::require(ctx, tx, HTFIFO).await?;
                }
                self.bring_to(tx, record, before, ctx.now).await?;
            }
            None => self.end(tx, before, ctx.now).await?,
        }
        // Whoever waits for messages finds out what has become of the queue.
        tx.wake(topic(self.tenant, &self.queue), u32::MAX);
        Ok(true)
    }
}

/// Generation, version and incarnation of a copy.
type Copied = (i64, i64, i64);

impl Follow {
    async fn copy(&self, tx: &mut Tx<'_>) -> Result<Option<Copied>> {
        let row = tx.query_opt(FIND, &[Value::from(&self.queue)]).await?;
        row.map(|row| Ok((row.int(0)?, row.int(1)?, row.int(2)?))).transpose()
    }

    fn is_behind(&self, copy: Option<Copied>) -> bool {
        let Some((generation, version, incarnation)) = copy else { return true };
        match &self.record {
            Some(record) if incarnation == ENDED => generation < record.generation,
            Some(record) => (generation, version) < (record.generation, record.version),
            None => generation < self.ended || (generation == self.ended && incarnation != ENDED),
        }
    }

    async fn bring_to(&self, tx: &mut Tx<'_>, record: &Record, before: Option<Copied>, now: Time) -> Result<()> {
        let here = partitions_in(record.shards.as_deref().unwrap_or_default(), &self.shard);
        let params = [
            Value::from(&self.queue),
            record.generation.into(),
            record.incarnation.into(),
            record.version.into(),
            record.spread.into(),
            here.into(),
            Value::from(&record.attributes),
            record.created_at.into(),
            now.into(),
        ];
        tx.execute(if before.is_some() { CHANGE } else { MAKE }, &params).await?;
        let generation = before.filter(|(.., incarnation)| *incarnation != ENDED).map(|(generation, ..)| generation);
        if generation != Some(record.generation) {
            if let Some(generation) = generation {
                parts::retire(tx, &self.queue, generation, now).await?;
            }
            parts::give(tx, &self.queue, record.generation, (record.spread, Some(here))).await?;
        }
        Ok(())
    }

    async fn end(&self, tx: &mut Tx<'_>, before: Option<Copied>, now: Time) -> Result<()> {
        if let Some((generation, ..)) = before {
            parts::retire(tx, &self.queue, generation, now).await?;
        }
        tx.execute(END, &[Value::from(&self.queue), self.ended.into(), now.into()]).await.map(drop)
    }
}
