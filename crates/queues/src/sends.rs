//! How messages get into a part: each with the next number of the part, in the order in which they are given.

use std::time::Duration;

use waybill_kernel::{Error, Result, Time};
use waybill_store::{Ctx, Sql, Stored, Tx, Value};

use crate::message::{MessageAttributes, MessageId};
use crate::queue::{Queue, topic};
use crate::rules::{check_range, contents, digest, missing};

pub(crate) const DELAY_S_MAX: i64 = 900;

/// What somebody wants to send, as the request has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    /// By the name of its queue.
    pub is_fifo: bool,
    pub body: &'a str,
    pub delay_seconds: Option<i64>,
    pub attributes: &'a MessageAttributes,
    pub system_attributes: &'a MessageAttributes,
    pub group: Option<&'a str>,
    pub deduplication: Option<&'a str>,
}

/// What follows from the request alone.
#[derive(Clone, Debug)]
pub struct Known {
    pub(crate) body_md5: [u8; 16],
    pub(crate) attributes_md5: Option<String>,
    pub(crate) system_md5: Option<String>,
    /// As it is stored.
    attributes: Option<String>,
    bytes: usize,
    /// What a FIFO queue may tell duplicates by where no id was given.
    body_sha256: Option<String>,
}

impl Draft<'_> {
    pub(crate) fn bytes(&self) -> usize {
        contents::size(self.body, self.attributes)
    }

    /// Checks the draft and takes its digests.
    pub(crate) fn known(&self) -> Result<Known> {
        self.check()?;
        let attributes = match self.attributes.is_empty() {
            true => None,
            false => Some(serde_json::to_string(self.attributes).map_err(Error::internal)?),
        };
        Ok(Known {
            body_md5: digest::of_body(self.body),
            attributes_md5: digest::of_attributes(self.attributes),
            system_md5: digest::of_attributes(self.system_attributes),
            attributes,
            bytes: self.bytes(),
            body_sha256: (self.is_fifo && self.deduplication.is_none()).then(|| digest::sha256_of_body(self.body)),
        })
    }

    fn check(&self) -> Result<()> {
        contents::check_body(self.body)?;
        contents::check_attributes(self.attributes)?;
        contents::check_system_attributes(self.system_attributes)?;
        if let Some(delay_s) = self.delay_seconds {
            check_range("DelaySeconds", delay_s, 0, DELAY_S_MAX)?;
        }
        if let Some(group) = self.group {
            contents::check_id("MessageGroupId", group)?;
        }
        match (self.is_fifo, self.deduplication) {
            (false, None) => Ok(()),
            (false, Some(_)) => {
                Err(Error::invalid("MessageDeduplicationId is for FIFO queues; this is a standard queue."))
            }
            (true, _) if self.group.is_none() => Err(missing("MessageGroupId")),
            (true, _) if self.delay_seconds.is_some_and(|delay_s| delay_s > 0) => {
                Err(Error::invalid("DelaySeconds of a message is for standard queues; a FIFO queue has one for all."))
            }
            (true, None) => Ok(()),
            (true, Some(id)) => contents::check_id("MessageDeduplicationId", id),
        }
    }
}

/// A message that is about to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub id: MessageId,
    pub draft: Draft<'a>,
    pub known: &'a Known,
}

