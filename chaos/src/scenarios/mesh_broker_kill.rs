//! kill -9 of the broker under its daemons. They do not know what it had committed, and send again; it knows.

use std::path::PathBuf;

use anyhow::Result;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh::{self, Party};
use crate::server::{Launch, Server};

pub struct MeshBrokerKill {
    folder: PathBuf,
    party: Party,
    told: String,
}

impl MeshBrokerKill {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let party = Party::new(folder.clone(), seed);
        MeshBrokerKill { folder, party, told: "killed the broker".to_owned() }
    }
}

impl Scenario for MeshBrokerKill {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        self.party.prepare(&launch.program)?;
        configure(&self.folder, mesh::SETTINGS, launch)
    }

    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.party.open(at).await
    }

    fn load_ms_max(&self) -> u64 {
        mesh::LOAD_MS_MAX
    }

    fn pace(&self, _connections: u32) -> Pace {
        mesh::PACE
    }

    /// The machine is busy enough with the daemons.
    fn takes_queues(&self) -> bool {
        false
    }

    fn join(&mut self, _server: &Server, load: &Load) -> Result<()> {
        self.party.begin(load)
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        server.kill().await?;
        Ok(After::Restart(self.folder.join("data")))
    }

    async fn account(&mut self, _tally: &Tally, at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        self.party.end(at).await
    }

    async fn close(&mut self, at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        self.party.close(at).await
    }

    fn told(&self) -> Option<String> {
        Some(format!("{}; {}", self.told, self.party.told()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        Ok(Some(self.party.summary()))
    }
}
