//! Daemons that are connected and say nothing: what their sockets cost the broker.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::sleep;
use waybill_bench::member::{Heard, Member, Socket};

use crate::process::{Server, cpu_seconds, memory};

/// Whoever comes is told to the others of its mesh, so that a mesh of all of them would measure that.
const MESHES: usize = 40;
/// Handshakes at the same time.
const CONNECTING: usize = 32;
/// For what joining and connecting have left behind.
const SETTLE: Duration = Duration::from_secs(4);
/// Longer than the broker leaves a quiet socket unasked.
const WATCH: Duration = Duration::from_secs(21);

pub struct Sockets {
    pub count: usize,
    /// Above what the broker had before.
    pub bytes: u64,
    pub resident: u64,
    /// Of one core.
    pub cpu: f64,
    /// Of all of them, when the broker has come back.
    pub reconnected_per_second: f64,
}

pub async fn measure(waybill: &Path, data: &Path, count: usize) -> Result<Sockets> {
    let server = Server::waybill(waybill, data, None).await?;
    let members = members(&server, count).await?;
    sleep(SETTLE).await;
    let before = memory(server.pid())?.resident;
    let held = Held::connect(&members).await?;
    sleep(SETTLE).await;
    let busy_before = cpu_seconds(server.pid()).context("no processor time")?;
    sleep(WATCH).await;
    let busy = cpu_seconds(server.pid()).context("no processor time")? - busy_before;
    let resident = memory(server.pid())?.resident;
    let left = held.alive.load(Ordering::Relaxed);
    ensure!(left == members.len(), "{left} of {} sockets are left", members.len());
    drop(held);
    server.stop().await?;
    let server = Server::waybill(waybill, data, None).await?;
    let members: Vec<Member> = members.iter().map(|member| member.at(server.http)).collect();
    let began = Instant::now();
    let held = Held::connect(&members).await.context("connecting again")?;
    let reconnected_per_second = members.len() as f64 / began.elapsed().as_secs_f64();
    drop(held);
    server.stop().await?;
    let (bytes, cpu) = (resident.saturating_sub(before), busy / WATCH.as_secs_f64());
    Ok(Sockets { count: members.len(), bytes, resident, cpu, reconnected_per_second })
}

/// Spread over the meshes, each with its owner.
async fn members(server: &Server, count: usize) -> Result<Vec<Member>> {
    let admin = server.key.clone().context("no admin key")?;
    let mut members = Vec::with_capacity(count);
    for mesh in 0..MESHES.min(count) {
        let owner = Member::found(server.http, &admin, &format!("idle-{mesh}"), "owner").await?;
        let others = (mesh + MESHES..count).step_by(MESHES).count();
        if others > 0 {
            let invite = owner.invite(u32::try_from(others)?).await?;
            for number in 0..others {
                members.push(Member::join(server.http, &invite, &format!("member-{number}")).await?);
            }
        }
        members.push(owner);
    }
    Ok(members)
}

/// Sockets that answer pings and say nothing else. They end when this is dropped.
struct Held {
    _sockets: JoinSet<()>,
    alive: Arc<AtomicUsize>,
}

impl Held {
    async fn connect(members: &[Member]) -> Result<Self> {
        let (alive, mut sockets, mut connecting) = (Arc::new(AtomicUsize::new(0)), JoinSet::new(), JoinSet::new());
        for (number, member) in members.iter().cloned().enumerate() {
            if connecting.len() == CONNECTING {
                Self::hold(&mut connecting, &mut sockets, &alive).await?;
            }
            // From many addresses: one may have a quarter of the connections.
            let from = Ipv4Addr::new(127, 0, 1, (number % 100) as u8 + 1);
            connecting
                .spawn(async move { member.connect(from, None).await.with_context(|| format!("socket {number}")) });
        }
        while !connecting.is_empty() {
            Self::hold(&mut connecting, &mut sockets, &alive).await?;
        }
        Ok(Self { _sockets: sockets, alive })
    }

    /// The next one that is connected.
    async fn hold(
        connecting: &mut JoinSet<Result<Socket>>,
        sockets: &mut JoinSet<()>,
        alive: &Arc<AtomicUsize>,
    ) -> Result<()> {
        let Some(connected) = connecting.join_next().await else { return Ok(()) };
        let (mut socket, alive) = (connected.context("a socket ended badly")??, Arc::clone(alive));
        alive.fetch_add(1, Ordering::Relaxed);
        sockets.spawn(async move {
            while let Ok(Heard::Text(_) | Heard::Ping) = socket.hear().await {}
            alive.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(())
    }
}
