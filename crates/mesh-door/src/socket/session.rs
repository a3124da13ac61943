//! A socket that is open: what the member sends is carried out, what was committed for it is pushed, what happens to the mesh is
//! told.
//!
//! # Contract
//! Frames are read only while there is room for their work, so that a flood waits in the other side's own buffers. Whatever is
//! pushed was read from committed rows; what is not acknowledged is pushed again, and an acknowledgement that fails is tried again.
//! Nothing is kept of a message once the socket has taken it. Frames are fed to the socket and leave together, before anything is
//! waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde::Deserialize;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Caller, Code, Error, Result as Outcome};
use waybill_mesh::Membership;
use waybill_mesh::ops::members::ConnectionId;
use waybill_mesh::wakes::{everybody_topic, member_topic};
use waybill_mesh_protocol::frames::{ClientFrame, FrameId, MemberGone, Send, SendResult};
use waybill_mesh_protocol::{ClientMessageId, CloseCode, DeliveryId, DestinationKind, Framed, ServerFrame};
use waybill_store::WakeFlag;
use waybill_store::shares::Share;

use super::carrying::{self, Done, Held, held, refusal};
use super::greeting::{Greeted, refuse};
use super::minting::Minting;
use super::state::{Liveness, Phase, Pulse, Step, Window};
use super::wire::{Leave, Socket};
use crate::broker;
use crate::door::{Door, charged};
use crate::hub::Listening;
use crate::metrics;

/// Frames up to this are worked on without asking for room: there are only so many at a time.
const SMALL_BYTES_MAX: usize = 4 << 10;
/// Acknowledgements that wait for those before them. Beyond it nothing is read.
const ACKNOWLEDGED_MAX: usize = 1_000;
/// Between two transactions that store acknowledgements: where many come, each would be a commit of its own.
const ACKNOWLEDGE_PAUSE: Duration = Duration::from_millis(10);
/// Frames that are read in a row.
const HEARD_IN_A_ROW_MAX: usize = 32;
/// After something that has failed.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// What can be learnt of a frame that cannot be read. No `Value`: of one that was refused for its depth serde_json would read a
/// text under its own name for raw JSON again, level by level, until the stack ends.
#[derive(Default, Deserialize)]
struct Named {
    t: Option<String>,
    id: Option<String>,
    client_message_id: Option<String>,
}

pub(super) struct Session<'s> {
    pub(super) door: &'s Arc<Door>,
    pub(super) socket: &'s mut Socket,
    pub(super) member: Membership,
    pub(super) charged: Caller,
    pub(super) connection: ConnectionId,
    live: Liveness,
    pub(super) window: Window,
    pub(super) minting: Minting,
    /// Keys that the member is to make are to be looked for again at this time.
    pub(super) work_at: Option<Instant>,
    pub(super) listening: Listening,
    /// Raised when there may be something for the member.
    pub(super) flags: [WakeFlag; 2],
    /// Deliveries are to be looked for, from this time on.
    pub(super) look_at: Option<Instant>,
    /// There may be deliveries that the window had no room for.
    pub(super) is_behind: bool,
    /// The last look has found more than a usual page.
    pub(super) is_busy: bool,
    /// Tasks of their own: each holds a turn or room until it is done, and must get on while this one waits for the same.
    working: JoinSet<Done>,
    /// Messages that have come together and are not worked on yet.
    sends: Vec<(Option<FrameId>, Box<Send>)>,
    held: Option<Held>,
    acknowledged: Vec<DeliveryId>,
    /// Acknowledged ones that a transaction is on its way for.
    storing: Vec<DeliveryId>,
    /// Acknowledgements have just been stored, or could not be, and others wait until this time.
    acknowledge_at: Option<Instant>,
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
        work_at: None,
        listening,
        flags,
        look_at: Some(now),
        is_behind: false,
        is_busy: false,
        working: JoinSet::new(),
        sends: Vec::new(),
        held: None,
        acknowledged: Vec::new(),
        storing: Vec::new(),
        acknowledge_at: None,
        _place: place,
        _open: metrics::opened(),
    };
    let leave = session.serve(&stopping).await;
    let mut ids = std::mem::take(&mut session.storing);
    ids.append(&mut session.acknowledged);
    let member = session.member.clone();
    // What was begun is not waited for: it is committed or not, and its answer had nowhere to go.
    drop(session);
    // What the member has in its inbox is not pushed to it again because it left in a hurry.
    if !ids.is_empty()
        && let Err(error) = Box::pin(broker::acknowledge(door, &member, &ids)).await
    {
        tracing::debug!(%error, count = ids.len(), "deliveries could not be acknowledged; they are pushed again");
    }
    Box::pin(kept.end()).await;
    leave
}

/// Anew before each look: a flag that was raised stays so.
pub(super) fn flags(door: &Door, member: &Membership) -> [WakeFlag; 2] {
    let tenant = member.caller.tenant;
    [member_topic(tenant, member.mesh, member.member), everybody_topic(tenant, member.mesh)]
        .map(|topic| door.store.flag(topic))
}

