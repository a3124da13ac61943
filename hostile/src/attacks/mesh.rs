//! The mesh: sockets that never say who they are, members that never read, frames without end, and one member's posts to as many
//! subscribers as a topic can have. Meanwhile two members of an innocent tenant's mesh write to each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use waybill_bench::member::{Heard, Member, Socket};

use super::{Field, held, spared};
use crate::holder::{Manner, hold};
use crate::marks::Check;
use crate::series::Series;
use crate::stage::MESH_TOPIC;
use crate::wire;

/// What the attacker's own kernel takes in: as little as it can.
const RECEIVE_BYTES: u32 = 4_096;
/// Of a post that nobody reads.
const LARGE_BYTES: usize = 40_000;
/// Of a post that is about the number of its deliveries.
const SMALL_BYTES: usize = 100;
const POSTERS: usize = 16;
/// After a refusal: the attack is by what is taken, not by the number of calls.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Members whose sockets are flooded.
const FLOODERS: usize = 16;
/// Frames that are written in one go.
const FRAMES: usize = 64;
/// Members that join at a time. The server commits together what comes together, so that thousands do not wait for a disk each.
const JOINING_MAX: usize = 32;
/// Between two messages of the innocent.
const CALL_PAUSE: Duration = Duration::from_millis(120);
const ARRIVAL_MAX: Duration = Duration::from_secs(10);

