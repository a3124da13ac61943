//! ChangeMessageVisibility: when a message in flight is visible again, counted from now. Its handle stays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::queue::{Queue, topic};
use crate::rules::handle;
use crate::visibility::{self, Wish};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ChangeMessageVisibility {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub receipt_handle: String,
    /// Never taken for 0 when it is missing: the message would be anybody's.
    pub visibility_timeout: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Changed {}

impl Operation for ChangeMessageVisibility {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, ..write("ChangeMessageVisibility", &[Scope::QueuesReceive]) };
    type Output = Changed;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Changed>> {
        let queue = Queue::load(tx, &self.queue_url).await?;
        let wish = Wish::checked(&self.receipt_handle, self.visibility_timeout)?;
        let flights = visibility::flights(tx, [wish.handle.mid].into_iter()).await?;
        let change = visibility::decide(&queue, &flights, &wish, ctx.now)?;
        tx.conclude(&[change.statement()], &[0], handle::invalid).await?;
        if change.sooner {
            tx.wake_at(topic(ctx.caller.tenant, &queue.name), ctx.now, change.visible_at);
        }
        Ok(Reply::Done(Changed {}))
    }
}
