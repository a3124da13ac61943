//! A socket that is open: what the member sends is carried out, what was committed for it is pushed, what happens to the mesh is
//! told.
//!
//! # Contract
//! Frames are read only while there is room for their work, so that a flood waits in the other side's own buffers. Whatever is
//! pushed was read from committed rows; what is not acknowledged is pushed again. Nothing is kept of a message once the socket has
//! taken it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Caller, Code, Error, Result as Outcome};
use waybill_mesh::Membership;
use waybill_mesh::ops::members::ConnectionId;
use waybill_mesh::wakes::{everybody_topic, member_topic};
use waybill_mesh_protocol::frames::{
    ClientFrame, EpochBoxes, FrameId, HistoryRequest, MemberGone, Refused, Send, SendResult,
};
use waybill_mesh_protocol::{ClientMessageId, CloseCode, DeliveryId, Framed, ServerFrame, TopicName};
use waybill_store::WakeFlag;
use waybill_store::shares::Share;

use super::greeting::{Greeted, refuse};
use super::minting::Minting;
use super::state::{IsFirst, Liveness, Phase, Pulse, Step, Window};
use super::wire::{Leave, Socket};
use crate::broker;
use crate::door::{Door, charged};
use crate::hub::{Listening, Told, What};
use crate::metrics;

/// Frames up to this are worked on without asking for room: there are only so many at a time.
const SMALL_BYTES_MAX: usize = 4 << 10;
/// Acknowledgements that wait for those before them. Beyond it nothing is read.
const ACKNOWLEDGED_MAX: usize = 1_000;
/// While others have the room for deliveries. Frames are read meanwhile, and nothing is lost.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
/// After a read of deliveries that has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// A number that no message has: there is nothing to be read after it.
const NOTHING_AFTER: u64 = i64::MAX as u64;
/// Events that are told in a row.
const TOLD_IN_A_ROW_MAX: usize = 64;

/// What has been done.
enum Done {
    Answer(Box<Framed<ServerFrame>>, Option<Share>),
    Acknowledged(Vec<DeliveryId>, Outcome<()>),
    Uploaded { topic: TopicName, epoch: u32, outcome: Outcome<bool> },
}

/// What can be learnt of a frame that cannot be read. No `Value`: of one that was refused for its depth serde_json would read a
/// text under its own name for raw JSON again, level by level, until the stack ends.
#[derive(Default, Deserialize)]
struct Named {
    t: Option<String>,
    id: Option<String>,
    client_message_id: Option<String>,
}

/// A frame that waits for room.
type Held = BoxFuture<'static, (Outcome<Share>, Option<FrameId>, Step)>;

struct Session<'s> {
    door: &'s Arc<Door>,
    socket: &'s mut Socket,
    member: Membership,
    charged: Caller,
    connection: ConnectionId,
    live: Liveness,
    window: Window,
    minting: Minting,
    listening: Listening,
    /// Raised when there may be something for the member.
    flags: [WakeFlag; 2],
    /// Deliveries are to be looked for, from this time on.
    look_at: Option<Instant>,
    /// There may be deliveries that the window had no room for.
    is_behind: bool,
    /// Tasks of their own: each holds a turn or room until it is done, and must get on while this one waits for the same.
    working: JoinSet<Done>,
    held: Option<Held>,
    acknowledged: Vec<DeliveryId>,
    is_acknowledging: bool,
    _place: Share,
    _open: metrics::Open,
}

