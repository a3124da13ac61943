//! The line between daemons and broker goes down, is still, lets nothing of the broker's words through, or is slow, several
//! times under load. Programs go on handing messages over; nobody is restarted.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh::line::Weather;
use crate::mesh::{self, Party};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

const TIMES_MAX: u64 = 3;
const FOR_MS_MIN: u64 = 50;
const FOR_MS_MAX: u64 = 400;
const SLOW_MS_MAX: u64 = 60;
/// Between two of them, for connections to be made again.
const BETWEEN: Duration = Duration::from_millis(150);

pub struct MeshCut {
    folder: PathBuf,
    party: Party,
    rng: Rng,
    told: String,
}

impl MeshCut {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let party = Party::new(folder.clone(), seed);
        MeshCut { folder, party, rng: Rng::new(seed, Stream::Fault), told: String::new() }
    }

    /// What comes, and whether the connections of before live on when it has passed.
    fn next(&mut self) -> (Weather, bool) {
        let slow = Duration::from_millis(1 + self.rng.below(SLOW_MS_MAX));
        let weather = [Weather::Down, Weather::Still, Weather::Deaf, Weather::Deaf, Weather::Slow(slow)];
        let weather = weather[self.rng.below(weather.len() as u64) as usize];
        (weather, self.rng.below(2) == 0)
    }
}

impl Scenario for MeshCut {
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
        let mut told = Vec::new();
        for _ in 0..1 + self.rng.below(TIMES_MAX) {
            let (weather, lives_on) = self.next();
            let lasted = FOR_MS_MIN + self.rng.below(FOR_MS_MAX - FOR_MS_MIN);
            let line = self.party.line.as_ref().context("there is no line")?;
            line.turn(weather);
            sleep(Duration::from_millis(lasted)).await;
            if !lives_on {
                line.turn(Weather::Down);
                sleep(Duration::from_millis(FOR_MS_MIN)).await;
            }
            line.turn(Weather::Clear);
            sleep(BETWEEN).await;
            told.push(format!("{weather:?} for {lasted} ms{}", if lives_on { "" } else { ", then cut" }));
        }
        self.told = told.join("; ");
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
