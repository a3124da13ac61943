//! What is looked at before anything is served: does the map of partitions agree with the queues that there are?

use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, Mode, Result, Tenant};
use waybill_store::stores::HOME;
use waybill_store::{Ctx, Stores, Tx, Work};

use super::route::read_shards;
use super::tend::tend_once;
use crate::Settings;
use crate::catalog::Entry;
use crate::rules::names::account_number;
use crate::rules::placement::PartitionMap;

/// Refuses a map that names a store which there is not, one that places a queue elsewhere than it is, and stores that lack
/// one which holds messages. Then finishes what was cut off when the program ended.
pub async fn check_placement(stores: &Stores) -> Result<()> {
    let usual = Settings::default();
    let map = &stores.home().settings().find::<Settings>().unwrap_or(&usual).partition_map;
    let refused = |why: String| Error::new(Code::ConfigInvalid, why);
    map.check_stores(|name| stores.find(name).is_some()).map_err(refused)?;
    for (queue, shards) in stores.home().system().run(Placed).await? {
        if let Some(missing) = shards.iter().find(|name| stores.find(name).is_none()) {
            let why =
                format!("The queue {queue} has partitions on the shard {missing:?}, which [shards] does not have.");
            return Err(refused(why).with_cure("Name the database that holds them in [shards]."));
        }
    }
    if let Some(queue) = stores.home().system().run(Compare(map.clone())).await? {
        let why = format!("sqs.fifo_partition_map places the partitions of {queue} elsewhere than where they are.");
        return Err(refused(why).with_cure(
            "Let the entry be as the queue was made, or leave it out: where partitions are is kept with the queue.",
        ));
    }
    if stores.has_shards()
        && let Err(error) = tend_once(stores).await
    {
        tracing::warn!(%error, cause = error.cause().unwrap_or_default(), "stores of queues are not in step yet");
    }
    Ok(())
}

/// Queues that have partitions elsewhere than in home, and where.
struct Placed;

impl Work for Placed {
    type Output = Vec<(String, Vec<String>)>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const ALL: &str = "SELECT name, shards FROM queues WHERE shards IS NOT NULL ORDER BY tenant, name";
        let rows = tx.query(ALL, &[]).await?;
        rows.iter()
            .map(|row| Ok((row.text(0)?.to_owned(), read_shards(row.text_opt(1)?)?.unwrap_or_default())))
            .collect()
    }
}

/// The first queue that the map places elsewhere than it is.
struct Compare(PartitionMap);

impl Work for Compare {
    type Output = Option<String>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<String>> {
        const TENANTS: &str = "SELECT tenant, tenant_id FROM tenants ORDER BY tenant";
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut accounts = Vec::new();
        for row in &tx.query(TENANTS, &[]).await? {
            let (tenant, id) = (Tenant(row.int(0)?), Uuid::from_slice(row.bytes(1)?).map_err(Error::internal)?);
            accounts.push((account_number(tenant, id), tenant));
        }
        for (account, queue, placed) in self.0.entries() {
            let Some((_, tenant)) = accounts.iter().find(|(known, _)| known == account) else { continue };
            let Some(entry) = Entry::find(&mut tx.as_tenant(*tenant), queue).await? else { continue };
            let used = usize::try_from(entry.spread).unwrap_or(0) + 1;
            let home = vec![HOME.to_owned(); used];
            let there = entry.shards.as_ref().unwrap_or(&home);
            if placed.len() < used || placed[..used] != there[..] {
                return Ok(Some(queue.to_owned()));
            }
        }
        Ok(None)
    }
}
