//! DeleteMessageBatch: up to ten messages in one transaction. What is wrong with one of the handles does not keep the
//! other messages from being deleted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::delete_message::end_flight;
use super::write;
use crate::ends::end_messages;
use crate::queue::Queue;
use crate::rules::batch::{self, Done, Failure};
use crate::rules::handle::Handle;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DeleteMessageBatch {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub entries: Vec<DeleteEntry>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct DeleteEntry {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub receipt_handle: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DeletedBatch {
    pub successful: Vec<Done>,
    pub failed: Vec<Failure>,
}

impl Operation for DeleteMessageBatch {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, relieves: true, ..write("DeleteMessageBatch", &[Scope::QueuesReceive]) };
    type Output = DeletedBatch;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<DeletedBatch>> {
        self.check_shape()?;
        let queue = Queue::load(tx, &self.queue_url).await?;
        let mut batch = DeletedBatch { successful: Vec::new(), failed: Vec::new() };
        let mut handles: Vec<Handle> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let handle = Handle::decode(&entry.receipt_handle);
            match handle.and_then(|handle| queue.check_handle(&handle).map(|()| handle)) {
                Ok(handle) => {
                    batch.successful.push(Done { id: entry.id.clone() });
                    if !handles.contains(&handle) {
                        handles.push(handle);
                    }
                }
                Err(error) => batch.failed.push(Failure::new(&entry.id, &error)),
            }
        }
        // Two entries may show an old and a new handle of one message: at most one of them ends its flight.
        let statements: Vec<_> = handles.iter().map(end_flight).collect();
        let ended = if statements.is_empty() { Vec::new() } else { tx.execute_together(&statements).await? };
        let mids: Vec<i64> =
            handles.iter().zip(&ended).filter(|(_, rows)| **rows > 0).map(|(handle, _)| handle.mid).collect();
        if !mids.is_empty() {
            end_messages(tx, &queue.part, &mids).await?;
        }
        Ok(Reply::Done(batch))
    }
}

impl DeleteMessageBatch {
    /// What concerns the whole call and needs no database.
    pub fn check_shape(&self) -> Result<()> {
        batch::check_ids(self.entries.iter().map(|entry| entry.id.as_str()))
    }
}
