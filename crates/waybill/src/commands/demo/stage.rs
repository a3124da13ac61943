//! A private server, workers and daemons for the scenes: processes of this very program, ended and cleared away whatever happens.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use waybill_client::{Client, Options, Repeat, Request};
use waybill_kernel::{Code, Error, Method, Result};

use super::sqs::Sqs;
use super::terminal::Terminal;
use crate::data::{self, Running};

/// Any port that is free.
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// A first start makes a database and an admin key; on a busy machine that takes a few seconds.
const READY_WAIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// For one step of a scene; the longest of them takes a tenth of it.
const STEP_WAIT: Duration = Duration::from_secs(60);
/// What a process may take to end before it is killed.
const END_WAIT: Duration = Duration::from_secs(5);

/// Settings of a server that notices a dead worker within seconds.
const SETTINGS: &str = "[tasks]\nsweep_interval_s = 1\nrequeue_delay_s_max = 1\n";

pub struct Stage {
    folder: TempDir,
    server: Actor,
    running: Running,
    admin: Client,
}

/// A process with a group of its own, so that Ctrl-C reaches it only through us.
pub struct Actor {
    child: Child,
}

impl Stage {
    pub async fn build() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("waybill-demo-").tempdir().map_err(Error::internal)?;
        std::fs::write(settings(folder.path()), SETTINGS).map_err(Error::internal)?;
        let mut server = serve(folder.path(), ANYWHERE, ANYWHERE)?;
        let running = ready(&mut server, folder.path()).await?;
        let admin = client(&url(running.http), data::admin_key(&data_of(folder.path())))?;
        Ok(Self { folder, server, running, admin })
    }

    /// The server's data folder.
    pub fn data(&self) -> PathBuf {
        data_of(self.folder.path())
    }

    /// Where somebody keeps memberships of meshes.
    pub fn home(&self, name: &str) -> Result<PathBuf> {
        let home = self.folder.path().join(name);
        std::fs::create_dir_all(&home).map_err(Error::internal)?;
        Ok(home)
    }

    /// Kills the server as a crash would; its process number.
    pub async fn crash(&mut self) -> u32 {
        let pid = self.server.pid();
        self.server.kill().await;
        pid
    }

    /// Where it was before, since clients know it there.
    pub async fn restart(&mut self) -> Result<()> {
        self.server = serve(self.folder.path(), self.running.http, self.running.sqs)?;
        self.running = ready(&mut self.server, self.folder.path()).await?;
        Ok(())
    }

    /// A client with a key of its own.
    pub async fn client(&self, principal: &str) -> Result<Client> {
        client(&url(self.running.http), Some(self.key(principal).await?))
    }

    /// The same for the listener of SQS clients.
    pub async fn sqs(&self, principal: &str) -> Result<Sqs> {
        let made = self.made_key(json!({ "principal": principal, "sqs": true })).await?;
        match (made["access_key_id"].as_str(), made["secret_access_key"].as_str()) {
            (Some(id), Some(secret)) => Sqs::new(url(self.running.sqs), id, secret),
            _ => Err(Error::internal("the server gave no key for SQS")),
        }
    }

    async fn key(&self, principal: &str) -> Result<String> {
        let made = self.made_key(json!({ "principal": principal })).await?;
        made["key"].as_str().map(str::to_owned).ok_or_else(|| Error::internal("the server gave no key"))
    }

    async fn made_key(&self, input: Json) -> Result<Json> {
        let request =
            Request { method: Method::Post, path: "/admin/keys", input, repeat: Repeat::Never, wait: Duration::ZERO };
        Ok(self.admin.call(request).await?.json)
    }

    /// A worker that does one task, as anybody would start it.
    pub async fn worker(&self, name: &str, lease_ttl_s: u64) -> Result<Actor> {
        let key = self.folder.path().join(format!("{name}.key"));
        std::fs::write(&key, self.key(&format!("worker:{name}")).await?).map_err(Error::internal)?;
        let mut command = program()?;
        command.args(["worker", "run", "--once", "--server", &url(self.running.http), "--key-file"]);
        command.arg(key).args(["--lease-ttl-seconds", &lease_ttl_s.to_string()]);
        Actor::start(command, self.folder.path().join(format!("{name}.log")))
    }

    /// A daemon of somebody, started as it would be at a terminal. It answers on its socket.
    pub async fn daemon(&self, member: &Terminal, mesh: &str) -> Result<Actor> {
        member.shows(&["daemon", "up", "--mesh", mesh])?;
        let home = self.home(member.name())?;
        let (log, socket) = (home.join("daemon.log"), home.join("daemon").join(mesh).join("sock"));
        let mut command = program()?;
        // In the foreground it ends with the scene; wherever the demo is played, the rest is as on a host of somebody's own.
        command.args(["daemon", "up", "--mesh", mesh, "--foreground", "--persistent", "--tcp", "false"]);
        command.args(["--hooks", "false"]).env("WAYBILL_HOME", &home);
        let mut daemon = Actor::start(command, log.clone())?;
        let answers = async || UnixStream::connect(&socket).await.ok();
        daemon.until("daemon", &log, answers).await?;
        Ok(daemon)
    }

    /// Ends the server and removes everything. Dropping the stage does the same, less gently.
    pub async fn clear(mut self) -> Result<()> {
        self.server.end().await;
        self.folder.close().map_err(Error::internal)
    }
}

