//! Set what becomes of two live connections with one key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Error, Example, OperationSpec, Result, Route};
use waybill_mesh_protocol::{MeshId, Slug};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::events::{self, EventKind, NewEvent};
use crate::mesh::Policy;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetMeshPolicy {
    /// The slug of the mesh.
    pub mesh: Slug,
    /// What becomes of two live connections with one key.
    pub connection_policy: Policy,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PolicySet {
    pub mesh_id: MeshId,
    pub connection_policy: Policy,
}

impl Operation for SetMeshPolicy {
    const SPEC: OperationSpec = OperationSpec {
        repeatable: true,
        title: "Set a mesh's connection policy",
        description: "Says what becomes of two live connections with one key: the older is closed, the newer is closed, or \
                      both stay. Connections that are there already are not touched.",
        example: Example {
            arguments: r#"{"mesh": "team", "connection_policy": "allow_concurrent"}"#,
            answer: r#"{"mesh_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "connection_policy": "allow_concurrent"}"#,
        },
        ..write("set_mesh_policy", Route::put("/v1/meshes/{mesh}/policy"))
    };
    type Output = PolicySet;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<PolicySet>> {
        const SET: &str = "UPDATE meshes SET policy = $3 WHERE tenant = $1 AND slug = $2 RETURNING mesh_id";
        let policy = self.connection_policy;
        let row = tx.query_opt(SET, &[Value::from(self.mesh.as_str()), Value::from(policy.as_str())]).await?;
        let mesh_id = MeshId::from_slice(row.ok_or_else(|| Error::not_found("mesh"))?.bytes(0)?)?;
        let data = json!({ "connection_policy": policy, "by": ctx.caller.principal });
        events::record(ctx, tx, mesh_id, &[NewEvent { kind: EventKind::PolicyChanged, member: None, data }]).await?;
        Ok(Reply::Done(PolicySet { mesh_id, connection_policy: policy }))
    }
}
