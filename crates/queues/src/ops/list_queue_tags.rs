//! ListQueueTags: all of them, or an empty object.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::read;
use crate::catalog::Entry;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ListQueueTags {
    #[serde(default)]
    pub queue_url: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct QueueTags {
    pub tags: BTreeMap<String, String>,
}

impl Operation for ListQueueTags {
    const SPEC: OperationSpec = read("ListQueueTags", &[Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage]);
    type Output = QueueTags;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<QueueTags>> {
        let entry = Entry::load(tx, &self.queue_url).await?;
        Ok(Reply::Done(QueueTags { tags: entry.read_tags()? }))
    }
}
