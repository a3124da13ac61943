//! SendMessage: one row, and a flight beside it where the message has to wait.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Sharing, Tx};

use super::write;
use crate::fifo::{self, Accepted};
use crate::message::{MessageAttribute, MessageId};
use crate::queue::Queue;
use crate::rules::names::{is_fifo, queue_name};
use crate::rules::throttle::Action;
use crate::rules::{digest, missing};
use crate::sends::{self, Draft, Known, Outgoing};
use crate::shards::At;
use crate::throttle::{Ask, Ticket};

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SendMessage {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub message_body: String,
    /// Takes the place of the queue's delay; 0 is none at all.
    pub delay_seconds: Option<i64>,
    #[serde(default)]
    pub message_attributes: BTreeMap<String, MessageAttribute>,
    #[serde(default)]
    pub message_system_attributes: BTreeMap<String, MessageAttribute>,
    /// Within it a FIFO queue keeps the order; on a standard queue it is kept and shown.
    pub message_group_id: Option<String>,
    pub message_deduplication_id: Option<String>,
    /// Left empty by whoever makes a request, and filled by [`SendMessage::checked`].
    #[serde(skip)]
    #[schemars(skip)]
    pub known: OnceLock<Known>,
    #[serde(skip)]
    #[schemars(skip)]
    pub ticket: Ticket,
    #[serde(skip)]
    #[schemars(skip)]
    pub at: At,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Sent {
    pub message_id: MessageId,
    #[serde(rename = "MD5OfMessageBody")]
    pub md5_of_message_body: String,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    pub md5_of_message_attributes: Option<String>,
    #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
    pub md5_of_message_system_attributes: Option<String>,
    /// In FIFO queues: rises with each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_number: Option<String>,
    /// Of a partitioned queue that did not have the message before.
    #[serde(skip)]
    #[schemars(skip)]
    pub partition: Option<u32>,
}

impl Operation for SendMessage {
    const SPEC: OperationSpec = OperationSpec { stores: true, ..write("SendMessage", &[Scope::QueuesSend]) };
    type Output = Sent;
    const ADMITS: bool = true;

    /// An empty or oversized body costs nothing; what else is wrong with the message does.
    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        if self.message_body.is_empty() {
            return Err(missing("MessageBody"));
        }
        let ask = Ask { url: &self.queue_url, action: Action::Send, tokens: 1, bytes: self.draft().bytes() };
        self.ticket.admit(ctx, ask).await?;
        self.checked().map(drop)
    }

    fn is_misjudged(&self) -> bool {
        self.ticket.is_misjudged()
    }

    /// A FIFO queue's groups are locked, by everybody in the order of their names.
    fn sharing(&self) -> Option<Sharing<'_>> {
        let about = queue_name(&self.queue_url).ok().filter(|name| is_fifo(name));
        let order = about.and(self.message_group_id.as_deref()).unwrap_or_default();
        Some(Sharing { about, order })
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Sent>> {
        let known = self.checked()?;
        let queue = Queue::load_for_message(tx, &self.queue_url, self.message_group_id.as_deref()).await?;
        self.at.check(&queue)?;
        let message = Outgoing { id: MessageId(ctx.ids.next()), draft: self.draft(), known };
        message.check_size(&queue)?;
        self.ticket.settle(ctx, &queue, Action::Send)?;
        message.check(&queue)?;
        if queue.is_fifo() {
            let accepted = fifo::send(ctx, tx, &queue, &[message]).await?;
            let accepted = accepted.first().ok_or_else(sends::no_number)?;
            return Ok(Reply::Done(Sent::accepted(&queue, accepted, known)));
        }
        sends::store(ctx, tx, &queue, &[message]).await?;
        sends::announce(ctx, tx, &queue, &[message]);
        Ok(Reply::Done(Sent::new(message.id, known)))
    }
}

impl SendMessage {
    /// Checks the request and takes its digests, once and before the transaction: a digest of a large body takes
    /// milliseconds, which inside everybody else would wait for.
    fn checked(&self) -> Result<&Known> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let known = self.draft().known()?;
        Ok(self.known.get_or_init(|| known))
    }

    fn draft(&self) -> Draft<'_> {
        Draft {
            is_fifo: queue_name(&self.queue_url).is_ok_and(is_fifo),
            body: &self.message_body,
            delay_seconds: self.delay_seconds,
            attributes: &self.message_attributes,
            system_attributes: &self.message_system_attributes,
            group: self.message_group_id.as_deref(),
            deduplication: self.message_deduplication_id.as_deref(),
        }
    }
}

impl Sent {
    pub(super) fn new(message_id: MessageId, known: &Known) -> Self {
        Self {
            message_id,
            md5_of_message_body: digest::hex(&known.body_md5),
            md5_of_message_attributes: known.attributes_md5.clone(),
            md5_of_message_system_attributes: known.system_md5.clone(),
            sequence_number: None,
            partition: None,
        }
    }

    /// Of a FIFO queue. The digests are those of this message, also where it is a duplicate of another.
    pub(super) fn accepted(queue: &Queue, accepted: &Accepted, known: &Known) -> Self {
        let partition = queue.partition_of(accepted.mid).filter(|_| accepted.is_new);
        Self { sequence_number: queue.sequence_of(accepted.mid), partition, ..Self::new(accepted.id, known) }
    }
}
