//! PostgreSQL below the broker: killed and started again in place, or cut off between COMMIT and its reply, in turn. The broker
//! serves on and says honestly what it does not know; daemons send again, and each message is accepted once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::cluster::Cluster;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh::{self, Party};
use crate::proxy::Proxy;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// How long the database stays away beyond the time it needs itself.
const AWAY_MS_MAX: u64 = 300;

pub struct MeshPostgres {
    folder: PathBuf,
    seed: u64,
    party: Party,
    rng: Rng,
    proxy: Option<Proxy>,
    cluster: Option<Cluster>,
    round: u32,
    cuts_before: u64,
    told: String,
}

impl MeshPostgres {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let party = Party::new(folder.clone(), seed);
        let rng = Rng::new(seed, Stream::Fault);
        let told = String::new();
        MeshPostgres { folder, seed, party, rng, proxy: None, cluster: None, round: 0, cuts_before: 0, told }
    }

    fn kills(&self) -> bool {
        self.round.is_multiple_of(2)
    }
}

impl Scenario for MeshPostgres {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        self.party.prepare(&launch.program)?;
        let cluster = self.cluster.insert(Cluster::at(&self.folder).await?);
        let proxy = self.proxy.insert(Proxy::start(cluster.port, self.seed, false).await?);
        launch.extra.extend(["--store".into(), Cluster::url(proxy.port)]);
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

    async fn begin(&mut self, server: Server, _launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        self.round += 1;
        let proxy = self.proxy.as_ref().context("no proxy was started")?;
        self.cuts_before = proxy.cuts();
        proxy.arm(!self.kills());
        Ok(Some(server))
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        let proxy = self.proxy.as_ref().context("no proxy was started")?;
        proxy.arm(false);
        if !self.kills() {
            self.told = format!("{} commits cut off from their replies", proxy.cuts() - self.cuts_before);
            return Ok(After::Serving(Box::new(server)));
        }
        let cluster = self.cluster.as_mut().context("no cluster was made")?;
        cluster.kill().await?;
        let away_ms = self.rng.below(AWAY_MS_MAX);
        sleep(Duration::from_millis(away_ms)).await;
        cluster.start().await.context("PostgreSQL after the kill")?;
        self.told = format!("PostgreSQL killed, away for {away_ms} ms and its recovery");
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
