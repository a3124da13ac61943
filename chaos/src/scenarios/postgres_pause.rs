//! SIGSTOP and SIGCONT of every process of the PostgreSQL below the server. To the server it looks like a link that has gone
//! quiet: nobody may be told more than is known, and when the database wakes up everything goes on without a restart.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::pause::{Stop, schedule};
use super::{After, Scenario};
use crate::cluster::Cluster;
use crate::load::Load;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// The pauses take most of a round.
const LOAD_MS_MAX: u64 = 500;
const PAUSES: usize = 2;

pub struct PostgresPause {
    folder: PathBuf,
    rng: Rng,
    cluster: Option<Cluster>,
    told: String,
}

impl PostgresPause {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        PostgresPause { folder, rng: Rng::new(seed, Stream::Fault), cluster: None, told: String::new() }
    }
}

impl Scenario for PostgresPause {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        let cluster = self.cluster.insert(Cluster::at(&self.folder).await?);
        launch.extra.extend(["--store".into(), Cluster::url(cluster.port)]);
        let data = self.folder.join("data");
        std::fs::create_dir_all(&data)?;
        Ok(data)
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        let cluster = self.cluster.as_ref().context("no cluster was made")?;
        let mut stops = schedule(&mut self.rng);
        stops.truncate(PAUSES);
        let lengths: Vec<String> = stops.iter().map(|stop| stop.stopped_ms.to_string()).collect();
        self.told = format!("PostgreSQL stopped for {} ms", lengths.join(", "));
        for Stop { stopped_ms, awake_ms } in stops {
            cluster.signal("-STOP").await?;
            sleep(Duration::from_millis(stopped_ms)).await;
            cluster.signal("-CONT").await?;
            sleep(Duration::from_millis(awake_ms)).await;
        }
        Ok(After::Serving(Box::new(server)))
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }
}
