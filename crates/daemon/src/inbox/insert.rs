//! Arrival: a batch of deliveries becomes rows in one transaction, repeats excluded.

use std::sync::Arc;

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use super::{sealed, seen};
use crate::files::FileRow;

/// A message that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    pub client_message_id: String,
    pub broker_message_id: String,
    pub mesh: String,
    pub seq: i64,
    /// None for a direct message.
    pub topic: Option<String>,
    pub sender_pubkey: String,
    pub sender_name: String,
    pub body: Vec<u8>,
    /// JSON.
    pub meta: Option<Vec<u8>>,
    pub priority: &'static str,
    pub mentioned: bool,
    pub reply_to_id: Option<String>,
    /// The file that it tells of.
    pub file: Option<FileRow>,
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    Opened(Box<NewMessage>),
    /// No key at hand opens it. It is kept as it came.
    Sealed {
        client_message_id: String,
        seq: i64,
        delivery: Vec<u8>,
        reason: &'static str,
    },
}

/// # Contract
/// After its commit every delivery in it may be acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Insert {
    pub arrived: Vec<Arrived>,
    /// Everything up to this sequence number has been seen once this is committed. None leaves the position.
    pub position: Option<i64>,
    /// Held ones, by their ids, that turned out to be nobody's messages.
    pub refused: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// For each that arrived: the id of its row, if it is a new one. Only those are told to anybody.
    pub ids: Vec<Option<i64>>,
}

pub(super) struct Write(pub(super) Arc<Insert>);

impl Work for Write {
    type Output = Inserted;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Inserted> {
        // Most inboxes hold nothing back, and a young one has forgotten nothing: asked once for all.
        const LAST_ID: &str = "SELECT last_id, EXISTS (SELECT 1 FROM inbox_sealed), EXISTS (SELECT 1 FROM inbox_seen) \
                               FROM inbox_position WHERE id = 1";
        const MOVE: &str = "UPDATE inbox_position SET seq = max(seq, $1), last_id = $2 WHERE id = 1";
        let Insert { arrived, position, refused } = &*self.0;
        let row = tx.query_opt(LAST_ID, &[]).await?;
        let (mut last_id, mut any_held, any_seen) =
            row.map_or(Ok((0, true, true)), |row| Ok((row.int(0)?, row.bool(1)?, row.bool(2)?)))?;
        let mut inserted = Inserted { ids: Vec::with_capacity(arrived.len()) };
        for arrived in arrived {
            let id = match arrived {
                Arrived::Opened(message) => {
                    let was_here = any_seen && seen::has(tx, &message.client_message_id).await?;
                    let is_new = !was_here && insert(ctx, tx, last_id + 1, message).await?;
                    // Also for a repeat: it may have been held before another copy was opened.
                    if any_held {
                        tx.execute(RELEASE, &[Value::from(&message.client_message_id)]).await?;
                    }
                    is_new.then_some(last_id + 1)
                }
                Arrived::Sealed { client_message_id, seq, delivery, reason } => {
                    sealed::hold(ctx, tx, client_message_id, *seq, delivery, reason).await?;
                    any_held = true;
                    None
                }
            };
            last_id = id.unwrap_or(last_id);
            inserted.ids.push(id);
        }
        for id in refused {
            tx.execute(RELEASE, &[Value::from(id)]).await?;
        }
        tx.execute(MOVE, &[position.unwrap_or(0).into(), last_id.into()]).await?;
        Ok(inserted)
    }
}

const RELEASE: &str = "DELETE FROM inbox_sealed WHERE client_message_id = $1";

/// False for a repeat.
async fn insert(ctx: &Ctx<'_>, tx: &mut Tx<'_>, id: i64, message: &NewMessage) -> Result<bool> {
    const INSERT: &str = "INSERT INTO inbox (id, client_message_id, broker_message_id, mesh, seq, topic, sender_pubkey, \
                          sender_name, body, meta, priority, mentioned, received_at, reply_to_id) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
                          ON CONFLICT (client_message_id) DO NOTHING";
    const INDEX: &str = "INSERT INTO inbox_fts (rowid, body, sender, topic) VALUES ($1, $2, $3, $4)";
    let params = [
        id.into(),
        Value::from(&message.client_message_id),
        Value::from(&message.broker_message_id),
        Value::from(&message.mesh),
        message.seq.into(),
        message.topic.as_deref().into(),
        Value::from(&message.sender_pubkey),
        Value::from(&message.sender_name),
        Value::from(message.body.as_slice()),
        Value::from(message.meta.as_deref()),
        Value::from(message.priority),
        message.mentioned.into(),
        ctx.now.into(),
        message.reply_to_id.as_deref().into(),
    ];
    // Counted: an INSERT that returns its row costs half as much again.
    if tx.execute(INSERT, &params).await? == 0 {
        return Ok(false);
    }
    if let Some(file) = &message.file {
        file.insert(ctx, tx).await?;
    }
    let mut words = String::from_utf8_lossy(&message.body);
    if words.contains('\0') {
        words = words.replace('\0', " ").into();
    }
    let topic = message.topic.as_deref().unwrap_or_default();
    tx.execute(INDEX, &[id.into(), Value::from(&*words), Value::from(&message.sender_name), Value::from(topic)])
        .await?;
    Ok(true)
}

pub(super) struct Position;

impl Work for Position {
    type Output = i64;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<i64> {
        let row = tx.query_opt("SELECT seq FROM inbox_position WHERE id = 1", &[]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }
}

pub(super) struct Has(pub(super) String);

impl Work for Has {
    type Output = bool;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<bool> {
        const FIND: &str = "SELECT id FROM inbox WHERE client_message_id = $1";
        Ok(tx.query_opt(FIND, &[Value::from(&self.0)]).await?.is_some())
    }
}
