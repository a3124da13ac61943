//! SetQueueAttributes: all that are named, or none of them. What is not named stays.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Settings, Tx};

use super::write;
use crate::catalog::change_attributes;
use crate::rules::attributes::Attributes;
use crate::rules::missing;
use crate::rules::names::queue_name;
use crate::settings::refuse_hidden;
use crate::throttle::{Limiter, Truth};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SetQueueAttributes {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AttributesSet {
    /// How the queue is throttled, if that is otherwise than before.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) throttled: Option<Truth>,
}

impl Operation for SetQueueAttributes {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, ..write("SetQueueAttributes", &[Scope::QueuesManage]) };
    type Output = AttributesSet;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AttributesSet>> {
        if self.attributes.is_empty() {
            return Err(missing("Attributes"));
        }
        refuse_hidden(ctx, self.attributes.keys())?;
        let named = Attributes::checked(queue_name(&self.queue_url)?, &self.attributes)?;
        let throttled = change_attributes(ctx, tx, &self.queue_url, |entry| {
            entry.attributes.check_change(&named)?;
            Ok(named.clone())
        })
        .await?;
        Ok(Reply::Done(AttributesSet { throttled }))
    }

    /// Only a throttle that is another than before: whoever sets what is there already must not fill the buckets again.
    fn committed(&self, caller: &Caller, settings: &Settings, output: &AttributesSet) {
        if let (Some(truth), Ok(name)) = (output.throttled, queue_name(&self.queue_url)) {
            Limiter::of_settings(settings).changed(caller, name, truth);
        }
    }
}
