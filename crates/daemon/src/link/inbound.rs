//! What arrives: opened, committed in the inbox, acknowledged, told. In that order, for every message.
//!
//! Deliveries that wait together share a transaction; those that come while one is on its way are opened meanwhile and share
//! the next. Everything else that the broker says about members and keys goes through the same line, so that a message finds
//! the directory as it was when the broker sent it.

use std::collections::{BTreeMap, HashSet};
use std::future::pending;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::frames::{
    Deliver, EpochWanted, Framed, HistoryPage, HistoryRequest, KeypairRotated, MemberGone, MemberRenamed, Message, Peer,
};
use waybill_mesh_protocol::{ClientFrame, Destination, DestinationKind, EpochKey, MemberKeys};

use super::batch::Batch;
use super::epochs::Source;
use super::machine::HISTORY;
use super::writer::Writer;
use super::{Parts, epochs};
use crate::directory::{Change, Former, Member, Standing};
use crate::events::EventKind;
use crate::files::{FileNote, FileRow};
use crate::inbox::{Arrived, NewMessage};
use crate::metrics;
use crate::seal::{EPOCH_UNKNOWN, SIGNER_UNPROVEN, Unopened};

/// Things that wait to be stored. Beyond them the socket is not read, and the broker waits.
pub const WAITING_MAX: usize = 256;
/// What shares a transaction.
const BATCH_MAX: usize = 64;
/// Held messages that are looked at together when a key has arrived.
const HELD_PAGE: i64 = 64;

/// Deliveries that wait for older messages: several times what a broker usually pushes before it hears of one.
const EARLY_MAX: usize = 256;
/// Epochs without a key that the broker is asked about over one connection.
const ASKED_MAX: usize = 1_024;

/// Why a message waits whose sender's key is not believed.
const SENDER_UNPROVEN: &str = "sender_key_unproven";

/// Something that arrived.
#[derive(Debug)]
pub enum Arrival {
    Deliver(Box<Deliver>),
    Page(HistoryPage),
    Joined(Peer),
    Left(MemberGone),
    Renamed(MemberRenamed),
    Rotated(Box<KeypairRotated>),
    Revoked(MemberGone),
    Learn(EpochKey),
    Mint(EpochWanted),
    /// The directory was read anew: what could not be opened may open now.
    Refreshed,
}

pub struct Inbound {
    parts: Arc<Parts>,
    writer: Writer,
    /// The history up to the present was read: from here on the sequence numbers of deliveries say what was seen.
    caught_up: bool,
    /// While an inbox that began anew is filled: what was pushed waits here until everything older is stored, by sequence numbers.
    early: Option<BTreeMap<u64, Deliver>>,
    /// Topics and epochs that the broker was asked about over this connection because their key is not here.
    asked: HashSet<(String, Option<u32>)>,
    /// The commit on its way. One at a time: a position is passed only when all before it is stored.
    storing: Option<JoinHandle<Result<()>>>,
    /// Opened, for the next commit.
    next: Batch,
}

/// What becomes of one message.
enum Judged {
    /// For the inbox, opened or as it came.
    Keep(Arrived, Option<FileNote>),
    /// Not for the inbox: this member's own, or somebody else's, or not a message that can be believed.
    Drop,
}

impl Inbound {
    pub fn new(parts: Arc<Parts>, writer: Writer) -> Self {
        let (early, asked) = (None, HashSet::new());
        Self { parts, writer, caught_up: false, early, asked, storing: None, next: Batch::default() }
    }

