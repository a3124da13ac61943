//! DeleteMessage: the end of a message, by whoever received it last.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::queue::Queue;
use crate::rules::handle::{self, Handle};

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

    /// A handle that is no longer the latest, or whose message is gone, is a success that deletes nothing. The flight
    /// goes first: on PostgreSQL it is what a receive that takes the message again at this moment locks.
    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Deleted>> {
        const FLIGHT: &str = "DELETE FROM flights WHERE tenant = $1 AND mid = $2 AND token = $3";
        const MESSAGE: &str = "DELETE FROM messages WHERE tenant = $1 AND mid = $2";
        let queue = Queue::load(tx, &self.queue_url).await?;
        let handle = Handle::decode(&self.receipt_handle)?;
        if handle.generation != queue.generation || !queue.part.holds(handle.mid) {
            return Err(handle::invalid());
        }
        let mid = Value::from(handle.mid);
        if tx.execute(FLIGHT, &[mid, Value::from(&handle.token[..])]).await? == 1 {
            tx.conclude(&[(MESSAGE, vec![mid])], &[], || Error::internal("nothing is demanded")).await?;
        }
        Ok(Reply::Done(Deleted {}))
    }
}
