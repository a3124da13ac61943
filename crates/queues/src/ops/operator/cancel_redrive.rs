//! Cancel the redrive of a queue. A queue has one at a time, so an operator need not know its handle.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{answer, named, write};
use crate::move_tasks::{MoveTaskId, handle_of, unknown_task};
use crate::ops::cancel_message_move_task::CancelMessageMoveTask;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRedrive {
    /// The queue that messages are moved from.
    pub queue: String,
}

/// What was moved stays where it is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RedriveCancelled {
    pub queue: String,
    pub moved: i64,
}

impl Operation for CancelRedrive {
    const SPEC: OperationSpec = OperationSpec {
        title: "Cancel a redrive",
        description: "Ends the move of messages that is running out of a dead-letter queue. What was moved stays where it is.",
        example: Example {
            arguments: r#"{"queue": "orders-dead"}"#,
            answer: r#"{"queue": "orders-dead", "moved": 120}"#,
        },
        ..write("cancel_redrive", Route::post("/v1/queues/{queue}/redrives/cancel"))
    };
    type Output = RedriveCancelled;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<RedriveCancelled>> {
        const RUNNING: &str = "SELECT task FROM move_tasks WHERE tenant = $1 AND source = $2 AND active = 1";
        let queue = named(&self.queue)?.to_owned();
        let row = tx.query_opt(RUNNING, &[Value::from(&queue)]).await?.ok_or_else(unknown_task)?;
        let task_handle = handle_of(MoveTaskId::from_slice(row.bytes(0)?)?);
        let moved = answer(ctx, tx, &CancelMessageMoveTask { task_handle }).await?;
        Ok(Reply::Done(RedriveCancelled { queue, moved: moved.approximate_number_of_messages_moved }))
    }
}
