//! One chunk of a file. Chunks come in their order; one that is there already may come again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, OperationSpec, Result, Time};
use waybill_mesh_protocol::{FileId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Sql, Tx, Value};

use super::CHUNK_BYTES;
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutChunk {
    pub mesh: MeshId,
    pub member: MemberId,
    pub file: FileId,
    /// From 0 on.
    pub position: u64,
    #[serde(skip)]
    #[schemars(skip)]
    pub bytes: Vec<u8>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct StoredChunk {
    /// Bytes of the file that are here.
    pub received_bytes: u64,
}

/// A file of the member that is on its way: its size, what of it is here, and in how many chunks. Locked until the commit.
pub(super) async fn arriving(
    tx: &mut Tx<'_>,
    now: Time,
    mesh: MeshId,
    member: MemberId,
    file: FileId,
) -> Result<[i64; 3]> {
    const FIND: Sql = Sql {
        sqlite: "SELECT size_bytes, received_bytes, chunks, state, expires_at FROM mesh_files WHERE tenant = $1 AND mesh_id = $2 \
                 AND file_id = $3 AND owner = $4",
        postgres: "SELECT size_bytes, received_bytes, chunks, state, expires_at FROM mesh_files WHERE tenant = $1 AND mesh_id = $2 \
                   AND file_id = $3 AND owner = $4 FOR UPDATE",
    };
    let sql = tx.text(FIND);
    let params = [mesh.as_bytes(), file.as_bytes(), member.as_bytes()].map(Value::from);
    let row = tx.query_opt(sql, &params).await?.ok_or_else(|| Error::not_found("file"))?;
    if row.text(3)? != "arriving" {
        return Err(Error::new(Code::InvalidStateTransition, "The file is complete."));
    }
    if row.time_opt(4)?.is_some_and(|end| end <= now) {
        return Err(Error::not_found("file"));
    }
    Ok([row.int(0)?, row.int(1)?, row.int(2)?])
}

impl Operation for PutChunk {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..spec::write("put_chunk") };
    type Output = StoredChunk;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<StoredChunk>> {
        const INSERT: &str =
            "INSERT INTO mesh_file_chunks (tenant, mesh_id, file_id, position, bytes) VALUES ($1, $2, $3, $4, $5)";
        const COUNT: &str = "UPDATE mesh_files SET received_bytes = received_bytes + $4, chunks = chunks + 1 WHERE tenant = $1 \
                             AND mesh_id = $2 AND file_id = $3";
        members::live(tx, self.mesh, self.member).await?;
        let [size, received, chunks] = arriving(tx, ctx.now, self.mesh, self.member, self.file).await?;
        let position = i64::try_from(self.position).map_err(|_| Error::invalid("`position` is too large."))?;
        if position < chunks {
            return Ok(Reply::Done(StoredChunk { received_bytes: received.unsigned_abs() }));
        }
        let expected = (size - received).min(i64::try_from(CHUNK_BYTES).map_err(Error::internal)?);
        let bytes = i64::try_from(self.bytes.len()).map_err(Error::internal)?;
        if position != chunks || bytes != expected || expected == 0 {
            let message = format!("The next chunk is number {chunks} and has {expected} bytes.");
            return Err(Error::invalid(message).with("position", chunks).with("bytes", expected));
        }
        let ids = [Value::from(self.mesh.as_bytes()), Value::from(self.file.as_bytes())];
        tx.execute(INSERT, &[ids[0], ids[1], Value::from(position), Value::from(&self.bytes[..])]).await?;
        tx.execute(COUNT, &[ids[0], ids[1], Value::from(bytes)]).await?;
        Ok(Reply::Done(StoredChunk { received_bytes: (received + bytes).unsigned_abs() }))
    }
}
