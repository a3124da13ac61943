//! List queues with how much is in each, by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Error, Example, OperationSpec, Result, Route, Time, cursor};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use super::{ANY, Depth, read};
use crate::catalog::Entry;
use crate::counts::Counts;
use crate::rules::names::{NAME_CHARS_MAX, is_fifo};

const PAGE_DEFAULT: u32 = 50;
/// Queues in one page: the messages of each are counted.
const PAGE_MAX: u32 = 100;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQueues {
    /// Only queues whose names begin with this.
    #[serde(default)]
    #[schemars(length(max = NAME_CHARS_MAX))]
    pub prefix: Option<String>,
    /// How many queues at most; 50 when left out, 100 when more is asked for.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// The tenant's queues, by name.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Queues {
    pub queues: Vec<QueueSummary>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct QueueSummary {
    pub queue: String,
    pub fifo: bool,
    /// How many messages the queue has. Absent while a store that has some of them does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Depth>,
    /// Where messages go that were received too often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_queue: Option<String>,
    /// Do other queues send their dead letters here?
    pub is_dead_letter_queue: bool,
    pub created_at: Time,
}

impl Operation for ListQueues {
    const SPEC: OperationSpec = OperationSpec {
        tool: true,
        title: "List queues",
        description: "Shows the queues of your tenant by name, each with the number of messages that are visible, in flight and \
                      delayed, and with its dead-letter queue.",
        example: Example {
            arguments: r#"{"prefix": "orders", "limit": 2}"#,
            answer: r#"{"queues": [{"queue": "orders", "fifo": false, "messages": {"visible": 3, "in_flight": 1, "delayed": 0},
                "dead_letter_queue": "orders-dead", "is_dead_letter_queue": false,
                "created_at": "2026-01-05T12:30:00.000000Z"},
                {"queue": "orders-dead", "fifo": false, "messages": {"visible": 0, "in_flight": 0, "delayed": 0},
                "is_dead_letter_queue": true, "created_at": "2026-01-05T12:29:58.000000Z"}],
                "next_cursor": "6f72646572732d64656164aabbccddeeff"}"#,
        },
        ..read("list_queues", Route::get("/v1/queues"), ANY)
    };
    type Output = Queues;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Queues>> {
        const LIST: &str = "SELECT q.name, q.created_at, q.dead_letter, (SELECT count(*) FROM (SELECT 1 FROM queues s \
                            WHERE s.tenant = $1 AND s.dead_letter = q.name LIMIT 1) AS source) FROM queues q \
                            WHERE q.tenant = $1 AND q.name > $2 AND q.name >= $3 AND q.name < $4 ORDER BY q.name LIMIT $5";
        let (limit, prefix) = (self.limit()?, self.prefix.as_deref().unwrap_or_default());
        let scope = scope(ctx.caller, prefix);
        let after = self.cursor.as_deref().map_or_else(|| Ok(Vec::new()), |text| cursor::decode(&scope, text))?;
        let after = String::from_utf8(after).map_err(|_| cursor::refused())?;
        // No character of a name is above it.
        let end = format!("{prefix}~");
        let params = [Value::from(&after), Value::from(prefix), Value::from(&end), Value::from(i64::from(limit) + 1)];
        let rows = tx.query(LIST, &params).await?;
        let is_more = rows.len() > limit as usize;
        let (mut queues, mut last) = (Vec::with_capacity(rows.len()), None);
        for row in rows.iter().take(limit as usize) {
            last = Some(row.text(0)?);
            // One that was deleted at this moment is none any more.
            if let Some(entry) = Entry::find(tx, row.text(0)?).await? {
                let counts = Counts::of(tx, &entry.name, entry.generation, ctx.now).await?;
                queues.push(QueueSummary::read(row, counts.into())?);
            }
        }
        let next_cursor = last.filter(|_| is_more).map(|name| cursor::encode(&scope, name.as_bytes()));
        Ok(Reply::Done(Queues { queues, next_cursor }))
    }
}

impl ListQueues {
    fn limit(&self) -> Result<u32> {
        if self.prefix.as_ref().is_some_and(|prefix| prefix.len() > NAME_CHARS_MAX) {
            return Err(Error::invalid(format!("`prefix` has at most {NAME_CHARS_MAX} characters.")));
        }
        match self.limit {
            Some(0) => Err(Error::invalid("`limit` is at least 1.")),
            limit => Ok(limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX)),
        }
    }
}

impl QueueSummary {
    fn read(row: &Row, messages: Depth) -> Result<Self> {
        let name = row.text(0)?;
        Ok(Self {
            queue: name.to_owned(),
            fifo: is_fifo(name),
            messages: Some(messages),
            dead_letter_queue: row.text_opt(2)?.map(str::to_owned),
            is_dead_letter_queue: row.int(3)? > 0,
            created_at: row.time(1)?,
        })
    }
}

fn scope<'a>(caller: &'a Caller, prefix: &'a str) -> [&'a [u8]; 3] {
    [b"list_queues", caller.tenant_id.as_bytes(), prefix.as_bytes()]
}