pub(super) async fn run(door: &Arc<Door>, socket: &mut Socket, greeted: Greeted, stopping: CancellationToken) -> Leave {
    let Greeted { member, place } = greeted;
    // Before the connection is written down, so that nothing after it is missed.
    let flags = flags(door, &member);
    let (kept, connected) = match Box::pin(broker::connect(door, &member)).await {
        Ok(connected) => connected,
        Err(error) if error.code() == Code::MemberRevoked => return revoked(socket, &member).await,
        Err(error) => return refuse(socket, &error, CloseCode::GoingAway).await,
    };
    let Some(kept) = kept else { return Leave::Close(CloseCode::AlreadyConnected) };
    let mut listening = door.hubs.listen(door, &member.caller, member.mesh, connected.events_seq);
    if let Err(error) = Box::pin(listening.catch_up(door, &member.caller, member.mesh)).await {
        Box::pin(kept.end()).await;
        return refuse(socket, &error, CloseCode::GoingAway).await;
    }
    let now = Instant::now();
    let settings = &door.settings;
    let [ping, dead, again] = [settings.ping_ms, settings.dead_ms, settings.redeliver_ms].map(Duration::from_millis);
    let mut session = Session {
        door,
        socket,
        charged: charged(&member),
        member,
        connection: kept.id(),
        live: Liveness::new(ping, dead, now),
        window: Window::new(settings.deliveries_max, again),
        minting: Minting::default(),
        listening,
        flags,
        look_at: Some(now),
        is_behind: false,
        working: JoinSet::new(),
        held: None,
        acknowledged: Vec::new(),
        is_acknowledging: false,
        _place: place,
        _open: metrics::opened(),
    };
    let leave = session.serve(&stopping).await;
    // What was begun is not waited for: it is committed or not, and its answer had nowhere to go.
    drop(session);
    Box::pin(kept.end()).await;
    leave
}

/// Anew before each look: a flag that was raised stays so.
fn flags(door: &Door, member: &Membership) -> [WakeFlag; 2] {
    let tenant = member.caller.tenant;
    [member_topic(tenant, member.mesh, member.member), everybody_topic(tenant, member.mesh)]
        .map(|topic| door.store.flag(topic))
}

async fn revoked(socket: &mut Socket, member: &Membership) -> Leave {
    let gone = MemberGone { member_id: member.member, key: member.key };
    match socket.say(&ServerFrame::MemberRevoked(gone).into()).await {
        Ok(()) => Leave::Close(CloseCode::MemberRevoked),
        Err(leave) => leave,
    }
}

