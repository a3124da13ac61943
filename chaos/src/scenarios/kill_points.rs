//! The server kills itself at a named point of its code, at the N-th pass: before a commit, between commit and answer,
//! with half of a group answered, around the mark, inside a checkpoint, a stop or the verification after a failed
//! fsync. Every point is met in its turn, and the run says how often; one that was never met fails it.
//!
//! Only a build with the feature `sabotage` has such points; the server of the checks is the ordinary one.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{After, Scenario, configure};
use crate::load::Load;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// How the server is brought to a point.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Start,
    Load,
    Stop,
    /// Its fsyncs fail, so that it opens the file again.
    FailedFsync,
}

pub struct Point {
    name: &'static str,
    way: Way,
    /// The pass is chosen from 1 to this.
    passes: u64,
}

pub const POINTS: &[Point] = &[
    Point { name: "after_verify", way: Way::Start, passes: 1 },
    Point { name: "after_migrate", way: Way::Start, passes: 1 },
    Point { name: "in_transaction", way: Way::Load, passes: 300 },
    Point { name: "before_commit", way: Way::Load, passes: 60 },
    Point { name: "after_commit_before_reply", way: Way::Load, passes: 60 },
    Point { name: "half_answered", way: Way::Load, passes: 60 },
    Point { name: "before_mark", way: Way::Load, passes: 4 },
    Point { name: "after_mark", way: Way::Load, passes: 4 },
    Point { name: "in_checkpoint", way: Way::Load, passes: 3 },
    Point { name: "in_close", way: Way::Stop, passes: 1 },
    Point { name: "in_reopen", way: Way::FailedFsync, passes: 1 },
];

const KILL_AT: &str = "WAYBILL_KILL_AT";
const SIGKILL: i32 = 9;
const LOAD_MS_MAX: u64 = 700;
/// For the load to come to the point after its own time is over: a short run has one round for each, and a busy disk makes
/// few commits a second.
const REACH_MAX: Duration = Duration::from_secs(30);
/// A log that is copied often, so that a short load meets the copying.
const SETTINGS: &str = "[sqlite]\ncheckpoint_bytes = 262144\nreopen_pause_ms = 200\n";
const FAILING: &str = "inject=fsync,fdatasync:error=EIO:when=20";

pub struct KillPoints {
    folder: PathBuf,
    sabotaged: PathBuf,
    rng: Rng,
    next: usize,
    pass: u64,
    met: Vec<u32>,
    told: String,
}

impl KillPoints {
    pub fn new(folder: PathBuf, sabotaged: PathBuf, seed: u64) -> Self {
        let rng = Rng::new(seed, Stream::Fault);
        KillPoints { folder, sabotaged, rng, next: 0, pass: 0, met: vec![0; POINTS.len()], told: String::new() }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn point(&self) -> &'static Point {
        &POINTS[self.next % POINTS.len()]
    }

    /// Only the point itself ends the server by this signal.
    fn note(&mut self, met: bool) {
        let point = self.point();
        let how = if met { "killed" } else { "not reached, killed from outside" };
        self.told = format!("{} at pass {} of {}", how, self.pass, point.name);
        self.met[self.next % POINTS.len()] += u32::from(met);
        self.next += 1;
    }

    fn trapped(&self, launch: &Launch) -> Launch {
        let point = self.point();
        let mut trapped = Launch { program: self.sabotaged.clone(), ..launch.clone() };
        trapped.envs.push((KILL_AT.to_owned(), format!("{}:{}", point.name, self.pass)));
        if point.way == Way::FailedFsync {
            let strace = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", FAILING];
            trapped.wrapper = strace.map(str::to_owned).to_vec();
        }
        trapped
    }
}

fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL)
}

impl Scenario for KillPoints {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        configure(&self.folder, SETTINGS, launch)
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    async fn begin(&mut self, server: Server, launch: &Launch, data: &Path) -> Result<Option<Server>> {
        server.shut_down().await?;
        self.pass = 1 + self.rng.below(self.point().passes);
        let started = Server::start(&self.trapped(launch), data).await;
        match (started, self.point().way) {
            (Ok(server), Way::Start) => {
                server.kill().await?;
                bail!("the server has started past the point {}", self.point().name);
            }
            (Ok(server), _) => Ok(Some(server)),
            // A server also commits on its way up, so an early pass of any point may come before the load does.
            (Err(error), _) if format!("{error:#}").contains("signal: 9") => {
                self.note(true);
                Ok(None)
            }
            (Err(error), _) => Err(error.context(format!("starting {}", self.sabotaged.display()))),
        }
    }

    fn ends_by_itself(&self) -> bool {
        true
    }

    async fn strike(&mut self, mut server: Server, _load: &Load) -> Result<After> {
        let met = if self.point().way == Way::Stop {
            killed(server.stop().await.context("stopping the server")?)
        } else if let Ok(status) = server.await_end(REACH_MAX).await {
            killed(status)
        } else {
            server.kill().await?;
            false
        };
        self.note(met);
        Ok(After::Restart(self.data()))
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }

    fn finish(&mut self) -> Result<Option<String>> {
        let lines = POINTS.iter().zip(&self.met).map(|(point, met)| format!("{} {met}", point.name));
        let lines = lines.collect::<Vec<_>>().join(", ");
        let missed: Vec<&str> =
            POINTS.iter().zip(&self.met).filter(|(_, met)| **met == 0).map(|(it, _)| it.name).collect();
        if !missed.is_empty() && self.next >= POINTS.len() {
            bail!("never met: {} (met: {lines})", missed.join(", "));
        }
        let all = if missed.is_empty() { "every point was met" } else { "too few rounds for every point" };
        Ok(Some(format!("{all}: {lines}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_was_never_met_fails_the_run() {
        let mut scenario = KillPoints::new("x".into(), "y".into(), 1);
        for _ in 1..POINTS.len() {
            scenario.note(true);
        }
        assert!(scenario.finish().unwrap().unwrap().starts_with("too few rounds"));
        scenario.note(false);
        assert!(scenario.finish().unwrap_err().to_string().starts_with("never met: in_reopen"));
        for _ in 0..POINTS.len() {
            scenario.note(true);
        }
        assert!(scenario.finish().unwrap().unwrap().starts_with("every point was met"));
    }
}