pub(super) async fn revoked(socket: &mut Socket, member: &Membership) -> Leave {
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
        // Whatever is done already is answered together.
        while let Some(done) = self.working.try_join_next() {
            Box::pin(self.done(done)).await?;
        }
        self.acknowledge();
        self.socket.flush().await?;
        if self.may_push() {
            return Box::pin(self.push()).await;
        }
        let reads = self.may_read();
        let until = tokio::time::Instant::from_std(self.wake_at());
        let [own, everybody] = &self.flags;
        tokio::select! {
            heard = self.socket.hear(), if reads => {
                let heard = heard?;
                Box::pin(self.hear_on(heard)).await
            }
            Some(done) = self.working.join_next(), if !self.working.is_empty() => Box::pin(self.done(done)).await,
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

    fn may_read(&self) -> bool {
        let begun = self.working.len() + self.sends.len();
        let is_free = begun < self.door.settings.frames_max && self.acknowledged.len() < ACKNOWLEDGED_MAX;
        self.held.is_none() && is_free
    }

    fn wake_at(&self) -> Instant {
        // A look that was put off is not overtaken by what is due meanwhile.
        let look = self.look_at.or_else(|| self.window.due());
        let acknowledge = self.acknowledge_at.filter(|_| !self.acknowledged.is_empty());
        [look, self.work_at, acknowledge].into_iter().flatten().fold(self.live.next(), Instant::min)
    }

    /// Something is due: a look, a second push, a second attempt, a sign of life.
    async fn pulse(&mut self, reads: bool) -> Result<(), Leave> {
        let now = Instant::now();
        self.acknowledge_at = self.acknowledge_at.filter(|at| *at > now);
        if self.work_at.is_some_and(|at| at <= now) {
            Box::pin(self.find_work()).await?;
        }
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

    /// A frame, and those that have come with it: to read on is cheaper than to wait anew, and what was sent together is worked on
    /// together.
    async fn hear_on(&mut self, first: Option<String>) -> Result<(), Leave> {
        self.live.heard(Instant::now());
        let mut heard = first;
        for left in (0..HEARD_IN_A_ROW_MAX).rev() {
            if let Some(text) = heard {
                self.heard(&text).await?;
            }
            if left == 0 || !self.may_read() {
                break;
            }
            match self.socket.hear().now_or_never() {
                Some(next) => heard = next?,
                None => break,
            }
        }
        self.begin_sends();
        Ok(())
    }

    fn begin_sends(&mut self) {
        let sends = std::mem::take(&mut self.sends);
        let ids = sends.iter().map(|(_, send)| send.client_message_id.clone()).collect();
        let mut looking = broker::look_together(self.door, &self.member, ids).into_iter();
        for (id, send) in sends {
            let (door, member) = (Arc::clone(self.door), self.member.clone());
            self.working.spawn(carrying::send(door, member, id, send, looking.next(), None));
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
            Step::Pong => self.socket.feed(&Framed::answer(id, ServerFrame::Pong {})).await,
            Step::Acknowledge(delivery) => {
                self.window.acknowledge(delivery);
                self.acknowledged.push(delivery);
                self.look_on();
                Ok(())
            }
            Step::Send(_) | Step::History(_) | Step::Boxes(_) if text.len() > SMALL_BYTES_MAX => {
                let (door, charged, bytes) = (Arc::clone(self.door), self.charged.clone(), text.len());
                self.held = Some(Box::pin(async move { (door.room_for_frame(&charged, bytes).await, id, step) }));
                Ok(())
            }
            Step::Send(send) if send.envelope.destination_kind != DestinationKind::Queue => {
                self.sends.push((id, send));
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
        self.socket.feed(&Framed::answer(id, refused)).await
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
            Step::Send(send) => self.working.spawn(carrying::send(door, member, id, send, None, room)),
            Step::History(request) => {
                self.working.spawn(carrying::history(door, member, self.charged.clone(), id, request))
            }
            Step::Boxes(boxes) => self.working.spawn(carrying::boxes(door, member, boxes, room)),
            _ => return Ok(()),
        };
        Ok(())
    }

    async fn done(&mut self, done: Result<Done, JoinError>) -> Result<(), Leave> {
        // A panic, which is in the log: the member comes again and repeats what it has no answer to.
        match done.map_err(|_| Leave::Close(CloseCode::GoingAway))? {
            Done::Answer(answer, None) => self.socket.feed(&answer).await,
            // What it takes room for has left before the room is given back.
            Done::Answer(answer, Some(_room)) => self.socket.say(&answer).await,
            Done::Acknowledged(outcome) => {
                let mut ids = std::mem::take(&mut self.storing);
                if let Err(error) = outcome {
                    tracing::debug!(%error, count = ids.len(), "deliveries could not be acknowledged; it is tried again");
                    // The window has forgotten them: nobody else would say that they are in the inbox. No frame is read while
                    // too many wait, so there are only so many.
                    ids.append(&mut self.acknowledged);
                    self.acknowledged = ids;
                    self.acknowledge_at = Some(Instant::now() + PAUSE);
                }
                Ok(())
            }
            Done::Uploaded { topic, epoch, outcome } => self.uploaded(&topic, epoch, outcome).await,
        }
    }

    /// All that wait, in one transaction, once the ones before are done and their pause is over.
    fn acknowledge(&mut self) {
        if !self.storing.is_empty() || self.acknowledged.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.acknowledge_at.is_some_and(|at| at > now) {
            return;
        }
        self.acknowledge_at = Some(now + ACKNOWLEDGE_PAUSE);
        self.storing = std::mem::take(&mut self.acknowledged);
        let (door, member, ids) = (Arc::clone(self.door), self.member.clone(), self.storing.clone());
        self.working.spawn(async move { Done::Acknowledged(broker::acknowledge(&door, &member, &ids).await) });
    }
}
