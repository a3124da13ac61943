//! `/v1/send` and `/v1/topic/post`: from a caller's words to a row of the outbox.
//!
//! Everything slow or refusable comes before the transaction: the hook, the recipient, the digest, the box. A request that is
//! refused on the way has written nothing and used up no id.

use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::MutexGuard;
use tokio::time::timeout;
use waybill_kernel::{Code, Error, Result, hex};
use waybill_mesh_protocol::{ClientMessageId, DestinationKind, Meta, Priority, PublicKey, TopicName};

use super::body::decode;
use super::reply::Reply;
use super::{Local, ulid};
use crate::directory::Member;
use crate::metrics;
use crate::outbox::rules;
use crate::outbox::{Accept, Conflict, Verdict};
use crate::seal::Draft;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// How long a caller waits for a member whose name is new: the members are read once a second at most (`link.sync_pause_ms`).
const NEW_MEMBER_WAIT: Duration = Duration::from_secs(2);
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

/// What both endpoints take.
trait Request: DeserializeOwned + Send {
    fn id(&self) -> Option<ClientMessageId>;

    /// A member's name or key, where it is for one.
    fn to(&self) -> Option<&str>;

    /// `name` makes a member's key of what the caller calls it.
    fn draft(self, name: impl FnOnce(&str) -> Result<String>) -> Result<Draft>;
}

pub async fn send(local: &Local, headers: &HeaderMap, body: &Bytes) -> Result<Reply> {
    handle::<SendBody>(local, headers, body).await
}

pub async fn post(local: &Local, headers: &HeaderMap, body: &Bytes) -> Result<Reply> {
    handle::<PostBody>(local, headers, body).await
}

async fn handle<T: Request>(local: &Local, headers: &HeaderMap, body: &Bytes) -> Result<Reply> {
    let request: T = decode(body)?;
    let id = named(headers, request.id())?;
    if local.hooks.guards_sends() {
        return guarded(local, id, request, body).await;
    }
    let id = id.unwrap_or_else(|| mint(local));
    look_up(local, request.to()).await;
    let draft = request.draft(|to| member(local, to))?;
    local.refuse_if_revoked()?;
    let verdict = take(local, id.clone(), &draft).await?;
    taken(&id, verdict)
}

/// The request as the user's own `pre-send` leaves it. What the caller has asked for is what a second request is compared with: the
/// hook may write something else each time.
async fn guarded<T: Request>(local: &Local, id: Option<String>, request: T, body: &Bytes) -> Result<Reply> {
    // Whom the caller means may be for the hook to say.
    let asked = request.draft(|to| Ok(address(local.directory.resolve(to), to).unwrap_or_else(|_| to.to_owned())))?;
    let fingerprint = *asked.request_fingerprint()?.as_bytes();
    local.refuse_if_revoked()?;
    // One that was taken has passed the hook: it is answered from its row.
    if let Some(id) = &id
        && let Some(found) = local.outbox.known(id).await?
    {
        let verdict = rules::accept(Some(found), &fingerprint);
        return taken(id, by_any_key(local, id, &asked, verdict).await?);
    }
    let changed = local.hooks.pre_send(decode(body)?).await?;
    let wrong = |error| Error::new(Code::HookRefused, format!("What pre-send printed cannot be sent: {error}."));
    let changed: T = serde_json::from_value(changed).map_err(wrong)?;
    let id = id.or_else(|| changed.id().map(ClientMessageId::into_string)).unwrap_or_else(|| mint(local));
    look_up(local, changed.to()).await;
    let draft = changed.draft(|to| member(local, to))?;
    let verdict = take_as(local, id.clone(), &asked, &draft).await?;
    taken(&id, verdict)
}

impl Request for SendBody {
    fn id(&self) -> Option<ClientMessageId> {
        self.client_message_id.clone()
    }

    fn to(&self) -> Option<&str> {
        self.to.as_deref()
    }

    fn draft(self, name: impl FnOnce(&str) -> Result<String>) -> Result<Draft> {
        let (destination_kind, destination_ref) = match (&self.to, self.queue) {
            (Some(to), None) => (DestinationKind::Dm, name(to)?),
            (None, Some(queue)) => (DestinationKind::Queue, queue),
            (Some(_), Some(_)) => return Err(Error::invalid("Give either to or queue.")),
            (None, None) => return Err(Error::invalid("It is not said whom it is for: give to or queue.")),
        };
        Ok(Draft {
            destination_kind,
            destination_ref,
            reply_to: self.reply_to_id,
            priority: self.priority.unwrap_or_default(),
            meta: self.meta,
            body: self.message,
            mentions: Vec::new(),
        })
    }
}

impl Request for PostBody {
    fn id(&self) -> Option<ClientMessageId> {
        self.client_message_id.clone()
    }

    fn to(&self) -> Option<&str> {
        None
    }

    fn draft(self, _: impl FnOnce(&str) -> Result<String>) -> Result<Draft> {
        Ok(Draft {
            destination_kind: DestinationKind::Topic,
            destination_ref: self.topic.into_string(),
            reply_to: self.reply_to_id,
            priority: self.priority.unwrap_or_default(),
            meta: self.meta,
            body: self.message,
            mentions: self.mentions.unwrap_or_default(),
        })
    }
}

pub fn direct(local: &Local, request: SendBody) -> Result<Draft> {
    request.draft(|to| member(local, to))
}

/// Whoever has joined since the members were read, and was never connected, is in no frame that this daemon has heard: the members are
/// read anew, and the caller waits for it. However many ask, the link pauses between two readings.
pub async fn look_up(local: &Local, to: Option<&str>) {
    let is_unknown = |to| local.directory.resolve(to).is_err_and(|error| error.code() == Code::MemberUnknown);
    if !to.is_some_and(is_unknown) || !local.link_status.borrow().connected {
        return;
    }
    let parts = local.link.parts();
    let mut read = pin!(parts.refreshed.notified());
    read.as_mut().enable();
    parts.refresh.notify_one();
    // Unknown still when it has not come in time.
    let _ = timeout(NEW_MEMBER_WAIT, read).await;
}

