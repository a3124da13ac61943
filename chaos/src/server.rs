//! The server under test: started, watched, paused and killed by its process id.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::client::{Client, Endpoint};
use crate::workload::Site;

/// Far above the server's own budget for checking its files at start: a busy machine may stand still for seconds.
const START_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
const SERVICE_POLL: Duration = Duration::from_millis(50);
/// A thread inside fsync stops when the disk lets it.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A process that was killed in the middle of an fsync is gone when the disk lets it.
const KILLED_MAX: Duration = Duration::from_secs(4);
/// Longer than the server drains and then copies its log.
const EXIT_MAX: Duration = Duration::from_secs(40);

/// How to start it.
#[derive(Clone)]
pub struct Launch {
    /// A program and arguments that run the server as their own process, with its id; mostly none.
    pub wrapper: Vec<String>,
    pub envs: Vec<(String, String)>,
    pub program: PathBuf,
    pub extra: Vec<String>,
    /// Output of all starts, one after the other.
    pub log: PathBuf,
}

pub struct Server {
    child: Child,
    pid: u32,
    pub endpoint: Endpoint,
    /// Where clients of SQS find it.
    pub sqs: SocketAddr,
    data: PathBuf,
}

impl Server {
    /// Returns when the server says that it is ready.
    pub async fn start(launch: &Launch, data: &Path) -> Result<Server> {
        fs::create_dir_all(data)?;
        let announced = data.join("server.json");
        match fs::remove_file(&announced) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let log = File::options().create(true).append(true).open(&launch.log)?;
        let mut words = launch.wrapper.iter().map(OsStr::new).chain([launch.program.as_os_str()]);
        let child = Command::new(words.next().context("nothing to start")?)
            .args(words)
            .envs(launch.envs.iter().map(|(name, value)| (name, value)))
            .arg("serve")
            .arg("--data")
            .arg(data)
            .args(["--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0"])
            .args(&launch.extra)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the harness; it then takes the server down itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", launch.program.display()))?;
        let pid = child.id().context("the server has no process id")?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = Endpoint { addr: nowhere, key: String::new() };
        let mut server = Server { child, pid, endpoint, sqs: nowhere, data: data.to_owned() };
        match timeout(START_MAX, server.await_ready(data, &announced)).await {
            Ok(Ok(())) => Ok(server),
            Ok(Err(error)) => Err(error.context(tail(&launch.log))),
            Err(_) => bail!("not ready after {START_MAX:?}: {}", tail(&launch.log)),
        }
    }

