//! One chunk of a file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result};
use waybill_mesh_protocol::{FileId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::find;
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetChunk {
    pub mesh: MeshId,
    pub member: MemberId,
    pub file: FileId,
    /// From 0 on.
    pub position: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FileChunk {
    #[serde(skip)]
    #[schemars(skip)]
    pub bytes: Vec<u8>,
}

impl Operation for GetChunk {
    const SPEC: OperationSpec = spec::read("get_chunk");
    type Output = FileChunk;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<FileChunk>> {
        const FIND: &str = "SELECT bytes FROM mesh_file_chunks WHERE tenant = $1 AND mesh_id = $2 AND file_id = $3 \
                            AND position = $4";
        // Each time: whoever loses the right to a file gets no more of it.
        members::live(tx, self.mesh, self.member).await?;
        find(tx, ctx.now, self.mesh, self.member, self.file).await?;
        let position = i64::try_from(self.position).map_err(|_| Error::not_found("chunk"))?;
        let ids = [Value::from(self.mesh.as_bytes()), Value::from(self.file.as_bytes())];
        let row = tx.query_opt(FIND, &[ids[0], ids[1], Value::from(position)]).await?;
        let bytes = row.ok_or_else(|| Error::not_found("chunk"))?.bytes(0)?.to_vec();
        Ok(Reply::Done(FileChunk { bytes }))
    }
}