/// Upgraded, and then nothing, half a frame, or an answer that is none.
pub async fn challenges(field: &Field) -> Result<Vec<Check>> {
    let upgrade = Socket::upgrade(field.to).into_bytes();
    let wrong = Socket::frame(br#"{"t":"hello","mesh":"x"}"#);
    let manner = |number: usize| {
        let from = wire::attacker(number % field.scale.addresses);
        let opening = match number % 3 {
            0 => upgrade.clone(),
            1 => [upgrade.as_slice(), &wrong[..wrong.len() / 2]].concat(),
            _ => [upgrade.as_slice(), &wrong].concat(),
        };
        Manner::quiet(from, opening)
    };
    let _held = hold(field.to, (0..field.scale.mesh_sockets).map(manner).collect(), &field.tally);
    beside(field, held(field)).await
}

/// Members with sockets that they do not read, in a topic that is written to.
pub async fn unread(field: &Field) -> Result<Vec<Check>> {
    let mut sockets = Vec::new();
    for (number, member) in members(field).into_iter().enumerate() {
        let from = wire::attacker(number % field.scale.addresses);
        match member.connect(from, Some(RECEIVE_BYTES)).await {
            Ok(socket) => {
                field.tally.opened();
                sockets.push(socket);
            }
            Err(_) => field.tally.refused(),
        }
    }
    let _posters = post(field, &field.cast.mesh.owner, LARGE_BYTES)?;
    let checks = beside(field, held(field)).await;
    drop(sockets);
    checks
}

/// As many frames as the server takes: pings, pages of history, messages, and what is no frame.
pub async fn floods(field: &Field) -> Result<Vec<Check>> {
    let mut flooders = JoinSet::new();
    for (number, member) in members(field).into_iter().take(FLOODERS).enumerate() {
        let (tally, from) = (Arc::clone(&field.tally), wire::attacker(number % field.scale.addresses));
        let frames = frames(number % 4, number)?;
        flooders.spawn(async move {
            loop {
                match member.connect(from, None).await {
                    Ok(socket) => {
                        tally.opened();
                        flood(socket, &frames).await;
                    }
                    Err(_) => tally.refused(),
                }
                sleep(REFUSED_PAUSE).await;
            }
        });
    }
    beside(field, held(field)).await
}

fn frames(kind: usize, number: usize) -> Result<Vec<u8>> {
    let to = Member::to_topic(MESH_TOPIC)?;
    let frame = |turn: usize| match kind {
        0 => json!({ "t": "ping", "id": turn.to_string() }),
        1 => json!({ "t": "history", "after": 0, "limit": 1_000 }),
        2 => {
            let mut send = Member::message(&format!("flood-{number}-{turn}"), &to, "flood");
            send["t"] = "send".into();
            send
        }
        _ => json!({ "t": "nothing", "more": "x".repeat(1_000) }),
    };
    Ok((0..FRAMES).flat_map(|turn| Socket::frame(frame(turn).to_string().as_bytes())).collect())
}

/// Until the server has ended it. What it says is read, so that nothing but the frames is in its way.
async fn flood(mut socket: Socket, frames: &[u8]) {
    loop {
        if !socket.try_say(frames) {
            return;
        }
        match timeout(Duration::from_millis(5), socket.hear()).await {
            Ok(Ok(Heard::Text(_) | Heard::Ping)) | Err(_) => {}
            Ok(Ok(Heard::Closed(_)) | Err(_)) => return,
        }
    }
}

/// Small posts to a mesh that has as many members as it may have, as many at a time as there are callers.
pub async fn fanout(field: &Field) -> Result<Vec<Check>> {
    let owner = field.cast.crowd.as_ref().context("nobody has made the mesh that is posted to")?;
    let _posters = post(field, owner, SMALL_BYTES)?;
    let mut checks = beside(field, held(field)).await?;
    // An attack of which nothing was taken would show nothing.
    let accepted = field.tally.count(201);
    let what = format!("posts to {} members are accepted ({accepted} were)", field.scale.fanout_members);
    checks.push(Check::new(accepted > 0, what));
    Ok(checks)
}

/// The owner's posts to all members of its mesh, until this is dropped.
fn post(field: &Field, owner: &Member, bytes: usize) -> Result<JoinSet<()>> {
    let (to, text) = (Member::to_topic(MESH_TOPIC)?, "x".repeat(bytes));
    let count = Arc::new(AtomicU64::new(0));
    let mut posters = JoinSet::new();
    for _ in 0..POSTERS {
        let owner = owner.at(field.to);
        let (to, text) = (to.clone(), text.clone());
        let (count, tally) = (Arc::clone(&count), Arc::clone(&field.tally));
        posters.spawn(async move {
            loop {
                let id = format!("post-{}", count.fetch_add(1, Ordering::Relaxed));
                let body = Member::message(&id, &to, &text).to_string();
                match owner.call("POST", "/mesh/v1/messages", &body).await {
                    Ok(answer) => {
                        tally.answered(answer.status);
                        if answer.status == 201 {
                            continue;
                        }
                    }
                    Err(_) => tally.refused(),
                }
                sleep(REFUSED_PAUSE).await;
            }
        });
    }
    Ok(posters)
}

/// The attackers, at the server of this attack.
fn members(field: &Field) -> Vec<Member> {
    field.cast.mesh.members.iter().map(|member| member.at(field.to)).collect()
}

/// What the attack has found, and what became of the innocent members' messages meanwhile.
async fn beside(field: &Field, attack: impl Future<Output = Result<Vec<Check>>>) -> Result<Vec<Check>> {
    let [from, to] = field.cast.innocent_mesh.each_ref().map(|member| member.at(field.to));
    let mut calls = Series::default();
    let mut checks = tokio::select! {
        checks = attack => checks?,
        never = write_to(&from, &to, &mut calls) => match never {},
    };
    checks.push(spared(field, "a member of an innocent mesh connects and gets what another sends", &calls));
    Ok(checks)
}

/// One message after the other, each on its way until it has arrived; a new socket for every tenth.
async fn write_to(from: &Member, to: &Member, calls: &mut Series) -> std::convert::Infallible {
    let mut socket = None;
    for number in 0_u64.. {
        if number.is_multiple_of(10) {
            socket = None;
        }
        let began = Instant::now();
        let exchange = async {
            let mut open = match socket.take() {
                Some(open) => open,
                None => to.connect(wire::INNOCENT, None).await.context("connecting")?,
            };
            let id = format!("innocent-{number}");
            let body = Member::message(&id, &Member::to_member(&to.key()), "hello").to_string();
            let answer = from.call("POST", "/mesh/v1/messages", &body).await?;
            anyhow::ensure!(answer.status == 201, "sending: {} {}", answer.status, answer.body.trim());
            await_message(&mut open, &id).await?;
            anyhow::Ok(open)
        };
        let outcome = timeout(ARRIVAL_MAX, exchange).await.map_err(anyhow::Error::from).and_then(|outcome| outcome);
        let error = match outcome {
            Ok(open) => {
                socket = Some(open);
                None
            }
            Err(error) => Some(format!("{error:#}")),
        };
        calls.record(began.elapsed(), error);
        sleep(CALL_PAUSE).await;
    }
    // Numbers do not end before the attack does.
    std::future::pending().await
}

/// Acknowledges what comes, until this one has.
async fn await_message(socket: &mut Socket, id: &str) -> Result<()> {
    loop {
        match socket.hear().await? {
            Heard::Text(text) => {
                let frame: Value = serde_json::from_str(&text)?;
                if frame["t"] != "deliver" {
                    continue;
                }
                let taken = json!({ "t": "delivered", "delivery_id": frame["delivery_id"] });
                socket.say(&taken.to_string()).await?;
                if frame["client_message_id"] == id {
                    return Ok(());
                }
            }
            Heard::Ping => {}
            Heard::Closed(code) => anyhow::bail!("the socket was closed with {code}"),
        }
    }
}

/// For whoever makes the stage: a mesh, its owner and so many members, all of them in one topic.
pub async fn populate(to: SocketAddr, key: &str, slug: &str, count: usize) -> Result<(Member, Vec<Member>)> {
    let owner = Member::found(to, key, slug, "owner").await?;
    owner.create_topic(MESH_TOPIC).await?;
    let invite = owner.invite(u32::try_from(count)?).await?;
    let (mut joining, mut members) = (JoinSet::new(), Vec::with_capacity(count));
    for number in 0..count {
        if joining.len() == JOINING_MAX {
            members.extend(joined(&mut joining).await?);
        }
        let invite = invite.clone();
        joining.spawn(async move {
            let member = Member::join(to, &invite, &format!("member-{number}")).await?;
            member.subscribe(MESH_TOPIC).await?;
            anyhow::Ok(member)
        });
    }
    while let Some(member) = joined(&mut joining).await? {
        members.push(member);
    }
    Ok((owner, members))
}

/// The next one that is a member and in the topic; None when all of them are.
async fn joined(joining: &mut JoinSet<Result<Member>>) -> Result<Option<Member>> {
    joining.join_next().await.transpose()?.transpose()
}
