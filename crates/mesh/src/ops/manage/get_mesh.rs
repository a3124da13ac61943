//! Read one mesh by its slug.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Example, OperationSpec, Result, Route};
use waybill_mesh_protocol::Slug;
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::read;
use crate::mesh::{self, MeshView};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetMesh {
    /// The slug of the mesh.
    pub mesh: Slug,
}

impl Operation for GetMesh {
    const SPEC: OperationSpec = OperationSpec {
        title: "Get a mesh",
        description: "Shows a mesh of your tenant: its owner, how many members and topics it has, and its policy.",
        example: Example {
            arguments: r#"{"mesh": "team"}"#,
            answer: r#"{"mesh_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "slug": "team", "plaintext": false,
                "connection_policy": "prefer_newest", "owner": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e11",
                "owner_key": "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c", "owner_name": "alice",
                "created_at": "2026-01-05T12:30:00.000000Z", "created_by": "human:admin", "members": 2, "topics": 1}"#,
        },
        ..read("get_mesh", Route::get("/v1/meshes/{mesh}"))
    };
    type Output = MeshView;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<MeshView>> {
        mesh::find(tx, &self.mesh).await.map(Reply::Done)
    }
}
