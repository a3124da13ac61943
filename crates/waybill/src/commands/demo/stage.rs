//! A private server and workers for a scene: processes of this very program, ended and cleared away whatever happens.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use waybill_client::{Client, Options, Repeat, Request};
use waybill_kernel::{Code, Error, Method, Result};

use crate::data;

/// A first start makes a database and an admin key; on a busy machine that takes a few seconds.
const READY_WAIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// What the server may take to end before it is killed.
const END_WAIT: Duration = Duration::from_secs(5);

/// Settings of a server that notices a dead worker within seconds.
const SETTINGS: &str = "[tasks]\nsweep_interval_s = 1\nrequeue_delay_s_max = 1\n";

pub struct Stage {
    folder: TempDir,
    server: Actor,
    url: String,
    admin: Client,
}

/// A process with a group of its own, so that Ctrl-C reaches it only through us.
pub struct Actor {
    child: Child,
}

impl Stage {
    pub async fn build() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("waybill-demo-").tempdir().map_err(Error::internal)?;
        let config = folder.path().join("demo.toml");
        std::fs::write(&config, SETTINGS).map_err(Error::internal)?;
        let data = folder.path().join("data");
        let mut command = program()?;
        command.args(["serve", "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--log", "warn"]);
        command.arg("--data").arg(&data).arg("--config").arg(&config);
        let mut server = Actor::start(command, folder.path().join("server.log"))?;
        let url = address(&mut server, &data, &folder.path().join("server.log")).await?;
        let admin = client(&url, data::admin_key(&data))?;
        Ok(Self { folder, server, url, admin })
    }

    /// A client with a key of its own.
    pub async fn client(&self, principal: &str) -> Result<Client> {
        client(&self.url, Some(self.key(principal).await?))
    }

    async fn key(&self, principal: &str) -> Result<String> {
        let request = Request {
            method: Method::Post,
            path: "/admin/keys",
            input: json!({ "principal": principal }),
            repeat: Repeat::Never,
            wait: Duration::ZERO,
        };
        let answer = self.admin.call(request).await?;
        answer.json["key"].as_str().map(str::to_owned).ok_or_else(|| Error::internal("the server gave no key"))
    }

    /// A worker that does one task, as anybody would start it.
    pub async fn worker(&self, name: &str, lease_ttl_s: u64) -> Result<Actor> {
        let key = self.folder.path().join(format!("{name}.key"));
        std::fs::write(&key, self.key(&format!("worker:{name}")).await?).map_err(Error::internal)?;
        let mut command = program()?;
        command.args(["worker", "run", "--once", "--server", &self.url, "--key-file"]);
        command.arg(key).args(["--lease-ttl-seconds", &lease_ttl_s.to_string()]);
        Actor::start(command, self.folder.path().join(format!("{name}.log")))
    }

    /// Ends the server and removes everything. Dropping the stage does the same, less gently.
    pub async fn clear(mut self) -> Result<()> {
        self.server.end(END_WAIT).await;
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

    async fn end(&mut self, patience: Duration) {
        self.signal(Signal::TERM);
        if timeout(patience, self.child.wait()).await.is_err() {
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

/// This program, with none of the caller's settings: the scene has its own.
fn program() -> Result<Command> {
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

/// Where the server listens, once it answers.
async fn address(server: &mut Actor, data: &std::path::Path, log: &std::path::Path) -> Result<String> {
    let deadline = Instant::now() + READY_WAIT;
    while Instant::now() < deadline {
        if let Ok(Some(status)) = server.child.try_wait() {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let message = format!("The demo's server ended with {status} before it was ready.");
            return Err(Error::new(Code::ServerUnreachable, message).because(said.trim()));
        }
        if let Some(running) = data::running(data) {
            return Ok(format!("http://{}", running.http));
        }
        sleep(POLL).await;
    }
    Err(Error::new(Code::ServerUnreachable, "The demo's server was not ready in time."))
}

/// The text of a task's result, for people.
pub fn shown(value: Option<&Json>) -> String {
    value.map_or_else(|| "null".to_owned(), Json::to_string)
}