    async fn await_ready(&mut self, data: &Path, announced: &Path) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < START_MAX {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended at start: {status}");
            }
            if self.endpoint.addr.port() == 0 {
                self.read_announcement(data, announced)?;
            } else if Client::new(self.endpoint.clone()).ready().await.unwrap_or(false) {
                return Ok(());
            }
            sleep(POLL).await;
        }
        bail!("the server never became ready")
    }

    /// A file that is not there yet, or only half, is looked at again.
    fn read_announcement(&mut self, data: &Path, announced: &Path) -> Result<()> {
        let Ok(text) = fs::read(announced) else { return Ok(()) };
        let Ok(json) = serde_json::from_slice::<Value>(&text) else { return Ok(()) };
        let pid = json["pid"].as_u64();
        ensure!(pid == Some(u64::from(self.pid)), "server.json names pid {pid:?}, started was {}", self.pid);
        let key = fs::read_to_string(data.join("admin.key")).context("reading admin.key of a started server")?;
        self.endpoint.key = key.trim().to_owned();
        self.sqs = json["sqs"].as_str().context("server.json without sqs")?.parse()?;
        self.endpoint.addr = json["http"].as_str().context("server.json without http")?.parse()?;
        Ok(())
    }

    pub fn site(&self) -> Site {
        Site { endpoint: self.endpoint.clone(), sqs: self.sqs, data: self.data.clone() }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Why the server is gone, if it is: nobody has killed it yet.
    pub fn ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| status.to_string()))
    }

    /// Waits until the server has been ended by whatever the scenario has prepared.
    pub async fn await_end(&mut self, longest: Duration) -> Result<ExitStatus> {
        Ok(timeout(longest, self.child.wait()).await.context("the server goes on")??)
    }

    /// Waits until the server says that it cannot serve; false when it never does.
    pub async fn await_trouble(&self, longest: Duration) -> bool {
        let started = Instant::now();
        while started.elapsed() < longest {
            if matches!(Client::new(self.endpoint.clone()).ready().await, Ok(false)) {
                return true;
            }
            sleep(SERVICE_POLL).await;
        }
        false
    }

    /// Waits until the server says that it can serve.
    pub async fn await_service(&self, longest: Duration) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < longest {
            if Client::new(self.endpoint.clone()).ready().await.unwrap_or(false) {
                return Ok(());
            }
            sleep(SERVICE_POLL).await;
        }
        bail!("not ready for {longest:?}")
    }

    /// SIGKILL, and waits until the kernel has taken the process away with its locks and open files.
    pub async fn kill(mut self) -> Result<()> {
        self.child.start_kill().context("killing the server")?;
        timeout(EXIT_MAX, self.child.wait()).await.context("the killed server does not end")??;
        Ok(())
    }

    /// SIGTERM, as an operator would.
    pub async fn shut_down(self) -> Result<()> {
        self.stop().await.map(drop)
    }

    /// As `shut_down`, for whoever wants to know how it ended.
    pub async fn stop(mut self) -> Result<ExitStatus> {
        self.signal("-TERM").await?;
        Ok(timeout(EXIT_MAX, self.child.wait()).await.context("the server does not end on SIGTERM")??)
    }

    /// SIGSTOP, and waits until every thread stands still: one inside fsync stops only when it returns, and until then
    /// the image below it still changes.
    pub async fn pause(&self) -> Result<()> {
        pause(self.pid).await
    }

    /// SIGCONT.
    pub async fn resume(&self) -> Result<()> {
        self.signal("-CONT").await
    }

    async fn signal(&self, name: &str) -> Result<()> {
        signal(self.pid, name).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill_and_wait(&mut self.child);
    }
}

/// For `Drop`: blocks until the process is gone, so that a file system below it can be unmounted next.
pub fn kill_and_wait(child: &mut Child) {
    if child.start_kill().is_err() {
        return;
    }
    let killed = Instant::now();
    while killed.elapsed() < KILLED_MAX && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(POLL);
    }
}

/// Ends the server that a killed harness left running on this folder, if there is one.
pub fn end_orphan(data: &Path) -> Result<()> {
    let Ok(text) = fs::read(data.join("server.json")) else { return Ok(()) };
    let Some(pid) = serde_json::from_slice::<Value>(&text).ok().and_then(|json| json["pid"].as_u64()) else {
        return Ok(());
    };
    // Its own command line names the folder: the number alone may long belong to somebody else.
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if !command.split(|byte| *byte == 0).any(|word| Path::new(OsStr::from_bytes(word)) == data) {
        return Ok(());
    }
    let status = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status()?;
    ensure!(status.success(), "ending the server {pid} of the interrupted run: {status}");
    let started = Instant::now();
    while Path::new(&format!("/proc/{pid}/exe")).exists() && started.elapsed() < EXIT_MAX {
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// SIGSTOP to this process, until all of it stands still.
pub async fn pause(pid: u32) -> Result<()> {
    signal(pid, "-STOP").await?;
    let started = Instant::now();
    while started.elapsed() < PAUSE_MAX {
        if threads_stopped(pid)? {
            return Ok(());
        }
        sleep(Duration::from_millis(1)).await;
    }
    bail!("the threads of {pid} do not stop");
}

async fn signal(pid: u32, signal: &str) -> Result<()> {
    let status = Command::new("kill").arg(signal).arg(pid.to_string()).status().await?;
    ensure!(status.success(), "kill {signal} {pid}: {status}");
    Ok(())
}

fn threads_stopped(pid: u32) -> Result<bool> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // One that has ended since it was listed stands still for good.
        let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
        // The state follows the name, which is in parentheses and may contain anything.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if !matches!(state, Some('T' | 't')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The last lines of the server's output, for an error message.
pub fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(8).collect();
    let lines: Vec<&str> = lines.into_iter().rev().collect();
    format!("its last words: {}", lines.join(" | "))
}
