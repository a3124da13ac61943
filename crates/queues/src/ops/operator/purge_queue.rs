//! Purge a queue, by the rules of the SQS action.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{answer, named, write};
use crate::ops::purge_queue::{PAUSE, PurgeQueue as Action};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PurgeQueue {
    pub queue: String,
}

/// Whatever was in the queue cannot be received any more.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PurgedQueue {
    pub queue: String,
    /// Handles and cursors of this generation mean nothing any more.
    pub generation_before: i64,
    pub generation_after: i64,
    /// Before this time another purge is refused.
    pub next_purge_at: Time,
}

impl Operation for PurgeQueue {
    const SPEC: OperationSpec = OperationSpec {
        destructive: true,
        relieves: true,
        title: "Purge a queue",
        description: "Deletes every message of a queue, those in flight and delayed ones included. It cannot be undone. A queue is \
                      purged once a minute at most: before that the error says after how many seconds (`retry_after`).",
        example: Example {
            arguments: r#"{"queue": "orders"}"#,
            answer: r#"{"queue": "orders", "generation_before": 1767616200000000, "generation_after": 1767616260000000,
                "next_purge_at": "2026-01-05T12:32:00.000000Z"}"#,
        },
        ..write("purge_queue", Route::post("/v1/queues/{queue}/purge"))
    };
    type Output = PurgedQueue;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<PurgedQueue>> {
        let queue = named(&self.queue)?.to_owned();
        let purged = answer(ctx, tx, &Action { queue_url: queue.clone() }).await?;
        let (generation_before, generation_after) = purged.generations;
        let next_purge_at = ctx.now.after(PAUSE);
        Ok(Reply::Done(PurgedQueue { queue, generation_before, generation_after, next_purge_at }))
    }
}
