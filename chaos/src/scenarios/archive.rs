//! The archive of mail in trouble under load: collected by `git gc`, locked by a program that is gone, read-only, full, deleted,
//! or with something else in its place. No call may notice, and when the trouble is over the archive has everything.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::load::Load;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// The archive is on a disk of its own, so that the database has none of its troubles.
const SIZE: &str = "size=768m,mode=0700";
/// Between two attempts to make the archive read-only.
const REMOUNT_PAUSE: Duration = Duration::from_millis(5);
const REMOUNTS_MAX: u32 = 500;
/// How long each trouble lasts under load.
const TROUBLE: Duration = Duration::from_millis(700);
const AFTERWARDS: Duration = Duration::from_millis(200);
/// A project that failed often rests for a second, and no size of the disk is too little to try.
const SETTINGS: &str = "[mail_archive]\nbreaker_s = 1\nbackoff_ms = 20\ndisk_warning_mb = 0\ndisk_critical_mb = 0\n";

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Collected,
    Locked,
    ReadOnly,
    Full,
    Deleted,
}

const ALL: [Trouble; 5] = [Trouble::Collected, Trouble::Locked, Trouble::ReadOnly, Trouble::Full, Trouble::Deleted];

pub struct Archive {
    folder: PathBuf,
    rng: Rng,
    mounted: Option<Mounted>,
    next: usize,
    told: String,
}

/// Unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        if tool("umount", &["-l", &self.0.display().to_string()]).is_err() {
            crate::say(&format!("could not unmount {}", self.0.display()));
        }
    }
}

fn tool(name: &str, args: &[&str]) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(name).args(args).env("PATH", format!("{path}:/usr/sbin:/sbin")).output();
    let output = output.with_context(|| format!("running {name}"))?;
    if !output.status.success() {
        bail!("{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Whether this machine can do it at all, found out by doing it.
pub fn available() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mount = folder.path().display().to_string();
    tool("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", &mount])?;
    tool("umount", &[&mount])
}

impl Archive {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Fault);
        // A short run has not all of them, and not always the same.
        let next = usize::try_from(rng.below(ALL.len() as u64)).unwrap_or_default();
        Archive { folder, rng, mounted: None, next, told: String::new() }
    }

    fn root(&self) -> Result<&Path> {
        Ok(&self.mounted.as_ref().context("no archive is mounted")?.0)
    }

    /// Repositories that are there by now.
    fn repositories(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for project in fs::read_dir(self.root()?.join("default")).into_iter().flatten().flatten() {
            let repository = project.path().join("archive.git");
            if repository.is_dir() {
                found.push(repository);
            }
        }
        Ok(found)
    }

    async fn trouble(&mut self, trouble: Trouble) -> Result<()> {
        let root = self.root()?.display().to_string();
        match trouble {
            Trouble::Collected => {
                for repository in self.repositories()? {
                    // It may give up where the server moves a ref at the same moment; that is git's right.
                    let collect = Command::new("git")
                        .arg("--git-dir")
                        .arg(&repository)
                        .args(["gc", "-q", "--prune=now"])
                        .output()
                        .context("running git")?;
                    self.told = format!("git gc ended with {}", collect.status);
                }
            }
            Trouble::Locked => {
                for repository in self.repositories()? {
                    for lock in ["index.lock", "refs/heads/main.lock"] {
                        let path = repository.join(lock);
                        fs::write(&path, "")?;
                        // As a program leaves them that died an hour ago.
                        tool("touch", &["-d", "1 hour ago", &path.display().to_string()])?;
                    }
                }
                sleep(TROUBLE).await;
            }
            Trouble::ReadOnly => {
                // Of the mount alone: the file system itself cannot become read-only while a pack is open that `git gc` has
                // deleted. Refused while a file is open for writing, as one is for most of the time.
                let mut tries = 1;
                while let Err(error) = tool("mount", &["-o", "remount,bind,ro", &root]) {
                    anyhow::ensure!(tries < REMOUNTS_MAX, error);
                    tries += 1;
                    sleep(REMOUNT_PAUSE).await;
                }
                sleep(TROUBLE).await;
                tool("mount", &["-o", "remount,bind,rw", &root])?;
            }
            Trouble::Full => {
                let filler = self.root()?.join("filler");
                let left = 4096 * (1 + self.rng.below(64));
                let _ = Command::new("sh")
                    .args([
                        "-c",
                        "head -c $(($(df -B1 --output=avail \"$1\" | tail -1) - $2)) /dev/zero > \"$3\"",
                        "sh",
                    ])
                    .args([&root, &left.to_string(), &filler.display().to_string()])
                    .status();
                sleep(TROUBLE).await;
                fs::remove_file(&filler)?;
            }
            Trouble::Deleted => {
                // Away at once: removed file by file, it would stay half there, because the server goes on writing to it.
                let removed = self.root()?.join(format!("removed-{}", self.next));
                for project in fs::read_dir(self.root()?.join("default")).into_iter().flatten().flatten() {
                    fs::rename(project.path(), &removed).context("removing an archive")?;
                    let _ = fs::remove_dir_all(&removed);
                }
                sleep(TROUBLE).await;
            }
        }
        Ok(())
    }
}

impl Scenario for Archive {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        let data = configure(&self.folder, SETTINGS, launch)?;
        let root = data.join("mail-archive");
        fs::create_dir_all(&root)?;
        tool("mount", &["-t", "tmpfs", "-o", SIZE, "tmpfs", &root.display().to_string()])?;
        self.mounted = Some(Mounted(root));
        Ok(data)
    }

    fn takes_mail(&self) -> bool {
        true
    }

    fn takes_queues(&self) -> bool {
        false
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        let trouble = ALL[self.next % ALL.len()];
        self.next += 1;
        self.told = format!("{trouble:?}");
        self.trouble(trouble).await?;
        sleep(AFTERWARDS).await;
        Ok(After::Serving(Box::new(server)))
    }

    fn told(&self) -> Option<String> {
        Some(format!("the archive in trouble: {}", self.told))
    }
}
