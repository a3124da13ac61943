//! TagQueue: adds tags, or gives those that are there another value.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::catalog::change_tags;
use crate::rules::{check_tags, missing};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct TagQueue {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Tagged {}

impl Operation for TagQueue {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..write("TagQueue", &[Scope::QueuesManage]) };
    type Output = Tagged;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Tagged>> {
        if self.tags.is_empty() {
            return Err(missing("Tags"));
        }
        check_tags(self.tags.iter())?;
        change_tags(tx, &self.queue_url, |tags| {
            tags.extend(self.tags.clone());
            check_tags(tags.iter())
        })
        .await?;
        Ok(Reply::Done(Tagged {}))
    }
}