impl Actor {
    fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        let log = std::fs::File::create(log).map_err(Error::internal)?;
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(Error::internal)?).stderr(log);
        command.process_group(0).kill_on_drop(true);
        Ok(Self { child: command.spawn().map_err(Error::internal)? })
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// As a crash or a lost machine ends it: nothing is said to anybody.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
    }

    pub async fn ended(&mut self) -> Result<bool> {
        self.child.wait().await.map(|status| status.success()).map_err(Error::internal)
    }

    /// Waits for what shows that it works. It may also have ended, and its log says why.
    async fn until<T>(&mut self, name: &str, log: &Path, shows: impl AsyncFn() -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + READY_WAIT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let message = format!("The demo's {name} ended with {status} before it was ready.");
                return Err(Error::new(Code::ServerUnreachable, message).because(said.trim()));
            }
            if let Some(shown) = shows().await {
                return Ok(shown);
            }
            sleep(POLL).await;
        }
        Err(Error::new(Code::ServerUnreachable, format!("The demo's {name} was not ready in time.")))
    }

    pub async fn end(&mut self) {
        self.signal(Signal::TERM);
        if timeout(END_WAIT, self.child.wait()).await.is_err() {
            self.kill().await;
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, signal);
        }
    }
}

/// The first thing that a scene waits for, looked for again and again.
pub async fn until<T>(what: &str, look: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let looking = async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            sleep(POLL).await;
        }
    };
    let late = || Error::new(Code::Unavailable, format!("The demo has waited in vain for {what}."));
    timeout(STEP_WAIT, looking).await.map_err(|_| late())?
}

/// This program, with none of the caller's settings: the scene has its own.
pub fn program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().map_err(Error::internal)?);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("WAYBILL_") || matches!(name.as_str(), "ALLOW_INSECURE_DEV" | "ASYNCGATE_API_KEY") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

fn client(url: &str, key: Option<String>) -> Result<Client> {
    let user_agent = concat!("waybill-demo/", env!("CARGO_PKG_VERSION")).to_owned();
    Client::new(Options { url: url.to_owned(), key, user_agent })
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn data_of(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn settings(folder: &Path) -> PathBuf {
    folder.join("demo.toml")
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

fn serve(folder: &Path, http: SocketAddr, sqs: SocketAddr) -> Result<Actor> {
    let mut command = program()?;
    command.args(["serve", "--log", "warn", "--http", &http.to_string(), "--sqs", &sqs.to_string()]);
    command.arg("--data").arg(data_of(folder)).arg("--config").arg(settings(folder));
    Actor::start(command, log_of(folder))
}

/// Where the server listens, once it answers. One that was killed has left the same note, under its own number.
async fn ready(server: &mut Actor, folder: &Path) -> Result<Running> {
    let (data, pid) = (data_of(folder), server.pid());
    let noted = async || data::running(&data).filter(|running| running.pid == pid);
    server.until("server", &log_of(folder), noted).await
}

/// The text of a task's result, for people.
pub fn shown(value: Option<&Json>) -> String {
    value.map_or_else(|| "null".to_owned(), Json::to_string)
}
