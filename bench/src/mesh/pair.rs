//! A broker and two daemons of one mesh, of which the first sends and the second receives.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::process::{Guarded, Server};
use crate::wire::{Address, Wire};

const SLUG: &str = "m";
/// No budget is in the way.
const BROKER: &str = "[mesh]\nsends_per_window = 100000\nwindow_s = 1\n";
const DAEMON: &str = "[ipc]\nin_flight_max = 256\n[outbox]\nbackoff_min_ms = 50\nbackoff_max_ms = 500\n\
                      [link]\nbackoff_min_ms = 50\nbackoff_max_ms = 500\n";
pub const TOPICS: usize = 16;
const START_MAX: Duration = Duration::from_secs(30);
/// Keys and names are known to both by then.
const READY_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How long a link takes to be up is measured.
const LINK_POLL: Duration = Duration::from_millis(2);
/// An inbox is read in pages of a thousand messages.
const ANSWER_BYTES_MAX: usize = 12 << 20;

pub fn topic(number: usize) -> String {
    format!("t{number:03}")
}

/// Fields are dropped in order: daemons before their broker.
pub struct Pair {
    pub alice: Daemon,
    pub bob: Daemon,
    pub broker: Option<Server>,
    waybill: PathBuf,
    data: PathBuf,
    port: u16,
}

