//! The orphan check of one mesh: do the rows of its messages belong together? In pages, because there may be millions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Route, cursor, hex};
use waybill_mesh_protocol::names::CLIENT_MESSAGE_ID_CHARS_MAX;
use waybill_mesh_protocol::{MeshId, Slug};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::read;
use crate::check::{Finding, Walk, step};
use crate::mesh;

/// Rows that one call looks at.
const ROWS_MAX: i64 = 20_000;
/// Rows that one statement looks at.
const WINDOW_MAX: i64 = 1_000;
/// A call that has found so many shows them; the next one goes on from there.
const FINDINGS_MAX: usize = 100;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckMesh {
    /// The slug of the mesh.
    pub mesh: Slug,
    /// `next_cursor` of the call before.
    #[serde(default)]
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MeshCheck {
    pub mesh_id: MeshId,
    /// Rows that this call has looked at.
    pub looked_at: i64,
    /// Rows that lack what was to be committed with them; empty when all is well.
    pub findings: Vec<Finding>,
    /// Where the next call begins; absent when all rows were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// As long as the longest id of a message, and one for the walk.
const CURSOR_BYTES_MAX: usize = 1 + 4 * CLIENT_MESSAGE_ID_CHARS_MAX;

impl CheckMesh {
    /// Which walk, and the last key of it. The cursor is bound to nothing: whoever makes one up begins where it says.
    fn begin(&self) -> Result<(Walk, Vec<u8>)> {
        let Some(text) = &self.cursor else { return Ok((Walk::Dedupe, Vec::new())) };
        let position = Some(text).filter(|text| text.len() <= 2 * CURSOR_BYTES_MAX).and_then(|text| hex::decode(text));
        let position = position.ok_or_else(cursor::refused)?;
        let (walk, after) = position.split_first().ok_or_else(cursor::refused)?;
        let walk = Walk::numbered(i64::from(*walk)).filter(|walk| walk.is_key(after)).ok_or_else(cursor::refused)?;
        Ok((walk, after.to_vec()))
    }
}

impl Operation for CheckMesh {
    const SPEC: OperationSpec = OperationSpec {
        title: "Check a mesh",
        description: "Looks for messages, ids, history, deliveries and mentions that lack what was committed with them, and \
                      lists them by id. Ask again with `next_cursor` until there is none.",
        example: Example {
            arguments: r#"{"mesh": "team"}"#,
            answer: r#"{"mesh_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "looked_at": 1204, "findings": []}"#,
        },
        ..read("check_mesh", Route::get("/v1/meshes/{mesh}/check"))
    };
    type Output = MeshCheck;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<MeshCheck>> {
        let mesh_id = mesh::find(tx, &self.mesh).await?.mesh_id;
        let (mut walk, mut after) = self.begin()?;
        let (mut looked_at, mut findings) = (0, Vec::new());
        loop {
            let step = step(tx, ctx.now, mesh_id, walk, &after, WINDOW_MAX).await?;
            looked_at += step.looked_at;
            findings.extend(step.findings);
            match (step.next, walk.next()) {
                (Some(next), _) => after = next,
                (None, Some(next)) => (walk, after) = (next, Vec::new()),
                (None, None) => {
                    return Ok(Reply::Done(MeshCheck { mesh_id, looked_at, findings, next_cursor: None }));
                }
            }
            if looked_at >= ROWS_MAX || findings.len() >= FINDINGS_MAX {
                let number = u8::try_from(walk.number()).unwrap_or(u8::MAX);
                let next_cursor = Some(hex::encode(&[&[number][..], &after].concat()));
                return Ok(Reply::Done(MeshCheck { mesh_id, looked_at, findings, next_cursor }));
            }
        }
    }
}
