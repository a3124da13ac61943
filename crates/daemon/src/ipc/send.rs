//! `/v1/send` and `/v1/topic/post`: from a caller's words to a row of the outbox.
//!
//! Everything slow or refusable comes before the transaction: the hook, the recipient, the digest, the box. A request that is
//! refused on the way has written nothing and used up no id.

use bytes::Bytes;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result, hex};
use waybill_mesh_protocol::{ClientMessageId, DestinationKind, Meta, Priority, PublicKey, TopicName};

use super::body::decode;
use super::reply::Reply;
use super::{Local, ulid};
use crate::metrics;
use crate::outbox::{Accept, Conflict, Verdict, rules};
use crate::seal::Draft;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// How much of a fingerprint is shown in a conflict.
const FINGERPRINT_BYTES: usize = 8;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendBody {
    /// A member's name or key.
    pub to: Option<String>,
    /// In the place of `to`: the name of a queue, on a mesh in plain text.
    pub queue: Option<String>,
    pub message: String,
    pub priority: Option<Priority>,
    pub meta: Option<Meta>,
    #[serde(rename = "replyToId")]
    pub reply_to_id: Option<ClientMessageId>,
    pub client_message_id: Option<ClientMessageId>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostBody {
    pub topic: TopicName,
    pub message: String,
    pub priority: Option<Priority>,
    pub meta: Option<Meta>,
    #[serde(default)]
    pub mentions: Option<Vec<PublicKey>>,
    #[serde(rename = "replyToId")]
    pub reply_to_id: Option<ClientMessageId>,
    pub client_message_id: Option<ClientMessageId>,
}

#[derive(Serialize)]
struct Answer<'a> {
    client_message_id: &'a str,
    status: &'static str,
    duplicate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history_id: Option<String>,
}

pub async fn send(local: &Local, headers: &HeaderMap, body: &Bytes) -> Result<Reply> {
    let request: SendBody = guarded(local, body).await?;
    let id = id(local, headers, request.client_message_id.clone())?;
    let draft = direct(local, request)?;
    accept(local, id, draft).await
}

pub async fn post(local: &Local, headers: &HeaderMap, body: &Bytes) -> Result<Reply> {
    let request: PostBody = guarded(local, body).await?;
    let id = id(local, headers, request.client_message_id)?;
    let draft = Draft {
        destination_kind: DestinationKind::Topic,
        destination_ref: request.topic.into_string(),
        reply_to: request.reply_to_id,
        priority: request.priority.unwrap_or_default(),
        meta: request.meta,
        body: request.message,
        mentions: request.mentions.unwrap_or_default(),
    };
    accept(local, id, draft).await
}

/// The request as the user's own `pre-send` leaves it.
async fn guarded<T: serde::de::DeserializeOwned>(local: &Local, body: &Bytes) -> Result<T> {
    if !local.hooks.guards_sends() {
        return decode(body);
    }
    let request = local.hooks.pre_send(decode(body)?).await?;
    let wrong = |error| Error::new(Code::HookRefused, format!("What pre-send printed cannot be sent: {error}."));
    serde_json::from_value(request).map_err(wrong)
}

pub fn direct(local: &Local, request: SendBody) -> Result<Draft> {
    let (destination_kind, destination_ref) = match (&request.to, request.queue) {
        (Some(to), None) => (DestinationKind::Dm, member(local, to)?),
        (None, Some(queue)) => (DestinationKind::Queue, queue),
        (Some(_), Some(_)) => return Err(Error::invalid("Give either to or queue.")),
        (None, None) => return Err(Error::invalid("It is not said whom it is for: give to or queue.")),
    };
    Ok(Draft {
        destination_kind,
        destination_ref,
        reply_to: request.reply_to_id,
        priority: request.priority.unwrap_or_default(),
        meta: request.meta,
        body: request.message,
        mentions: Vec::new(),
    })
}

/// A member's key, by name or key.
fn member(local: &Local, to: &str) -> Result<String> {
    match local.directory.resolve(to) {
        Ok(member) => Ok(member.keys.ed25519.to_string()),
        // A key says who is meant, so an id that was used for it can be answered. A new one is refused when it is sealed.
        Err(error) => match to.to_ascii_lowercase().parse::<PublicKey>() {
            Ok(key) => Ok(key.to_string()),
            Err(_) => Err(error),
        },
    }
}

/// Header before body; a new one for a caller who does not care.
fn id(local: &Local, headers: &HeaderMap, given: Option<ClientMessageId>) -> Result<String> {
    match headers.get(IDEMPOTENCY_KEY) {
        Some(value) => {
            let text = std::str::from_utf8(value.as_bytes());
            let text = text.map_err(|_| Error::invalid("Idempotency-Key is not UTF-8."))?;
            text.parse::<ClientMessageId>().map(ClientMessageId::into_string)
        }
        None => {
            Ok(given.map_or_else(|| ulid::mint(&local.clock, local.entropy.as_ref()), ClientMessageId::into_string))
        }
    }
}

/// Digest, box, row.
pub async fn take(local: &Local, id: String, draft: &Draft) -> Result<Verdict> {
    let request_fingerprint = *draft.request_fingerprint()?.as_bytes();
    let parcel = match local.sealer.seal(&id, draft) {
        Ok(parcel) => parcel,
        // An id that has a row is answered from it, whatever has become of its destination.
        Err(error) => {
            let found = local.outbox.known(&id).await?;
            return found.map_or(Err(error), |found| Ok(rules::accept(Some(found), &request_fingerprint)));
        }
    };
    let request = serde_json::to_string(draft).map_err(Error::internal)?;
    local.outbox.accept(Accept { client_message_id: id, request_fingerprint, request, parcel }).await
}

async fn accept(local: &Local, id: String, draft: Draft) -> Result<Reply> {
    local.refuse_if_revoked()?;
    let verdict = take(local, id.clone(), &draft).await?;
    #[cfg(feature = "sabotage")]
    waybill_store::sabotage::point("daemon_accept_committed");
    if verdict == Verdict::Insert {
        metrics::accepted()
    } else {
        metrics::repeat_out()
    }
    answer(&id, verdict)
}

fn answer(id: &str, verdict: Verdict) -> Result<Reply> {
    let (status, word, duplicate, ids) = match verdict {
        Verdict::Insert | Verdict::Queued => (202, "queued", false, (None, None)),
        Verdict::Inflight => (202, "inflight", false, (None, None)),
        Verdict::Duplicate { broker_message_id, history_id } => (200, "done", true, (broker_message_id, history_id)),
        Verdict::Conflict(conflict) => return Err(taken(id, conflict)),
    };
    let (broker_message_id, history_id) = ids;
    Reply::json(status, &Answer { client_message_id: id, status: word, duplicate, broker_message_id, history_id })
}

fn taken(id: &str, conflict: Conflict) -> Error {
    let Conflict { name, request_fingerprint, broker_message_id, reason } = conflict;
    let mut error = Error::new(Code::IdempotencyKeyReused, "Another message, or one that has ended, has this id.")
        .with("conflict", name)
        .with("request_fingerprint", hex::encode(&request_fingerprint[..FINGERPRINT_BYTES]))
        .with("client_message_id", id);
    if let Some(broker_message_id) = broker_message_id {
        error = error.with("broker_message_id", broker_message_id);
    }
    match reason {
        Some(reason) => error.with("reason", reason),
        None => error,
    }
}
