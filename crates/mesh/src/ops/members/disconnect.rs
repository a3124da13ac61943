//! A member's connection has ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::connect::ConnectionId;
use crate::{connections, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    pub mesh: MeshId,
    pub member: MemberId,
    pub connection: ConnectionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Disconnected {
    /// False for a connection that was replaced before, or whose member is none any more.
    pub was_connected: bool,
}

impl Operation for Disconnect {
    const SPEC: OperationSpec = OperationSpec { relieves: true, repeatable: true, ..spec::write("disconnect") };
    type Output = Disconnected;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Disconnected>> {
        let was_connected = connections::remove(ctx, tx, self.mesh, self.member, self.connection).await?;
        Ok(Reply::Done(Disconnected { was_connected }))
    }
}
