//! What sockets ask of the broker, in the words of frames.

use std::sync::Arc;

use tokio::sync::oneshot;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, IdSource, Result};
use waybill_mesh::Membership;
use waybill_mesh::ops::members::{Connect, Connected, ConnectionId, ConnectionRef, ListMembers};
use waybill_mesh::ops::messages::{
    self, AcceptLooked, AcceptMessage, Accepted, AcknowledgeDeliveries, Delivery, FindDeliveries, LOOKS_MAX, Link,
    Looked, ReadHistory,
};
use waybill_mesh::ops::topics::{FindEpochWork, ListEpochKeys, UploadEpoch};
use waybill_mesh_protocol::frames::{Deliver, EpochBoxes, EpochWanted, HistoryPage, HistoryRequest, Send, SendResult};
use waybill_mesh_protocol::{
    ClientMessageId, CloseCode, DeliveryId, EpochKey, FRAME_BYTES_MAX, MemberId, PublicKey, TopicName,
};

use crate::door::Door;
use crate::keeper::{Keeper, Kept};

/// A message without its envelope's body, and what JSON adds to it.
pub(crate) const MESSAGE_BYTES_BESIDE: usize = 12 << 10;
/// Of a page of history, beside its messages.
const PAGE_BYTES_BESIDE: usize = 1 << 10;
/// Deliveries that are acknowledged in one transaction.
const ACKNOWLEDGED_MAX: usize = 256;

pub(crate) fn new_id(door: &Door) -> Uuid {
    IdSource::new(door.store.entropy().as_ref(), door.store.now()).next()
}

/// None for a connection that the mesh's policy does not admit.
pub(crate) async fn connect(door: &Arc<Door>, member: &Membership) -> Result<(Option<Kept>, Connected)> {
    let connection = ConnectionId(new_id(door));
    let of = ConnectionRef { mesh: member.mesh, member: member.member, connection };
    // From before the commit on: a socket that goes away meanwhile leaves nothing behind.
    let kept = Keeper::keep(door, &member.caller, of);
    let connect = Connect { mesh: member.mesh, member: member.member, connection };
    let (connected, _) = door.run(&member.caller, connect).await?;
    Ok((connected.admitted.then_some(kept), connected))
}

pub(crate) struct Found {
    /// What ends the socket: the connection is not the member's own any more.
    pub(crate) end: Option<CloseCode>,
    pub(crate) deliveries: Vec<Deliver>,
    pub(crate) more: bool,
}

/// # Errors
/// `member_revoked` for a member that is none any more.
pub(crate) async fn deliveries(
    door: &Door,
    member: &Membership,
    connection: ConnectionId,
    after: u64,
    limit: usize,
) -> Result<Found> {
    let limit = u32::try_from(limit).ok();
    let find = FindDeliveries { mesh: member.mesh, member: member.member, connection: Some(connection), after, limit };
    let (found, _) = door.run(&member.caller, find).await?;
    let end = match found.link {
        Link::Current => None,
        Link::Replaced => Some(CloseCode::Replaced),
        // Nothing is pushed to it any more, and nobody is in its place: the member comes again.
        Link::Lost => Some(CloseCode::GoingAway),
        Link::Ended => return Err(Error::new(Code::MemberRevoked, Code::MemberRevoked.entry().title)),
    };
    let frame = |Delivery { delivery_id, message }| Deliver { delivery_id, message };
    let deliveries = found.deliveries.into_iter().map(frame).collect();
    Ok(Found { end, deliveries, more: found.more })
}

pub(crate) async fn acknowledge(door: &Door, member: &Membership, ids: &[DeliveryId]) -> Result<()> {
    for some in ids.chunks(ACKNOWLEDGED_MAX) {
        let acknowledge = AcknowledgeDeliveries { mesh: member.mesh, member: member.member, deliveries: some.to_vec() };
        door.run(&member.caller, acknowledge).await?;
    }
    Ok(())
}

/// As many as fit into a frame.
pub(crate) async fn history(door: &Door, member: &Membership, request: HistoryRequest) -> Result<HistoryPage> {
    let HistoryRequest { after, limit } = request;
    let read = ReadHistory { mesh: member.mesh, member: member.member, after, limit: Some(limit), mentions: false };
    let (page, _) = door.run(&member.caller, read).await?;
    cut(page)
}

fn cut(mut page: HistoryPage) -> Result<HistoryPage> {
    let mut bytes = PAGE_BYTES_BESIDE;
    for (index, message) in page.messages.iter().enumerate() {
        bytes += serde_json::to_string(message).map_err(Error::internal)?.len() + 1;
        if bytes > FRAME_BYTES_MAX && index > 0 {
            page.messages.truncate(index);
            page.more = true;
            break;
        }
    }
    if page.more
        && let Some(last) = page.messages.last()
        && bytes > FRAME_BYTES_MAX
    {
        page.next_after = last.seq;
    }
    Ok(page)
}

