//! Sending to, deleting from and changing messages in the stores of their partitions.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use waybill_kernel::{Code, Error, Result};
use waybill_store::{Answered, Flow, Operation, Reply};

use super::placed::OnShards;
use super::route::Route;
use super::step::{At, Calls};
use crate::metrics::Tally;
use crate::ops::change_message_visibility_batch::{ChangeEntry, ChangedBatch};
use crate::ops::delete_message_batch::{DeleteEntry, DeletedBatch};
use crate::ops::send_message_batch::{SendEntry, SentBatch};
use crate::ops::{
    ChangeMessageVisibility, ChangeMessageVisibilityBatch, DeleteMessage, DeleteMessageBatch, SendMessage,
    SendMessageBatch,
};
use crate::rules::batch::Failure;
use crate::rules::handle::Handle;
use crate::rules::names::{is_fifo, queue_name};
use crate::throttle::Ticket;

/// An operation on messages that are all in one partition.
trait OfOnePartition: Operation + Clone {
    fn queue_url(&self) -> &str;
    fn shard(&self, route: &Route) -> String;
    fn set(&mut self, at: At);
    fn ticket(&mut self) -> &mut Ticket;
}

/// In home where there is nothing else, without another task or look.
async fn dispatch_one<O: OfOnePartition>(operation: O, flow: &Flow<'_>) -> Answered<O::Output> {
    if !flow.stores.has_shards() || !queue_name(operation.queue_url()).is_ok_and(is_fifo) {
        return flow.home().run_in_turn(operation, flow.caller.clone()).await;
    }
    Box::pin(dispatch_one_of(operation, flow)).await
}

async fn dispatch_one_of<O: OfOnePartition>(mut operation: O, flow: &Flow<'_>) -> Answered<O::Output> {
    let queue = queue_name(operation.queue_url())?.to_owned();
    let Some(mut calls) = Calls::of(flow, &queue).await? else { return at_home(operation, flow, &queue).await };
    *operation.ticket() = Ticket::shared();
    let step = |route: &Route| {
        let (at, mut step) = (At::new(route), operation.clone());
        step.set(at.clone());
        (at, step)
    };
    Ok((calls.one(|route| operation.shard(route), step).await?, None))
}

/// For what this process thinks to be in home alone.
pub(super) async fn at_home<O: Operation>(operation: O, flow: &Flow<'_>, queue: &str) -> Answered<O::Output> {
    let outcome = flow.home().run_in_turn(operation, flow.caller.clone()).await;
    if outcome.as_ref().is_err_and(|error| matches!(error.code(), Code::Overloaded | Code::Internal)) {
        // It may be elsewhere by now: whoever calls again finds out.
        super::process(flow).routes().forget(flow.caller.tenant, queue);
    }
    outcome
}

/// The store that a handle leads to. What is no handle is refused by any.
fn of_handle(route: &Route, receipt_handle: &str) -> String {
    let partition = Handle::decode(receipt_handle).ok().and_then(|handle| handle.partition).unwrap_or(0);
    route.of_partition(partition.into()).to_owned()
}

macro_rules! of_one_partition {
    ($($operation:ty: $shard:expr;)+) => {
        $(impl OfOnePartition for $operation {
            fn queue_url(&self) -> &str {
                &self.queue_url
            }

            fn shard(&self, route: &Route) -> String {
                let shard: fn(&Self, &Route) -> String = $shard;
                shard(self, route)
            }

            fn set(&mut self, at: At) {
                self.at = at;
            }

            fn ticket(&mut self) -> &mut Ticket {
                &mut self.ticket
            }
        }

        impl OnShards for $operation {
            async fn dispatch(self, flow: &Flow<'_>) -> Answered<<Self as Operation>::Output> {
                dispatch_one(self, flow).await
            }
        })+
    };
}

of_one_partition! {
    SendMessage: |send, route| route.of_group(send.message_group_id.as_deref().unwrap_or_default()).to_owned();
    DeleteMessage: |delete, route| of_handle(route, &delete.receipt_handle);
    ChangeMessageVisibility: |change, route| of_handle(route, &change.receipt_handle);
}

/// An operation on up to ten messages, each of which may be in another store. What one store cannot do keeps nobody from
/// what the others can.
trait Batch: Operation + Clone {
    type Entry: Clone + Send + Sync;

    fn queue_url(&self) -> &str;
    fn check(&self) -> Result<()>;
    fn entries(&mut self) -> &mut Vec<Self::Entry>;
    fn id(entry: &Self::Entry) -> &str;
    fn shard(entry: &Self::Entry, route: &Route) -> String;
    fn set(&mut self, at: At, ticket: Ticket);
    /// Puts the answers of several stores together.
    fn add(all: &mut Self::Output, some: Self::Output);
    fn none() -> Self::Output;
    fn failed(all: &mut Self::Output) -> &mut Vec<Failure>;
    /// In the order in which they were asked for.
    fn sort(all: &mut Self::Output, position: impl Fn(&str) -> usize);
}

async fn dispatch_batch<B: Batch>(batch: B, flow: &Flow<'_>) -> Answered<B::Output> {
    if !flow.stores.has_shards() || !queue_name(batch.queue_url()).is_ok_and(is_fifo) {
        return flow.home().run_in_turn(batch, flow.caller.clone()).await;
    }
    Box::pin(dispatch_batch_of(batch, flow)).await
}

