//! The first frames of a socket: who is there, and what both sides can do. All of it within a deadline.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use waybill_kernel::{Code, Error};
use waybill_mesh::{Membership, Standing};
use waybill_mesh_protocol::challenge::{self, ChallengeNonce};
use waybill_mesh_protocol::frames::{Challenge, ClientFrame, Hello, HelloOk, MemberGone, Refused};
use waybill_mesh_protocol::negotiation::{ConcurrentPolicy, DedupeMode, FeatureRequest, Features};
use waybill_mesh_protocol::{CloseCode, Framed, ServerFrame};
use waybill_store::shares::Share;

use super::state::{Phase, Step};
use super::wire::{Leave, Socket};
use crate::door::Door;
use crate::metrics;
use crate::unfinished::Place;

/// A member that has proved its key, with its place among the sockets.
pub(super) struct Greeted {
    pub(super) member: Membership,
    pub(super) place: Share,
}

pub(super) async fn greet(door: &Arc<Door>, socket: &mut Socket, place: Place) -> Result<Greeted, Leave> {
    let nonce = ChallengeNonce::random(door.store.entropy().as_ref());
    socket.say(&ServerFrame::Challenge(Challenge { nonce }).into()).await?;
    let deadline = Instant::now() + door.settings.challenge();
    let hello = loop {
        let next = tokio::select! {
            next = step(socket, Phase::Challenged, deadline) => next?,
            () = place.made_way() => return Err(Leave::Close(CloseCode::TooMany)),
        };
        match next {
            (_, Step::Greet(hello)) => break hello,
            (id, Step::Pong) => socket.say(&Framed::answer(id, ServerFrame::Pong {})).await?,
            _ => {}
        }
    };
    let member = match identify(door, &nonce, &hello).await {
        Ok(member) => member,
        Err(error) => return Err(refuse(socket, &error, CloseCode::Unauthorized).await),
    };
    check_standing(socket, &member).await?;
    // Sockets of members are counted by member from here on.
    drop(place);
    let place = match door.place(&member) {
        Ok(place) => place,
        Err(error) => return Err(refuse(socket, &error, CloseCode::TooMany).await),
    };
    socket.trust();
    socket.say(&hello_ok(&member)?.into()).await?;
    negotiate(door, socket, &member, deadline).await?;
    Ok(Greeted { member, place })
}

/// The next frame, if it comes in time and belongs here.
async fn step(
    socket: &mut Socket,
    phase: Phase,
    deadline: Instant,
) -> Result<(Option<waybill_mesh_protocol::frames::FrameId>, Step), Leave> {
    let heard = timeout_at(deadline, socket.hear()).await.map_err(|_| Leave::Close(CloseCode::ChallengeTimeout))?;
    let Some(text) = heard? else { return Ok((None, Step::Nothing)) };
    match Framed::<ClientFrame>::read(text.as_bytes()) {
        Ok(Framed { id, frame }) => match phase.step(frame) {
            Ok(step) => Ok((id, step)),
            Err(code) => {
                metrics::frame_refused("unexpected");
                Err(Leave::Close(code))
            }
        },
        Err(error) => {
            metrics::frame_refused("unreadable");
            Err(refuse(socket, &error, CloseCode::FrameInvalid).await)
        }
    }
}

/// Says why before the number says it shortly.
pub(super) async fn refuse(socket: &mut Socket, error: &Error, code: CloseCode) -> Leave {
    waybill_doors::log_cause(error);
    match socket.say(&ServerFrame::Error(Refused::from(error)).into()).await {
        Ok(()) => Leave::Close(code),
        Err(leave) => leave,
    }
}

/// The signature first: who has none learns nothing about who is a member.
async fn identify(door: &Door, nonce: &ChallengeNonce, hello: &Hello) -> waybill_kernel::Result<Membership> {
    let Hello { mesh, key, time, signature, .. } = hello;
    challenge::verify(key, nonce, *mesh, *time, signature, door.store.now())?;
    let found = waybill_mesh::authenticate(&door.store, *mesh, *key).await?;
    found.ok_or_else(|| Error::new(Code::MemberUnknown, Code::MemberUnknown.entry().title))
}

async fn check_standing(socket: &mut Socket, member: &Membership) -> Result<(), Leave> {
    if member.standing == Standing::Live {
        return Ok(());
    }
    let gone = MemberGone { member_id: member.member, key: member.key };
    socket.say(&ServerFrame::MemberRevoked(gone).into()).await?;
    Err(Leave::Close(CloseCode::MemberRevoked))
}

fn hello_ok(member: &Membership) -> Result<ServerFrame, Leave> {
    let parsed = member.slug.parse().and_then(|slug| Ok((slug, member.name.parse()?)));
    let Ok((slug, name)) = parsed else {
        tracing::error!(member = %member.member, "a member or its mesh has a name that is none");
        return Err(Leave::Gone);
    };
    Ok(ServerFrame::HelloOk(HelloOk {
        mesh: member.mesh,
        slug,
        member_id: member.member,
        name,
        plaintext: member.plaintext,
        broker_version: env!("CARGO_PKG_VERSION").to_owned(),
    }))
}

async fn negotiate(door: &Door, socket: &mut Socket, member: &Membership, deadline: Instant) -> Result<(), Leave> {
    let (id, request) = loop {
        match step(socket, Phase::Greeted, deadline).await? {
            (id, Step::Negotiate(request)) => break (id, request),
            (id, Step::Pong) => socket.say(&Framed::answer(id, ServerFrame::Pong {})).await?,
            _ => {}
        }
    };
    let answer = match features(door, member).answer_by(&door.edition, &request) {
        Ok(answer) => answer,
        Err(error) => return Err(refuse(socket, &error, CloseCode::ParametersInvalid).await),
    };
    let is_missing = !answer.missing_required.is_empty();
    log(member, &request, &answer.missing_required);
    socket.say(&Framed::answer(id, ServerFrame::FeatureNegotiationResponse(answer))).await?;
    if is_missing { Err(Leave::Close(CloseCode::FeatureMissing)) } else { Ok(()) }
}

fn log(member: &Membership, request: &FeatureRequest, missing: &[String]) {
    let FeatureRequest { require, optional } = request;
    tracing::debug!(member = %member.member, ?require, ?optional, ?missing, "features were asked for");
}

/// What this broker offers to a member of the mesh.
pub(crate) fn features(door: &Door, member: &Membership) -> Features {
    Features { concurrent: policy(member.policy), ..offered(door.store.settings().get()) }
}

/// But for the policy, which each mesh has its own of.
pub(crate) fn offered(settings: &waybill_mesh::Settings) -> Features {
    let days = u32::try_from(settings.dedupe_retention_days).unwrap_or(u32::MAX);
    Features {
        dedupe: if settings.dedupe_permanent { DedupeMode::Permanent } else { DedupeMode::RetentionScoped { days } },
        concurrent: ConcurrentPolicy::default(),
        max_concurrent_epochs: u32::try_from(settings.max_concurrent_epochs).unwrap_or(u32::MAX),
        inline_bytes: settings.inline_bytes,
        blob_bytes: settings.blob_bytes,
    }
}

fn policy(policy: waybill_mesh::Policy) -> ConcurrentPolicy {
    match policy {
        waybill_mesh::Policy::PreferNewest => ConcurrentPolicy::PreferNewest,
        waybill_mesh::Policy::PreferOldest => ConcurrentPolicy::PreferOldest,
        waybill_mesh::Policy::AllowConcurrent => ConcurrentPolicy::AllowConcurrent,
    }
}
