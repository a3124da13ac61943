//! Files: written chunk by chunk, read the same way, so that nobody holds more than one chunk of them. On an encrypted mesh the
//! broker cannot read what they hold.

mod begin_file;
mod finish_file;
mod get_chunk;
mod get_file;
mod list_files;
mod put_chunk;

pub use begin_file::{BeginFile, BegunFile};
pub use finish_file::{FinishFile, FinishedFile};
pub use get_chunk::{FileChunk, GetChunk};
pub use get_file::GetFile;
pub use list_files::{Files, ListFiles};
pub use put_chunk::{PutChunk, StoredChunk};
use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Error, Result, Time};
use waybill_mesh_protocol::{FileId, MemberId, MeshId};
use waybill_store::{Row, Tx, Value};

/// Of one chunk; only the last one may have fewer.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// The columns that [`FileView::read`] reads, of `mesh_files f` joined with the owner's row as `m`.
macro_rules! columns {
    () => {
        "f.file_id, f.owner, m.name, f.topic, f.recipient, f.meta, f.size_bytes, f.created_at, f.expires_at FROM mesh_files f \
         JOIN mesh_members m ON m.tenant = $1 AND m.mesh_id = f.mesh_id AND m.member_id = f.owner"
    };
}

/// Whether `$3` may have the file `f`.
macro_rules! may_have {
    () => {
        "(f.owner = $3 OR f.recipient = $3 OR f.topic IS NULL AND f.recipient IS NULL OR EXISTS (SELECT 1 \
         FROM mesh_subscriptions s WHERE s.tenant = $1 AND s.mesh_id = f.mesh_id AND s.topic = f.topic AND s.member_id = $3))"
    };
}
use {columns, may_have};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct FileView {
    pub file_id: FileId,
    pub owner: MemberId,
    pub owner_name: String,
    /// For the subscribers of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// For this member alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipient: Option<MemberId>,
    /// As its owner has given it.
    pub meta: String,
    pub size_bytes: u64,
    pub created_at: Time,
    /// Absent for one that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

impl FileView {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            file_id: FileId::from_slice(row.bytes(0)?)?,
            owner: MemberId::from_slice(row.bytes(1)?)?,
            owner_name: row.text(2)?.to_owned(),
            topic: row.text_opt(3)?.map(str::to_owned),
            recipient: row.bytes_opt(4)?.map(MemberId::from_slice).transpose()?,
            meta: row.text(5)?.to_owned(),
            size_bytes: u64::try_from(row.int(6)?).map_err(Error::internal)?,
            created_at: row.time(7)?,
            expires_at: row.time_opt(8)?,
        })
    }
}

/// A file that is there as a whole and that the member may have.
async fn find(tx: &mut Tx<'_>, now: Time, mesh: MeshId, member: MemberId, file: FileId) -> Result<FileView> {
    const FIND: &str = concat!(
        "SELECT ",
        columns!(),
        " WHERE f.tenant = $1 AND f.mesh_id = $2 AND f.file_id = $4 AND f.state = 'stored' \
         AND (f.expires_at IS NULL OR f.expires_at > $5) AND ",
        may_have!()
    );
    let params =
        [Value::from(mesh.as_bytes()), Value::from(member.as_bytes()), Value::from(file.as_bytes()), Value::from(now)];
    let row = tx.query_opt(FIND, &params).await?;
    row.as_ref().map(FileView::read).transpose()?.ok_or_else(|| Error::not_found("file"))
}
