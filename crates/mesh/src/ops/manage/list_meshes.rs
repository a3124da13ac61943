//! List meshes by slug.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Error, Example, OperationSpec, Result, Route, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::read;
use crate::mesh::{MeshView, columns};

const PAGE_DEFAULT: u32 = 50;
const PAGE_MAX: u32 = 100;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListMeshes {
    /// How many meshes at most; 50 when left out, 100 when more is asked for.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// The tenant's meshes, by slug.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Meshes {
    pub meshes: Vec<MeshView>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

fn scope(caller: &Caller) -> [&[u8]; 2] {
    [b"list_meshes", caller.tenant_id.as_bytes()]
}

impl Operation for ListMeshes {
    const SPEC: OperationSpec = OperationSpec {
        title: "List meshes",
        description: "Shows the meshes of your tenant by slug.",
        example: Example {
            arguments: r#"{"limit": 1}"#,
            answer: r#"{"meshes": [{"mesh_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "slug": "team", "plaintext": false,
                "connection_policy": "prefer_newest", "owner": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e11",
                "owner_key": "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c", "owner_name": "alice",
                "created_at": "2026-01-05T12:30:00.000000Z", "created_by": "human:admin", "members": 2, "topics": 1}],
                "next_cursor": "7465616daabbccddeeff"}"#,
        },
        ..read("list_meshes", Route::get("/v1/meshes"))
    };
    type Output = Meshes;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Meshes>> {
        const LIST: &str =
            concat!("SELECT ", columns!(), " WHERE h.tenant = $1 AND h.slug > $2 ORDER BY h.slug LIMIT $3");
        let limit = match self.limit {
            Some(0) => return Err(Error::invalid("`limit` is at least 1.")),
            limit => limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX),
        };
        let scope = scope(ctx.caller);
        let after = self.cursor.as_deref().map_or_else(|| Ok(Vec::new()), |text| cursor::decode(&scope, text))?;
        let after = String::from_utf8(after).map_err(|_| cursor::refused())?;
        let rows = tx.query(LIST, &[Value::from(&after), Value::from(i64::from(limit) + 1)]).await?;
        let is_more = rows.len() > limit as usize;
        let meshes = rows.iter().take(limit as usize).map(MeshView::read).collect::<Result<Vec<_>>>()?;
        let last = meshes.last().filter(|_| is_more);
        let next_cursor = last.map(|mesh| cursor::encode(&scope, mesh.slug.as_bytes()));
        Ok(Reply::Done(Meshes { meshes, next_cursor }))
    }
}
