//! Close a mesh as the operator: all memberships end, the owner's first, so that nobody joins meanwhile. What was sent is kept for as
//! long as it would have been, and the slug stays taken: ids that were used under it must not be free again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route};
use waybill_mesh_protocol::{MemberId, MeshId, Slug};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::ending::{Ending, end};
use crate::{members, mesh};

/// Memberships that one call ends: each writes several rows and wakes its connections.
const ENDED_MAX: i64 = 32;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CloseMesh {
    /// The slug of the mesh.
    pub mesh: Slug,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ClosedMesh {
    pub mesh_id: MeshId,
    /// By this call.
    pub revoked: i64,
    /// Members that are left: call again until there are none.
    pub remaining: i64,
}

impl Operation for CloseMesh {
    const SPEC: OperationSpec = OperationSpec {
        roles: &[Role::Admin],
        destructive: true,
        repeatable: true,
        relieves: true,
        title: "Close a mesh",
        description: "Revokes the owner of a mesh and then all other members, 32 with each call: call again until `remaining` is \
                      0. Invites are void from the first call on. What was sent ages as before, and the slug stays taken.",
        example: Example {
            arguments: r#"{"mesh": "team"}"#,
            answer: r#"{"mesh_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "revoked": 2, "remaining": 0}"#,
        },
        ..write("close_mesh", Route::post("/v1/meshes/{mesh}/close"))
    };
    type Output = ClosedMesh;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ClosedMesh>> {
        const SOME: &str = "SELECT member_id FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND state = 'live' \
                            ORDER BY CASE WHEN member_id = $3 THEN 0 ELSE 1 END, member_id LIMIT $4";
        const LEFT: &str = "SELECT count(*) FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND state = 'live'";
        let found = mesh::find(tx, &self.mesh).await?;
        let id = Value::from(found.mesh_id.as_bytes());
        let rows = tx.query(SOME, &[id, Value::from(found.owner.as_bytes()), Value::from(ENDED_MAX)]).await?;
        let some = rows.iter().map(|row| MemberId::from_slice(row.bytes(0)?)).collect::<Result<Vec<_>>>()?;
        // All locks before the first event, which nobody else can write from then on: whoever holds one of them may wait for that.
        for member in &some {
            members::lock(tx, found.mesh_id, *member).await?;
        }
        let mut revoked = 0;
        for member in some {
            let by = json!(ctx.caller.principal);
            revoked += i64::from(end(ctx, tx, found.mesh_id, member, Ending::Revoked, by).await?);
        }
        let left = tx.query_opt(LEFT, &[id]).await?;
        let remaining = left.ok_or_else(|| Error::internal("a count has no row"))?.int(0)?;
        Ok(Reply::Done(ClosedMesh { mesh_id: found.mesh_id, revoked, remaining }))
    }
}
