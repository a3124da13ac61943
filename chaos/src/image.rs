//! A small ext4 file system in a file, loop-mounted: a disk whose power can be cut.
//!
//! What a program has written but not fsynced sits in the page cache of the inner file system and not yet in the image,
//! so a copy of the image file is what a power cut would leave. Two kinds of noise are turned off, or the copy would
//! move while it is taken: the journal's periodic commit, and the lazy initialisation after mkfs. It is a mild cut: the
//! kernel may have written more than was asked for, never less, and tears no sector.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const UNMOUNT_ATTEMPTS: u32 = 20;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(100);

pub struct Image {
    file: PathBuf,
    mount: PathBuf,
    keep: bool,
}

impl Image {
    /// A new, sparse image, not yet mounted; no block of it is reserved for root, who may be the server's user.
    /// `keep` leaves it mounted when dropped.
    pub fn create(folder: &Path, name: &str, mib: u64, keep: bool) -> Result<Image> {
        let image = Image::at(folder, name, keep)?;
        File::create(&image.file)?.set_len(mib << 20)?;
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        tool(
            "mkfs.ext4",
            ["-q", "-F", "-m", "0", "-E", options].map(OsStr::new).into_iter().chain([image.file.as_os_str()]),
        )?;
        Ok(image)
    }

    /// The one that an interrupted run has left, not mounted any more.
    pub fn left(folder: &Path, name: &str, keep: bool) -> Result<Image> {
        let image = Image::at(folder, name, keep)?;
        if !image.file.exists() {
            bail!("there is no disk {}", image.file.display());
        }
        image.unmount()?;
        Ok(image)
    }

    fn at(folder: &Path, name: &str, keep: bool) -> Result<Image> {
        let image = Image { file: folder.join(format!("{name}.img")), mount: folder.join(name), keep };
        fs::create_dir_all(&image.mount)?;
        Ok(image)
    }

    pub fn mount(&self) -> Result<()> {
        let options = ["-t", "ext4", "-o", "loop,commit=300"].map(OsStr::new);
        tool("mount", options.into_iter().chain([self.file.as_os_str(), self.mount.as_os_str()]))
    }

    pub fn folder(&self) -> &Path {
        &self.mount
    }

    /// Copies the image file as it is at this moment. Nobody may be writing to the mounted file system.
    pub async fn copy(&self, folder: &Path, name: &str) -> Result<Image> {
        let copy = Image::at(folder, name, self.keep)?;
        let status = tokio::process::Command::new("cp")
            .args(["--sparse=always", "--"])
            .args([&self.file, &copy.file])
            .kill_on_drop(true)
            .status()
            .await?;
        if !status.success() {
            bail!("copying {}: {status}", self.file.display());
        }
        Ok(copy)
    }

    /// Unmounts, which detaches the loop device too, and removes the file.
    pub fn discard(self) -> Result<()> {
        self.unmount()?;
        fs::remove_dir(&self.mount)?;
        fs::remove_file(&self.file)?;
        Ok(())
    }

    /// Again for a while: a process that has just been killed may still hold the mount.
    fn unmount(&self) -> Result<()> {
        for _ in 0..UNMOUNT_ATTEMPTS {
            if !self.mounted()? {
                return Ok(());
            }
            if tool("umount", [self.mount.as_os_str()]).is_err() {
                std::thread::sleep(UNMOUNT_PAUSE);
            }
        }
        // Lazily: gone from the tree now, detached when the last user ends.
        tool("umount", [OsStr::new("-l"), self.mount.as_os_str()])
    }

    /// Asked of the file system rather than remembered: an interrupted mount may have happened or not.
    fn mounted(&self) -> Result<bool> {
        if !self.mount.exists() {
            return Ok(false);
        }
        let outside = self.mount.parent().context("a mount point without parent")?;
        Ok(fs::metadata(&self.mount)?.dev() != fs::metadata(outside)?.dev())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if !self.keep && self.unmount().is_err() {
            crate::say(&format!("could not unmount {}", self.mount.display()));
        }
    }
}

/// Whether this machine can do it at all, found out by doing it.
pub fn available() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = Image::create(folder.path(), "trial", 8, false)?;
    image.mount()?;
    image.discard()
}

/// Runs a system tool to its end. Blocking on purpose: a mount that is given up half-way would be left behind.
fn tool<'a>(name: &str, args: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    // The tools of an administrator are often missing from the path of a plain shell.
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(name)
        .args(args)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .output()
        .with_context(|| format!("running {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
