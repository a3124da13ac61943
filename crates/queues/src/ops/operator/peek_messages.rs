//! Peek: messages that could be received now, as they lie in the queue. Nothing about them changes.
//!
//! The order is that of their numbers: on a FIFO queue the sequence, on a standard one the order in which they were sent.
//! Partitions come one after another. What is in flight or delayed is passed over, and of it a call passes over a bounded
//! number: a page may be short, or empty, and still say where the next one begins.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Error, Example, OperationSpec, Result, Route, Time, cursor};
use waybill_store::{Ctx, Operation, Reply, Row, Sql, Tx, Value};

use super::{LOOK, named, read};
use crate::message::{Blob, MessageAttribute, MessageId};
use crate::queue::{Part, Queue};
use crate::rules::digest;
use crate::rules::names::unknown_queue;

const MESSAGES_DEFAULT: i64 = 20;
const MESSAGES_MAX: i64 = 100;
const BODY_BYTES_DEFAULT: i64 = 4_096;
const BODY_BYTES_MIN: i64 = 256;
const BODY_BYTES_MAX: i64 = 262_144;
/// Of bodies and attributes in one page: those who ask for long bodies get fewer messages.
const PAGE_BYTES_MAX: i64 = 4 << 20;
/// Messages that one call looks at, whether it shows them or not.
const LOOKED_AT_MAX: i64 = 10_000;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeekMessages {
    pub queue: String,
    /// How many messages at most; 20 when left out.
    #[serde(default)]
    #[schemars(range(min = 1, max = MESSAGES_MAX))]
    pub limit: Option<i64>,
    /// How much of each body is shown; 4096 bytes when left out. Message attributes that take more than this are left out.
    #[serde(default)]
    #[schemars(range(min = BODY_BYTES_MIN, max = BODY_BYTES_MAX))]
    pub body_bytes: Option<i64>,
    /// `next_cursor` of the page before. It ends with a purge.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// Messages in the order in which they were sent, those of a partitioned queue one partition after another. There may be
/// fewer than were asked for, and still a next page.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Peeked {
    pub messages: Vec<PeekedMessage>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct PeekedMessage {
    pub message_id: MessageId,
    /// As much of it as was asked for.
    pub body: String,
    /// The length of the whole body.
    pub body_bytes: i64,
    /// Is there more of the body than is shown?
    pub body_is_cut: bool,
    pub md5_of_body: String,
    pub sent_at: Time,
    pub sender: String,
    /// How often it was received.
    pub receives: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_received_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_id: Option<String>,
    /// Of a FIFO queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_number: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_header: Option<String>,
    /// Of a dead letter: the queue it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_source: Option<String>,
    pub message_attributes: BTreeMap<String, AttributeView>,
    /// Are there message attributes that are too long to be shown?
    pub message_attributes_are_cut: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct AttributeView {
    /// `String`, `Number` or `Binary`, with a label of the sender's after a dot if there is one.
    pub data_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string_value: Option<String>,
    /// Of a binary one, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary_value: Option<Blob>,
}

/// `$4` is now, `$5` how many, `$6` how much of a body, `$7` the time at or before which messages are no longer kept.
macro_rules! peek {
    ($bytes:literal) => {
        concat!(
            "SELECT m.mid, m.id, substr(",
            $bytes,
            ", 1, CAST($6 AS INTEGER)), CAST(octet_length(m.body) AS BIGINT), m.md5, \
             CASE WHEN octet_length(m.attributes) <= $6 THEN m.attributes END, \
             CAST(octet_length(m.attributes) AS BIGINT), m.sent_at, m.sender, f.receives, f.first_at, m.grp, m.dedup, \
             m.trace, m.source FROM messages m LEFT JOIN flights f ON f.tenant = $1 AND f.mid = m.mid \
             WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid <= $3 AND m.sent_at > $7 \
             AND (f.visible_at IS NULL OR f.visible_at <= $4) ORDER BY m.mid LIMIT $5"
        )
    };
}

const PEEK: Sql = Sql { sqlite: peek!("CAST(m.body AS BLOB)"), postgres: peek!("convert_to(m.body, 'UTF8')") };
/// How many messages one call looks at, and the last of them.
const FAR: &str = "SELECT count(*), max(s.mid) FROM (SELECT m.mid FROM messages m WHERE m.tenant = $1 AND m.mid >= $2 \
                   AND m.mid < $3 ORDER BY m.mid LIMIT $4) AS s";

impl Operation for PeekMessages {
    const SPEC: OperationSpec = OperationSpec {
        tool: true,
        title: "Peek at messages",
        description: "Shows messages of a queue that could be received now, in the order in which they were sent (of a partitioned \
                      queue one partition after another), without receiving them: nothing about them changes. Bodies are cut to \
                      `body_bytes`. A page may be short, or empty, and still have a `next_cursor`.",
        example: Example {
            arguments: r#"{"queue": "orders", "limit": 1}"#,
            answer: r#"{"messages": [{"message_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "body": "{\"order\": 7}", "body_bytes": 12,
                "body_is_cut": false, "md5_of_body": "5d41402abc4b2a76b9719d911017c592",
                "sent_at": "2026-01-05T12:30:02.000000Z", "sender": "agent:shop", "receives": 2,
                "first_received_at": "2026-01-05T12:30:03.000000Z",
                "message_attributes": {"kind": {"data_type": "String", "string_value": "new"}},
                "message_attributes_are_cut": false}], "next_cursor": "0000010000000007aabbccddeeff"}"#,
        },
        ..read("peek_messages", Route::get("/v1/queues/{queue}/messages"), LOOK)
    };
    type Output = Peeked;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Peeked>> {
        let name = named(&self.queue)?;
        let (limit, body_bytes) = self.bounds()?;
        let queue = Queue::find(tx, name).await?.ok_or_else(|| unknown_queue(name))?;
        let generation = queue.generation.to_be_bytes();
        let scope = scope(ctx.caller, name, &generation);
        let from = match self.cursor.as_deref() {
            None => queue.part.begin(),
            Some(text) => position(&cursor::decode(&scope, text)?)?,
        };
        let look = Look { queue: &queue, now: ctx.now, limit, body_bytes };
        let page = look.page(tx, from).await?;
        let next_cursor = page.next.map(|mid| cursor::encode(&scope, &mid.to_be_bytes()));
        Ok(Reply::Done(Peeked { messages: page.messages, next_cursor }))
    }
}

