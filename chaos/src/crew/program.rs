//! `waybill worker run` as a process of its own, to be stopped and killed as one. It keeps no journal: what it did is
//! judged by the ledger alone.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::LEASE;
use crate::client::Endpoint;

const TYPE: &str = "echo";
const CONCURRENCY: u32 = 4;
/// It drains for at most a second, and may be in a long wait.
const EXIT_MAX: Duration = Duration::from_secs(40);

pub struct Program {
    child: Child,
    pid: u32,
}

impl Program {
    pub fn start(waybill: &Path, at: &Endpoint, key: &str, log: &Path) -> Result<Program> {
        let log = File::options().create(true).append(true).open(log)?;
        let child = Command::new(waybill)
            .args(["worker", "run", "--accept-type", TYPE, "--drain-seconds", "1"])
            .args(["--concurrency", &CONCURRENCY.to_string()])
            .args(["--lease-ttl-seconds", &LEASE.as_secs().to_string()])
            .args(["--server", &format!("http://{}", at.addr)])
            .env("WAYBILL_KEY", key)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("starting a worker program")?;
        let pid = child.id().context("the worker program has no process id")?;
        Ok(Program { child, pid })
    }

    pub async fn pause(&self) -> Result<()> {
        self.signal("-STOP").await
    }

    pub async fn resume(&self) -> Result<()> {
        self.signal("-CONT").await
    }

    pub async fn kill(mut self) -> Result<()> {
        self.child.start_kill().context("killing a worker program")?;
        self.ended().await
    }

    /// SIGTERM: it ends what it has in hand.
    pub async fn shut_down(mut self) -> Result<()> {
        self.signal("-TERM").await?;
        self.ended().await
    }

    async fn ended(&mut self) -> Result<()> {
        timeout(EXIT_MAX, self.child.wait()).await.context("the worker program does not end")??;
        Ok(())
    }

    async fn signal(&self, signal: &str) -> Result<()> {
        let status = Command::new("kill").arg(signal).arg(self.pid.to_string()).status().await?;
        ensure!(status.success(), "kill {signal} {}: {status}", self.pid);
        Ok(())
    }
}
