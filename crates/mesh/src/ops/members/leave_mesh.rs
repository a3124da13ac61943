//! Leave a mesh. The owner cannot: a mesh that nobody can invite to would be left behind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::ending::{Ending, end};
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaveMesh {
    pub mesh: MeshId,
    pub member: MemberId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct LeftMesh {
    pub ok: bool,
}

impl Operation for LeaveMesh {
    const SPEC: OperationSpec = OperationSpec { destructive: true, relieves: true, ..spec::write("leave_mesh") };
    type Output = LeftMesh;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<LeftMesh>> {
        members::lock(tx, self.mesh, self.member).await?;
        let live = members::live(tx, self.mesh, self.member).await?;
        if live.is_owner {
            return Err(Error::new(Code::Forbidden, "The owner cannot leave its mesh.")
                .with_cure("Revoke the owner's key if it must not be used any more."));
        }
        let ok = end(ctx, tx, self.mesh, self.member, Ending::Left, json!(self.member)).await?;
        Ok(Reply::Done(LeftMesh { ok }))
    }
}
