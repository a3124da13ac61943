//! UntagQueue: takes tags away. Those that are not there are gone already.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::catalog::change_tags;
use crate::rules::{TAGS_MAX, missing};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct UntagQueue {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub tag_keys: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Untagged {}

impl Operation for UntagQueue {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..write("UntagQueue", &[Scope::QueuesManage]) };
    type Output = Untagged;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Untagged>> {
        if self.tag_keys.is_empty() {
            return Err(missing("TagKeys"));
        }
        if self.tag_keys.len() > TAGS_MAX {
            return Err(Error::invalid(format!("TagKeys has at most {TAGS_MAX} keys, as many as a queue has tags.")));
        }
        change_tags(tx, &self.queue_url, |tags| {
            tags.retain(|key, _| !self.tag_keys.contains(key));
            Ok(())
        })
        .await?;
        Ok(Reply::Done(Untagged {}))
    }
}
