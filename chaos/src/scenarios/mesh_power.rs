//! A power cut under a daemon that sends and receives: it goes on from a copy of its disk, taken while it stood still under
//! load. What its outbox had not fsynced is not in the copy, and must not have been acknowledged.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::image::Image;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh::record::Peer;
use crate::mesh::{self, Party};
use crate::server::{Launch, Server};

/// A sparse file; a run of ten rounds fills a fraction of it.
const IMAGE_MIB: u64 = 256;
/// Whose machine it is: the one that sends most.
const VICTIM: Peer = Peer::Alice;

pub struct MeshPower {
    folder: PathBuf,
    keep: bool,
    program: PathBuf,
    /// Dropped before the disk below it.
    party: Party,
    current: Option<Image>,
    cuts: u32,
    told: String,
}

impl MeshPower {
    pub fn new(folder: PathBuf, keep: bool, seed: u64) -> Self {
        let party = Party::new(folder.clone(), seed);
        let told = "cut the power of alice".to_owned();
        MeshPower { folder, keep, program: PathBuf::new(), party, current: None, cuts: 0, told }
    }

    fn settle_in(&mut self, disk: &Path) -> Result<()> {
        self.party.settle_in(VICTIM, &self.program, disk)
    }
}

impl Scenario for MeshPower {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        self.program.clone_from(&launch.program);
        self.party.prepare(&launch.program)?;
        let image = Image::create(&self.folder, "d0", IMAGE_MIB, self.keep)?;
        image.mount()?;
        let disk = image.folder().to_owned();
        self.current = Some(image);
        self.settle_in(&disk)?;
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

    async fn strike(&mut self, server: Server, load: &Load) -> Result<After> {
        self.cuts += 1;
        let daemon = self.party.take(VICTIM)?;
        let old = self.current.as_ref().context("no disk is mounted")?;
        // Answers received before this line are the promised ones.
        load.cut();
        daemon.pause().await?;
        let copy = old.copy(&self.folder, &format!("d{}", self.cuts)).await?;
        daemon.kill().await?;
        let disk = copy.folder().to_owned();
        if let Some(old) = self.current.replace(copy) {
            old.discard()?;
        }
        self.current.as_ref().context("no disk is left")?.mount().context("mounting the disk after the cut")?;
        self.settle_in(&disk)?;
        self.party.start(VICTIM).await?;
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