/// A member's key, by name or key.
fn member(local: &Local, to: &str) -> Result<String> {
    address(local.directory.resolve(to), to)
}

fn address(found: Result<Member>, to: &str) -> Result<String> {
    match found {
        Ok(member) => Ok(member.keys.ed25519.to_string()),
        // A key says who is meant, so an id that was used for it can be answered. A new one is refused when it is sealed.
        Err(error) => match to.to_ascii_lowercase().parse::<PublicKey>() {
            Ok(key) => Ok(key.to_string()),
            Err(_) => Err(error),
        },
    }
}

/// Header before body.
fn named(headers: &HeaderMap, given: Option<ClientMessageId>) -> Result<Option<String>> {
    match headers.get(IDEMPOTENCY_KEY) {
        Some(value) => {
            let text = std::str::from_utf8(value.as_bytes());
            let text = text.map_err(|_| Error::invalid("Idempotency-Key is not UTF-8."))?;
            text.parse::<ClientMessageId>().map(ClientMessageId::into_string).map(Some)
        }
        None => Ok(given.map(ClientMessageId::into_string)),
    }
}

/// A new one, for a caller who does not care.
fn mint(local: &Local) -> String {
    ulid::mint(&local.clock, local.entropy.as_ref())
}

/// Digest, box, row.
pub async fn take(local: &Local, id: String, draft: &Draft) -> Result<Verdict> {
    take_as(local, id, draft, draft).await
}

/// `asked` is what the caller has asked for, which a hook may have changed since.
async fn take_as(local: &Local, id: String, asked: &Draft, draft: &Draft) -> Result<Verdict> {
    let request_fingerprint = *asked.request_fingerprint()?.as_bytes();
    let (draft, _turn) = in_line(local, draft).await?;
    let verdict = match local.sealer.seal(&id, &draft) {
        Ok(parcel) => {
            let request = serde_json::to_string(&draft).map_err(Error::internal)?;
            let accept = Accept { client_message_id: id.clone(), request_fingerprint, request, parcel };
            local.outbox.accept(accept).await?
        }
        // An id that has a row is answered from it, whatever has become of its destination.
        Err(error) => match local.outbox.known(&id).await? {
            Some(found) => rules::accept(Some(found), &request_fingerprint),
            None => return Err(error),
        },
    };
    by_any_key(local, &id, asked, verdict).await
}

/// The keys that a direct message may be addressed to and mean the same member.
fn keys_of_recipient(local: &Local, draft: &Draft) -> Vec<String> {
    let key = (draft.destination_kind == DestinationKind::Dm).then(|| draft.destination_ref.parse::<PublicKey>().ok());
    let keys = key.flatten().map(|key| local.directory.keys_beside(&key)).unwrap_or_default();
    keys.iter().map(ToString::to_string).collect()
}

/// What waits for a member under a key that it had before goes first, so what is new is addressed to that key as well. The turn is
/// kept until the row is written: else that line could end meanwhile, and the next message go into another.
pub(super) async fn in_line<'a>(
    local: &'a Local,
    draft: &'a Draft,
) -> Result<(Cow<'a, Draft>, Option<MutexGuard<'a, ()>>)> {
    let keys = keys_of_recipient(local, draft);
    if keys.len() < 2 {
        return Ok((Cow::Borrowed(draft), None));
    }
    let turn = local.lining_up.lock().await;
    let draft = match local.outbox.occupied(DestinationKind::Dm.name(), keys).await? {
        Some(destination_ref) if destination_ref != draft.destination_ref => {
            Cow::Owned(Draft { destination_ref, ..draft.clone() })
        }
        _ => Cow::Borrowed(draft),
    };
    Ok((draft, Some(turn)))
}

/// A request for a member that has rotated since the first one is the same request: keys are another name for who is meant.
async fn by_any_key(local: &Local, id: &str, asked: &Draft, verdict: Verdict) -> Result<Verdict> {
    let Verdict::Conflict(Conflict { request_fingerprint: known, .. }) = verdict else { return Ok(verdict) };
    for destination_ref in keys_of_recipient(local, asked) {
        let asked = Draft { destination_ref, ..asked.clone() };
        if *asked.request_fingerprint()?.as_bytes() == known {
            let found = local.outbox.known(id).await?;
            return Ok(found.map_or(verdict, |found| rules::accept(Some(found), &known)));
        }
    }
    Ok(verdict)
}

fn taken(id: &str, verdict: Verdict) -> Result<Reply> {
    #[cfg(feature = "sabotage")]
    waybill_store::sabotage::point("daemon_accept_committed");
    if verdict == Verdict::Insert {
        metrics::accepted()
    } else {
        metrics::repeat_out()
    }
    answer(id, verdict)
}

fn answer(id: &str, verdict: Verdict) -> Result<Reply> {
    let (status, word, duplicate, ids) = match verdict {
        Verdict::Insert | Verdict::Queued => (202, "queued", false, (None, None)),
        Verdict::Inflight => (202, "inflight", false, (None, None)),
        Verdict::Duplicate { broker_message_id, history_id } => (200, "done", true, (broker_message_id, history_id)),
        Verdict::Conflict(conflict) => return Err(conflicting(id, conflict)),
    };
    let (broker_message_id, history_id) = ids;
    Reply::json(status, &Answer { client_message_id: id, status: word, duplicate, broker_message_id, history_id })
}

fn conflicting(id: &str, conflict: Conflict) -> Error {
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
