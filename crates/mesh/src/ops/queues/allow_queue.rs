//! Let the members of a mesh send to a queue of the tenant.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_queues::look_for_queue;
use waybill_queues::rules::names::unknown_queue;
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Value};

use super::QUEUES_MAX;
use crate::events::{self, EventKind, NewEvent};
use crate::{members, metrics, posts, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllowQueue {
    pub mesh: MeshId,
    pub member: MemberId,
    /// Its name, which there must be.
    pub queue: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AllowedQueue {
    pub queue: String,
    /// False for one that was allowed before.
    pub allowed: bool,
}

impl AllowQueue {
    async fn check(&self, tx: &mut Tx<'_>) -> Result<()> {
        let owner = members::owner(tx, self.mesh, self.member, "allow queues").await?;
        if !owner.plaintext {
            return Err(posts::needs_plaintext());
        }
        match look_for_queue(tx, &self.queue).await? {
            None => Err(unknown_queue(&self.queue)),
            Some(queue) if !queue.is_here => Err(posts::elsewhere()),
            Some(_) => Ok(()),
        }
    }
}

impl Operation for AllowQueue {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..spec::write("allow_queue") };
    type Output = AllowedQueue;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AllowedQueue>> {
        const INSERT: &str = "INSERT INTO mesh_queues (tenant, mesh_id, queue, allowed_by, allowed_at) \
            SELECT $1, $2, $3, $4, $5 WHERE (SELECT count(*) FROM mesh_queues WHERE tenant = $1 AND mesh_id = $2) < $6";
        self.check(tx).await?;
        tx.in_turn(Topic::new("mesh.queues", ctx.caller.tenant, self.mesh.as_bytes())).await?;
        let answer = |allowed| Reply::Done(AllowedQueue { queue: self.queue.clone(), allowed });
        if posts::is_allowed(tx, self.mesh, &self.queue).await? {
            return Ok(answer(false));
        }
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(&self.queue),
            Value::from(self.member.as_bytes()),
            Value::from(ctx.now),
            Value::from(QUEUES_MAX),
        ];
        if tx.execute(INSERT, &params).await? == 0 {
            metrics::capped("queues");
            let message = format!("The mesh may send to {QUEUES_MAX} queues, which is as many as it may.");
            return Err(Error::new(Code::TooManyQueues, message)
                .with("limit", QUEUES_MAX)
                .with_cure("Take one away that is not used any more with `waybill mesh queues disallow`."));
        }
        let event = NewEvent::of(EventKind::QueueAllowed, self.member, json!({ "queue": self.queue }));
        events::record(ctx, tx, self.mesh, &[event]).await?;
        Ok(answer(true))
    }
}
