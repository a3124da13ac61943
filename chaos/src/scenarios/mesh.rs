//! The frame of every scenario on a mesh: those who send and receive, the load and the judgement are the same, and the fault is
//! all that differs.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh::direct::Crowd;
use crate::mesh::players::Players;
use crate::mesh::{self, Party};
use crate::server::{Launch, Server};

/// What is done to a mesh.
pub trait Fault<P> {
    /// Makes what the fault needs, before the first start of the broker.
    async fn prepare(&mut self, _players: &mut P, _launch: &mut Launch) -> Result<()> {
        Ok(())
    }

    /// Called before each load. May answer with another broker.
    async fn begin(&mut self, _players: &mut P, broker: Server, _launch: &Launch, _data: &Path) -> Result<Server> {
        Ok(broker)
    }

    /// Whether the broker may be gone before `strike` is called.
    fn ends_broker(&self) -> bool {
        false
    }

    /// Does the harm, under load. Answers with the broker if it serves on; one that is gone is started again.
    async fn strike(&mut self, players: &mut P, broker: Server, load: &Load) -> Result<Option<Server>>;

    /// What was done in this round, in a few words.
    fn told(&self) -> String;

    /// What all rounds together have to say. An error when they have not done what they were for.
    fn finish(&mut self) -> Result<Option<String>> {
        Ok(None)
    }
}

/// kill -9 of the broker.
pub struct BrokerKill;

impl<P> Fault<P> for BrokerKill {
    async fn strike(&mut self, _players: &mut P, broker: Server, _load: &Load) -> Result<Option<Server>> {
        broker.kill().await?;
        Ok(None)
    }

    fn told(&self) -> String {
        "killed the broker".to_owned()
    }
}

pub struct Mesh<P, F> {
    folder: PathBuf,
    /// Dropped before the fault, which may own the disk below them.
    players: P,
    fault: F,
}

impl<F: Fault<Party>> Mesh<Party, F> {
    /// Three daemons.
    pub fn of_daemons(folder: PathBuf, seed: u64, fault: F) -> Self {
        let players = Party::new(folder.clone(), seed);
        Mesh { folder, players, fault }
    }
}

impl<F: Fault<Crowd>> Mesh<Crowd, F> {
    /// Members without daemons.
    pub fn of_members(folder: PathBuf, seed: u64, fault: F) -> Self {
        let players = Crowd::new(folder.clone(), seed);
        Mesh { folder, players, fault }
    }
}

impl<P: Players, F: Fault<P>> Scenario for Mesh<P, F> {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        self.players.prepare(&launch.program)?;
        self.fault.prepare(&mut self.players, launch).await?;
        configure(&self.folder, P::SETTINGS, launch)
    }

    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.players.open(at).await
    }

    fn load_ms_max(&self) -> u64 {
        P::LOAD_MS_MAX
    }

    fn pace(&self, _connections: u32) -> Pace {
        mesh::PACE
    }

    /// The machine is busy enough with the mesh.
    fn takes_queues(&self) -> bool {
        false
    }

    async fn begin(&mut self, server: Server, launch: &Launch, data: &Path) -> Result<Option<Server>> {
        self.fault.begin(&mut self.players, server, launch, data).await.map(Some)
    }

    fn join(&mut self, _server: &Server, load: &Load) -> Result<()> {
        self.players.begin(load)
    }

    fn ends_by_itself(&self) -> bool {
        self.fault.ends_broker()
    }

    async fn strike(&mut self, server: Server, load: &Load) -> Result<After> {
        let broker = self.fault.strike(&mut self.players, server, load).await?;
        Ok(broker.map_or_else(|| After::Restart(self.folder.join("data")), |broker| After::Serving(Box::new(broker))))
    }

    async fn account(&mut self, _tally: &Tally, at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        self.players.end(at).await
    }

    async fn close(&mut self, at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        self.players.close(at).await
    }

    fn told(&self) -> Option<String> {
        Some(format!("{}; {}", self.fault.told(), self.players.told()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        let summary = self.players.summary();
        Ok(Some(match self.fault.finish()? {
            Some(words) => format!("{words}; {summary}"),
            None => summary,
        }))
    }
}
