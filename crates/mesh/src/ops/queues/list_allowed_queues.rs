//! The queues that members of a mesh may send to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Time};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use super::QUEUES_MAX;
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListAllowedQueues {
    pub mesh: MeshId,
    pub member: MemberId,
}

/// By name, all of them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AllowedQueues {
    pub queues: Vec<AllowedQueueView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct AllowedQueueView {
    pub queue: String,
    pub allowed_by: MemberId,
    pub allowed_at: Time,
}

impl AllowedQueueView {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            queue: row.text(0)?.to_owned(),
            allowed_by: MemberId::from_slice(row.bytes(1)?)?,
            allowed_at: row.time(2)?,
        })
    }
}

impl Operation for ListAllowedQueues {
    const SPEC: OperationSpec = spec::read("list_allowed_queues");
    type Output = AllowedQueues;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AllowedQueues>> {
        const LIST: &str = "SELECT queue, allowed_by, allowed_at FROM mesh_queues WHERE tenant = $1 AND mesh_id = $2 \
                            ORDER BY queue LIMIT $3";
        members::owner(tx, self.mesh, self.member, "list the queues it sends to").await?;
        let rows = tx.query(LIST, &[Value::from(self.mesh.as_bytes()), Value::from(QUEUES_MAX)]).await?;
        let queues = rows.iter().map(AllowedQueueView::read).collect::<Result<Vec<_>>>()?;
        Ok(Reply::Done(AllowedQueues { queues }))
    }
}
