//! Changes of queues: made in home, then followed by the other stores.

use waybill_kernel::{Code, Mode, Result, Tenant};
use waybill_store::{Answered, Ctx, Flow, Operation, Reply, Tx, Value, Work};

use super::follow::finish;
use super::placed::OnShards;
use super::step::Calls;
use crate::ops::delete_queue::QueueDeleted;
use crate::ops::operator;
use crate::ops::purge_queue::Purged;
use crate::ops::{AddPermission, CreateQueue, DeleteQueue, PurgeQueue, RemovePermission, SetQueueAttributes};
use crate::rules::names::{is_fifo, queue_name};

/// In home; then the others follow. What was cut off before is finished as well, also where nothing is changed.
async fn change<O: Operation>(operation: O, flow: &Flow<'_>, queue: &str) -> Answered<O::Output> {
    let answered = flow.home().run_in_turn(operation, flow.caller.clone()).await?;
    if flow.stores.has_shards() && queue_name(queue).is_ok_and(is_fifo) {
        Box::pin(followed(flow, queue_name(queue)?)).await?;
    }
    Ok(answered)
}

/// Answers with how many stores had to follow.
async fn followed(flow: &Flow<'_>, queue: &str) -> Result<usize> {
    super::process(flow).routes().forget(flow.caller.tenant, queue);
    finish(flow.stores, flow.caller.tenant, queue).await
}

macro_rules! changes {
    ($($operation:ty: $queue:ident;)+) => {
        $(impl OnShards for $operation {
            async fn dispatch(self, flow: &Flow<'_>) -> Answered<<Self as Operation>::Output> {
                let queue = self.$queue.clone();
                change(self, flow, &queue).await
            }
        })+
    };
}

changes! {
    CreateQueue: queue_name;
    SetQueueAttributes: queue_url;
    AddPermission: queue_url;
    RemovePermission: queue_url;
    operator::create_queue::CreateQueue: queue;
    operator::set_queue_attributes::SetQueueAttributes: queue;
}

impl OnShards for PurgeQueue {
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<Purged> {
        let queue = self.queue_url.clone();
        if let Some(name) = placed(flow, &queue) {
            look_around(flow, &name).await?;
        }
        change(self, flow, &queue).await
    }
}

impl OnShards for operator::purge_queue::PurgeQueue {
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<operator::purge_queue::PurgedQueue> {
        let queue = self.queue.clone();
        if let Some(name) = placed(flow, &queue) {
            look_around(flow, &name).await?;
        }
        change(self, flow, &queue).await
    }
}

impl OnShards for DeleteQueue {
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<QueueDeleted> {
        let queue = self.queue_url.clone();
        let Some(name) = placed(flow, &queue) else { return change(self, flow, &queue).await };
        look_around(flow, &name).await?;
        match change(self, flow, &queue).await {
            Err(error) if error.code() == Code::QueueDoesNotExist && followed(flow, &name).await? > 0 => {
                Ok((Reply::Done(QueueDeleted {}), None))
            }
            answered => answered,
        }
    }
}

/// The name of a queue that may have partitions elsewhere.
fn placed(flow: &Flow<'_>, queue: &str) -> Option<String> {
    let name = queue_name(queue).ok().filter(|name| flow.stores.has_shards() && is_fifo(name))?;
    Some(name.to_owned())
}

/// Before a queue is purged or deleted: do all of its stores answer? One that does not would make it half done, and so
/// nothing is begun.
async fn look_around(flow: &Flow<'_>, queue: &str) -> Result<()> {
    let Some(calls) = Calls::of(flow, queue).await? else { return Ok(()) };
    for name in calls.route.stores(0) {
        let look = Look { tenant: flow.caller.tenant, queue: queue.to_owned() };
        calls.store(name)?.system().run(look).await?;
    }
    Ok(())
}

struct Look {
    tenant: Tenant,
    queue: String,
}

impl Work for Look {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const LOOK: &str = "SELECT generation FROM queues WHERE tenant = $1 AND name = $2";
        tx.query(LOOK, &[self.tenant.0.into(), Value::from(&self.queue)]).await.map(drop)
    }
}
