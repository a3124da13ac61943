//! Revoke a member: it can neither send, connect nor read from the commit on. The owner may revoke anybody, itself included.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId, PublicKey};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::ending::{Ending, end};
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeMember {
    pub mesh: MeshId,
    pub member: MemberId,
    /// One of the keys of whoever is revoked.
    pub key: PublicKey,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RevokedMember {
    pub member_id: MemberId,
    /// False for a member that was none any more.
    pub revoked: bool,
}

impl Operation for RevokeMember {
    const SPEC: OperationSpec =
        OperationSpec { destructive: true, repeatable: true, relieves: true, ..spec::write("revoke_member") };
    type Output = RevokedMember;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<RevokedMember>> {
        members::owner(tx, self.mesh, self.member, "revoke members").await?;
        let member_id = members::by_key(tx, self.mesh, &self.key).await?;
        members::lock(tx, self.mesh, member_id).await?;
        let revoked = end(ctx, tx, self.mesh, member_id, Ending::Revoked, json!(self.member)).await?;
        Ok(Reply::Done(RevokedMember { member_id, revoked }))
    }
}
