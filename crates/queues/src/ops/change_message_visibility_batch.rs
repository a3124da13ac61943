//! ChangeMessageVisibilityBatch: up to ten changes in one transaction. What is wrong with one of them does not keep the
//! others from being made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::queue::{Queue, topic};
use crate::rules::batch::{self, Done, Failure};
use crate::rules::handle;
use crate::rules::throttle::Action;
use crate::shards::At;
use crate::throttle::{Ask, Ticket};
use crate::visibility::{self, Change, Wish};

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ChangeMessageVisibilityBatch {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub entries: Vec<ChangeEntry>,
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
pub struct ChangeEntry {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub receipt_handle: String,
    pub visibility_timeout: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ChangedBatch {
    pub successful: Vec<Done>,
    pub failed: Vec<Failure>,
}

impl Operation for ChangeMessageVisibilityBatch {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, ..write("ChangeMessageVisibilityBatch", &[Scope::QueuesReceive]) };
    type Output = ChangedBatch;
    const ADMITS: bool = true;

    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        self.check_shape()?;
        let tokens = batch::tokens(self.at.entries(self.entries.len()));
        self.ticket.admit(ctx, Ask { url: &self.queue_url, action: Action::Receive, tokens, bytes: 0 }).await
    }

    fn is_misjudged(&self) -> bool {
        self.ticket.is_misjudged()
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ChangedBatch>> {
        self.check_shape()?;
        let queue = Queue::load(tx, &self.queue_url).await?;
        self.at.check(&queue)?;
        self.ticket.settle(ctx, &queue, Action::Receive)?;
        let wishes: Vec<(&str, Result<Wish>)> =
            self.entries.iter().map(|entry| (entry.id.as_str(), entry.wish())).collect();
        let mids: Vec<i64> = wishes.iter().filter_map(|(_, wish)| Some(wish.as_ref().ok()?.handle.mid)).collect();
        let held = visibility::hold_groups(tx, &queue, &mids).await?;
        let flights = visibility::flights(tx, mids.iter().copied()).await?;
        let mut changes: Vec<Change> = Vec::with_capacity(wishes.len());
        let mut outcomes = Vec::with_capacity(wishes.len());
        for (id, wish) in wishes {
            let decided = wish.and_then(|wish| {
                let change = visibility::decide(&queue, &flights, &wish, ctx.now)?;
                // Of two that concern one message the later one counts.
                changes.retain(|other| !other.is_of(wish.handle.mid));
                changes.push(change);
                Ok(wish.handle.mid)
            });
            outcomes.push((id, decided));
        }
        let statements: Vec<_> = changes.iter().map(Change::statement).collect();
        let written = if statements.is_empty() { Vec::new() } else { tx.execute_together(&statements).await? };
        visibility::settle_groups(tx, &held, ctx.now).await?;
        // Whoever is woken before its time finds nothing and wakes the next, through all who wait.
        for change in changes.iter().filter(|change| change.sooner) {
            tx.wake_at(topic(ctx.caller.tenant, &queue.name), ctx.now, change.visible_at);
        }

        let mut batch = ChangedBatch { successful: Vec::new(), failed: Vec::new() };
        for (id, outcome) in outcomes {
            let is_written = |mid| changes.iter().zip(&written).any(|(change, rows)| change.is_of(mid) && *rows > 0);
            match outcome.and_then(|mid| if is_written(mid) { Ok(()) } else { Err(handle::invalid()) }) {
                Ok(()) => batch.successful.push(Done { id: id.to_owned() }),
                Err(error) => batch.failed.push(Failure::new(id, &error)),
            }
        }
        Ok(Reply::Done(batch))
    }
}

impl ChangeMessageVisibilityBatch {
    /// What concerns the whole call and needs no database.
    pub(crate) fn check_shape(&self) -> Result<()> {
        batch::check_ids(self.entries.iter().map(|entry| entry.id.as_str()))
    }
}

impl ChangeEntry {
    fn wish(&self) -> Result<Wish> {
        Wish::checked(&self.receipt_handle, self.visibility_timeout)
    }
}
