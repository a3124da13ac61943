//! SetQueueAttributes: all that are named, or none of them. What is not named stays.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::catalog::change_attributes;
use crate::rules::attributes::Attributes;
use crate::rules::missing;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SetQueueAttributes {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AttributesSet {}

impl Operation for SetQueueAttributes {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, ..write("SetQueueAttributes", &[Scope::QueuesManage]) };
    type Output = AttributesSet;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AttributesSet>> {
        if self.attributes.is_empty() {
            return Err(missing("Attributes"));
        }
        let named = Attributes::checked(&self.attributes)?;
        change_attributes(ctx, tx, &self.queue_url, |_| Ok(named.clone())).await?;
        Ok(Reply::Done(AttributesSet {}))
    }
}
