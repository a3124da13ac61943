//! Let the members of a mesh send to a queue no more. What is in the queue stays there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::events::{self, EventKind, NewEvent};
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisallowQueue {
    pub mesh: MeshId,
    pub member: MemberId,
    /// Its name. There need not be such a queue any more.
    pub queue: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct DisallowedQueue {
    pub queue: String,
    /// False for one that was not allowed.
    pub disallowed: bool,
}

impl Operation for DisallowQueue {
    const SPEC: OperationSpec =
        OperationSpec { destructive: true, repeatable: true, relieves: true, ..spec::write("disallow_queue") };
    type Output = DisallowedQueue;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<DisallowedQueue>> {
        const DELETE: &str = "DELETE FROM mesh_queues WHERE tenant = $1 AND mesh_id = $2 AND queue = $3";
        members::owner(tx, self.mesh, self.member, "disallow queues").await?;
        let params = [Value::from(self.mesh.as_bytes()), Value::from(&self.queue)];
        let disallowed = tx.execute(DELETE, &params).await? > 0;
        if disallowed {
            let event = NewEvent::of(EventKind::QueueDisallowed, self.member, json!({ "queue": self.queue }));
            events::record(ctx, tx, self.mesh, &[event]).await?;
        }
        Ok(Reply::Done(DisallowedQueue { queue: self.queue.clone(), disallowed }))
    }
}
