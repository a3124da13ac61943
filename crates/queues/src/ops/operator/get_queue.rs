//! Get a queue: all that is known about it, and how much is in it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{ANY, Depth, Shown, named, read};
use crate::Settings;
use crate::catalog::Entry;
use crate::rules::names::is_fifo;

/// Names of sources in one answer; ListDeadLetterSourceQueues has them all.
const SOURCES_MAX: usize = 100;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetQueue {
    pub queue: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct QueueView {
    pub queue: String,
    pub arn: String,
    pub fifo: bool,
    pub messages: Depth,
    /// When the message was sent that has been in the queue for longest; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_message_at: Option<Time>,
    /// As SQS names them, with the defaults of those that were not set.
    pub attributes: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_queue: Option<DeadLetterQueue>,
    /// Do other queues send their dead letters here?
    pub is_dead_letter_queue: bool,
    /// Those queues, a hundred at most.
    pub dead_letter_sources: Vec<String>,
    /// Rises with each purge: handles and cursors of another generation mean nothing.
    pub generation: i64,
    pub created_at: Time,
    pub modified_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purged_at: Option<Time>,
}

/// Where messages go that were received too often.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct DeadLetterQueue {
    pub queue: String,
    /// Times that a message is delivered before it goes there.
    pub max_receive_count: i64,
}

impl Operation for GetQueue {
    const SPEC: OperationSpec = OperationSpec {
        tool: true,
        title: "Get a queue",
        description: "Shows one queue of your tenant: its attributes and tags, how many messages are visible, in flight and \
                      delayed, how old the oldest is, where its dead letters go, and whose dead letters it holds.",
        example: Example {
            arguments: r#"{"queue": "orders"}"#,
            answer: r#"{"queue": "orders", "arn": "arn:aws:sqs:us-east-1:000000000000:orders", "fifo": false,
                "messages": {"visible": 3, "in_flight": 1, "delayed": 0},
                "oldest_message_at": "2026-01-05T12:30:02.000000Z",
                "attributes": {"VisibilityTimeout": "30", "DelaySeconds": "0"}, "tags": {"team": "billing"},
                "dead_letter_queue": {"queue": "orders-dead", "max_receive_count": 5}, "is_dead_letter_queue": false,
                "dead_letter_sources": [], "generation": 1767616200000000, "created_at": "2026-01-05T12:30:00.000000Z",
                "modified_at": "2026-01-05T12:30:00.000000Z"}"#,
        },
        ..read("get_queue", Route::get("/v1/queues/{queue}"), ANY)
    };
    type Output = QueueView;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<QueueView>> {
        let name = named(&self.queue)?;
        let entry = Entry::load(tx, name).await?;
        let shown = Shown::load(ctx, tx, name).await?;
        let sources = sources(tx, name).await?;
        let target = entry.attributes.redrive().and_then(|policy| {
            let target = Settings::arns(ctx).name(&policy.target_arn)?.to_owned();
            Some(DeadLetterQueue { queue: target, max_receive_count: policy.receives_max })
        });
        Ok(Reply::Done(QueueView {
            queue: name.to_owned(),
            arn: shown.arn,
            fifo: is_fifo(name),
            messages: shown.depth,
            oldest_message_at: oldest(tx, name, entry.generation).await?,
            attributes: shown.attributes,
            tags: entry.read_tags()?,
            dead_letter_queue: target,
            is_dead_letter_queue: !sources.is_empty(),
            dead_letter_sources: sources,
            generation: entry.generation,
            created_at: entry.created_at,
            modified_at: entry.modified_at,
            purged_at: entry.purged_at,
        }))
    }
}

async fn sources(tx: &mut Tx<'_>, name: &str) -> Result<Vec<String>> {
    const SOURCES: &str = "SELECT name FROM queues WHERE tenant = $1 AND dead_letter = $2 ORDER BY name LIMIT $3";
    let rows = tx.query(SOURCES, &[Value::from(name), Value::from(SOURCES_MAX as i64)]).await?;
    rows.iter().map(|row| row.text(0).map(str::to_owned)).collect()
}

/// Of the first message of any partition. A dead letter that came later may have been sent earlier: finding it would be a walk
/// over all.
pub(crate) async fn oldest(tx: &mut Tx<'_>, queue: &str, generation: i64) -> Result<Option<Time>> {
    const FIRST: &str = "SELECT (SELECT m.sent_at FROM messages m WHERE m.tenant = $1 AND m.mid >= (p.part << 40) \
                         AND m.mid < ((p.part + 1) << 40) ORDER BY m.mid LIMIT 1) \
                         FROM parts p WHERE p.tenant = $1 AND p.queue = $2 AND p.generation = $3";
    let mut oldest = None;
    for row in &tx.query(FIRST, &[Value::from(queue), generation.into()]).await? {
        oldest = oldest.into_iter().chain(row.time_opt(0)?).min();
    }
    Ok(oldest)
}