impl PeekMessages {
    /// How many messages, and how much of each.
    fn bounds(&self) -> Result<(i64, i64)> {
        let within = |name: &str, value: i64, min: i64, max: i64| match (min..=max).contains(&value) {
            true => Ok(value),
            false => Err(Error::invalid(format!("`{name}` is from {min} to {max}."))),
        };
        let limit = within("limit", self.limit.unwrap_or(MESSAGES_DEFAULT), 1, MESSAGES_MAX)?;
        let bytes = self.body_bytes.unwrap_or(BODY_BYTES_DEFAULT);
        let bytes = within("body_bytes", bytes, BODY_BYTES_MIN, BODY_BYTES_MAX)?;
        // The attributes of a message may take as much again.
        Ok((limit.min(PAGE_BYTES_MAX / (2 * bytes)), bytes))
    }
}

/// A cursor means nothing after a purge: the numbers are those of another generation.
fn scope<'a>(caller: &'a Caller, name: &'a str, generation: &'a [u8]) -> [&'a [u8]; 4] {
    [b"peek_messages", caller.tenant_id.as_bytes(), name.as_bytes(), generation]
}

fn position(bytes: &[u8]) -> Result<i64> {
    bytes.try_into().map(i64::from_be_bytes).map_err(|_| cursor::refused())
}

/// One look into a queue.
struct Look<'a> {
    queue: &'a Queue,
    now: Time,
    limit: i64,
    body_bytes: i64,
}

/// What a look has found.
#[derive(Default)]
struct Page {
    messages: Vec<PeekedMessage>,
    looked_at: i64,
    /// Where to go on, if there may be more.
    next: Option<i64>,
}

