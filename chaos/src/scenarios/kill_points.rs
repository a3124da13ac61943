//! The server kills itself at a named point of its code, at the N-th pass: before a commit, between commit and answer,
//! with half of a group answered, around the mark, inside a checkpoint, a stop or the verification after a failed
//! fsync. The server of the checks is of the ordinary build.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::points::{Point, Points, killed};
use super::{After, Scenario, configure};
use crate::load::Load;
use crate::server::{Launch, Server};

/// How the server is brought to a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Start,
    Load,
    Stop,
    /// Its fsyncs fail, so that it opens the file again.
    FailedFsync,
}

pub const POINTS: &[Point<Way>] = &[
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
    points: Points<Way>,
}

impl KillPoints {
    pub fn new(folder: PathBuf, sabotaged: PathBuf, seed: u64) -> Self {
        KillPoints { folder, sabotaged, points: Points::new(POINTS, seed) }
    }

    fn trapped(&self, launch: &Launch) -> Launch {
        let mut trapped = Launch { program: self.sabotaged.clone(), ..launch.clone() };
        trapped.envs.push(self.points.trap());
        if self.points.way() == Way::FailedFsync {
            let strace = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", FAILING];
            trapped.wrapper = strace.map(str::to_owned).to_vec();
        }
        trapped
    }
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
        self.points.turn();
        let started = Server::start(&self.trapped(launch), data).await;
        match (started, self.points.way()) {
            (Ok(server), Way::Start) => {
                server.kill().await?;
                bail!("the server has started past the point {}", self.points.name());
            }
            (Ok(server), _) => Ok(Some(server)),
            // A server also commits on its way up, so an early pass of any point may come before the load does.
            (Err(error), _) if format!("{error:#}").contains("signal: 9") => {
                self.points.note(true);
                Ok(None)
            }
            (Err(error), _) => Err(error.context(format!("starting {}", self.sabotaged.display()))),
        }
    }

    fn ends_by_itself(&self) -> bool {
        true
    }

    async fn strike(&mut self, mut server: Server, _load: &Load) -> Result<After> {
        let met = if self.points.way() == Way::Stop {
            killed(server.stop().await.context("stopping the server")?)
        } else if let Ok(status) = server.await_end(REACH_MAX).await {
            killed(status)
        } else {
            server.kill().await?;
            false
        };
        self.points.note(met);
        Ok(After::Restart(self.folder.join("data")))
    }

    fn told(&self) -> Option<String> {
        Some(self.points.told())
    }

    fn finish(&mut self) -> Result<Option<String>> {
        self.points.finish().map(Some)
    }
}
