//! kill -9 of the PostgreSQL below the server, under load, and its restart in place. The server is not restarted: it has to
//! tell its callers honestly what it does not know, find its database again, and keep every promise made before.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{After, Scenario};
use crate::cluster::Cluster;
use crate::load::Load;
use crate::proxy::Proxy;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// How long the database stays away beyond the time it needs itself.
const AWAY_MS_MAX: u64 = 300;
/// PostgreSQL's recovery and the server's way back take most of a round.
const LOAD_MS_MAX: u64 = 900;

pub struct PostgresKill {
    folder: PathBuf,
    rng: Rng,
    seed: u64,
    /// Some commits are answered and rolled back.
    planted: bool,
    liar: Option<Proxy>,
    cluster: Option<Cluster>,
    told: String,
}

impl PostgresKill {
    pub fn new(folder: PathBuf, seed: u64, planted: bool) -> Self {
        let rng = Rng::new(seed, Stream::Fault);
        PostgresKill { folder, rng, seed, planted, liar: None, cluster: None, told: String::new() }
    }
}

impl Scenario for PostgresKill {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        let cluster = self.cluster.insert(Cluster::at(&self.folder).await?);
        let mut port = cluster.port;
        if self.planted {
            let proxy = Proxy::start(port, self.seed, true).await?;
            port = self.liar.insert(proxy).port;
        }
        launch.extra.extend(["--store".into(), Cluster::url(port)]);
        let data = self.folder.join("data");
        std::fs::create_dir_all(&data)?;
        Ok(data)
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    async fn begin(&mut self, server: Server, _launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        if let Some(liar) = &self.liar {
            liar.arm(true);
        }
        Ok(Some(server))
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        let cluster = self.cluster.as_mut().context("no cluster was made")?;
        cluster.kill().await?;
        let away_ms = self.rng.below(AWAY_MS_MAX);
        sleep(Duration::from_millis(away_ms)).await;
        cluster.start().await.context("PostgreSQL after the kill")?;
        self.told = format!("PostgreSQL killed, away for {away_ms} ms and its recovery");
        Ok(After::Serving(Box::new(server)))
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }
}