impl Look<'_> {
    /// From this message on, through all partitions that come after.
    async fn page(&self, tx: &mut Tx<'_>, from: i64) -> Result<Page> {
        let mut page = Page::default();
        for part in self.queue.parts().skip_while(|part| !part.holds(from)) {
            let from = if part.holds(from) { from } else { part.begin() };
            self.look_into(tx, &mut page, part, from).await?;
            if page.next.is_some() {
                break;
            }
        }
        Ok(page)
    }

    /// Where the page is full it still says whether there is another message.
    async fn look_into(&self, tx: &mut Tx<'_>, page: &mut Page, part: &Part, from: i64) -> Result<()> {
        let left = LOOKED_AT_MAX - page.looked_at;
        let row = tx.query_opt(FAR, &[from.into(), part.end().into(), left.into()]).await?;
        let (looked_at, last) = row.map_or(Ok((0, None)), |row| Ok::<_, Error>((row.int(0)?, row.int_opt(1)?)))?;
        let Some(last) = last else { return Ok(()) };
        page.looked_at += looked_at;
        let limit = usize::try_from(self.limit).unwrap_or(0) - page.messages.len();
        let params = [
            from.into(),
            last.into(),
            self.now.into(),
            Value::from(limit as i64 + 1),
            self.body_bytes.into(),
            self.queue.kept_since(self.now).into(),
        ];
        let rows = tx.query(tx.text(PEEK), &params).await?;
        for row in rows.iter().take(limit) {
            page.messages.push(self.message(row)?);
        }
        page.next = match rows.get(limit) {
            Some(row) => Some(row.int(0)?),
            None => (looked_at == left).then_some(last + 1),
        };
        Ok(())
    }

    fn message(&self, row: &Row) -> Result<PeekedMessage> {
        let (body, body_bytes) = (cut(row.bytes(2)?), row.int(3)?);
        let attributes = match row.text_opt(5)? {
            Some(text) => serde_json::from_str::<BTreeMap<String, MessageAttribute>>(text).map_err(Error::internal)?,
            None => BTreeMap::new(),
        };
        let text = |column: usize| Ok::<_, Error>(row.text_opt(column)?.map(str::to_owned));
        Ok(PeekedMessage {
            message_id: MessageId::from_slice(row.bytes(1)?)?,
            body_is_cut: i64::try_from(body.len()).is_ok_and(|shown| shown < body_bytes),
            body: body.to_owned(),
            body_bytes,
            md5_of_body: digest::hex(row.bytes(4)?),
            sent_at: row.time(7)?,
            sender: row.text(8)?.to_owned(),
            receives: row.int_opt(9)?.unwrap_or(0),
            first_received_at: row.time_opt(10)?,
            group_id: text(11)?,
            deduplication_id: text(12)?,
            sequence_number: self.queue.sequence_of(row.int(0)?),
            trace_header: text(13)?,
            dead_letter_source: text(14)?,
            message_attributes_are_cut: row.int_opt(6)?.is_some_and(|bytes| bytes > self.body_bytes),
            message_attributes: attributes.into_iter().map(|(name, value)| (name, value.into())).collect(),
        })
    }
}

impl From<MessageAttribute> for AttributeView {
    fn from(attribute: MessageAttribute) -> Self {
        let MessageAttribute { data_type, string_value, binary_value } = attribute;
        Self { data_type, string_value, binary_value }
    }
}

/// Without the piece of a character at the end.
fn cut(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => bytes.get(..error.valid_up_to()).and_then(|whole| std::str::from_utf8(whole).ok()).unwrap_or(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_cut_between_characters() {
        for (bytes, text) in
            [("aä".as_bytes(), "aä"), (&"aä".as_bytes()[..2], "a"), (&"ä".as_bytes()[..1], ""), (b"", "")]
        {
            assert_eq!(cut(bytes), text);
        }
    }

    #[test]
    fn a_page_of_long_bodies_has_fewer_messages() {
        let of = |limit, body_bytes| PeekMessages { limit, body_bytes, ..PeekMessages::default() }.bounds();
        assert_eq!(of(None, None).unwrap(), (20, 4_096));
        assert_eq!(of(Some(100), Some(262_144)).unwrap(), (8, 262_144));
        for (limit, body_bytes) in [(Some(0), None), (Some(101), None), (None, Some(255)), (None, Some(262_145))] {
            assert!(of(limit, body_bytes).is_err(), "{limit:?} {body_bytes:?}");
        }
    }
}
