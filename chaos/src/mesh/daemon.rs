//! A daemon under test, and the commands of its user: started, watched and killed by process id.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::ipc::Local;
use crate::server::{self, tail};

/// A busy machine may stand still for seconds.
const START_MAX: Duration = Duration::from_secs(30);
const EXIT_MAX: Duration = Duration::from_secs(30);
const COMMAND_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// The mesh. Short: a socket's path has at most 103 bytes.
pub const SLUG: &str = "m";
/// In any of these a daemon would keep its keys in memory only.
const CI: [&str; 7] =
    ["CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL", "KUBERNETES_SERVICE_HOST"];
/// What an hour is in the field is a moment here.
const SETTINGS: &str = "[outbox]\nbackoff_min_ms = 50\nbackoff_max_ms = 400\nrestart_pause_ms = 50\n\
                        [link]\nanswer_ms = 2000\nbackoff_min_ms = 50\nbackoff_max_ms = 300\n";

/// One user's folder, and the program that works on it.
#[derive(Clone, Debug)]
pub struct Home {
    pub program: PathBuf,
    /// WAYBILL_HOME.
    pub path: PathBuf,
    /// Output of all starts, one after the other.
    pub log: PathBuf,
}

impl Home {
    pub fn socket(&self) -> PathBuf {
        self.folder().join("sock")
    }

    fn folder(&self) -> PathBuf {
        self.path.join("daemon").join(SLUG)
    }

    pub fn local(&self) -> Local {
        Local::new(self.socket())
    }

    /// Settings of the daemon, in the folder that joining has made.
    pub fn configure(&self) -> Result<()> {
        let path = self.folder().join("config.toml");
        let _ = fs::remove_file(&path);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        std::io::Write::write_all(&mut file, SETTINGS.as_bytes())?;
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for name in CI {
            command.env_remove(name);
        }
        command.env("WAYBILL_HOME", &self.path).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        command
    }

    /// A command of the user's, to its end: how it ended, and what it said.
    pub async fn attempt(&self, args: &[&str]) -> Result<(ExitStatus, String)> {
        let output = timeout(COMMAND_MAX, self.command().args(args).output());
        let output = output.await.with_context(|| format!("`waybill {}` does not end", args.join(" ")))??;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status, String::from_utf8_lossy(&text).trim().to_owned()))
    }

    /// What a successful command has printed as JSON.
    pub async fn run(&self, args: &[&str]) -> Result<Value> {
        let output = timeout(COMMAND_MAX, self.command().args(args).output());
        let output = output.await.with_context(|| format!("`waybill {}` does not end", args.join(" ")))??;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`waybill {}`: {}: {}", args.join(" "), output.status, errors.trim());
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    /// Returns when the socket answers.
    pub async fn start(&self, envs: &[(String, String)]) -> Result<Daemon> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = self.command();
        command.args(["daemon", "up", "--mesh", SLUG, "--foreground"]).stdout(log.try_clone()?).stderr(log);
        command.envs(envs.iter().map(|(name, value)| (name, value)));
        let child = command.spawn().with_context(|| format!("starting {}", self.program.display()))?;
        let pid = child.id().context("the daemon has no process id")?;
        let mut daemon = Daemon { child, pid };
        let started = Instant::now();
        while started.elapsed() < START_MAX {
            if let Some(status) = daemon.ended()? {
                bail!("the daemon ended at start: {status}: {}", tail(&self.log));
            }
            if self.local().get("/v1/health").await.is_ok_and(|answer| answer.success()) {
                return Ok(daemon);
            }
            sleep(POLL).await;
        }
        bail!("the daemon's socket does not answer: {}", tail(&self.log))
    }
}

pub struct Daemon {
    child: Child,
    pid: u32,
}

impl Daemon {
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until it has been ended by whatever the scenario has prepared.
    pub async fn await_end(&mut self, longest: Duration) -> Result<ExitStatus> {
        Ok(timeout(longest, self.child.wait()).await.context("the daemon goes on")??)
    }

    /// SIGKILL, and waits until the kernel has taken the process away with its locks and open files.
    pub async fn kill(mut self) -> Result<()> {
        self.child.start_kill().context("killing the daemon")?;
        timeout(EXIT_MAX, self.child.wait()).await.context("the killed daemon does not end")??;
        Ok(())
    }

    /// SIGTERM, as an operator would.
    pub async fn stop(mut self) -> Result<ExitStatus> {
        let pid = self.pid.to_string();
        let status = Command::new("kill").args([OsStr::new("-TERM"), OsStr::new(&pid)]).status().await?;
        ensure!(status.success(), "kill -TERM {pid}: {status}");
        Ok(timeout(EXIT_MAX, self.child.wait()).await.context("the daemon does not end on SIGTERM")??)
    }

    /// SIGSTOP, until all of it stands still.
    pub async fn pause(&self) -> Result<()> {
        server::pause(self.pid).await
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        server::kill_and_wait(&mut self.child);
    }
}

/// The name of a peer's folder below `base`.
pub fn home_of(base: &Path, name: &str) -> PathBuf {
    base.join("h").join(&name[..1])
}
