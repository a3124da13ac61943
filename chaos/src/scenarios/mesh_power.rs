//! A power cut under a daemon that sends and receives: it goes on from a copy of its disk, taken while it stood still under
//! load. What its outbox had not fsynced is not in the copy, and must not have been acknowledged.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::mesh::Fault;
use crate::image::Image;
use crate::load::Load;
use crate::mesh::Party;
use crate::mesh::record::Peer;
use crate::server::{Launch, Server};

/// A sparse file; a run of ten rounds fills a fraction of it.
const IMAGE_MIB: u64 = 256;
/// Whose machine it is: the one that sends most.
const VICTIM: Peer = Peer::Alice;

pub struct PowerCut {
    folder: PathBuf,
    keep: bool,
    program: PathBuf,
    current: Option<Image>,
    cuts: u32,
}

impl PowerCut {
    pub fn new(folder: PathBuf, keep: bool) -> Self {
        PowerCut { folder, keep, program: PathBuf::new(), current: None, cuts: 0 }
    }

    /// The victim's home is on this disk from now on.
    fn mount(&mut self, party: &mut Party, disk: Image) -> Result<()> {
        if let Some(old) = self.current.take() {
            old.discard()?;
        }
        let disk = self.current.insert(disk);
        disk.mount()?;
        party.settle_in(VICTIM, &self.program, disk.folder())
    }
}

impl Fault<Party> for PowerCut {
    async fn prepare(&mut self, party: &mut Party, launch: &mut Launch) -> Result<()> {
        self.program.clone_from(&launch.program);
        let disk = Image::create(&self.folder, "d0", IMAGE_MIB, self.keep)?;
        self.mount(party, disk)
    }

    async fn strike(&mut self, party: &mut Party, broker: Server, load: &Load) -> Result<Option<Server>> {
        self.cuts += 1;
        let daemon = party.take(VICTIM)?;
        let old = self.current.as_ref().context("no disk is mounted")?;
        // Answers received before this line are the promised ones.
        load.cut();
        daemon.pause().await?;
        let copy = old.copy(&self.folder, &format!("d{}", self.cuts)).await?;
        daemon.kill().await?;
        self.mount(party, copy).context("the disk after the cut")?;
        party.start(VICTIM).await?;
        Ok(Some(broker))
    }

    fn told(&self) -> String {
        format!("cut the power of {}", VICTIM.name())
    }
}