/// What B0 has found of a message, once it has. Nothing comes of one that failed.
pub(crate) type Looking = oneshot::Receiver<Looked>;

/// B0 of messages that have come together, in their order: one read for all of them. None for what has come alone, or beyond what
/// one read is for: each of those looks for itself.
pub(crate) fn look_together(door: &Arc<Door>, member: &Membership, mut ids: Vec<ClientMessageId>) -> Vec<Looking> {
    ids.truncate(LOOKS_MAX);
    if ids.len() < 2 {
        return Vec::new();
    }
    let (tellers, looking): (Vec<_>, Vec<_>) = ids.iter().map(|_| oneshot::channel()).unzip();
    let (door, member) = (Arc::clone(door), member.clone());
    tokio::spawn(async move {
        let looked = messages::look_together(&door.store, &member.caller, member.mesh, member.member, ids).await;
        for (teller, looked) in tellers.into_iter().zip(looked.unwrap_or_default()) {
            // Nobody waits when its socket has gone.
            let _ = teller.send(looked);
        }
    });
    looking
}

/// What is refused is told as HTTP would tell it.
pub(crate) async fn accept(door: &Door, member: &Membership, send: Send, looking: Option<Looking>) -> SendResult {
    let id = send.client_message_id.clone();
    let looked = match looking {
        Some(looking) => looking.await.ok(),
        None => None,
    };
    let mut outcome = try_accept(door, member, member.key, send.clone(), looked).await;
    // The key may have been rotated since the socket was opened: it is still the same member.
    if outcome.as_ref().is_err_and(|error| error.code() == Code::MemberRevoked)
        && let Ok(key) = own_key(door, member).await
        && key != member.key
    {
        outcome = try_accept(door, member, key, send, None).await;
    }
    match outcome {
        Ok(Accepted { broker_message_id, history_id, duplicate: true, history_available, first_seen_at, .. }) => {
            let seen = first_seen_at.unwrap_or_else(|| door.store.now());
            SendResult::duplicate(id, broker_message_id, Some(history_id), history_available.unwrap_or(true), seen)
        }
        Ok(accepted) => SendResult::accepted(id, accepted.broker_message_id, accepted.history_id),
        Err(error) => {
            waybill_doors::log_cause(&error);
            SendResult::refused(id, &error)
        }
    }
}

async fn try_accept(
    door: &Door,
    member: &Membership,
    key: PublicKey,
    send: Send,
    looked: Option<Looked>,
) -> Result<Accepted> {
    let Send { client_message_id, envelope, request_fingerprint } = send;
    let Membership { mesh, member: id, caller, .. } = member;
    let request = AcceptMessage { mesh: *mesh, member: *id, key, client_message_id, envelope, request_fingerprint };
    Ok(door.run(caller, AcceptLooked { request, looked }).await?.0)
}

/// The keys that the member is to make, of topics after this one.
pub(crate) async fn epoch_work(door: &Door, member: &Membership, after: Option<TopicName>) -> Result<Vec<EpochWanted>> {
    let find = FindEpochWork { mesh: member.mesh, member: member.member, after };
    Ok(door.run(&member.caller, find).await?.0.wanted)
}

/// The member's box of one epoch; none for one who does not subscribe.
pub(crate) async fn epoch_key(
    door: &Door,
    member: &Membership,
    topic: &TopicName,
    epoch: u32,
) -> Result<Vec<EpochKey>> {
    let list = ListEpochKeys {
        mesh: member.mesh,
        member: member.member,
        topic: Some(topic.clone()),
        after_topic: Some(topic.clone()),
        after_epoch: Some(epoch.saturating_sub(1)),
    };
    Ok(door.run(&member.caller, list).await?.0.keys)
}

/// True when the topic has its new key, whoever has made it.
pub(crate) async fn upload_epoch(door: &Door, member: &Membership, boxes: EpochBoxes) -> Result<bool> {
    let EpochBoxes { topic, epoch, boxes } = boxes;
    // The key may have been rotated since the socket was opened.
    let key = own_key(door, member).await?;
    let upload = UploadEpoch { mesh: member.mesh, member: member.member, key, topic, epoch, boxes };
    Ok(door.run(&member.caller, upload).await?.0.switched)
}

async fn own_key(door: &Door, member: &Membership) -> Result<PublicKey> {
    let before = MemberId(Uuid::from_u128(member.member.0.as_u128().saturating_sub(1)));
    let list = ListMembers { mesh: member.mesh, member: member.member, limit: Some(1), after: Some(before) };
    let (page, _) = door.run(&member.caller, list).await?;
    let own = page.members.into_iter().find(|view| view.member_id == member.member);
    own.map(|view| view.keys.ed25519).ok_or_else(|| Error::new(Code::MemberRevoked, Code::MemberRevoked.entry().title))
}
