//! SendMessageBatch: up to ten messages in one transaction. What is wrong with one of them does not keep the others from
//! being sent.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::send_message::Sent;
use super::write;
use crate::fifo;
use crate::message::{MessageAttribute, MessageId};
use crate::queue::Queue;
use crate::rules::batch::{self, Failure};
use crate::rules::names::{is_fifo, queue_name};
use crate::rules::throttle::Action;
use crate::sends::{self, Draft, Known, Outgoing};
use crate::shards::At;
use crate::throttle::{Ask, Ticket};

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SendMessageBatch {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub entries: Vec<SendEntry>,
    #[serde(skip)]
    #[schemars(skip)]
    pub ticket: Ticket,
    #[serde(skip)]
    #[schemars(skip)]
    pub at: At,
}

/// As a [`super::send_message::SendMessage`], with an id to tell the answers apart by.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct SendEntry {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub message_body: String,
    pub delay_seconds: Option<i64>,
    #[serde(default)]
    pub message_attributes: BTreeMap<String, MessageAttribute>,
    #[serde(default)]
    pub message_system_attributes: BTreeMap<String, MessageAttribute>,
    pub message_group_id: Option<String>,
    pub message_deduplication_id: Option<String>,
    /// Left empty by whoever makes a request, and filled by [`SendMessageBatch::take_digests`].
    #[serde(skip)]
    #[schemars(skip)]
    pub known: OnceLock<Known>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SentBatch {
    pub successful: Vec<SentEntry>,
    pub failed: Vec<Failure>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct SentEntry {
    pub id: String,
    #[serde(flatten)]
    pub sent: Sent,
}

impl Operation for SendMessageBatch {
    const SPEC: OperationSpec = OperationSpec { stores: true, ..write("SendMessageBatch", &[Scope::QueuesSend]) };
    type Output = SentBatch;
    const ADMITS: bool = true;

    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        self.check_shape()?;
        let tokens = batch::tokens(self.at.entries(self.entries.len()));
        self.ticket.admit(ctx, Ask { url: &self.queue_url, action: Action::Send, tokens, bytes: 0 }).await?;
        self.take_digests();
        Ok(())
    }

    fn is_misjudged(&self) -> bool {
        self.ticket.is_misjudged()
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<SentBatch>> {
        self.check_shape()?;
        let queue = Queue::load_for_messages(tx, &self.queue_url).await?;
        self.at.check(&queue)?;
        self.ticket.settle(ctx, &queue, Action::Send)?;
        let mut batch = SentBatch { successful: Vec::new(), failed: Vec::new() };
        let mut messages = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let outgoing = entry.checked(queue.is_fifo()).and_then(|known| {
                let draft = entry.draft(queue.is_fifo());
                let message = Outgoing { id: MessageId(ctx.ids.next()), draft, known };
                message.check(&queue).map(|()| message)
            });
            match outgoing {
                Ok(message) => {
                    let sent = Sent::new(message.id, message.known);
                    batch.successful.push(SentEntry { id: entry.id.clone(), sent });
                    messages.push(message);
                }
                Err(error) => batch.failed.push(Failure::new(&entry.id, &error)),
            }
        }
        if queue.is_fifo() && !messages.is_empty() {
            let accepted = fifo::send(ctx, tx, &queue, &messages).await?;
            for ((entry, message), accepted) in batch.successful.iter_mut().zip(&messages).zip(&accepted) {
                entry.sent = Sent::accepted(&queue, accepted, message.known);
            }
        } else if !messages.is_empty() {
            sends::store(ctx, tx, &queue, &messages).await?;
            sends::announce(ctx, tx, &queue, &messages);
        }
        Ok(Reply::Done(batch))
    }
}

impl SendMessageBatch {
    /// What concerns the whole call and needs no database.
    pub(crate) fn check_shape(&self) -> Result<()> {
        batch::check_ids(self.entries.iter().map(|entry| entry.id.as_str()))?;
        batch::check_bytes(self.entries.iter().map(|entry| entry.draft(false).bytes()).sum())
    }

    /// Before the transaction, which others would wait for. What is wrong with an entry is said by the run.
    fn take_digests(&self) {
        let is_fifo = queue_name(&self.queue_url).is_ok_and(is_fifo);
        for entry in &self.entries {
            let _ = entry.checked(is_fifo);
        }
    }
}

impl SendEntry {
    fn checked(&self, is_fifo: bool) -> Result<&Known> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let known = self.draft(is_fifo).known()?;
        Ok(self.known.get_or_init(|| known))
    }

    fn draft(&self, is_fifo: bool) -> Draft<'_> {
        Draft {
            is_fifo,
            body: &self.message_body,
            delay_seconds: self.delay_seconds,
            attributes: &self.message_attributes,
            system_attributes: &self.message_system_attributes,
            group: self.message_group_id.as_deref(),
            deduplication: self.message_deduplication_id.as_deref(),
        }
    }
}
