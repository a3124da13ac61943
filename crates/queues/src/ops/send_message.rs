//! SendMessage: one row, and a flight beside it where the message has to wait.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Sql, Tx, Value};

use super::write;
use crate::message::{MessageAttribute, MessageId};
use crate::queue::{Queue, topic};
use crate::rules::names::queue_name;
use crate::rules::{check_range, contents, digest};

const DELAY_S_MAX: i64 = 900;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SendMessage {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub message_body: String,
    /// Takes the place of the queue's delay; 0 is none at all.
    pub delay_seconds: Option<i64>,
    #[serde(default)]
    pub message_attributes: BTreeMap<String, MessageAttribute>,
    #[serde(default)]
    pub message_system_attributes: BTreeMap<String, MessageAttribute>,
    /// Kept and shown; a standard queue has no order that it could change.
    pub message_group_id: Option<String>,
    pub message_deduplication_id: Option<String>,
    /// Left empty by whoever makes a request, and filled by [`SendMessage::checked`].
    #[serde(skip)]
    #[schemars(skip)]
    pub known: OnceLock<Known>,
}

/// What follows from the request alone.
#[derive(Clone, Debug)]
pub struct Known {
    body_md5: [u8; 16],
    attributes_md5: Option<String>,
    system_md5: Option<String>,
    /// As it is stored.
    attributes: Option<String>,
    bytes: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Sent {
    pub message_id: MessageId,
    #[serde(rename = "MD5OfMessageBody")]
    pub md5_of_message_body: String,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    pub md5_of_message_attributes: Option<String>,
    #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
    pub md5_of_message_system_attributes: Option<String>,
}

/// `$2` is the first id of the part, `$3` the first above it, `$4` the head.
macro_rules! insert {
    ($number:literal, $after:literal) => {
        concat!(
            "INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp) \
             SELECT next.mid, $1, $5, $6, $7, $8, $9, $10, $11, $12 FROM (SELECT ",
            $number,
            " AS mid) AS next WHERE next.mid >= $4 AND next.mid < $3",
            $after
        )
    };
}

/// SQLite's writer is alone: the number after the last one is nobody else's. Numbers of messages that are gone may
/// come again, but none below the head, where nobody would look for it.
macro_rules! sqlite {
    ($after:literal) => {
        insert!(
            "coalesce((SELECT m.mid + 1 FROM messages m WHERE m.tenant = $1 AND m.mid >= $4 AND m.mid < $3 \
             ORDER BY m.mid DESC LIMIT 1), $4)",
            $after
        )
    };
}

/// PostgreSQL's numbers come from a sequence, and the transaction has its own number before it draws one: whoever
/// waits for all transactions of before a number was seen then waits for all that have drawn a lower one.
macro_rules! postgres {
    ($after:literal) => {
        insert!("CASE WHEN pg_current_xact_id() IS NOT NULL THEN $2 + nextval('message_numbers') END", $after)
    };
}

const INSERT: Sql = Sql { sqlite: sqlite!(""), postgres: postgres!("") };
const INSERT_RETURNING: Sql = Sql { sqlite: sqlite!(" RETURNING mid"), postgres: postgres!(" RETURNING mid") };
/// Not yet received, and not to be before its time.
const DELAY: &str = "INSERT INTO flights (mid, tenant, part, visible_at, receives) VALUES ($2, $1, $3, $4, 0)";

impl Operation for SendMessage {
    const SPEC: OperationSpec = write("SendMessage", &[Scope::QueuesSend]);
    type Output = Sent;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Sent>> {
        let known = self.checked()?;
        let queue = Queue::load(tx, &self.queue_url).await?;
        contents::check_size(known.bytes, queue.attributes.message_bytes_max())?;
        let message_id = MessageId(ctx.ids.next());
        let delay_s = self.delay_seconds.unwrap_or_else(|| queue.attributes.delay_s());
        let sender = ctx.caller.principal.to_string();
        let params = self.row(ctx, &queue, known, &message_id, &sender);
        match u64::try_from(delay_s) {
            Err(_) | Ok(0) => tx.conclude(&[(tx.text(INSERT), params)], &[0], no_number).await?,
            Ok(seconds) => {
                let row = tx.query_opt(tx.text(INSERT_RETURNING), &params).await?.ok_or_else(no_number)?;
                let visible_at = ctx.now.after(Duration::from_secs(seconds));
                let flight = vec![row.int(0)?.into(), queue.part.number.into(), visible_at.into()];
                tx.conclude(&[(DELAY, flight)], &[0], no_number).await?;
            }
        }
        // One that has to wait is announced as well: whoever waits for messages learns when to look again.
        tx.wake(topic(ctx.caller.tenant, queue_name(&self.queue_url)?), 1);
        Ok(Reply::Done(Sent {
            message_id,
            md5_of_message_body: digest::hex(&known.body_md5),
            md5_of_message_attributes: known.attributes_md5.clone(),
            md5_of_message_system_attributes: known.system_md5.clone(),
        }))
    }
}

fn no_number() -> Error {
    Error::internal("a message got no number that its part has room for")
}

impl SendMessage {
    /// Checks the request and takes its digests, once. Worth calling before the operation is run: a digest of a large
    /// body takes milliseconds, which inside the transaction everybody else would wait for.
    pub fn checked(&self) -> Result<&Known> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        self.check()?;
        let attributes = match self.message_attributes.is_empty() {
            true => None,
            false => Some(serde_json::to_string(&self.message_attributes).map_err(Error::internal)?),
        };
        Ok(self.known.get_or_init(|| Known {
            body_md5: digest::of_body(&self.message_body),
            attributes_md5: digest::of_attributes(&self.message_attributes),
            system_md5: digest::of_attributes(&self.message_system_attributes),
            attributes,
            bytes: contents::size(&self.message_body, &self.message_attributes),
        }))
    }

    fn check(&self) -> Result<()> {
        contents::check_body(&self.message_body)?;
        contents::check_attributes(&self.message_attributes)?;
        contents::check_system_attributes(&self.message_system_attributes)?;
        if let Some(delay_s) = self.delay_seconds {
            check_range("DelaySeconds", delay_s, 0, DELAY_S_MAX)?;
        }
        if let Some(group) = &self.message_group_id {
            contents::check_group(group)?;
        }
        if self.message_deduplication_id.is_some() {
            return Err(Error::invalid("MessageDeduplicationId is for FIFO queues; this is a standard queue."));
        }
        Ok(())
    }

    fn row<'a>(
        &'a self,
        ctx: &Ctx<'_>,
        queue: &Queue,
        known: &'a Known,
        message_id: &'a MessageId,
        sender: &'a str,
    ) -> Vec<Value<'a>> {
        let trace = self.message_system_attributes.get(contents::TRACE_HEADER);
        vec![
            queue.part.begin().into(),
            queue.part.end().into(),
            queue.part.head.into(),
            message_id.as_bytes().into(),
            Value::from(&self.message_body),
            Value::from(&known.body_md5[..]),
            Value::from(known.attributes.as_deref()),
            Value::from(trace.and_then(|trace| trace.string_value.as_deref())),
            ctx.now.into(),
            Value::from(sender),
            Value::from(self.message_group_id.as_deref()),
        ]
    }
}
