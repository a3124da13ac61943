//! DeleteMessage: the end of a message, by whoever received it last.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Statement, Tx, Value};

use super::write;
use crate::ends::end_messages;
use crate::queue::Queue;
use crate::rules::handle::Handle;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DeleteMessage {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub receipt_handle: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Deleted {}

impl Operation for DeleteMessage {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, relieves: true, ..write("DeleteMessage", &[Scope::QueuesReceive]) };
    type Output = Deleted;

    /// A handle that is no longer the latest, or whose message is gone, is a success that deletes nothing.
    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Deleted>> {
        let queue = Queue::load(tx, &self.queue_url).await?;
        let handle = Handle::decode(&self.receipt_handle)?;
        queue.check_handle(&handle)?;
        let (flight, params) = end_flight(&handle);
        if tx.execute(flight, &params).await? == 1 {
            end_messages(tx, &queue.part, &[handle.mid]).await?;
        }
        Ok(Reply::Done(Deleted {}))
    }
}

/// Whoever ends the flight may end the message.
pub(super) fn end_flight(handle: &Handle) -> Statement<'_> {
    const FLIGHT: &str = "DELETE FROM flights WHERE tenant = $1 AND mid = $2 AND token = $3";
    (FLIGHT, vec![handle.mid.into(), Value::from(&handle.token[..])])
}
