//! Create a queue, by the rules of the SQS action.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Example, OperationSpec, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{answer, write};
use crate::Settings;
use crate::ops::create_queue::CreateQueue as Action;
use crate::rules::attributes::FIFO;
use crate::rules::names::is_fifo;
use crate::throttle::Limiter;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateQueue {
    /// Up to 80 letters, digits, hyphens and underscores. A FIFO queue's name ends in `.fifo`.
    pub queue: String,
    /// As SQS names them: `VisibilityTimeout`, `RedrivePolicy` and others. Every value is a text. FifoQueue follows from
    /// the name.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

/// The queue is there, made by this call or before with the same attributes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CreatedQueue {
    pub queue: String,
    pub arn: String,
    #[serde(skip)]
    is_new: bool,
}

impl Operation for CreateQueue {
    const SPEC: OperationSpec = OperationSpec {
        repeatable: true,
        title: "Create a queue",
        description: "Makes a queue for SQS clients. Succeeds also when there is one by that name that has the attributes you \
                      name.",
        example: Example {
            arguments: r#"{"queue": "orders", "attributes": {"VisibilityTimeout": "60"}, "tags": {"team": "billing"}}"#,
            answer: r#"{"queue": "orders", "arn": "arn:aws:sqs:us-east-1:000000000000:orders"}"#,
        },
        ..write("create_queue", Route::post("/v1/queues"))
    };
    type Output = CreatedQueue;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<CreatedQueue>> {
        let mut attributes = self.attributes.clone();
        if is_fifo(&self.queue) {
            attributes.entry(FIFO.to_owned()).or_insert_with(|| true.to_string());
        }
        let action = Action { queue_name: self.queue.clone(), attributes, tags: self.tags.clone() };
        let created = answer(ctx, tx, &action).await?;
        let (queue, is_new) = (created.queue_name, created.is_new);
        let arn = Settings::arns(ctx).arn(&queue);
        Ok(Reply::Done(CreatedQueue { queue, arn, is_new }))
    }

    fn committed(&self, caller: &Caller, settings: &waybill_store::Settings, output: &CreatedQueue) {
        if output.is_new {
            Limiter::of_settings(settings).forget(caller.tenant, &output.queue);
        }
    }
}
