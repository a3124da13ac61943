//! Revoke a member as the operator: for a mesh whose owner has lost its keys, or is the one to be revoked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Example, OperationSpec, Result, Role, Route};
use waybill_mesh_protocol::{MemberId, MeshId, PublicKey, Slug};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::ending::{Ending, end};
use crate::{members, mesh};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeMeshMember {
    /// The slug of the mesh.
    pub mesh: Slug,
    /// The name of a member, or a key that it has or had.
    pub member: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RevokedMeshMember {
    pub mesh_id: MeshId,
    pub member_id: MemberId,
    /// False for a member that was none any more.
    pub revoked: bool,
}

/// No name looks like a key.
async fn find(tx: &mut Tx<'_>, mesh: MeshId, member: &str) -> Result<MemberId> {
    const BY_NAME: &str =
        "SELECT member_id FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND name = $3 AND state = 'live'";
    if let Ok(key) = member.to_ascii_lowercase().parse::<PublicKey>() {
        return members::by_key(tx, mesh, &key).await;
    }
    let row = tx.query_opt(BY_NAME, &[Value::from(mesh.as_bytes()), Value::from(member)]).await?;
    MemberId::from_slice(row.ok_or_else(members::unknown)?.bytes(0)?)
}

impl Operation for RevokeMeshMember {
    const SPEC: OperationSpec = OperationSpec {
        roles: &[Role::Admin],
        destructive: true,
        repeatable: true,
        relieves: true,
        title: "Revoke a member of a mesh",
        description: "Ends a membership without the owner's keys: the member is disconnected, can send nothing and gets no key \
                      that is made from now on. The owner can be revoked, too; nobody can invite then.",
        example: Example {
            arguments: r#"{"mesh": "team", "member": "bob"}"#,
            answer: r#"{"mesh_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10",
                "member_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e12", "revoked": true}"#,
        },
        ..write("revoke_mesh_member", Route::post("/v1/meshes/{mesh}/revoke"))
    };
    type Output = RevokedMeshMember;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<RevokedMeshMember>> {
        let mesh_id = mesh::find(tx, &self.mesh).await?.mesh_id;
        let member_id = find(tx, mesh_id, &self.member).await?;
        members::lock(tx, mesh_id, member_id).await?;
        let revoked = end(ctx, tx, mesh_id, member_id, Ending::Revoked, json!(ctx.caller.principal)).await?;
        Ok(Reply::Done(RevokedMeshMember { mesh_id, member_id, revoked }))
    }
}
