//! SendMessage: one row, and a flight beside it where the message has to wait.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::message::{MessageAttribute, MessageId};
use crate::queue::Queue;
use crate::rules::digest;
use crate::sends::{self, Draft, Known, Outgoing};

#[derive(Debug, Default, Deserialize, JsonSchema)]
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
    /// Kept and shown; a standard queue has no order that it could change.
    pub message_group_id: Option<String>,
    pub message_deduplication_id: Option<String>,
    /// Left empty by whoever makes a request, and filled by [`SendMessage::checked`].
    #[serde(skip)]
    #[schemars(skip)]
    pub known: OnceLock<Known>,
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
}

impl Operation for SendMessage {
    const SPEC: OperationSpec = write("SendMessage", &[Scope::QueuesSend]);
    type Output = Sent;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Sent>> {
        let known = self.checked()?;
        let queue = Queue::load_for_messages(tx, &self.queue_url).await?;
        let message = Outgoing { id: MessageId(ctx.ids.next()), draft: self.draft(), known };
        message.check(&queue)?;
        sends::store(ctx, tx, &queue, &[message]).await?;
        sends::announce(ctx, tx, &queue, &[message]);
        Ok(Reply::Done(Sent::new(message.id, known)))
    }
}

impl SendMessage {
    /// Checks the request and takes its digests, once. Worth calling before the operation is run: a digest of a large
    /// body takes milliseconds, which inside the transaction everybody else would wait for.
    pub fn checked(&self) -> Result<&Known> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let known = self.draft().known()?;
        Ok(self.known.get_or_init(|| known))
    }

    fn draft(&self) -> Draft<'_> {
        Draft {
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
        }
    }
}