impl Outgoing<'_> {
    /// Refuses what this queue does not take, which other queues may.
    pub(crate) fn check(&self, queue: &Queue) -> Result<()> {
        if queue.is_fifo() {
            self.deduplication(queue)?;
        }
        self.check_size(queue)
    }

    pub(crate) fn check_size(&self, queue: &Queue) -> Result<()> {
        contents::check_size(self.known.bytes, queue.attributes.message_bytes_max())
    }

    /// What a FIFO queue tells duplicates by. An id that was given comes before the contents.
    pub(crate) fn deduplication(&self, queue: &Queue) -> Result<&str> {
        let by_contents = self.known.body_sha256.as_deref().filter(|_| queue.attributes.is_content_based());
        self.draft.deduplication.or(by_contents).ok_or_else(|| {
            Error::invalid("A message needs a MessageDeduplicationId where the queue has no ContentBasedDeduplication.")
        })
    }

    fn trace(&self) -> Option<&str> {
        self.draft.system_attributes.get(contents::TRACE_HEADER).and_then(|trace| trace.string_value.as_deref())
    }

    pub(crate) fn visible_at(&self, queue: &Queue, now: Time) -> Option<Time> {
        // A FIFO queue has one delay for all of its messages.
        let own = self.draft.delay_seconds.filter(|_| !queue.is_fifo());
        let delay_s = own.unwrap_or_else(|| queue.attributes.delay_s());
        u64::try_from(delay_s)
            .ok()
            .filter(|seconds| *seconds > 0)
            .map(|seconds| now.after(Duration::from_secs(seconds)))
    }

    /// In a FIFO queue, where its id is known before.
    pub(crate) fn fifo_row<'v>(
        &'v self,
        queue: &Queue,
        mid: i64,
        now: Time,
        sender: &'v str,
    ) -> Result<Vec<Value<'v>>> {
        let [id, body, md5, attributes, trace, group] = self.row();
        let dedup = Value::from(self.deduplication(queue)?);
        Ok(vec![mid.into(), id, body, md5, attributes, trace, now.into(), Value::from(sender), group, dedup])
    }

    /// As the sums of what is stored have it.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.draft.body.len() + self.known.attributes.as_deref().map_or(0, str::len)
    }

    /// The columns that are its own.
    fn row(&self) -> [Value<'_>; ROW] {
        [
            self.id.as_bytes().into(),
            Value::from(self.draft.body),
            Value::from(&self.known.body_md5[..]),
            Value::from(self.known.attributes.as_deref()),
            Value::from(self.trace()),
            Value::from(self.draft.group),
        ]
    }
}

/// Columns of a message that are its own.
const ROW: usize = 6;
const NO_ROW: [Value<'_>; ROW] = [
    Value::Bytes(None),
    Value::Text(None),
    Value::Bytes(None),
    Value::Text(None),
    Value::Text(None),
    Value::Text(None),
];
/// Messages that one statement stores.
const ROWS_MAX: usize = 10;

/// SQLite's writer is alone: the number after the last one is nobody else's. Numbers of messages that are gone may
/// come again, but none below the floor. `$2` is the part's first id, `$3` the first above it, `$4` the floor.
macro_rules! number_sqlite {
    () => {
        "coalesce((SELECT m.mid + 1 FROM messages m WHERE m.tenant = $1 AND m.mid >= $4 AND m.mid < $3 \
         ORDER BY m.mid DESC LIMIT 1), $4)"
    };
}
pub(crate) use number_sqlite;

/// PostgreSQL's numbers come from a sequence, and the transaction has its own number before it draws one: whoever
/// waits for all transactions of before a number was seen then waits for all that have drawn a lower one.
macro_rules! number_postgres {
    () => {
        "CASE WHEN pg_current_xact_id() IS NOT NULL THEN $2 + nextval('message_numbers') END"
    };
}
pub(crate) use number_postgres;

macro_rules! insert_one {
    ($number:expr, $after:literal) => {
        concat!(
            "INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp) \
             SELECT next.mid, $1, $7, $8, $9, $10, $11, $5, $6, $12 FROM (SELECT ",
            $number,
            " AS mid) AS next WHERE next.mid >= $4 AND next.mid < $3",
            $after
        )
    };
}

/// Those that are left over have no id.
macro_rules! insert_many {
    ($number:expr, $after:literal) => {
        concat!(
            "INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp) \
             WITH given (nth, id, body, md5, attributes, trace, grp) AS (VALUES \
             (0, $7, $8, $9, $10, $11, $12), (1, $13, $14, $15, $16, $17, $18), (2, $19, $20, $21, $22, $23, $24), \
             (3, $25, $26, $27, $28, $29, $30), (4, $31, $32, $33, $34, $35, $36), (5, $37, $38, $39, $40, $41, $42), \
             (6, $43, $44, $45, $46, $47, $48), (7, $49, $50, $51, $52, $53, $54), (8, $55, $56, $57, $58, $59, $60), \
             (9, $61, $62, $63, $64, $65, $66)) \
             SELECT next.mid, $1, next.id, next.body, next.md5, next.attributes, next.trace, $5, $6, next.grp \
             FROM (SELECT ",
            $number,
            " AS mid, given.* FROM given WHERE given.id IS NOT NULL) AS next WHERE next.mid >= $4 AND next.mid < $3",
            $after
        )
    };
}

