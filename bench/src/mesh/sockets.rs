//! Daemons that are connected and say nothing: what their sockets cost the broker.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::sleep;
use waybill_bench::member::{Heard, Member};

use crate::process::{Server, cpu_seconds, memory};

pub const SOCKETS: usize = 2_000;
/// Whoever comes is told to the others of its mesh, so that a mesh of all of them would measure that.
const MESHES: usize = 40;
const EACH: usize = SOCKETS / MESHES;
/// For what joining and connecting have left behind.
const SETTLE: Duration = Duration::from_secs(4);
/// Longer than the broker leaves a quiet socket unasked.
const WATCH: Duration = Duration::from_secs(21);

pub struct Sockets {
    /// Above what the broker had before.
    pub bytes: u64,
    pub resident: u64,
    /// Of one core.
    pub cpu: f64,
}

pub async fn measure(waybill: &Path, data: &Path) -> Result<Sockets> {
    let server = Server::waybill(waybill, data, None).await?;
    let admin = server.key.clone().context("no admin key")?;
    let mut members = Vec::with_capacity(SOCKETS);
    for mesh in 0..MESHES {
        let owner = Member::found(server.http, &admin, &format!("idle-{mesh}"), "owner").await?;
        let invite = owner.invite(EACH as u32).await?;
        for number in 1..EACH {
            members.push(Member::join(server.http, &invite, &format!("member-{number}")).await?);
        }
        members.push(owner);
    }
    sleep(SETTLE).await;
    let before = memory(server.pid())?.resident;
    let alive = Arc::new(AtomicUsize::new(0));
    let mut held = JoinSet::new();
    for (number, member) in members.into_iter().enumerate() {
        // From many addresses: one may have a quarter of the connections.
        let from = Ipv4Addr::new(127, 0, 1, (number % 100) as u8 + 1);
        let mut socket = member.connect(from, None).await.with_context(|| format!("socket {number}"))?;
        let alive = Arc::clone(&alive);
        alive.fetch_add(1, Ordering::Relaxed);
        held.spawn(async move {
            while let Ok(Heard::Text(_) | Heard::Ping) = socket.hear().await {}
            alive.fetch_sub(1, Ordering::Relaxed);
        });
    }
    sleep(SETTLE).await;
    let busy_before = cpu_seconds(server.pid()).context("no processor time")?;
    sleep(WATCH).await;
    let busy = cpu_seconds(server.pid()).context("no processor time")? - busy_before;
    let resident = memory(server.pid())?.resident;
    let left = alive.load(Ordering::Relaxed);
    ensure!(left == SOCKETS, "{left} of {SOCKETS} sockets are left");
    held.abort_all();
    server.stop().await?;
    Ok(Sockets { bytes: resident.saturating_sub(before), resident, cpu: busy / WATCH.as_secs_f64() })
}
