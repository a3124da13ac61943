//! Set attributes of a queue, by the rules of the SQS action.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Example, OperationSpec, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Settings, Tx};

use super::{answer, named, write};
use crate::ops::get_queue_attributes::GetQueueAttributes;
use crate::ops::set_queue_attributes::SetQueueAttributes as Action;
use crate::throttle::{Limiter, Truth};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetQueueAttributes {
    pub queue: String,
    /// As SQS names them. Every value is a text; an empty one takes a policy away.
    #[schemars(length(min = 1))]
    pub attributes: BTreeMap<String, String>,
}

/// The attributes that were named, as they are now. One that was taken away is not among them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct QueueAttributesNow {
    pub queue: String,
    pub attributes: BTreeMap<String, String>,
    #[serde(skip)]
    throttled: Option<Truth>,
}

impl Operation for SetQueueAttributes {
    const SPEC: OperationSpec = OperationSpec {
        repeatable: true,
        title: "Set attributes of a queue",
        description: "Changes the attributes you name, all of them or none; the others stay as they are.",
        example: Example {
            arguments: r#"{"queue": "orders", "attributes": {"VisibilityTimeout": "120"}}"#,
            answer: r#"{"queue": "orders", "attributes": {"VisibilityTimeout": "120"}}"#,
        },
        ..write("set_queue_attributes", Route::post("/v1/queues/{queue}/attributes"))
    };
    type Output = QueueAttributesNow;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<QueueAttributesNow>> {
        let queue = named(&self.queue)?.to_owned();
        let action = Action { queue_url: queue.clone(), attributes: self.attributes.clone() };
        let throttled = answer(ctx, tx, &action).await?.throttled;
        let attribute_names = self.attributes.keys().cloned().collect();
        let now = GetQueueAttributes { queue_url: queue.clone(), attribute_names };
        let attributes = answer(ctx, tx, &now).await?.attributes;
        Ok(Reply::Done(QueueAttributesNow { queue, attributes, throttled }))
    }

    /// The buckets that this process knows of the queue are others now.
    fn committed(&self, caller: &Caller, settings: &Settings, output: &QueueAttributesNow) {
        if let Some(truth) = output.throttled {
            Limiter::of_settings(settings).changed(caller, &output.queue, truth);
        }
    }
}
