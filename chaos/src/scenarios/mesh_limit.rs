//! kill -9 of a broker whose budget is used up all the time, under members that hand it messages without a daemon. What it has
//! accepted it knows at any time, and a repeat costs nothing.

use std::path::PathBuf;

use anyhow::Result;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh;
use crate::mesh::direct::{self, Crowd};
use crate::server::{Launch, Server};

pub struct MeshLimit {
    folder: PathBuf,
    crowd: Crowd,
}

impl MeshLimit {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let crowd = Crowd::new(folder.clone(), seed);
        MeshLimit { folder, crowd }
    }
}

impl Scenario for MeshLimit {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        configure(&self.folder, direct::SETTINGS, launch)
    }

    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.crowd.open(at).await
    }

    fn load_ms_max(&self) -> u64 {
        2 * mesh::LOAD_MS_MAX
    }

    fn pace(&self, _connections: u32) -> Pace {
        mesh::PACE
    }

    /// The machine is busy enough with the members.
    fn takes_queues(&self) -> bool {
        false
    }

    fn join(&mut self, _server: &Server, load: &Load) -> Result<()> {
        self.crowd.begin(load)
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        server.kill().await?;
        Ok(After::Restart(self.folder.join("data")))
    }

    async fn account(&mut self, _tally: &Tally, at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        self.crowd.end(at).await
    }

    fn told(&self) -> Option<String> {
        Some(format!("killed the broker; {}", self.crowd.told()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        Ok(Some(format!("mesh: {}", self.crowd.told())))
    }
}
