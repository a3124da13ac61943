//! How much is in the partitions of a queue that are elsewhere than in home, for whoever shows the queue.

use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::stores::HOME;
use waybill_store::{Answered, Ctx, Flow, Operation, Reply, Stores, Tx, Work};

use super::placed::OnShards;
use super::route::Route;
use super::step::Calls;
use crate::catalog::Entry;
use crate::counts::Counts;
use crate::ops::get_queue_attributes::{GetQueueAttributes, QueueAttributes};
use crate::ops::operator::get_queue::{GetQueue, QueueView, oldest};
use crate::ops::operator::list_queues::{ListQueues, Queues};
use crate::queue::ENDED;
use crate::rules::attributes::{MESSAGES, MESSAGES_DELAYED, MESSAGES_NOT_VISIBLE};
use crate::rules::names::{is_fifo, queue_name};

/// What one store holds of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub counts: Counts,
    oldest: Option<Time>,
}

/// By the store's own copy: what this process remembers of the queue may be of before a purge.
struct Look {
    tenant: Tenant,
    queue: String,
}

impl Work for Look {
    type Output = Held;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Held> {
        let tx = &mut *tx.as_tenant(self.tenant);
        let Some(copy) = Entry::find(tx, &self.queue).await?.filter(|copy| copy.incarnation != ENDED) else {
            return Ok(Held { counts: Counts::NONE, oldest: None });
        };
        let counts = Counts::of(tx, &self.queue, copy.generation, ctx.now).await?;
        Ok(Held { counts, oldest: oldest(tx, &self.queue, copy.generation).await? })
    }
}

/// In all stores but home.
pub(crate) async fn held(stores: &Stores, tenant: Tenant, queue: &str, route: &Route) -> Result<Held> {
    let mut all = Held { counts: Counts::NONE, oldest: None };
    for name in route.stores(0).into_iter().filter(|name| *name != HOME) {
        let store = stores.find(name).ok_or_else(|| super::follow::unknown_shard(name))?;
        let look = Look { tenant, queue: queue.to_owned() };
        let held = store.system().run(look).await?;
        all.counts = all.counts.and(held.counts);
        all.oldest = all.oldest.into_iter().chain(held.oldest).min();
    }
    Ok(all)
}

/// None for a queue that is in home alone.
async fn elsewhere(flow: &Flow<'_>, queue: &str) -> Result<Option<Held>> {
    if !flow.stores.has_shards() || !is_fifo(queue) {
        return Ok(None);
    }
    match Calls::of(flow, queue).await? {
        Some(calls) => held(flow.stores, flow.caller.tenant, queue, &calls.route).await.map(Some),
        None => Ok(None),
    }
}

/// As home answers, with what the others add.
async fn with_others<O: Operation>(
    operation: O,
    flow: &Flow<'_>,
) -> Result<(O::Output, Option<waybill_store::shares::Share>)> {
    let (reply, turn) = flow.home().run_in_turn(operation, flow.caller.clone()).await?;
    let (Reply::Done(output) | Reply::Replay(output) | Reply::Empty { answer: output, .. }) = reply;
    Ok((output, turn))
}

impl OnShards for GetQueueAttributes {
    async fn place(self, flow: &Flow<'_>) -> Answered<QueueAttributes> {
        let url = self.queue_url.clone();
        let (mut output, turn) = with_others(self, flow).await?;
        let counted = [MESSAGES, MESSAGES_NOT_VISIBLE, MESSAGES_DELAYED];
        if counted.iter().any(|name| output.attributes.contains_key(*name))
            && let Some(held) = elsewhere(flow, queue_name(&url)?).await?
        {
            for (name, more) in counted.into_iter().zip(held.counts.each()) {
                if let Some(value) = output.attributes.get_mut(name) {
                    *value = (value.parse::<i64>().unwrap_or(0) + more).to_string();
                }
            }
        }
        Ok((Reply::Done(output), turn))
    }
}

impl OnShards for GetQueue {
    async fn place(self, flow: &Flow<'_>) -> Answered<QueueView> {
        let (mut output, turn) = with_others(self, flow).await?;
        if let Some(held) = elsewhere(flow, &output.queue).await? {
            output.messages = output.messages.and(held.counts.into());
            output.oldest_message_at = output.oldest_message_at.into_iter().chain(held.oldest).min();
        }
        Ok((Reply::Done(output), turn))
    }
}

impl OnShards for ListQueues {
    async fn place(self, flow: &Flow<'_>) -> Answered<Queues> {
        let (mut output, turn) = with_others(self, flow).await?;
        for queue in &mut output.queues {
            if let Some(held) = elsewhere(flow, &queue.queue).await? {
                queue.messages = queue.messages.and(held.counts.into());
            }
        }
        Ok((Reply::Done(output), turn))
    }
}
