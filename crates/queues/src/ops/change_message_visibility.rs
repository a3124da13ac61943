//! ChangeMessageVisibility: when a message in flight is visible again, counted from now. Its handle stays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::queue::{Queue, topic};
use crate::rules::handle;
use crate::rules::throttle::Action;
use crate::shards::At;
use crate::throttle::{Ask, Ticket};
use crate::visibility::{self, Wish};

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ChangeMessageVisibility {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub receipt_handle: String,
    /// Never taken for 0 when it is missing: the message would be anybody's.
    pub visibility_timeout: Option<i64>,
    #[serde(skip)]
    #[schemars(skip)]
    pub ticket: Ticket,
    #[serde(skip)]
    #[schemars(skip)]
    pub at: At,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Changed {}

impl Operation for ChangeMessageVisibility {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, ..write("ChangeMessageVisibility", &[Scope::QueuesReceive]) };
    type Output = Changed;
    const ADMITS: bool = true;

    /// What is no handle costs nothing, nor does a timeout that no message can have.
    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        if self.wish().is_err() {
            return Ok(());
        }
        let ask = Ask { url: &self.queue_url, action: Action::Receive, tokens: 1, bytes: 0 };
        self.ticket.admit(ctx, ask).await
    }

    fn is_misjudged(&self) -> bool {
        self.ticket.is_misjudged()
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Changed>> {
        let wish = self.wish();
        let queue = Queue::load_for_handle(tx, &self.queue_url, wish.as_ref().ok().map(|wish| &wish.handle)).await?;
        self.at.check(&queue)?;
        let wish = wish?;
        self.ticket.settle(ctx, &queue, Action::Receive)?;
        let held = visibility::hold_groups(tx, &queue, &[wish.handle.mid]).await?;
        let flights = visibility::flights(tx, [wish.handle.mid].into_iter()).await?;
        let change = visibility::decide(&queue, &flights, &wish, ctx.now)?;
        tx.conclude(&[change.statement()], &[0], handle::invalid).await?;
        visibility::settle_groups(tx, &held, ctx.now).await?;
        if change.sooner {
            tx.wake_at(topic(ctx.caller.tenant, &queue.name), ctx.now, change.visible_at);
        }
        Ok(Reply::Done(Changed {}))
    }
}

impl ChangeMessageVisibility {
    fn wish(&self) -> Result<Wish> {
        Wish::checked(&self.receipt_handle, self.visibility_timeout)
    }
}
