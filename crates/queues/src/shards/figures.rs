//! How much is in the partitions of a queue that are elsewhere than in home, for whoever shows the queue.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_store::stores::HOME;
use waybill_store::{Answered, Ctx, Flow, Operation, Reply, Stores, Tx, Work};

use super::follow::unknown_shard;
use super::placed::OnShards;
use super::route::Route;
use super::step::Calls;
use crate::catalog::Entry;
use crate::counts::Counts;
use crate::ops::get_queue_attributes::{GetQueueAttributes, QueueAttributes};
use crate::ops::operator::get_queue::{GetQueue, QueueView, oldest};
use crate::ops::operator::list_queues::{ListQueues, Queues};
use crate::ops::operator::start_redrive::{RedriveStarted, StartRedrive};
use crate::ops::start_message_move_task::{MoveTaskStarted, StartMessageMoveTask};
use crate::queue::ENDED;
use crate::rules::attributes::{MESSAGES, MESSAGES_DELAYED, MESSAGES_NOT_VISIBLE};
use crate::rules::names::{is_fifo, queue_name};

/// What one store holds of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub counts: Counts,
    oldest: Option<Time>,
}

impl Held {
    const NOTHING: Self = Self { counts: Counts::NONE, oldest: None };

    fn and(self, more: Self) -> Self {
        let oldest = self.oldest.into_iter().chain(more.oldest).min();
        Self { counts: self.counts.and(more.counts), oldest }
    }
}

/// A queue that has partitions elsewhere than in home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elsewhere<'a> {
    pub tenant: Tenant,
    pub queue: &'a str,
    pub route: &'a Route,
}

/// Some queues in one store, by its own copies: what this process remembers of a queue may be of before a purge.
struct Look(Vec<(Tenant, String)>);

impl Work for Look {
    type Output = Vec<Held>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Held>> {
        let mut all = Vec::with_capacity(self.0.len());
        for (tenant, queue) in &self.0 {
            let tx = &mut *tx.as_tenant(*tenant);
            let copy = Entry::find(tx, queue).await?.filter(|copy| copy.incarnation != ENDED);
            all.push(match copy {
                None => Held::NOTHING,
                Some(copy) => Held {
                    counts: Counts::of(tx, queue, copy.generation, ctx.now).await?,
                    oldest: oldest(tx, queue, copy.generation).await?,
                },
            });
        }
        Ok(all)
    }
}

/// In all stores but home, by one read in each of them and in all at once. None for a queue of which a store could not be
/// asked; then also says what is wrong with one of those stores.
pub(crate) async fn held(stores: &Stores, queues: &[Elsewhere<'_>]) -> (Vec<Option<Held>>, Option<Error>) {
    let mut by_store: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, of) in queues.iter().enumerate() {
        for name in of.route.stores(0).into_iter().filter(|name| *name != HOME) {
            by_store.entry(name).or_default().push(index);
        }
    }
    let outcomes = join_all(by_store.iter().map(|(name, indexes)| {
        let asked = indexes.iter().map(|index| (queues[*index].tenant, queues[*index].queue.to_owned()));
        ask(stores, name, Look(asked.collect()))
    }));
    let outcomes = outcomes.await;
    let (mut all, mut failure) = (vec![Some(Held::NOTHING); queues.len()], None);
    for (indexes, outcome) in by_store.values().zip(outcomes) {
        match outcome {
            Ok(held) => {
                for (index, held) in indexes.iter().zip(held) {
                    all[*index] = all[*index].map(|sum| sum.and(held));
                }
            }
            Err(error) => {
                indexes.iter().for_each(|index| all[*index] = None);
                failure = Some(error);
            }
        }
    }
    (all, failure)
}

async fn ask(stores: &Stores, name: &str, look: Look) -> Result<Vec<Held>> {
    stores.find(name).ok_or_else(|| unknown_shard(name))?.system().run(look).await
}

/// None for a queue that is in home alone.
async fn calls_of<'a>(flow: &'a Flow<'a>, queue: &str) -> Result<Option<Calls<'a>>> {
    if !flow.stores.has_shards() || !is_fifo(queue) {
        return Ok(None);
    }
    Calls::of(flow, queue).await
}

async fn elsewhere(flow: &Flow<'_>, queue: &str) -> Result<Option<Held>> {
    let Some(calls) = calls_of(flow, queue).await? else { return Ok(None) };
    let of = Elsewhere { tenant: flow.caller.tenant, queue, route: &calls.route };
    let (held, failure) = held(flow.stores, &[of]).await;
    failure.map_or(Ok(held.into_iter().flatten().next()), Err)
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
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<QueueAttributes> {
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
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<QueueView> {
        let (mut output, turn) = with_others(self, flow).await?;
        if let Some(held) = elsewhere(flow, &output.queue).await? {
            output.messages = output.messages.and(held.counts.into());
            output.oldest_message_at = output.oldest_message_at.into_iter().chain(held.oldest).min();
        }
        Ok((Reply::Done(output), turn))
    }
}

impl OnShards for ListQueues {
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<Queues> {
        let (mut output, turn) = with_others(self, flow).await?;
        let mut placed = Vec::new();
        for (index, queue) in output.queues.iter().enumerate() {
            if let Some(calls) = calls_of(flow, &queue.queue).await? {
                placed.push((index, calls));
            }
        }
        let tenant = flow.caller.tenant;
        let asked = placed.iter().map(|(_, calls)| Elsewhere { tenant, queue: &calls.queue, route: &calls.route });
        let (all, failure) = held(flow.stores, &asked.collect::<Vec<_>>()).await;
        if let Some(error) = failure {
            tracing::debug!(%error, "a store could not be asked for what it has of queues");
        }
        for ((index, _), held) in placed.iter().zip(all) {
            let messages = &mut output.queues[*index].messages;
            *messages = messages.zip(held).map(|(here, held)| here.and(held.counts.into()));
        }
        Ok((Reply::Done(output), turn))
    }
}

/// How much a task that is about to begin has to move beside what home has.
async fn visible_elsewhere(flow: &Flow<'_>, queue: &str) -> Result<i64> {
    Ok(elsewhere(flow, queue).await?.map_or(0, |held| held.counts.visible))
}

impl OnShards for StartMessageMoveTask {
    async fn dispatch(mut self, flow: &Flow<'_>) -> Answered<MoveTaskStarted> {
        // Whether it is the ARN of a queue of the caller's is for home to say.
        let queue = self.source_arn.rsplit(':').next().unwrap_or_default();
        self.elsewhere = visible_elsewhere(flow, queue).await?;
        flow.home().run_in_turn(self, flow.caller.clone()).await
    }
}

impl OnShards for StartRedrive {
    async fn dispatch(mut self, flow: &Flow<'_>) -> Answered<RedriveStarted> {
        self.elsewhere = visible_elsewhere(flow, &self.queue).await?;
        flow.home().run_in_turn(self, flow.caller.clone()).await
    }
}
