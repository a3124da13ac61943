//! kill -9 of daemons under the programs that hand messages to them and under those who send to them. What a daemon had
//! answered it sends on after its restart; what it had taken in is in its inbox once.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh::record::Peer;
use crate::mesh::{self, Party};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// How long a daemon stays away.
const AWAY_MS_MAX: u64 = 200;
/// The load goes on for this long with the daemons back.
const AFTERWARDS: Duration = Duration::from_millis(200);

pub struct MeshDaemonKill {
    folder: PathBuf,
    party: Party,
    rng: Rng,
    told: String,
}

impl MeshDaemonKill {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let party = Party::new(folder.clone(), seed);
        MeshDaemonKill { folder, party, rng: Rng::new(seed, Stream::Fault), told: String::new() }
    }
}

impl Scenario for MeshDaemonKill {
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

    /// One of them, or two at once: a sender and the one it sends to.
    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        let count = 1 + self.rng.below(2) as usize;
        let victims = self.rng.sample(Peer::ALL.to_vec(), count);
        for peer in &victims {
            self.party.take(*peer)?.kill().await?;
        }
        sleep(Duration::from_millis(self.rng.below(AWAY_MS_MAX))).await;
        for peer in &victims {
            self.party.start(*peer).await?;
        }
        sleep(AFTERWARDS).await;
        let names: Vec<&str> = victims.iter().map(|peer| peer.name()).collect();
        self.told = format!("killed the daemon of {}", names.join(" and "));
        Ok(After::Serving(Box::new(server)))
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
