//! The workers of a round, beside the load that hands the tasks over, and a reader that acknowledges receipts. They outlive
//! the server: when it is gone they ask the board for another, and go on with the leases they hold.

mod program;
mod reader;
mod worker;

pub use program::Program;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::checker::Violation;
use crate::client::{Client, Endpoint};
use crate::journal::Journal;
use crate::rng::{Rng, Stream};

/// The lease that the scenarios' settings give: the shortest there is.
pub const LEASE: Duration = Duration::from_secs(1);
const AGENTS: [&str; 2] = ["agent:amber", "agent:birch"];
const WORKERS: [&str; 2] = ["worker:ada", "worker:ben"];
/// Each lends its name to this many, which work beside each other.
const HANDS: u32 = 4;
/// Above the longest call, and what a worker may sleep before it.
const FINISH_MAX: Duration = Duration::from_secs(45);

/// Which servers there are now.
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<Vec<SocketAddr>>>);

impl Board {
    pub fn put(&self, servers: Vec<SocketAddr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = servers;
    }

    fn pick(&self, rng: &mut Rng) -> Option<SocketAddr> {
        let servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!servers.is_empty()).then(|| servers[rng.below(servers.len() as u64) as usize])
    }
}

/// Those who hand tasks over and those who do them, each with a key.
#[derive(Clone)]
pub struct Staff {
    agents: Vec<(String, String)>,
    workers: Vec<(String, String)>,
}

impl Staff {
    pub async fn introduce(at: &Endpoint) -> Result<Staff> {
        let mut client = Client::new(at.clone());
        let mut staff = Staff { agents: Vec::new(), workers: Vec::new() };
        for name in AGENTS {
            staff.agents.push((name.to_owned(), key(&mut client, name).await?));
        }
        for name in WORKERS {
            staff.workers.push((name.to_owned(), key(&mut client, name).await?));
        }
        Ok(staff)
    }

    /// Shows each key once: a server takes a moment to verify one that it has not seen since its start.
    pub async fn greet(&self, servers: &[SocketAddr]) -> Result<()> {
        let mut calls = JoinSet::new();
        let everybody = self.agents.iter().chain(&self.workers);
        for ((name, key), addr) in everybody.flat_map(|one| servers.iter().map(move |addr| (one.clone(), *addr))) {
            let mut client = Client::new(Endpoint { addr, key });
            calls.spawn(async move { (name, client.get("/v1/receipts?limit=1").await) });
        }
        while let Some(call) = calls.join_next().await {
            let (name, answer) = call.context("a greeting ended badly")?;
            ensure!(answer?.success(), "{name} is not let in");
        }
        Ok(())
    }

    /// The agents, as callers of these servers in turn.
    pub fn callers(&self, servers: &[SocketAddr]) -> Vec<Endpoint> {
        let at = |addr: SocketAddr| self.agents.iter().map(move |(_, key)| Endpoint { addr, key: key.clone() });
        servers.iter().copied().flat_map(at).collect()
    }

    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.agents.iter().map(|(name, _)| name.as_str())
    }

    /// A worker's key, for a program of its own.
    pub fn worker_key(&self) -> Option<&str> {
        self.workers.last().map(|(_, key)| key.as_str())
    }
}

async fn key(client: &mut Client, principal: &str) -> Result<String> {
    let answer = client.post("/admin/keys", &json!({"principal": principal})).await?;
    ensure!(answer.success(), "making the key of {principal}: {}", answer.brief());
    Ok(answer.text("key").context("an answer without the key")?.to_owned())
}

/// What the crew did, for the line of the round.
#[derive(Default)]
pub struct Deeds {
    pub ended: AtomicU64,
    pub vanished: AtomicU64,
    pub overslept: AtomicU64,
    pub refused: AtomicU64,
}

impl Deeds {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn told(&self) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} outcomes, {} leases left, {} overslept, {} calls refused",
            read(&self.ended),
            read(&self.vanished),
            read(&self.overslept),
            read(&self.refused)
        )
    }
}

#[derive(Clone)]
struct Shared {
    round: u32,
    board: Board,
    journal: Journal,
    stop: Arc<AtomicBool>,
    deeds: Arc<Deeds>,
    /// Nobody vanishes or oversleeps.
    honest: bool,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

pub struct Crew {
    shared: Shared,
    tasks: JoinSet<Result<Vec<Violation>>>,
}

impl Crew {
    pub fn start(round: u32, staff: &Staff, board: &Board, journal: &Journal, honest: bool) -> Crew {
        let seed = journal.history().seed;
        let shared = Shared {
            round,
            board: board.clone(),
            journal: journal.clone(),
            stop: Arc::default(),
            deeds: Arc::default(),
            honest,
        };
        let mut tasks = JoinSet::new();
        for hand in 0..HANDS * staff.workers.len() as u32 {
            let (name, key) = staff.workers[(hand / HANDS) as usize].clone();
            let rng = Rng::new(seed, Stream::Crew { round, hand });
            tasks.spawn(worker::Worker::new(shared.clone(), format!("{name}/{hand}"), key, rng).run());
        }
        for (index, (_, key)) in staff.agents.iter().enumerate() {
            let rng = Rng::new(seed, Stream::Crew { round, hand: 1_000 + index as u32 });
            tasks.spawn(reader::Reader::new(shared.clone(), key.clone(), rng).run());
        }
        Crew { shared, tasks }
    }

    pub fn deeds(&self) -> Arc<Deeds> {
        Arc::clone(&self.shared.deeds)
    }

    /// Takes nothing more; waits until everybody has said what there is to say about the leases in hand.
    pub async fn finish(mut self) -> Result<Vec<Violation>> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut violations = Vec::new();
        let drain = async {
            while let Some(ended) = self.tasks.join_next().await {
                violations.extend(ended.context("a worker ended badly")??);
            }
            anyhow::Ok(())
        };
        timeout(FINISH_MAX, drain).await.context("the workers did not end")??;
        Ok(violations)
    }
}
