//! All chunks of a file are here: from now on others may have it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, OperationSpec, Result, Time};
use waybill_mesh_protocol::{FileId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::put_chunk::arriving;
use crate::events::{self, EventKind, NewEvent};
use crate::{Settings, members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishFile {
    pub mesh: MeshId,
    pub member: MemberId,
    pub file: FileId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FinishedFile {
    pub file_id: FileId,
    /// Absent for one that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

impl Operation for FinishFile {
    const SPEC: OperationSpec = spec::write("finish_file");
    type Output = FinishedFile;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<FinishedFile>> {
        const FINISH: &str = "UPDATE mesh_files SET state = 'stored', expires_at = CASE WHEN persistent = 1 THEN NULL ELSE $4 END \
            WHERE tenant = $1 AND mesh_id = $2 AND file_id = $3 RETURNING expires_at, topic, recipient";
        members::live(tx, self.mesh, self.member).await?;
        let [size, received, chunks] = arriving(tx, ctx.now, self.mesh, self.member, self.file).await?;
        if received != size {
            let message = format!("{received} of {size} bytes have arrived; the next chunk is number {chunks}.");
            return Err(Error::new(Code::InvalidStateTransition, message));
        }
        let until = ctx.now.after(Duration::from_secs(ctx.settings::<Settings>().file_retention_s));
        let ids = [Value::from(self.mesh.as_bytes()), Value::from(self.file.as_bytes())];
        let row = tx.query_opt(FINISH, &[ids[0], ids[1], Value::from(until)]).await?;
        let row = row.ok_or_else(|| Error::not_found("file"))?;
        let recipient = row.bytes_opt(2)?.map(MemberId::from_slice).transpose()?;
        let data = json!({ "file_id": self.file, "topic": row.text_opt(1)?, "to": recipient, "size_bytes": size });
        events::record(ctx, tx, self.mesh, &[NewEvent::of(EventKind::FileShared, self.member, data)]).await?;
        Ok(Reply::Done(FinishedFile { file_id: self.file, expires_at: row.time_opt(0)? }))
    }
}
