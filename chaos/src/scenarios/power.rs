//! A power cut: the server goes on from a copy of its disk, taken while it stood still under load. What it had not
//! fsynced is not in the copy.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{After, Scenario};
use crate::image::Image;
use crate::load::Load;
use crate::server::{Launch, Server};

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
    async fn prepare(&mut self, _launch: &mut Launch) -> Result<PathBuf> {
        let image = Image::create(&self.folder, "disk-0", IMAGE_MIB, self.keep)?;
        image.mount()?;
        let data = image.folder().join(DATA);
        self.current = Some(image);
        std::fs::create_dir_all(&data)?;
        Ok(data)
    }

    /// The disk of the last check; or, when the interruption met the exchange of the two, the one that is left.
    async fn resume(&mut self, _launch: &mut Launch, data: &Path) -> Result<PathBuf> {
        let disk = data.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
        self.cuts =
            disk.strip_prefix("disk-").and_then(|number| number.parse().ok()).context("the data is on no disk")?;
        let image = Image::left(&self.folder, disk, self.keep).or_else(|_| {
            self.cuts += 1;
            Image::left(&self.folder, &format!("disk-{}", self.cuts), self.keep)
        })?;
        image.mount()?;
        let data = image.folder().join(DATA);
        self.current = Some(image);
        Ok(data)
    }

    async fn strike(&mut self, server: Server, load: &Load) -> Result<After> {
        self.cuts += 1;
        // The old disk stays in its place until the server is gone: an interruption drops the server first.
        let old = self.current.as_ref().context("no disk is mounted")?;
        // Answers received before this line are the promised ones.
        load.cut();
        server.pause().await?;
        let copy = old.copy(&self.folder, &format!("disk-{}", self.cuts)).await?;
        server.kill().await?;
        let data = copy.folder().join(DATA);
        if let Some(old) = self.current.replace(copy) {
            old.discard()?;
        }
        let copy = self.current.as_ref().context("no disk is left")?;
        copy.mount().context("mounting the disk after the cut")?;
        Ok(After::Restart(data))
    }
}
