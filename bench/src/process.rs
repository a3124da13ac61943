//! Processes this program has started: spawned in a group of their own, stopped by pid, never left behind.

use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::time::sleep;

use crate::http;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(1);
const LOG_TAIL_BYTES: usize = 600;

/// A child that is asked to stop when dropped, and killed when it does not listen.
pub struct Guarded {
    child: Child,
    signal: &'static str,
    pub log: PathBuf,
}

impl Guarded {
    /// Output goes to `log`; `signal` (`TERM`, `INT`) is the polite way to stop this program.
    pub fn spawn(command: &mut Command, log: PathBuf, signal: &'static str) -> Result<Self> {
        let output = File::create(&log)?;
        // Ctrl-C in a terminal reaches a whole process group; the children are stopped in order instead.
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("starting {}", Path::new(&program).display()))?;
        Ok(Self { child, signal, log })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails, with the end of its log, once the process has ended.
    pub fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("ended with {status}: {}", self.log_tail()),
        }
    }

    pub fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).trim().to_owned()
    }

    /// A clean stop; an error when the process had to be killed.
    pub async fn stop(mut self) -> Result<ExitStatus> {
        self.ask_to_stop();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            sleep(POLL).await;
        }
        bail!("did not stop within {} s of SIG{}", STOP_TIMEOUT.as_secs(), self.signal)
    }

    fn ask_to_stop(&self) {
        // The shell's own kill: the standard library can only send SIGKILL.
        let pid = self.pid().to_string();
        let kill = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", self.signal, &pid]).status();
        drop(kill);
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.ask_to_stop();
        let deadline = Instant::now() + STOP_TIMEOUT / 4;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(POLL * 5);
        }
        // Both fail only when the process is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A server that announces itself in `<data>/server.json`: the product, or the bare hello.
pub struct Server {
    process: Guarded,
    pub http: SocketAddr,
    /// Where SQS clients find it, if it serves any.
    pub sqs: Option<SocketAddr>,
    pub key: Option<String>,
    /// From spawning the process to the first 200 of `/readyz`.
    pub ready_after: Duration,
}

impl Server {
    pub async fn waybill(binary: &Path, data: &Path, store: Option<&str>) -> Result<Self> {
        let store = store.map(|url| ["--store".into(), url.into()]);
        Self::waybill_with(binary, data, store.as_ref().map_or(&[], <[OsString; 2]>::as_slice)).await
    }

    /// With further arguments of `serve`.
    pub async fn waybill_with(binary: &Path, data: &Path, more: &[OsString]) -> Result<Self> {
        Self::waybill_in(binary, data, more, None).await
    }

    /// And with something in its environment.
    pub async fn waybill_in(
        binary: &Path,
        data: &Path,
        more: &[OsString],
        environment: Option<(&str, &str)>,
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        // Settings of the caller's shell must not change what is measured.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WAYBILL_")) {
            command.env_remove(name);
        }
        command.envs(environment);
        command.arg("serve").arg("--data").arg(data).args(["--sqs", "127.0.0.1:0"]).args(more);
        if !more.iter().any(|argument| argument == "--http") {
            command.args(["--http", "127.0.0.1:0"]);
        }
        let mut server = Self::start(command, data).await?;
        let key = std::fs::read_to_string(data.join("admin.key")).context("reading admin.key")?;
        server.key = Some(key.trim().to_owned());
        Ok(server)
    }

    pub async fn hello(data: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("hello").arg("--data").arg(data);
        Self::start(command, data).await
    }

    async fn start(mut command: Command, data: &Path) -> Result<Self> {
        std::fs::create_dir_all(data)?;
        let announcement = data.join("server.json");
        // One from an earlier start would be taken for this one's.
        if announcement.exists() {
            std::fs::remove_file(&announcement)?;
        }
        command.current_dir(data);
        let log = data.with_extension("log");
        let start = Instant::now();
        let mut process = Guarded::spawn(&mut command, log, "TERM")?;
        loop {
            process.check_running()?;
            if let Some((http, sqs)) = read_announcement(&announcement)
                && http::get(http, "/readyz", None).await.is_ok_and(|answer| answer.status == 200)
            {
                return Ok(Self { process, http, sqs, key: None, ready_after: start.elapsed() });
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("not ready after {} s: {}", START_TIMEOUT.as_secs(), process.log_tail());
            }
            sleep(POLL).await;
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn log_bytes(&self) -> u64 {
        std::fs::metadata(&self.process.log).map_or(0, |log| log.len())
    }

    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }

    /// A clean stop, as an operator would do it: anything but exit code 0 is an error.
    pub async fn stop(self) -> Result<()> {
        let status = self.process.stop().await?;
        if !status.success() {
            bail!("a stopped server ended with {status}");
        }
        Ok(())
    }
}

fn read_announcement(path: &Path) -> Option<(SocketAddr, Option<SocketAddr>)> {
    let text = std::fs::read(path).ok()?;
    // Half a file does not parse, and is read again.
    let announcement: Value = serde_json::from_slice(&text).ok()?;
    let address = |name: &str| announcement.get(name)?.as_str()?.parse().ok();
    Some((address("http")?, address("sqs")))
}

/// Memory of a process in bytes, as the kernel accounts it.
pub struct Memory {
    pub resident: u64,
    /// The most that `resident` has been.
    pub peak: u64,
    /// The part that is its own (heap, stacks), not mapped from files.
    pub anonymous: u64,
}

pub fn memory(pid: u32) -> Result<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("a field of /proc/<pid>/status")?;
        anyhow::Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()?)
    };
    Ok(Memory { resident: kib("VmRSS:")? * 1024, peak: kib("VmHWM:")? * 1024, anonymous: kib("RssAnon:")? * 1024 })
}

/// Bytes the process has caused to be written to the disk, in whole pages of the kernel.
pub fn written_bytes(pid: u32) -> Option<u64> {
    io(pid, "write_bytes:")
}

/// Bytes the process has handed to the kernel by calls that write, to files and to sockets.
pub fn handed_bytes(pid: u32) -> Option<u64> {
    io(pid, "wchar:")
}

fn io(pid: u32, name: &str) -> Option<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// User and system time of all threads of the process.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    cpu_seconds_in(&format!("/proc/{pid}/stat"))
}

/// Of the thread that asks.
pub fn thread_cpu_seconds() -> Option<f64> {
    cpu_seconds_in("/proc/thread-self/stat")
}

fn cpu_seconds_in(stat: &str) -> Option<f64> {
    /// The unit of /proc/<pid>/stat, part of Linux's ABI.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(stat).ok()?;
    // The name in parentheses may hold spaces; utime and stime are the 12th and 13th field behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS_PER_SECOND)
}
