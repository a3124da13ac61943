//! The real program, started as a user starts it, on a data folder of its own and free ports.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::paths;

/// A dev build on a loaded machine, PostgreSQL migrations included; a good start takes well under a second.
const READY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Longer than the program's own drain deadline.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(10);

/// Longer than a line waits for others.
const LOG_PAUSE: Duration = Duration::from_millis(100);
const LOG_LOOKS_MAX: usize = 50;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--store`: a PostgreSQL URL. SQLite in the data folder when absent.
    pub store: Option<String>,
    /// Further flags of `waybill serve`.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// A program and its arguments that start ours, such as `strace -D …`. It must leave ours the process it was given.
    pub wrapper: Vec<String>,
    /// Data folder, where it matters on which disk; beside the log when absent.
    pub data: Option<PathBuf>,
}

/// A running program. Dropping it kills the process and removes the folder, except after a panic: then log and data
/// stay, and the test says where.
#[derive(Debug)]
pub struct Server {
    /// `http://127.0.0.1:PORT`
    pub base_url: String,
    /// `http://127.0.0.1:PORT`, for SQS clients.
    pub sqs_url: String,
    pub data_dir: PathBuf,
    /// Empty on a node that found its PostgreSQL database already set up by another.
    pub admin_key: String,
    pub pid: u32,
    options: Options,
    child: Child,
    folder: Option<TempDir>,
}

impl Server {
    pub fn start(options: Options) -> anyhow::Result<Server> {
        let parent = paths::target().join("testkit-servers");
        fs::create_dir_all(&parent)?;
        let folder = tempfile::Builder::new().prefix("server-").tempdir_in(parent)?;
        let data_dir = data_dir(folder.path(), &options);
        let child = spawn(folder.path(), &options)?;
        let (base_url, sqs_url, admin_key, pid) = (String::new(), String::new(), String::new(), child.id());
        let mut server = Server { base_url, sqs_url, data_dir, admin_key, pid, options, child, folder: Some(folder) };
        server.wait_ready()?;
        Ok(server)
    }

    /// The process as a crash leaves it: nothing flushed, nothing said.
    pub fn kill9(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks for a graceful end and waits for it.
    pub fn term(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal("TERM")?;
        self.ended()
    }

    /// Waits until it has ended, by a signal or by itself.
    pub fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + EXIT_WAIT_MAX;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
        bail!("waybill did not end within {EXIT_WAIT_MAX:?}")
    }

    /// Sends a signal by name (`TERM`, `STOP`, `CONT`) without waiting for its effect.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid.to_string()).status()?;
        ensure!(status.success(), "cannot send SIG{name} to {}", self.pid);
        Ok(())
    }

    /// Starts again on the same data folder; a process that still runs is ended first. The port is a new one.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            self.term()?;
        }
        let folder = self.folder.as_ref().context("the folder is gone")?;
        self.child = spawn(folder.path(), &self.options)?;
        self.pid = self.child.id();
        self.wait_ready()
    }

    /// What the program wrote to stdout and stderr in all its lives. It writes its log some lines at a time: this waits until
    /// nothing more comes.
    pub fn log(&self) -> String {
        let read = || {
            let file = self.folder.as_ref().map(|folder| log_file(folder.path()));
            file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default()
        };
        let mut log = read();
        for _ in 0..LOG_LOOKS_MAX {
            std::thread::sleep(LOG_PAUSE);
            let later = read();
            if later.len() == log.len() {
                break;
            }
            log = later;
        }
        log
    }

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WAIT_MAX;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("waybill ended before it was ready: {status}\n{}", self.log());
            }
            if let Some([http, sqs]) = addresses(&self.data_dir, self.pid)
                && get_status(&http, "/readyz").is_ok_and(|status| status == 200)
            {
                self.base_url = format!("http://{http}");
                self.sqs_url = format!("http://{sqs}");
                let key = fs::read_to_string(self.data_dir.join("admin.key")).unwrap_or_default();
                self.admin_key = key.trim().to_owned();
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        bail!("waybill was not ready within {READY_WAIT_MAX:?}\n{}", self.log())
    }
}

impl Drop for Server {
    #[expect(clippy::print_stderr, reason = "a failed test says where log and data are")]
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Some(folder) = self.folder.take()
        {
            eprintln!("kept for a look: {}", folder.keep().display());
        }
    }
}

/// The program under test: WAYBILL_BIN, or the dev build.
pub fn binary() -> PathBuf {
    std::env::var_os("WAYBILL_BIN").map_or_else(|| paths::target().join("debug/waybill"), PathBuf::from)
}

fn spawn(folder: &Path, options: &Options) -> anyhow::Result<Child> {
    let log = File::options().create(true).append(true).open(log_file(folder))?;
    let binary = binary();
    let mut words = options.wrapper.iter().map(OsString::from).chain([binary.clone().into_os_string()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).args(["serve", "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--data"]);
    command.arg(data_dir(folder, options));
    if let Some(store) = &options.store {
        command.args(["--store", store]);
    }
    command.args(&options.args).envs(options.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {}: build it first", binary.display()))
}

fn data_dir(folder: &Path, options: &Options) -> PathBuf {
    options.data.clone().unwrap_or_else(|| folder.join("data"))
}

fn log_file(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

/// From `server.json`, which a killed predecessor leaves behind: only our own process' word counts.
fn addresses(data_dir: &Path, pid: u32) -> Option<[String; 2]> {
    let document: Value = serde_json::from_slice(&fs::read(data_dir.join("server.json")).ok()?).ok()?;
    let address = |name: &str| document[name].as_str().filter(|_| document["pid"] == pid).map(str::to_owned);
    Some([address("http")?, address("sqs")?])
}

/// The status of a plain GET, without a client library.
pub fn get_status(address: &str, path: &str) -> anyhow::Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    let status = head.strip_prefix(b"HTTP/1.1 ").context("not HTTP/1.1")?;
    Ok(std::str::from_utf8(status)?.parse()?)
}
