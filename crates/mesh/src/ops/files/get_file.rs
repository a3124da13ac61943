//! What a file is.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::{FileId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{FileView, find};
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetFile {
    pub mesh: MeshId,
    pub member: MemberId,
    pub file: FileId,
}

impl Operation for GetFile {
    const SPEC: OperationSpec = spec::read("get_file");
    type Output = FileView;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<FileView>> {
        members::live(tx, self.mesh, self.member).await?;
        find(tx, ctx.now, self.mesh, self.member, self.file).await.map(Reply::Done)
    }
}