async fn dispatch_batch_of<B: Batch>(mut batch: B, flow: &Flow<'_>) -> Answered<B::Output> {
    batch.check()?;
    let queue = queue_name(batch.queue_url())?.to_owned();
    let Some(calls) = Calls::of(flow, &queue).await? else { return at_home(batch, flow, &queue).await };
    let entries = std::mem::take(batch.entries());
    let ids: Vec<String> = entries.iter().map(|entry| B::id(entry).to_owned()).collect();
    let mut by_shard: BTreeMap<String, Vec<B::Entry>> = BTreeMap::new();
    for entry in entries {
        by_shard.entry(B::shard(&entry, &calls.route)).or_default().push(entry);
    }
    let ticket = Ticket::shared();
    let mut parts = by_shard.into_values().map(|entries| Part { batch: &batch, ids: &ids, ticket: &ticket, entries });
    let mut all = B::none();
    // The first whose store answers is charged for all of them: where it may not be made, nothing is. Until then each is
    // made alone: several at once would each find that the call is to be charged.
    for part in parts.by_ref() {
        match part.run(&calls).await {
            Err(error) if !is_of_store(&error) => return Err(error),
            outcome => part.note(&mut all, outcome),
        }
        if ticket.is_settled() {
            break;
        }
    }
    let rest: Vec<_> = parts.collect();
    let outcomes = join_all(rest.iter().map(|part| part.run(&calls))).await;
    for (part, outcome) in rest.iter().zip(outcomes) {
        part.note(&mut all, outcome);
    }
    B::sort(&mut all, |id| ids.iter().position(|known| known == id).unwrap_or(usize::MAX));
    Ok((Reply::Done(all), None))
}

/// The store is away or has too much to do, and others may not.
pub(super) fn is_of_store(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::Unavailable | Code::StoreUnavailable | Code::Overloaded | Code::ShuttingDown | Code::StorageFull
    )
}

/// The entries of a batch that are in one store.
struct Part<'b, B: Batch> {
    batch: &'b B,
    ids: &'b [String],
    ticket: &'b Ticket,
    entries: Vec<B::Entry>,
}

impl<B: Batch> Part<'_, B> {
    async fn run(&self, calls: &Calls<'_>) -> Result<B::Output> {
        let mut calls = calls.again();
        let shard = |route: &Route| self.entries.first().map(|entry| B::shard(entry, route)).unwrap_or_default();
        let step = |route: &Route| {
            let (at, mut step) = (At::of_batch(route, self.ids.len()), self.batch.clone());
            self.entries.clone_into(step.entries());
            step.set(at.clone(), self.ticket.clone());
            (at, step)
        };
        let (Reply::Done(output) | Reply::Replay(output) | Reply::Empty { answer: output, .. }) =
            calls.one(shard, step).await?;
        Ok(output)
    }

    fn note(&self, all: &mut B::Output, outcome: Result<B::Output>) {
        match outcome {
            Ok(some) => B::add(all, some),
            Err(error) => {
                let failed = self.entries.iter().map(|entry| Failure::new(B::id(entry), &error));
                B::failed(all).extend(failed);
            }
        }
    }
}

macro_rules! batch {
    ($($operation:ty, $entry:ty, $answer:ident { $($more:ident)? }: $shard:expr;)+) => {
        $(impl Batch for $operation {
            type Entry = $entry;

            fn queue_url(&self) -> &str {
                &self.queue_url
            }

            fn check(&self) -> Result<()> {
                self.check_shape()
            }

            fn entries(&mut self) -> &mut Vec<$entry> {
                &mut self.entries
            }

            fn id(entry: &$entry) -> &str {
                &entry.id
            }

            fn shard(entry: &$entry, route: &Route) -> String {
                let shard: fn(&$entry, &Route) -> String = $shard;
                shard(entry, route)
            }

            fn set(&mut self, at: At, ticket: Ticket) {
                (self.at, self.ticket) = (at, ticket);
            }

            fn add(all: &mut $answer, some: $answer) {
                all.successful.extend(some.successful);
                all.failed.extend(some.failed);
                $(all.$more.add(some.$more);)?
            }

            fn none() -> $answer {
                $answer { successful: Vec::new(), failed: Vec::new(), $($more: Tally::default())? }
            }

            fn failed(all: &mut $answer) -> &mut Vec<Failure> {
                &mut all.failed
            }

            fn sort(all: &mut $answer, position: impl Fn(&str) -> usize) {
                all.successful.sort_by_key(|entry| position(&entry.id));
                all.failed.sort_by_key(|entry| position(&entry.id));
            }
        }

        impl OnShards for $operation {
            async fn dispatch(self, flow: &Flow<'_>) -> Answered<<Self as Operation>::Output> {
                dispatch_batch(self, flow).await
            }
        })+
    };
}

batch! {
    SendMessageBatch, SendEntry, SentBatch {}:
        |entry, route| route.of_group(entry.message_group_id.as_deref().unwrap_or_default()).to_owned();
    DeleteMessageBatch, DeleteEntry, DeletedBatch { tally }: |entry, route| of_handle(route, &entry.receipt_handle);
    ChangeMessageVisibilityBatch, ChangeEntry, ChangedBatch {}: |entry, route| of_handle(route, &entry.receipt_handle);
}