impl Session<'_> {
    async fn serve(&mut self, stopping: &CancellationToken) -> Leave {
        if let Err(leave) = Box::pin(self.find_work()).await {
            return leave;
        }
        loop {
            if let Err(leave) = self.turn(stopping).await {
                return leave;
            }
        }
    }

    async fn turn(&mut self, stopping: &CancellationToken) -> Result<(), Leave> {
        self.acknowledge();
        if self.may_push() {
            return Box::pin(self.push()).await;
        }
        let reads = self.may_read();
        let until = tokio::time::Instant::from_std(self.wake_at());
        let [own, everybody] = &self.flags;
        tokio::select! {
            heard = self.socket.hear(), if reads => {
                let heard = heard?;
                self.live.heard(Instant::now());
                match heard {
                    Some(text) => Box::pin(self.heard(&text)).await,
                    None => Ok(()),
                }
            }
            Some(done) = self.working.join_next(), if !self.working.is_empty() => match done {
                Ok(done) => Box::pin(self.done(done)).await,
                // A panic, which is in the log: the member comes again and repeats what it has no answer to.
                Err(_) => Err(Leave::Close(CloseCode::GoingAway)),
            },
            (room, id, step) = held(&mut self.held), if self.held.is_some() => {
                self.held = None;
                self.begin(room, id, step)
            }
            told = self.listening.next() => match told {
                Some(told) => Box::pin(self.tell(told)).await,
                None => Err(Leave::Close(CloseCode::TooSlow)),
            },
            () = own.wait(), if self.look_at.is_none() => self.look(),
            () = everybody.wait(), if self.look_at.is_none() => self.look(),
            () = tokio::time::sleep_until(until) => self.pulse(reads).await,
            () = stopping.cancelled() => Err(Leave::Close(CloseCode::GoingAway)),
        }
    }

    fn look(&mut self) -> Result<(), Leave> {
        self.look_at = Some(Instant::now());
        Ok(())
    }

    fn may_read(&self) -> bool {
        let is_free = self.working.len() < self.door.settings.frames_max && self.acknowledged.len() < ACKNOWLEDGED_MAX;
        self.held.is_none() && is_free
    }

    fn may_push(&self) -> bool {
        self.look_at.is_some_and(|at| at <= Instant::now())
    }

    fn wake_at(&self) -> Instant {
        // A look that was put off is not overtaken by what is due meanwhile.
        [self.look_at.or_else(|| self.window.due())].into_iter().flatten().fold(self.live.next(), Instant::min)
    }

    /// Something is due: a look, a second push, a sign of life.
    async fn pulse(&mut self, reads: bool) -> Result<(), Leave> {
        let now = Instant::now();
        if self.look_at.is_none() && self.window.rewind(now) {
            self.look_at = Some(now);
        }
        if !reads {
            // It may have said something that nobody has read.
            self.live.heard(now);
        }
        match self.live.pulse(now) {
            Pulse::Fine => Ok(()),
            Pulse::Dead => Err(Leave::Close(CloseCode::PingTimeout)),
            Pulse::Ask => {
                self.socket.ping().await?;
                Box::pin(self.socket.rest()).await;
                // Between servers a wake may be lost, and another socket may have acknowledged what the window was full of.
                let has_waited = self.is_behind && self.window.room() > 0;
                if self.look_at.is_none() && (has_waited || self.door.store.is_postgres()) {
                    (self.look_at, self.is_behind) = (Some(now), false);
                }
                Ok(())
            }
        }
    }

    async fn heard(&mut self, text: &str) -> Result<(), Leave> {
        let Framed { id, frame } = match Framed::<ClientFrame>::read(text.as_bytes()) {
            Ok(framed) => framed,
            Err(error) => return self.unreadable(text, &error).await,
        };
        let step = Phase::Open.step(frame).map_err(|code| {
            metrics::frame_refused("unexpected");
            Leave::Close(code)
        })?;
        match step {
            Step::Pong => self.socket.say(&Framed::answer(id, ServerFrame::Pong {})).await,
            Step::Acknowledge(delivery) => {
                self.window.acknowledge(delivery);
                self.acknowledged.push(delivery);
                // There is room for what had to wait.
                if self.window.room() > 0 && std::mem::take(&mut self.is_behind) {
                    self.look_at = Some(Instant::now());
                }
                Ok(())
            }
            Step::Send(_) | Step::History(_) | Step::Boxes(_) if text.len() > SMALL_BYTES_MAX => {
                let (door, charged, bytes) = (Arc::clone(self.door), self.charged.clone(), text.len());
                self.held = Some(Box::pin(async move { (door.room_for_frame(&charged, bytes).await, id, step) }));
                Ok(())
            }
            step => self.work(id, step, None),
        }
    }

    /// Whoever sends a message waits for what becomes of it; anything else that cannot be read ends the socket.
    async fn unreadable(&mut self, text: &str, error: &Error) -> Result<(), Leave> {
        metrics::frame_refused("unreadable");
        let Named { t, id, client_message_id } = serde_json::from_str(text).unwrap_or_default();
        let named = client_message_id.filter(|_| t.as_deref() == Some("send"));
        let Some(message) = named.and_then(|id| id.parse::<ClientMessageId>().ok()) else {
            return Err(refuse(self.socket, error, CloseCode::FrameInvalid).await);
        };
        let id = id.and_then(|id| id.parse().ok());
        let refused = ServerFrame::SendResult(Box::new(SendResult::refused(message, error)));
        self.socket.say(&Framed::answer(id, refused)).await
    }

    fn begin(&mut self, room: Outcome<Share>, id: Option<FrameId>, step: Step) -> Result<(), Leave> {
        match room {
            Ok(room) => self.work(id, step, Some(room)),
            Err(error) => {
                let answer = refusal(id, &step, &error);
                self.working.spawn(async move { Done::Answer(answer, None) });
                Ok(())
            }
        }
    }

    fn work(&mut self, id: Option<FrameId>, step: Step, room: Option<Share>) -> Result<(), Leave> {
        let (door, member) = (Arc::clone(self.door), self.member.clone());
        match step {
            Step::Send(send) => self.working.spawn(carry_send(door, member, id, send, room)),
            Step::History(request) => {
                self.working.spawn(carry_history(door, member, self.charged.clone(), id, request))
            }
            Step::Boxes(boxes) => self.working.spawn(carry_boxes(door, member, boxes, room)),
            _ => return Ok(()),
        };
        Ok(())
    }

    async fn done(&mut self, done: Done) -> Result<(), Leave> {
        match done {
            Done::Answer(answer, _room) => self.socket.say(&answer).await,
            Done::Acknowledged(ids, outcome) => {
                self.is_acknowledging = false;
                if let Err(error) = outcome {
                    // They are pushed again, and acknowledged again.
                    tracing::debug!(%error, count = ids.len(), "deliveries could not be acknowledged");
                }
                Ok(())
            }
            Done::Uploaded { topic, epoch, outcome } => match outcome {
                Ok(true) => {
                    self.minting.done(&topic, epoch);
                    Ok(())
                }
                Ok(false) => self.find_work().await,
                Err(error) => self.socket.say(&ServerFrame::Error(Refused::from(&error)).into()).await,
            },
        }
    }

    /// All that wait, in one transaction, once the ones before are done.
    fn acknowledge(&mut self) {
        if self.is_acknowledging || self.acknowledged.is_empty() {
            return;
        }
        self.is_acknowledging = true;
        let ids = std::mem::take(&mut self.acknowledged);
        let (door, member) = (Arc::clone(self.door), self.member.clone());
        self.working.spawn(async move {
            let outcome = broker::acknowledge(&door, &member, &ids).await;
            Done::Acknowledged(ids, outcome)
        });
    }

    /// A page of what was committed for the member, from where the last one has ended. Also finds out whether this is still the
    /// member's connection, so it is not left out when nothing can be pushed.
    async fn push(&mut self) -> Result<(), Leave> {
        let reads = self.window.room() > 0 || self.window.is_rewound();
        let page = if reads { self.door.page } else { 1 };
        // Not waited for: a page of history that this socket is about to be given may have the room.
        let Ok(_room) = self.door.room_now(&self.charged, page * self.door.message_bytes) else {
            self.look_at = Some(Instant::now() + ROOM_PAUSE);
            return Ok(());
        };
        self.flags = flags(self.door, &self.member);
        let after = if reads { self.window.after() } else { NOTHING_AFTER };
        let found = match broker::deliveries(self.door, &self.member, self.connection, after, page).await {
            Ok(found) => found,
            Err(error) if error.code() == Code::MemberRevoked => return Err(revoked(self.socket, &self.member).await),
            Err(error) => return self.look_later(&error),
        };
        if found.is_replaced {
            return Err(Leave::Close(CloseCode::Replaced));
        }
        self.look_at = found.more.then(Instant::now);
        self.is_behind |= !reads;
        if reads { self.push_found(after, found).await } else { Ok(()) }
    }

    async fn push_found(&mut self, after: u64, found: broker::Found) -> Result<(), Leave> {
        let seqs: Vec<u64> = found.deliveries.iter().map(|delivery| delivery.message.seq).collect();
        let end = if found.more { seqs.last().copied().unwrap_or(after) } else { u64::MAX };
        self.window.forget_missing(after, end, &seqs);
        for delivery in found.deliveries {
            let (seq, id) = (delivery.message.seq, delivery.delivery_id);
            if !self.window.has_room_for(seq) {
                (self.look_at, self.is_behind) = (None, true);
                return Ok(());
            }
            let Some(IsFirst(is_first)) = self.window.offer(seq, id, Instant::now()) else { continue };
            self.socket.say(&ServerFrame::Deliver(Box::new(delivery)).into()).await?;
            metrics::pushed(is_first);
        }
        Ok(())
    }

    fn look_later(&mut self, error: &Error) -> Result<(), Leave> {
        tracing::debug!(%error, "deliveries could not be read; it is tried again");
        self.look_at = Some(Instant::now() + PAUSE);
        Ok(())
    }

    /// What has happened to the mesh, and what has happened meanwhile.
    async fn tell(&mut self, first: Arc<Told>) -> Result<(), Leave> {
        let mut next = Some(first);
        for _ in 0..TOLD_IN_A_ROW_MAX {
            let Some(told) = next else { return Ok(()) };
            match &told.what {
                What::Frame(_) if told.about == Some(self.member.member) => {
                    self.member.key = told.new_key.unwrap_or(self.member.key);
                }
                What::Frame(text) => self.socket.say_text(text.clone()).await?,
                What::KeyWanted { minter } if *minter == self.member.member => self.find_work().await?,
                What::KeyWanted { .. } => {}
                What::KeyThere { topic, epoch } => self.give_key(topic, *epoch).await?,
            }
            next = self.listening.more();
        }
        Ok(())
    }

    /// Asks the member for the keys that it is to make.
    async fn find_work(&mut self) -> Result<(), Leave> {
        if self.member.plaintext {
            return Ok(());
        }
        let wanted = match broker::epoch_work(self.door, &self.member).await {
            Ok(wanted) => wanted,
            Err(error) => {
                tracing::debug!(%error, "which keys are wanted could not be read; it is tried with the next event");
                return Ok(());
            }
        };
        for wanted in wanted {
            if self.minting.asks(&wanted, Instant::now()) {
                self.socket.say(&ServerFrame::EpochWanted(wanted).into()).await?;
            }
        }
        Ok(())
    }

    async fn give_key(&mut self, topic: &TopicName, epoch: u32) -> Result<(), Leave> {
        self.minting.done(topic, epoch);
        match broker::epoch_key(self.door, &self.member, topic, epoch).await {
            Ok(keys) => {
                for key in keys {
                    self.socket.say(&ServerFrame::EpochKey(key).into()).await?;
                }
                Ok(())
            }
            // The member asks for what it lacks when it comes again.
            Err(error) if error.code() == Code::MemberRevoked => Ok(()),
            Err(error) => self.socket.say(&ServerFrame::Error(Refused::from(&error)).into()).await,
        }
    }
}

