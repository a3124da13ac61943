//! Start a redrive: dead letters go back to where they came from, or elsewhere, by the rules of the SQS action.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{answer, named, write};
use crate::Settings;
use crate::move_tasks::PER_SECOND_MAX;
use crate::ops::start_message_move_task::StartMessageMoveTask;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRedrive {
    /// A queue that others send their dead letters to.
    pub queue: String,
    /// Where to move them. Left out, each goes to the queue it came from.
    #[serde(default)]
    pub destination: Option<String>,
    /// Messages per second at most.
    #[serde(default)]
    #[schemars(range(min = 1, max = PER_SECOND_MAX))]
    pub per_second: Option<i64>,
    /// As the SQS action has it.
    #[serde(skip)]
    #[schemars(skip)]
    pub elsewhere: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RedriveStarted {
    pub queue: String,
    pub task_handle: String,
}

impl Operation for StartRedrive {
    const SPEC: OperationSpec = OperationSpec {
        title: "Move dead letters back",
        description: "Begins to move the messages of a dead-letter queue to the queues they came from, or to the one you name. It goes \
                      on in the background; list_redrives shows how far it has come. A queue has one at a time.",
        example: Example {
            arguments: r#"{"queue": "orders-dead", "per_second": 50}"#,
            answer: r#"{"queue": "orders-dead", "task_handle": "AZjA3hornD2OT1prfI2eEA"}"#,
        },
        ..write("start_redrive", Route::post("/v1/queues/{queue}/redrives"))
    };
    type Output = RedriveStarted;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<RedriveStarted>> {
        if self.per_second.is_some_and(|rate| !(1..=PER_SECOND_MAX).contains(&rate)) {
            return Err(Error::invalid(format!("`per_second` is from 1 to {PER_SECOND_MAX}.")));
        }
        let arns = Settings::arns(ctx);
        let destination = self.destination.as_deref().map(named).transpose()?;
        let action = StartMessageMoveTask {
            source_arn: arns.arn(named(&self.queue)?),
            destination_arn: destination.map(|name| arns.arn(name)),
            max_number_of_messages_per_second: self.per_second,
            elsewhere: self.elsewhere,
        };
        let task_handle = answer(ctx, tx, &action).await?.task_handle;
        Ok(Reply::Done(RedriveStarted { queue: self.queue.clone(), task_handle }))
    }
}