    /// Ends when nothing more can arrive.
    pub async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>) -> Result<()> {
        let position = self.parts.inbox.position().await?;
        self.early = self.parts.inbox.is_filling(position).then(BTreeMap::new);
        self.ask_history(position).await?;
        let mut waiting = Vec::new();
        loop {
            let room = BATCH_MAX.saturating_sub(self.next.len());
            tokio::select! {
                stored = stored(&mut self.storing) => stored?,
                count = arrivals.recv_many(&mut waiting, room), if room > 0 => {
                    if count == 0 {
                        return self.flush().await;
                    }
                    for arrival in waiting.drain(..) {
                        match arrival {
                            Arrival::Deliver(deliver) => self.take(*deliver).await?,
                            other => {
                                self.flush().await?;
                                self.handle(other).await?;
                            }
                        }
                    }
                }
            }
            if self.storing.is_none() {
                self.begin();
            }
        }
    }

    /// Begins to store what was opened. Its task ends by itself, also when the connection is lost: what is in the inbox is told.
    fn begin(&mut self) {
        let batch = std::mem::take(&mut self.next);
        if !batch.is_empty() {
            self.storing = Some(tokio::spawn(batch.store(Arc::clone(&self.parts), self.writer.clone())));
        }
    }

    /// Waits until everything that was opened is stored.
    async fn flush(&mut self) -> Result<()> {
        while self.storing.is_some() || !self.next.is_empty() {
            if self.storing.is_none() {
                self.begin();
            }
            stored(&mut self.storing).await?;
        }
        Ok(())
    }

    async fn ask_history(&self, after: i64) -> Result<()> {
        let limit = u32::try_from(self.parts.settings.history_page).unwrap_or(u32::MAX);
        let request = HistoryRequest { after: u64::try_from(after).unwrap_or(0), limit };
        let id = Some(HISTORY.parse()?);
        self.writer.send(&Framed::answer(id, ClientFrame::History(request))).await
    }

    async fn handle(&mut self, arrival: Arrival) -> Result<()> {
        let directory = &self.parts.directory;
        match arrival {
            Arrival::Deliver(deliver) => self.take(*deliver).await,
            Arrival::Page(page) => self.store_page(page).await,
            Arrival::Joined(peer) => {
                self.parts.presence.set(peer.member_id, peer.online);
                let data = json!({ "member_pubkey": peer.keys.ed25519, "name": peer.name });
                let member = self.parts.member_of(&peer);
                directory.learn_members(vec![member], |_, _| false).await?;
                self.check_name(peer.name.as_str());
                self.tell(EventKind::PeerJoin, data);
                self.open_held().await
            }
            Arrival::Left(gone) => {
                self.parts.presence.set(gone.member_id, false);
                self.tell(EventKind::PeerLeave, json!({ "member_pubkey": gone.key, "name": self.name_of(&gone) }));
                Ok(())
            }
            Arrival::Renamed(renamed) => {
                let name = renamed.name.to_string();
                let known = directory.update(&renamed.key, |member| member.name.clone_from(&name)).await?;
                if known.is_some() {
                    self.check_name(&name);
                    self.tell(EventKind::MemberRenamed, json!({ "member_pubkey": renamed.key, "name": name }));
                }
                Ok(())
            }
            Arrival::Rotated(rotated) => self.rotated(&rotated).await,
            Arrival::Revoked(gone) => {
                self.parts.presence.set(gone.member_id, false);
                directory.update(&gone.key, |member| member.state = Standing::Revoked).await?;
                self.tell(EventKind::MemberRevoked, json!({ "member_pubkey": gone.key, "name": self.name_of(&gone) }));
                Ok(())
            }
            Arrival::Learn(key) => {
                if epochs::learn(&self.parts, &key, Source::Pushed).await? {
                    self.parts.resealer.destination("topic", key.topic.as_str()).await?;
                    self.open_held().await?;
                }
                Ok(())
            }
            Arrival::Mint(wanted) => {
                let boxes = epochs::mint(&self.parts, &wanted)?;
                self.writer.send(&ClientFrame::EpochBoxes(boxes).into()).await
            }
            Arrival::Refreshed => self.open_held().await,
        }
    }

    /// Names are those of one member at a time. One that leads to none, or to several, was that of a member who has left: no frame
    /// tells leaving from going offline, but the list of members does.
    fn check_name(&self, name: &str) {
        if self.parts.directory.resolve(name).is_err() {
            self.parts.refresh.notify_one();
        }
    }

    fn name_of(&self, gone: &MemberGone) -> Option<String> {
        self.parts.directory.holder(&gone.key).map(|member| member.name)
    }

    fn tell(&self, kind: EventKind, data: serde_json::Value) {
        self.parts.events.publish(kind, self.parts.clock.now(), data);
    }

    /// A member has other keys. What was never sent to it is sealed anew; what may have been sent stays as it is.
    async fn rotated(&mut self, rotated: &KeypairRotated) -> Result<()> {
        let rotation = &rotated.rotation;
        let Some(known) =
            self.parts.directory.holder(&rotation.old).filter(|_| rotation.verify(self.parts.mesh).is_ok())
        else {
            metrics::invalid_inbound("rotation_unproven");
            return Ok(());
        };
        let member = Member { id: rotated.member_id, keys: rotation.keys, ..known };
        let old = rotation.old;
        // The proof is about this very key: a member that has rotated on since has another.
        let proven = move |known: &Member, _: &Member| known.keys.ed25519 == old;
        self.parts.directory.learn_members(vec![member], proven).await?;
        // All of them: a message may be addressed to a key from before the one that has gone now.
        self.parts.resealer.direct_messages().await?;
        self.open_held().await
    }

    /// Opens a delivery for the next commit, or keeps it until its turn comes.
    async fn take(&mut self, deliver: Deliver) -> Result<()> {
        if let Some(early) = &mut self.early {
            // What there is no room for is not acknowledged, and so it is pushed again.
            if early.len() < EARLY_MAX {
                early.insert(deliver.message.seq, deliver);
            }
            return Ok(());
        }
        let Deliver { delivery_id, message } = deliver;
        if self.caught_up {
            self.next.position = self.next.position.max(i64::try_from(message.seq).ok());
        }
        self.next.acknowledge.push(delivery_id);
        self.open(&message, true).await
    }

    async fn store_page(&mut self, page: HistoryPage) -> Result<()> {
        let next_after =
            i64::try_from(page.next_after).map_err(|_| confused("a place in history beyond all places"))?;
        let before = self.parts.inbox.position().await?;
        if page.more && next_after <= before {
            return Err(confused("a page of history that leads nowhere"));
        }
        for message in &page.messages {
            self.open(message, true).await?;
        }
        self.next.position = Some(next_after);
        self.flush().await?;
        if page.more {
            return self.ask_history(next_after).await;
        }
        self.catch_up().await
    }

    /// Everything older is stored: now comes the turn of what was pushed meanwhile.
    async fn catch_up(&mut self) -> Result<()> {
        self.caught_up = true;
        self.parts.inbox.filled();
        // What happened after the first reading and before the broker listened for this connection is told by no frame.
        self.parts.refresh.notify_one();
        for deliver in self.early.take().unwrap_or_default().into_values() {
            self.take(deliver).await?;
            if self.next.len() >= BATCH_MAX {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Puts a message into the next commit. For one that comes for the first time the broker is asked for what it needs.
    async fn open(&mut self, message: &Message, first_time: bool) -> Result<()> {
        match self.judge(message).await? {
            Judged::Keep(kept, note) => {
                if let Arrived::Sealed { reason, .. } = &kept
                    && first_time
                {
                    self.ask_about(message, reason);
                }
                self.next.arrived.push(kept);
                self.next.notes.push(note);
            }
            // Another message under the same id may be held: only what was held itself is let go.
            Judged::Drop if !first_time => self.next.refused.push(message.client_message_id.to_string()),
            Judged::Drop => {}
        }
        Ok(())
    }

    /// Has the directory read anew when that may bring what the message needs.
    fn ask_about(&mut self, message: &Message, reason: &str) {
        let asks = match reason {
            SENDER_UNPROVEN | SIGNER_UNPROVEN => {
                metrics::invalid_inbound("sender_unproven");
                true
            }
            // One reading brings all keys that there are: a second one because of the same epoch would bring no more.
            EPOCH_UNKNOWN => {
                let epoch = (message.envelope.destination_ref.clone(), message.envelope.epoch);
                self.asked.len() < ASKED_MAX && self.asked.insert(epoch)
            }
            _ => false,
        };
        if asks {
            self.parts.refresh.notify_one();
        }
    }

    async fn judge(&self, message: &Message) -> Result<Judged> {
        let (parts, envelope) = (&self.parts, &message.envelope);
        let destination = envelope.destination();
        let key = &message.sender.ed25519;
        let holder = parts.directory.holder(key);
        let is_for_me = destination.recipient().is_some_and(|key| parts.is_own(&key));
        let is_mine = parts.is_own(key);
        if !is_for_me && (is_mine || envelope.destination_kind != DestinationKind::Topic) {
            return Ok(Judged::Drop);
        }
        // Keys that the directory holds were verified when it learnt them.
        let is_verified = holder.as_ref().is_some_and(|holder| holder.keys == message.sender);
        if !is_verified && message.sender.verify().is_err() {
            metrics::invalid_inbound("sender_unsigned");
            return Ok(Judged::Drop);
        }
        if let Some(reason) = self.doubt_about(message, is_mine, holder.as_ref()).await? {
            return held(message, reason);
        }
        match parts.sealer.open(message, parts.clock.now()) {
            Ok(opened) => {
                let note = opened.meta.as_ref().and_then(FileNote::read);
                let holder = holder.or_else(|| parts.directory.holder(key));
                let mut new = self.new_message(message, destination, holder, opened)?;
                new.file = note.as_ref().map(|note| FileRow::of(note, &new));
                Ok(Judged::Keep(Arrived::Opened(Box::new(new)), note))
            }
            Err(Unopened::Later(reason)) => held(message, reason),
            Err(Unopened::Never(reason)) => {
                metrics::invalid_inbound(reason);
                tracing::warn!(message.id = %message.client_message_id, reason, "a message can never be opened or believed and is left out");
                Ok(Judged::Drop)
            }
        }
    }

    /// Learns of a sender that was never seen. Some when the sender's key is not believed: the broker may have the proof, and
    /// the message waits for it.
    async fn doubt_about(
        &self,
        message: &Message,
        is_mine: bool,
        holder: Option<&Member>,
    ) -> Result<Option<&'static str>> {
        let directory = &self.parts.directory;
        if is_mine {
            return Ok(None);
        }
        let believed = |holder: Option<&Member>| holder.is_some_and(|member| member.id == message.sender_id);
        if believed(holder) {
            return Ok(None);
        }
        let MemberKeys { ed25519, x25519, .. } = message.sender;
        if directory.owner_of_key(&ed25519) == Some(message.sender_id) {
            // A key from before the member was known here; with the message comes the box key that it has signed.
            let former = Former { ed25519, member: message.sender_id, x25519 };
            directory.learn(vec![Change::Former(former)]).await?;
            return Ok(None);
        }
        let member = Member {
            id: message.sender_id,
            name: message.sender_name.to_string(),
            keys: message.sender,
            is_owner: message.sender.ed25519 == self.parts.owner,
            state: Standing::Active,
        };
        directory.learn_members(vec![member], |_, _| false).await?;
        let is_believed = believed(directory.holder(&message.sender.ed25519).as_ref());
        Ok((!is_believed).then_some(SENDER_UNPROVEN))
    }

    fn new_message(
        &self,
        message: &Message,
        destination: Destination,
        sender: Option<Member>,
        opened: crate::seal::Opened,
    ) -> Result<NewMessage> {
        let meta = opened.meta.map(|meta| meta.canonical()).transpose()?.map(String::into_bytes);
        Ok(NewMessage {
            client_message_id: message.client_message_id.to_string(),
            broker_message_id: message.broker_message_id.to_string(),
            mesh: self.parts.slug.clone(),
            seq: i64::try_from(message.seq).unwrap_or(i64::MAX),
            topic: (destination.kind == DestinationKind::Topic).then_some(destination.reference),
            sender_pubkey: message.sender.ed25519.to_string(),
            sender_name: sender.map_or_else(|| message.sender_name.to_string(), |sender| sender.name),
            body: opened.body,
            meta,
            priority: message.envelope.priority.name(),
            mentioned: message.envelope.mentions.iter().any(|key| self.parts.is_own(key)),
            reply_to_id: message.envelope.reply_to.as_ref().map(ToString::to_string),
            file: None,
        })
    }

    /// Tries what could not be opened before. What still cannot stays where it is; what is found to be nobody's is let go.
    async fn open_held(&mut self) -> Result<()> {
        let mut after = -1;
        loop {
            let page = self.parts.inbox.held(after, HELD_PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.seq;
            for held in &page {
                match serde_json::from_slice::<Message>(&held.delivery) {
                    Ok(message) => self.open(&message, false).await?,
                    Err(error) => tracing::error!(%error, "a held message cannot be read any more"),
                }
            }
            self.flush().await?;
        }
    }
}

/// Waits for the commit on its way; for ever where there is none.
async fn stored(storing: &mut Option<JoinHandle<Result<()>>>) -> Result<()> {
    let Some(task) = storing else { return pending().await };
    let ended = task.await;
    *storing = None;
    ended.map_err(Error::internal)?
}

fn held(message: &Message, reason: &'static str) -> Result<Judged> {
    let arrived = Arrived::Sealed {
        client_message_id: message.client_message_id.to_string(),
        seq: i64::try_from(message.seq).unwrap_or(i64::MAX),
        delivery: serde_json::to_vec(message).map_err(Error::internal)?,
        reason,
    };
    Ok(Judged::Keep(arrived, None))
}

/// The broker says something that cannot be: another connection is tried.
fn confused(what: &str) -> Error {
    Error::new(Code::ServerUnreachable, format!("The broker answered with {what}."))
}