async fn held(held: &mut Option<Held>) -> (Outcome<Share>, Option<FrameId>, Step) {
    match held {
        Some(held) => held.await,
        None => std::future::pending().await,
    }
}

fn refusal(id: Option<FrameId>, step: &Step, error: &Error) -> Box<Framed<ServerFrame>> {
    let frame = match step {
        Step::Send(send) => {
            ServerFrame::SendResult(Box::new(SendResult::refused(send.client_message_id.clone(), error)))
        }
        _ => ServerFrame::Error(Refused::from(error)),
    };
    Box::new(Framed::answer(id, frame))
}

async fn carry_send(
    door: Arc<Door>,
    member: Membership,
    id: Option<FrameId>,
    send: Box<Send>,
    _room: Option<Share>,
) -> Done {
    let result = broker::accept(&door, &member, *send).await;
    Done::Answer(Box::new(Framed::answer(id, ServerFrame::SendResult(Box::new(result)))), None)
}

async fn carry_history(
    door: Arc<Door>,
    member: Membership,
    charged: Caller,
    id: Option<FrameId>,
    request: HistoryRequest,
) -> Done {
    let read = async {
        let room = door.room_for_deliveries(&charged, waybill_mesh_protocol::FRAME_BYTES_MAX).await?;
        let page = broker::history(&door, &member, request).await?;
        Ok((page, room))
    };
    match read.await {
        Ok((page, room)) => Done::Answer(Box::new(Framed::answer(id, ServerFrame::HistoryPage(page))), Some(room)),
        Err(error) => Done::Answer(refusal(id, &Step::History(request), &error), None),
    }
}

async fn carry_boxes(door: Arc<Door>, member: Membership, boxes: EpochBoxes, _room: Option<Share>) -> Done {
    let (topic, epoch) = (boxes.topic.clone(), boxes.epoch);
    let outcome = broker::upload_epoch(&door, &member, boxes).await;
    Done::Uploaded { topic, epoch, outcome }
}
