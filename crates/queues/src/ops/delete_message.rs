//! DeleteMessage: the end of a message, by whoever received it last.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Statement, Tx, Value};

use super::write;
use crate::ends::end_messages;
use crate::fifo;
use crate::metrics::Tally;
use crate::queue::{Part, Queue, topic};
use crate::rules::handle::Handle;
use crate::rules::throttle::Action;
use crate::shards::At;
use crate::throttle::{Ask, Ticket};

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DeleteMessage {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub receipt_handle: String,
    #[serde(skip)]
    #[schemars(skip)]
    pub ticket: Ticket,
    #[serde(skip)]
    #[schemars(skip)]
    pub at: At,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Deleted {
    /// Nothing where the handle was not the latest, or the message is gone.
    #[serde(skip)]
    #[schemars(skip)]
    pub tally: Tally,
}

impl Operation for DeleteMessage {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, relieves: true, ..write("DeleteMessage", &[Scope::QueuesReceive]) };
    type Output = Deleted;
    const ADMITS: bool = true;

    /// What is no handle costs nothing.
    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        if Handle::decode(&self.receipt_handle).is_err() {
            return Ok(());
        }
        let ask = Ask { url: &self.queue_url, action: Action::Receive, tokens: 1, bytes: 0 };
        self.ticket.admit(ctx, ask).await
    }

    fn is_misjudged(&self) -> bool {
        self.ticket.is_misjudged()
    }

    /// A handle that is no longer the latest, or whose message is gone, is a success that deletes nothing.
    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Deleted>> {
        let handle = Handle::decode(&self.receipt_handle);
        let queue = Queue::load_for_handle(tx, &self.queue_url, handle.as_ref().ok()).await?;
        self.at.check(&queue)?;
        let handle = handle?;
        self.ticket.settle(ctx, &queue, Action::Receive)?;
        queue.check_handle(&handle)?;
        let tally = delete(ctx, tx, &queue, &[handle]).await?;
        Ok(Reply::Done(Deleted { tally }))
    }
}

/// Up to ten messages by different handles. Answers with those that it has ended.
pub(super) async fn delete(ctx: &Ctx<'_>, tx: &mut Tx<'_>, queue: &Queue, handles: &[Handle]) -> Result<Tally> {
    let mut deleted = Vec::new();
    // In the order of partitions, as everybody locks groups.
    for part in queue.parts() {
        let some: Vec<Handle> = handles.iter().filter(|handle| part.holds(handle.mid)).copied().collect();
        deleted.extend(delete_from(ctx, tx, queue, part, &some).await?);
    }
    Ok(Tally::new(deleted.len(), deleted.iter().filter_map(|mid| queue.partition_of(*mid))))
}

/// Whoever ends a flight may end its message.
async fn delete_from(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    queue: &Queue,
    part: &Part,
    handles: &[Handle],
) -> Result<Vec<i64>> {
    if handles.is_empty() {
        return Ok(Vec::new());
    }
    let mut members = Vec::new();
    if queue.is_fifo() {
        let mids: Vec<i64> = handles.iter().map(|handle| handle.mid).collect();
        members = fifo::groups_of(tx, &mids).await?;
        fifo::hold(tx, part, &members).await?;
    }
    // Two may be an old and a new handle of one message: at most one of them ends its flight.
    let statements: Vec<_> = handles.iter().map(end_flight).collect();
    let ended = tx.execute_together(&statements).await?;
    let mids: Vec<i64> =
        handles.iter().zip(&ended).filter(|(_, rows)| **rows > 0).map(|(handle, _)| handle.mid).collect();
    if mids.is_empty() {
        return Ok(mids);
    }
    if !queue.is_fifo() {
        return end_messages(tx, part, &mids).await.map(|()| mids);
    }
    members.retain(|(_, mid)| mids.contains(mid));
    fifo::end(tx, part, &members).await?;
    // Those that stand behind them may be received now, or sooner than before.
    let settled = fifo::settle(tx, part, &members, ctx.now).await?;
    settled.announce(tx, topic(ctx.caller.tenant, &queue.name), ctx.now);
    Ok(mids)
}

fn end_flight(handle: &Handle) -> Statement<'_> {
    const FLIGHT: &str = "DELETE FROM flights WHERE tenant = $1 AND mid = $2 AND token = $3";
    (FLIGHT, vec![handle.mid.into(), Value::from(&handle.token[..])])
}