const INSERT: Sql = Sql { sqlite: insert_one!(number_sqlite!(), ""), postgres: insert_one!(number_postgres!(), "") };
const INSERT_MANY: Sql = Sql {
    sqlite: insert_many!(concat!(number_sqlite!(), " + given.nth"), ""),
    postgres: insert_many!(number_postgres!(), ""),
};
const INSERT_RETURNING: Sql = Sql {
    sqlite: insert_many!(concat!(number_sqlite!(), " + given.nth"), " RETURNING mid, id"),
    postgres: insert_many!(number_postgres!(), " RETURNING mid, id"),
};
/// Not yet received, and not to be before their time. Those that are left over are NULL.
pub(crate) const DELAY: &str = "INSERT INTO flights (mid, tenant, part, visible_at, receives) WITH given (mid, visible_at) AS (VALUES \
                     ($3, $4), ($5, $6), ($7, $8), ($9, $10), ($11, $12), ($13, $14), ($15, $16), ($17, $18), \
                     ($19, $20), ($21, $22)) SELECT given.mid, $1, $2, given.visible_at, 0 FROM given \
                     WHERE given.mid IS NOT NULL";

/// Wakes those who wait: now for what can be received now, and for the rest when its time has come.
pub(crate) fn announce(ctx: &Ctx<'_>, tx: &mut Tx<'_>, queue: &Queue, messages: &[Outgoing<'_>]) {
    let topic = topic(ctx.caller.tenant, &queue.name);
    let mut at_once = 0;
    for message in messages {
        match message.visible_at(queue, ctx.now) {
            None => at_once += 1,
            Some(at) => tx.wake_at(topic, ctx.now, at),
        }
    }
    if at_once > 0 {
        tx.wake(topic, at_once);
    }
}

/// Stores up to ten messages. The last writes of the operation.
pub(crate) async fn store(ctx: &Ctx<'_>, tx: &mut Tx<'_>, queue: &Queue, messages: &[Outgoing<'_>]) -> Result<()> {
    let sender = ctx.caller.principal.to_string();
    let (begin, end, floor) = (queue.part.begin().into(), queue.part.end().into(), queue.part.floor().into());
    let mut params = vec![begin, end, floor, ctx.now.into(), Value::from(&sender)];
    tx.add(Stored::Rows, messages.iter().map(Outgoing::stored_bytes).sum());
    let is_delayed = messages.iter().any(|message| message.visible_at(queue, ctx.now).is_some());
    if let ([message], false) = (messages, is_delayed) {
        params.extend(message.row());
        return tx.conclude(&[(tx.text(INSERT), params)], &[0], no_number).await;
    }
    params.extend(messages.iter().flat_map(Outgoing::row));
    params.extend(std::iter::repeat_n(NO_ROW, ROWS_MAX.saturating_sub(messages.len())).flatten());
    if !is_delayed {
        return tx.conclude(&[(tx.text(INSERT_MANY), params)], &[0], no_number).await;
    }
    let rows = tx.query(tx.text(INSERT_RETURNING), &params).await?;
    if rows.len() < messages.len() {
        return Err(no_number());
    }
    let mut delays = vec![queue.part.number.into()];
    for row in &rows {
        let id = MessageId::from_slice(row.bytes(1)?)?;
        let message = messages.iter().find(|message| message.id == id);
        if let Some(visible_at) = message.and_then(|message| message.visible_at(queue, ctx.now)) {
            delays.extend([Value::from(row.int(0)?), visible_at.into()]);
        }
    }
    delays.resize(1 + 2 * ROWS_MAX, Value::Int(None));
    tx.conclude(&[(DELAY, delays)], &[0], no_number).await
}

pub(crate) fn no_number() -> Error {
    Error::internal("a message got no number that its part has room for")
}
