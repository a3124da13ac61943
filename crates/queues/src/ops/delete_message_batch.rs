//! DeleteMessageBatch: up to ten messages in one transaction. What is wrong with one of the handles does not keep the
//! other messages from being deleted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::delete_message::delete;
use super::write;
use crate::metrics::Tally;
use crate::queue::Queue;
use crate::rules::batch::{self, Done, Failure};
use crate::rules::handle::Handle;
use crate::rules::throttle::Action;
use crate::shards::At;
use crate::throttle::{Ask, Ticket};

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DeleteMessageBatch {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub entries: Vec<DeleteEntry>,
    #[serde(skip)]
    #[schemars(skip)]
    pub ticket: Ticket,
    #[serde(skip)]
    #[schemars(skip)]
    pub at: At,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
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
    /// Fewer than were successful where handles were not the latest, or messages are gone.
    #[serde(skip)]
    #[schemars(skip)]
    pub tally: Tally,
}

impl Operation for DeleteMessageBatch {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, relieves: true, ..write("DeleteMessageBatch", &[Scope::QueuesReceive]) };
    type Output = DeletedBatch;
    const ADMITS: bool = true;

    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        self.check_shape()?;
        let tokens = batch::tokens(self.at.entries(self.entries.len()));
        self.ticket.admit(ctx, Ask { url: &self.queue_url, action: Action::Receive, tokens, bytes: 0 }).await
    }

    fn is_misjudged(&self) -> bool {
        self.ticket.is_misjudged()
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<DeletedBatch>> {
        self.check_shape()?;
        let queue = Queue::load(tx, &self.queue_url).await?;
        self.at.check(&queue)?;
        self.ticket.settle(ctx, &queue, Action::Receive)?;
        let mut batch = DeletedBatch { successful: Vec::new(), failed: Vec::new(), tally: Tally::default() };
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
        batch.tally = delete(ctx, tx, &queue, &handles).await?;
        Ok(Reply::Done(batch))
    }
}

impl DeleteMessageBatch {
    /// What concerns the whole call and needs no database.
    pub(crate) fn check_shape(&self) -> Result<()> {
        batch::check_ids(self.entries.iter().map(|entry| entry.id.as_str()))
    }
}
