//! The files that a member may have, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::{FileId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{FileView, columns, may_have};
use crate::{members, spec};

const PAGE_DEFAULT: u32 = 50;
pub const PAGE_MAX: u32 = 200;
/// After every id.
const END: [u8; 16] = [0xff; 16];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    pub mesh: MeshId,
    pub member: MemberId,
    /// How many at most; 50 when left out, 200 when more is asked for.
    #[serde(default)]
    pub limit: Option<u32>,
    /// `next_before` of the page before.
    #[serde(default)]
    pub before: Option<FileId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Files {
    pub files: Vec<FileView>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_before: Option<FileId>,
}

impl Operation for ListFiles {
    const SPEC: OperationSpec = spec::read("list_files");
    type Output = Files;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Files>> {
        const LIST: &str = concat!(
            "SELECT ",
            columns!(),
            " WHERE f.tenant = $1 AND f.mesh_id = $2 AND f.file_id < $4 AND f.state = 'stored' \
             AND (f.expires_at IS NULL OR f.expires_at > $5) AND ",
            may_have!(),
            " ORDER BY f.file_id DESC LIMIT $6"
        );
        members::live(tx, self.mesh, self.member).await?;
        let limit = self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(self.before.as_ref().map_or(&END[..], FileId::as_bytes)),
            Value::from(ctx.now),
            Value::from(i64::from(limit) + 1),
        ];
        let rows = tx.query(LIST, &params).await?;
        let is_more = rows.len() > limit as usize;
        let files = rows.iter().take(limit as usize).map(FileView::read).collect::<Result<Vec<_>>>()?;
        let next_before = files.last().filter(|_| is_more).map(|file| file.file_id);
        Ok(Reply::Done(Files { files, next_before }))
    }
}
