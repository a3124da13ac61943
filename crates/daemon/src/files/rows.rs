//! Which files this member knows, with the key of each.

use serde::Serialize;
use waybill_kernel::{Error, Mode, Result, Time};
use waybill_mesh_protocol::FileKey;
use waybill_store::{Ctx, Row, Tx, Value, Work};

use super::FileNote;
use crate::inbox::NewMessage;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    pub file_id: String,
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
    pub key: FileKey,
    pub sender_pubkey: Option<String>,
    pub topic: Option<String>,
    pub client_message_id: Option<String>,
    pub expires_at: Option<Time>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FileView {
    pub id: String,
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
    /// Absent for one that this member has shared itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_pubkey: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<String>,
    pub known_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

impl FileRow {
    pub fn own(note: &FileNote) -> Self {
        Self {
            file_id: note.id.to_string(),
            name: note.name.clone(),
            bytes: note.bytes,
            sha256: note.sha256.clone(),
            key: note.key.clone(),
            sender_pubkey: None,
            topic: None,
            client_message_id: None,
            expires_at: note.expires_at,
        }
    }

    pub fn of(note: &FileNote, message: &NewMessage) -> Self {
        Self {
            sender_pubkey: Some(message.sender_pubkey.clone()),
            topic: message.topic.clone(),
            client_message_id: Some(message.client_message_id.clone()),
            ..Self::own(note)
        }
    }

    /// The name without what would lead out of a folder: its sender has chosen it.
    pub fn safe_name(&self) -> String {
        let safe: String = self.name.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect();
        if safe.is_empty() || safe.starts_with('.') { format!("file-{safe}") } else { safe }
    }
}

pub(super) struct Insert(pub(super) FileRow);

impl Work for Insert {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        self.0.insert(ctx, tx).await
    }
}

impl FileRow {
    /// Also in the transaction of the message that tells of the file: whoever has the message can fetch it.
    pub async fn insert(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        // The first to tell of a file says what it is: nobody else may put another key in its place.
        const INSERT: &str = "INSERT INTO files (file_id, name, bytes, sha256, secret, sender_pubkey, topic, \
                              client_message_id, known_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
                              ON CONFLICT (file_id) DO NOTHING";
        let row = self;
        let secret = row.key.to_hex();
        let name = row.name.replace('\0', " ");
        let given = [
            Value::from(&row.file_id),
            Value::from(&name),
            i64::try_from(row.bytes).unwrap_or(i64::MAX).into(),
            Value::from(&row.sha256),
            Value::from(secret.as_bytes()),
            Value::from(row.sender_pubkey.as_deref()),
            Value::from(row.topic.as_deref()),
            Value::from(row.client_message_id.as_deref()),
            ctx.now.into(),
            row.expires_at.into(),
        ];
        tx.execute(INSERT, &given).await.map(drop)
    }
}

pub(super) struct Find(pub(super) String);

impl Work for Find {
    type Output = Option<FileRow>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<FileRow>> {
        const FIND: &str = "SELECT file_id, name, bytes, sha256, secret, sender_pubkey, topic, client_message_id, expires_at \
                            FROM files WHERE file_id = $1";
        let row = tx.query_opt(FIND, &[Value::from(&self.0)]).await?;
        row.as_ref().map(read).transpose()
    }
}

fn read(row: &Row) -> Result<FileRow> {
    let text_opt = |column| row.text_opt(column).map(|text| text.map(str::to_owned));
    let key = std::str::from_utf8(row.bytes(4)?).ok().and_then(FileKey::from_hex);
    Ok(FileRow {
        file_id: row.text(0)?.to_owned(),
        name: row.text(1)?.to_owned(),
        bytes: u64::try_from(row.int(2)?).map_err(Error::internal)?,
        sha256: row.text(3)?.to_owned(),
        key: key.ok_or_else(|| Error::internal("a file's key is none"))?,
        sender_pubkey: text_opt(5)?,
        topic: text_opt(6)?,
        client_message_id: text_opt(7)?,
        expires_at: row.time_opt(8)?,
    })
}

pub(super) struct List(pub(super) usize);

impl Work for List {
    type Output = Vec<FileView>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<FileView>> {
        const LIST: &str = "SELECT file_id, name, bytes, sha256, sender_pubkey, topic, client_message_id, known_at, expires_at \
                            FROM files ORDER BY known_at DESC, file_id LIMIT $1";
        let limit = i64::try_from(self.0).unwrap_or(i64::MAX);
        let rows = tx.query(LIST, &[limit.into()]).await?;
        let view = |row: &Row| -> Result<FileView> {
            let text_opt = |column| row.text_opt(column).map(|text| text.map(str::to_owned));
            Ok(FileView {
                id: row.text(0)?.to_owned(),
                name: row.text(1)?.to_owned(),
                bytes: u64::try_from(row.int(2)?).map_err(Error::internal)?,
                sha256: row.text(3)?.to_owned(),
                sender_pubkey: text_opt(4)?,
                topic: text_opt(5)?,
                client_message_id: text_opt(6)?,
                known_at: row.time(7)?,
                expires_at: row.time_opt(8)?,
            })
        };
        rows.iter().map(view).collect()
    }
}

pub(super) struct Expire;

impl Work for Expire {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute("DELETE FROM files WHERE expires_at < $1", &[ctx.now.into()]).await.map(drop)
    }
}
