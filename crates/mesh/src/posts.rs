//! Messages to queues: which queues a mesh may send to, and what a queue gets of a message.
//!
//! The queue's message is written in the transaction that accepts the mesh's, by the operation that SQS clients send with
//! ([`SendMessage`]). So it is there once for each id that was accepted, and the queue's own delay, retention, sizes, throttle and wakes
//! hold for it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::{MeshId, MessageId, Meta};
use waybill_queues::ops::SendMessage;
use waybill_queues::rules::contents;
use waybill_queues::rules::names::is_fifo;
use waybill_queues::{MessageAttribute, Reachable, look_for_queue};
use waybill_store::{Ctx, Operation, Sql, Tx, Value};

use crate::ops::messages::AcceptMessage;

/// What of the mesh's message is beside the body, as attributes of the queue's.
const MESH: &str = "mesh";
const SENDER: &str = "sender";
const CLIENT_MESSAGE_ID: &str = "client_message_id";
const BROKER_MESSAGE_ID: &str = "broker_message_id";
const PRIORITY: &str = "priority";
const REPLY_TO: &str = "reply_to";
const META: &str = "meta";

/// The same for a queue that is not allowed and for one that there is not: members learn of no queue by asking for it.
pub(crate) fn unknown() -> Error {
    Error::new(Code::DestinationUnknown, Code::DestinationUnknown.entry().title)
}

pub(crate) fn needs_plaintext() -> Error {
    Error::new(Code::QueueNeedsPlaintext, Code::QueueNeedsPlaintext.entry().title)
}

pub(crate) fn elsewhere() -> Error {
    Error::new(Code::QueueElsewhere, Code::QueueElsewhere.entry().title)
}

/// Until the transaction ends a queue that is allowed stays so.
pub(crate) async fn is_allowed(tx: &mut Tx<'_>, mesh: MeshId, queue: &str) -> Result<bool> {
    const FIND: Sql = Sql {
        sqlite: "SELECT 1 FROM mesh_queues WHERE tenant = $1 AND mesh_id = $2 AND queue = $3",
        postgres: "SELECT 1 FROM mesh_queues WHERE tenant = $1 AND mesh_id = $2 AND queue = $3 FOR SHARE",
    };
    let sql = tx.text(FIND);
    let row = tx.query_opt(sql, &[Value::from(mesh.as_bytes()), Value::from(queue)]).await?;
    Ok(row.is_some())
}

/// None for a queue that is not allowed, and for one that there is not. Reads only.
pub(crate) async fn find(tx: &mut Tx<'_>, mesh: MeshId, queue: &str) -> Result<Option<Reachable>> {
    const FIND: &str = "SELECT 1 FROM mesh_queues WHERE tenant = $1 AND mesh_id = $2 AND queue = $3";
    match tx.query_opt(FIND, &[Value::from(mesh.as_bytes()), Value::from(queue)]).await? {
        Some(_) => look_for_queue(tx, queue).await,
        None => Ok(None),
    }
}

/// A message on its way into a queue.
#[derive(Debug, Default)]
pub(crate) struct Post {
    /// The mesh's slug.
    pub mesh: String,
    /// Made when it is admitted: the throttle of the queue is asked there, and answered to in the transaction.
    sending: OnceLock<SendMessage>,
}

impl Post {
    pub(crate) fn new(mesh: String) -> Self {
        Self { mesh, sending: OnceLock::new() }
    }

    /// B1: what can be said of the message without its transaction.
    pub(crate) fn check(&self, request: &AcceptMessage, queue: Reachable) -> Result<()> {
        if !queue.is_here {
            return Err(elsewhere());
        }
        // All ids are of the same length.
        let send = self.compose(request, MessageId(waybill_kernel::id::Uuid::nil()))?;
        contents::check_body(&send.message_body)?;
        contents::check_attributes(&send.message_attributes)?;
        let (bytes, max) = (contents::size(&send.message_body, &send.message_attributes), queue.message_bytes_max);
        if bytes > max {
            let message = format!("The queue's message would have {bytes} bytes; the queue takes at most {max}.");
            return Err(Error::new(Code::PayloadTooLarge, message).with("limit_bytes", max));
        }
        Ok(())
    }

    /// Before the transaction. Its first id is the message's, here as there.
    pub(crate) async fn admit(&self, request: &AcceptMessage, ctx: &Ctx<'_>) -> Result<()> {
        let send = match self.sending.get() {
            Some(send) => send,
            None => {
                let send = self.compose(request, MessageId(ctx.ids.next()))?;
                self.sending.get_or_init(|| send)
            }
        };
        send.admit(ctx).await
    }

    pub(crate) fn is_misjudged(&self) -> bool {
        self.sending.get().is_some_and(SendMessage::is_misjudged)
    }

    /// The last writes of the transaction.
    pub(crate) async fn send(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        let send = self.sending.get().ok_or_else(|| Error::internal("a message to a queue was not admitted"))?;
        match send.run(ctx, tx).await {
            Err(error) if error.code() == Code::QueueDoesNotExist => Err(unknown()),
            outcome => outcome.map(drop),
        }
    }

    fn compose(&self, request: &AcceptMessage, message: MessageId) -> Result<SendMessage> {
        let (envelope, queue) = (&request.envelope, &request.envelope.destination_ref);
        let refused = |why: &str| Error::new(Code::InvalidMessageContents, why);
        let body = std::str::from_utf8(&envelope.body.0);
        let body = body.map_err(|_| refused("What is sent to a queue is text, and this is not UTF-8."))?;
        if body.is_empty() {
            return Err(refused("What is sent to a queue has at least one character."));
        }
        // A member's messages to one destination come in order, and a FIFO queue keeps them so. A key would not do for the group: it
        // changes. The id is new with each message, so the queue's own memory of duplicates swallows nothing.
        let fifo = is_fifo(queue).then(|| (request.member.to_string(), message.to_string()));
        let (message_group_id, message_deduplication_id) = fifo.unzip();
        Ok(SendMessage {
            queue_url: queue.clone(),
            message_body: body.to_owned(),
            message_attributes: self.attributes(request, message)?,
            message_group_id,
            message_deduplication_id,
            ..SendMessage::default()
        })
    }

    fn attributes(&self, request: &AcceptMessage, message: MessageId) -> Result<BTreeMap<String, MessageAttribute>> {
        let envelope = &request.envelope;
        let meta = envelope.meta.as_ref().map(Meta::canonical).transpose()?;
        let given = [
            (MESH, Some(self.mesh.clone())),
            (SENDER, Some(request.key.to_string())),
            (CLIENT_MESSAGE_ID, Some(request.client_message_id.to_string())),
            (BROKER_MESSAGE_ID, Some(message.to_string())),
            (PRIORITY, Some(envelope.priority.name().to_owned())),
            (REPLY_TO, envelope.reply_to.as_ref().map(ToString::to_string)),
            (META, meta),
        ];
        let attribute = |text: String| MessageAttribute {
            data_type: "String".to_owned(),
            string_value: Some(text),
            binary_value: None,
        };
        Ok(given.into_iter().filter_map(|(name, text)| Some((name.to_owned(), attribute(text?)))).collect())
    }
}