pub struct Daemon {
    process: Guarded,
    pub socket: PathBuf,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }

    pub fn address(&self) -> Address {
        Address::Unix(self.socket.clone())
    }

    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let mut wire = Wire::connect_with(self.address(), ANSWER_BYTES_MAX).await?;
        let status = wire.exchange(request.as_bytes()).await?;
        Ok((status, wire.json().unwrap_or_default()))
    }

    pub async fn health(&self) -> Result<Value> {
        Ok(self.ask("GET", "/v1/health", None).await?.1)
    }

    /// Until its link is up.
    pub async fn connected(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < START_MAX {
            if self.health().await.is_ok_and(|health| health["connected"] == true) {
                return Ok(());
            }
            sleep(LINK_POLL).await;
        }
        bail!("a daemon is not connected after {} s: {}", START_MAX.as_secs(), self.process.log_tail())
    }

    /// A page of the inbox behind this row.
    pub async fn inbox(&self, since: i64) -> Result<Vec<Value>> {
        let (status, mut page) = self.ask("GET", &format!("/v1/inbox?since={since}&limit=1000"), None).await?;
        ensure!(status == 200, "the inbox answered {status}");
        Ok(page["messages"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// The last row of it.
    pub async fn inbox_end(&self, mut since: i64) -> Result<i64> {
        loop {
            let page = self.inbox(since).await?;
            let Some(last) = page.last() else { return Ok(since) };
            since = last["id"].as_i64().context("a message without its row")?;
        }
    }
}

impl Pair {
    pub async fn open(waybill: &Path, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let data = dir.join("data");
        let broker = broker(waybill, &data, port).await?;
        let key = broker.key.clone().context("no admin key")?;
        let (alice, bob) = (Home::new(waybill, dir, "a")?, Home::new(waybill, dir, "b")?);
        let url = format!("http://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        alice.run(&["mesh", "create", SLUG, "--name", "alice", "--json", "--url", &url, "--key", &key]).await?;
        let invite = alice.run(&["mesh", "invite", SLUG, "--json"]).await?;
        bob.run(&["mesh", "join", invite["invite"].as_str().context("no invite")?, "--name", "bob"]).await?;
        let (alice, home) = (alice.start().await?, alice);
        let bob = bob.start().await?;
        for number in 0..TOPICS {
            home.run(&["mesh", "topics", "create", SLUG, &topic(number)]).await?;
            subscribe(&bob, &topic(number)).await?;
        }
        let pair = Self { alice, bob, broker: Some(broker), waybill: waybill.to_owned(), data, port };
        pair.ready().await?;
        Ok(pair)
    }

    /// Until a message of every topic and a direct one have arrived.
    async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        let mut last = String::new();
        for attempt in 0.. {
            ensure!(began.elapsed() < READY_MAX, "the daemons do not hear each other: {last}");
            let from = self.bob.inbox_end(0).await?;
            let mut taken = 0;
            for number in 0..=TOPICS {
                let id = format!("ready-{attempt}-{number}");
                let (path, body) = match number {
                    TOPICS => ("/v1/send", json!({ "to": "bob", "message": "ready", "client_message_id": id })),
                    _ => {
                        let topic = topic(number);
                        ("/v1/topic/post", json!({ "topic": topic, "message": "ready", "client_message_id": id }))
                    }
                };
                let (status, answer) = self.alice.ask("POST", path, Some(&body)).await?;
                if status == 202 { taken += 1 } else { last = format!("{status} {answer}") }
            }
            sleep(POLL * 25).await;
            if taken == TOPICS + 1 && self.bob.inbox_end(from).await? - from >= taken as i64 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes the broker away; the daemons go on without it.
    pub async fn part(&mut self) -> Result<()> {
        match self.broker.take() {
            Some(broker) => broker.stop().await,
            None => Ok(()),
        }
    }

    /// At the address that the daemons know.
    pub async fn meet(&mut self) -> Result<()> {
        self.broker = Some(broker(&self.waybill, &self.data, self.port).await?);
        Ok(())
    }

    pub async fn rest(&self, longest: Duration) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < longest {
            if self.alice.health().await?["queue_depth"] == 0 {
                return Ok(());
            }
            sleep(POLL).await;
        }
        bail!("the outbox is not empty after {} s: {}", longest.as_secs(), self.alice.health().await?)
    }
}

async fn broker(waybill: &Path, data: &Path, port: u16) -> Result<Server> {
    let settings = data.with_extension("toml");
    std::fs::write(&settings, BROKER)?;
    let more = ["--config".into(), settings.into(), "--http".into(), format!("127.0.0.1:{port}").into()];
    Server::waybill_with(waybill, data, &more).await
}

async fn subscribe(daemon: &Daemon, topic: &str) -> Result<()> {
    let (status, answer) = daemon.ask("POST", "/v1/topic/subscribe", Some(&json!({ "topic": topic }))).await?;
    ensure!((200..300).contains(&status), "subscribing: {status} {answer}");
    Ok(())
}

struct Home {
    waybill: PathBuf,
    path: PathBuf,
}

impl Home {
    fn new(waybill: &Path, dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self { waybill: waybill.to_owned(), path })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.waybill);
        let is_setting = |name: &str| name.starts_with("WAYBILL_") || name == "CI" || name == "KUBERNETES_SERVICE_HOST";
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.env("WAYBILL_HOME", &self.path).stdin(Stdio::null());
        command
    }

    async fn run(&self, args: &[&str]) -> Result<Value> {
        let mut command = tokio::process::Command::from(self.command());
        let output = command.args(args).kill_on_drop(true).output().await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`waybill {}`: {}: {}", args.join(" "), output.status, errors.trim());
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    async fn start(&self) -> Result<Daemon> {
        let folder = self.path.join("daemon").join(SLUG);
        let mut config = File::options().write(true).create_new(true).mode(0o600).open(folder.join("config.toml"))?;
        config.write_all(DAEMON.as_bytes())?;
        let mut command = self.command();
        command.args(["daemon", "up", "--mesh", SLUG, "--foreground"]);
        let process = Guarded::spawn(&mut command, self.path.with_extension("log"), "TERM")?;
        let mut daemon = Daemon { process, socket: folder.join("sock") };
        let began = Instant::now();
        while daemon.health().await.is_err() {
            daemon.check_running()?;
            ensure!(began.elapsed() < START_MAX, "a daemon does not answer: {}", daemon.process.log_tail());
            sleep(POLL).await;
        }
        daemon.connected().await?;
        Ok(daemon)
    }
}
