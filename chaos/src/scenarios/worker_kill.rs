//! kill -9 of the server under its workers, who vanish, oversleep and repeat themselves on their own. The leases are on
//! record and outlive it: whoever still holds one goes on with the next server, and what nobody holds comes back.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::server::{Launch, Server};
use crate::shift::{self, Shift};

pub struct WorkerKill {
    folder: PathBuf,
    shift: Shift,
}

impl WorkerKill {
    pub fn new(folder: PathBuf) -> Self {
        WorkerKill { folder, shift: Shift::default() }
    }
}

impl Scenario for WorkerKill {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        configure(&self.folder, shift::SETTINGS, launch)
    }

    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.shift.open(at).await
    }

    fn load_ms_max(&self) -> u64 {
        shift::LOAD_MS_MAX
    }

    async fn begin(&mut self, server: Server, _launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        self.shift.greet(&[server.endpoint.addr]).await?;
        Ok(Some(server))
    }

    fn pace(&self, _connections: u32) -> Pace {
        shift::PACE
    }

    fn callers(&self, server: &Server) -> Vec<Endpoint> {
        self.shift.callers(&[server.endpoint.addr])
    }

    fn owners(&self) -> Vec<String> {
        self.shift.owners()
    }

    fn join(&mut self, server: &Server, load: &Load) -> Result<()> {
        self.shift.begin(vec![server.endpoint.addr], load)
    }

    /// The machine is busy enough with the crew.
    fn takes_queues(&self) -> bool {
        false
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        server.kill().await?;
        self.shift.turn_to(Vec::new());
        Ok(After::Restart(self.folder.join("data")))
    }

    async fn account(&mut self, _tally: &Tally, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        self.shift.end(at, journal).await
    }

    async fn close(&mut self, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        self.shift.close(at, journal).await
    }

    fn told(&self) -> Option<String> {
        Some(format!("killed; {}", self.shift.told()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        Ok(Some(self.shift.summary()))
    }
}
