//! Begin a file: room for it is taken now, its bytes follow.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, OperationSpec, Result};
use waybill_mesh_protocol::{FileId, MemberId, MeshId, PublicKey, TopicName};
use waybill_store::{Ctx, Operation, Reply, Stored, Topic, Tx, Value};

use super::CHUNK_BYTES;
use crate::{Settings, members, metrics, spec};

pub const META_BYTES_MAX: usize = 8_192;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginFile {
    pub mesh: MeshId,
    pub member: MemberId,
    /// Of what is stored: on an encrypted mesh that of the ciphertext.
    pub size_bytes: u64,
    /// For whoever gets it: its name, its key. On an encrypted mesh a ciphertext.
    #[serde(default)]
    pub meta: String,
    /// For the subscribers of this topic. Neither this nor `to`: for every member.
    #[serde(default)]
    pub topic: Option<TopicName>,
    /// For this member alone.
    #[serde(default)]
    pub to: Option<PublicKey>,
    /// Keep it until the mesh is gone.
    #[serde(default)]
    pub persistent: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct BegunFile {
    pub file_id: FileId,
    /// Of every chunk but the last.
    pub chunk_bytes: u64,
    pub chunks: u64,
}

impl BeginFile {
    fn check(&self, settings: &Settings) -> Result<i64> {
        if self.size_bytes == 0 {
            return Err(Error::invalid("`size_bytes` is at least 1."));
        }
        if self.size_bytes > settings.blob_bytes {
            let message = format!("The file has {} bytes; at most {} are taken.", self.size_bytes, settings.blob_bytes);
            return Err(Error::new(Code::PayloadTooLarge, message).with("max_payload_blob_bytes", settings.blob_bytes));
        }
        if self.meta.len() > META_BYTES_MAX || self.meta.contains('\0') {
            return Err(Error::invalid(format!("`meta` has at most {META_BYTES_MAX} bytes and no NUL.")));
        }
        if self.topic.is_some() && self.to.is_some() {
            return Err(Error::invalid("A file is for a topic or for a member, not for both."));
        }
        i64::try_from(self.size_bytes).map_err(Error::internal)
    }

    async fn recipient(&self, tx: &mut Tx<'_>) -> Result<Option<MemberId>> {
        const SUBSCRIBED: &str = "SELECT (SELECT count(*) FROM mesh_subscriptions s WHERE s.tenant = $1 AND s.mesh_id = t.mesh_id \
            AND s.topic = t.topic AND s.member_id = $4) FROM mesh_topics t WHERE t.tenant = $1 AND t.mesh_id = $2 \
            AND t.topic = $3";
        if let Some(topic) = &self.topic {
            let ids = [self.mesh.as_bytes(), self.member.as_bytes()].map(Value::from);
            let row = tx.query_opt(SUBSCRIBED, &[ids[0], Value::from(topic.as_str()), ids[1]]).await?;
            let row = row.ok_or_else(|| Error::new(Code::TopicUnknown, Code::TopicUnknown.entry().title))?;
            if row.int(0)? == 0 {
                return Err(Error::new(Code::NotSubscribed, "Only subscribers share files with a topic."));
            }
        }
        let Some(key) = &self.to else { return Ok(None) };
        let member = members::by_key(tx, self.mesh, key).await?;
        members::live(tx, self.mesh, member).await.map_err(|_| members::unknown())?;
        Ok(Some(member))
    }
}

impl Operation for BeginFile {
    const SPEC: OperationSpec = OperationSpec { status: 201, ..spec::write("begin_file") };
    type Output = BegunFile;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<BegunFile>> {
        const INSERT: &str = "INSERT INTO mesh_files (tenant, mesh_id, file_id, owner, topic, recipient, meta, size_bytes, \
            received_bytes, chunks, state, persistent, created_at, expires_at) \
            SELECT $1, $2, $3, $4, $5, $6, $7, $8, 0, 0, 'arriving', $9, $10, $11 WHERE (SELECT coalesce(sum(size_bytes), 0) \
            FROM mesh_files WHERE tenant = $1 AND mesh_id = $2) + $8 <= $12 \
            AND (SELECT count(*) FROM mesh_files WHERE tenant = $1 AND mesh_id = $2) < $13";
        let settings = ctx.settings::<Settings>();
        let size = self.check(settings)?;
        members::live(tx, self.mesh, self.member).await?;
        let recipient = self.recipient(tx).await?;
        tx.in_turn(Topic::new("mesh.files", ctx.caller.tenant, self.mesh.as_bytes())).await?;
        let bytes = usize::try_from(size).map_err(Error::internal)?;
        tx.check_room(ctx, Stored::Blobs, bytes).await?;
        tx.add(Stored::Blobs, bytes);
        let file_id = FileId(ctx.ids.next());
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(file_id.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(self.topic.as_ref().map(TopicName::as_str)),
            Value::from(recipient.as_ref().map(MemberId::as_bytes)),
            Value::from(&self.meta),
            Value::from(size),
            Value::from(self.persistent),
            Value::from(ctx.now),
            Value::from(ctx.now.after(Duration::from_secs(settings.file_arrival_s))),
            Value::from(settings.files_bytes_max),
            Value::from(settings.files_max),
        ];
        if tx.execute(INSERT, &params).await? == 0 {
            metrics::capped("files");
            let (bytes, files) = (settings.files_bytes_max, settings.files_max);
            let message = format!("The mesh stores up to {bytes} bytes in up to {files} files.");
            let cure = "Wait until some expire, or have `mesh.files_bytes_max` or `mesh.files_max` raised.";
            return Err(Error::new(Code::TooManyFiles, message).with("limit", bytes).with_cure(cure));
        }
        let chunks = self.size_bytes.div_ceil(CHUNK_BYTES);
        Ok(Reply::Done(BegunFile { file_id, chunk_bytes: CHUNK_BYTES, chunks }))
    }
}
