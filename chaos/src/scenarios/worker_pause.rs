//! SIGSTOP for longer than a lease, under workers who misbehave on their own: in one round of the server, whose leases run
//! out while it stands still and who must refuse what waits for it on waking; in the next of a worker program, whose tasks
//! are given to others meanwhile and whose late words must change nothing. Another worker program is killed in each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::crew::{LEASE, Program};
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};
use crate::shift::{self, Shift};

/// Beyond the lease, by chance.
const LONGER_MS_MIN: u64 = 50;
const LONGER_MS_MAX: u64 = 350;

pub struct WorkerPause {
    folder: PathBuf,
    rng: Rng,
    round: u32,
    shift: Shift,
    programs: Vec<Program>,
    told: String,
}

impl WorkerPause {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let rng = Rng::new(seed, Stream::Fault);
        let shift = Shift::default();
        WorkerPause { folder, rng, round: 0, shift, programs: Vec::new(), told: String::new() }
    }
}

impl Scenario for WorkerPause {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        configure(&self.folder, shift::SETTINGS, launch)
    }

    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.shift.open(at).await
    }

    fn load_ms_max(&self) -> u64 {
        shift::LOAD_MS_MAX
    }

    async fn begin(&mut self, server: Server, launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        self.round += 1;
        self.shift.greet(&[server.endpoint.addr]).await?;
        let key = self.shift.staff.as_ref().and_then(|staff| staff.worker_key()).context("nobody has a key yet")?;
        for _ in 0..2 {
            let log = self.folder.join("worker.log");
            self.programs.push(Program::start(&launch.program, &server.endpoint, key, &log)?);
        }
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
        self.programs.pop().context("no worker program runs")?.kill().await?;
        let other = self.programs.last().context("no worker program runs")?;
        let longer = Duration::from_millis(LONGER_MS_MIN + self.rng.below(LONGER_MS_MAX - LONGER_MS_MIN));
        let stopped = LEASE + longer;
        other.pause().await?;
        let of_server = self.round % 2 == 1;
        if of_server {
            server.pause().await?;
        }
        sleep(stopped).await;
        if of_server {
            server.resume().await?;
        }
        other.resume().await?;
        let who = if of_server { "the server and a worker" } else { "a worker" };
        self.told = format!("{who} stopped for {} ms", stopped.as_millis());
        Ok(After::Serving(Box::new(server)))
    }

    async fn account(&mut self, _tally: &Tally, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        for program in self.programs.drain(..) {
            program.shut_down().await?;
        }
        self.shift.end(at, journal).await
    }

    async fn close(&mut self, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        self.shift.close(at, journal).await
    }

    fn told(&self) -> Option<String> {
        Some(format!("{}; {}", self.told, self.shift.told()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        Ok(Some(self.shift.summary()))
    }
}
