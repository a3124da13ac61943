//! A power cut: the server goes on from a copy of its disk, taken while it stood still under load. What it had not
//! fsynced is not in the copy.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Scenario;
use crate::image::Image;
use crate::load::Load;
use crate::server::Server;

/// A sparse file; a run of ten rounds fills a fraction of it.
const IMAGE_MIB: u64 = 256;
/// The data folder on the mounted image, beside `lost+found`.
const DATA: &str = "data";

pub struct Power {
    folder: PathBuf,
    keep: bool,
    current: Option<Image>,
    cuts: u32,
}

impl Power {
    pub fn new(folder: PathBuf, keep: bool) -> Self {
        Power { folder, keep, current: None, cuts: 0 }
    }
}

impl Scenario for Power {
    async fn prepare(&mut self) -> Result<PathBuf> {
        let image = Image::create(&self.folder, "disk-0", IMAGE_MIB, self.keep)?;
        image.mount()?;
        let data = image.folder().join(DATA);
        self.current = Some(image);
        std::fs::create_dir_all(&data)?;
        Ok(data)
    }

    async fn strike(&mut self, server: Server, load: &Load) -> Result<PathBuf> {
        self.cuts += 1;
        let image = self.current.take().context("no disk is mounted")?;
        // Answers received before this line are the promised ones.
        load.cut();
        let copied = match server.pause().await {
            Ok(()) => image.copy(&self.folder, &format!("disk-{}", self.cuts)).await,
            Err(error) => Err(error),
        };
        server.kill().await?;
        let copy = copied?;
        image.discard()?;
        copy.mount().context("mounting the disk after the cut")?;
        let data = copy.folder().join(DATA);
        self.current = Some(copy);
        Ok(data)
    }
}
