//! The kernel kills the server as it enters its N-th fsync or fdatasync (SQLite uses either, as it was built): after the
//! write of a commit, before anything of it is promised. A small N strikes during the start, where recovery itself must
//! be repeatable.
//!
//! strace injects the signal and counts per thread, so N is that of whichever thread gets there first. With `-D` the
//! tracer steps aside and the process id stays the server's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::{After, Scenario};
use crate::load::Load;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

const NTH_MAX: u64 = 200;
/// One round in this many takes a small N: those points are few, and met only during the start.
const EARLY_ONE_IN: u64 = 4;
const EARLY_MAX: u64 = 8;
/// For the load to reach N after its own time is over. It runs flat out then, in large commits and few fsyncs: N may be
/// out of reach on a slow disk, and the server is killed wherever it is.
const REACH_MAX: Duration = Duration::from_millis(800);
/// Two hundred fsyncs are reached well before; what is left of the load would only be checked.
const LOAD_MS_MAX: u64 = 900;

pub struct FsyncKill {
    data: PathBuf,
    rng: Rng,
    nth: u64,
    during_start: bool,
    reached: bool,
}

impl FsyncKill {
    pub fn new(data: PathBuf, seed: u64) -> Self {
        FsyncKill { data, rng: Rng::new(seed, Stream::Fault), nth: 0, during_start: false, reached: false }
    }
}

pub fn available() -> bool {
    Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success())
}

fn choose(rng: &mut Rng) -> u64 {
    let early = rng.below(EARLY_ONE_IN) == 0;
    1 + rng.below(if early { EARLY_MAX } else { NTH_MAX })
}

fn wrapper(nth: u64) -> Vec<String> {
    let inject = format!("inject=fsync,fdatasync:signal=SIGKILL:when={nth}");
    ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", &inject]
        .map(str::to_owned)
        .to_vec()
}

impl Scenario for FsyncKill {
    async fn prepare(&mut self, _launch: &mut Launch) -> Result<PathBuf> {
        std::fs::create_dir_all(&self.data)?;
        Ok(self.data.clone())
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    /// The server of the check was started as always; the one for the load carries the trap.
    async fn begin(&mut self, server: Server, launch: &Launch, data: &Path) -> Result<Option<Server>> {
        server.shut_down().await?;
        self.nth = choose(&mut self.rng);
        let trapped = Launch { wrapper: wrapper(self.nth), ..launch.clone() };
        let started = Server::start(&trapped, data).await;
        self.during_start = started.is_err();
        match started {
            Ok(server) => Ok(Some(server)),
            Err(error) if format!("{error:#}").contains("signal: 9") => Ok(None),
            Err(error) => Err(error.context("the start under strace")),
        }
    }

    fn ends_by_itself(&self) -> bool {
        true
    }

    async fn strike(&mut self, mut server: Server, _load: &Load) -> Result<After> {
        self.reached = server.await_end(REACH_MAX).await.is_ok();
        if !self.reached {
            server.kill().await?;
        }
        Ok(After::Restart(self.data.clone()))
    }

    fn told(&self) -> Option<String> {
        let when = match (self.during_start, self.reached) {
            (true, _) => "at that fsync during the start",
            (false, true) => "at that fsync under load",
            (false, false) => "before that fsync was reached",
        };
        Some(format!("fsync {}: killed {when}", self.nth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_and_late_points_are_both_chosen() {
        let mut rng = Rng::new(3, Stream::Fault);
        let chosen: Vec<u64> = (0..400).map(|_| choose(&mut rng)).collect();
        assert!(chosen.iter().all(|nth| (1..=NTH_MAX).contains(nth)));
        assert!((1..=EARLY_MAX).all(|nth| chosen.contains(&nth)));
        assert!(chosen.iter().any(|nth| *nth > NTH_MAX * 9 / 10));
    }
}
