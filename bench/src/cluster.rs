//! A private PostgreSQL with default durability.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client, NoTls};

use crate::process::Guarded;

pub const DATABASE: &str = "waybill";
pub const USER: &str = "postgres";
const PACKAGED: &str = "/usr/lib/postgresql";
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Another process may take a free port before PostgreSQL does.
const START_ATTEMPTS: usize = 3;

pub struct Cluster {
    /// Before the process: the connection ends first.
    client: Client,
    _process: Guarded,
    /// Where its programs are.
    pub bin: PathBuf,
    pub dir: PathBuf,
    pub port: u16,
}

/// The write-ahead log since the cluster was made.
pub struct Wal {
    pub bytes: f64,
    /// `None` where this version does not count them here.
    pub syncs: Option<f64>,
}

impl Cluster {
    /// `dir` is created; its parents must be open to the `postgres` user when this runs as root.
    pub async fn start(bin: Option<&Path>, dir: &Path) -> Result<Self> {
        Self::start_with(bin, dir, &[]).await
    }

    /// With further settings.
    pub async fn start_with(bin: Option<&Path>, dir: &Path, settings: &[&str]) -> Result<Self> {
        let bin = bin.map_or_else(packaged_bin, |bin| Ok(bin.to_owned()))?;
        std::fs::create_dir(dir)?;
        let owner = unprivileged_owner()?;
        if let Some((user, group)) = owner {
            chown(dir, Some(user), Some(group)).context("giving the cluster's folder away")?;
        }
        let mut initdb = as_owner(&bin.join("initdb"), dir, owner);
        initdb.args(["--username", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--pgdata", "data"]);
        run(initdb, "initdb").await?;

        let mut last = None;
        for _ in 0..START_ATTEMPTS {
            match Self::serve(&bin, dir, owner, settings).await {
                Ok(cluster) => return Ok(cluster),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("PostgreSQL was never started")?)
    }

    async fn serve(bin: &Path, dir: &Path, owner: Option<(u32, u32)>, settings: &[&str]) -> Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = as_owner(&bin.join("postgres"), dir, owner);
        command.args(["-D", "data", "-p", &port.to_string()]);
        // No unix socket: its path is limited to 107 bytes, and both contestants should come over TCP.
        let own = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200"];
        for setting in own.iter().chain(settings) {
            command.args(["-c", setting]);
        }
        // SIGINT is the fast shutdown: it does not wait for clients.
        let mut process = Guarded::spawn(&mut command, dir.with_extension("log"), "INT")?;
        let deadline = Instant::now() + START_TIMEOUT;
        let admin = loop {
            process.check_running().context("PostgreSQL")?;
            match connect(port, "postgres").await {
                Ok(client) => break client,
                Err(error) if Instant::now() > deadline => return Err(error.context(process.log_tail())),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        admin.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await?;
        let client = connect(port, DATABASE).await?;
        Ok(Self { client, _process: process, bin: bin.to_owned(), dir: dir.to_owned(), port })
    }

    pub fn url(&self) -> String {
        self.address(DATABASE)
    }

    /// A database of its own for somebody else; its address.
    pub async fn database(&self, name: &str) -> Result<String> {
        self.client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(self.address(name))
    }

    fn address(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// As [`Self::database`], with all that is in another one, to which nobody may be connected.
    pub async fn copy(&self, of: &str, name: &str) -> Result<String> {
        self.client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {of}")).await?;
        Ok(self.address(name))
    }

    pub async fn wal(&self) -> Result<Wal> {
        let position = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
        let bytes = self.client.query_one(position, &[]).await?.get(0);
        // PostgreSQL 18 moved this counter to pg_stat_io.
        let syncs = self.client.query_one("SELECT wal_sync::float8 FROM pg_stat_wal", &[]).await;
        Ok(Wal { bytes, syncs: syncs.ok().map(|row| row.get(0)) })
    }
}

async fn connect(port: u16, database: &str) -> Result<Client> {
    let config = format!("host=127.0.0.1 port={port} user={USER} dbname={database} connect_timeout=5");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
    // It ends with the client; its errors are seen by the client's calls.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// Waits for a short command; its output, or an error that quotes it. Killed when the future is dropped.
pub async fn run(mut command: Command, name: &str) -> Result<String> {
    command.stdin(Stdio::null()).process_group(0);
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).output().await.with_context(|| format!("starting {name}"))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        // Many clients fail with the same words.
        let words: Vec<&str> = stderr.lines().take(4).collect();
        bail!("{name} ended with {}: {}", output.status, words.join("; "));
    }
    Ok(stdout.into_owned())
}

fn as_owner(program: &Path, dir: &Path, owner: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir).env("LC_ALL", "C");
    if let Some((user, group)) = owner {
        command.uid(user).gid(group);
    }
    command
}

/// PostgreSQL refuses to run as root, so root lends it the packaged user. `None` when we are not root.
fn unprivileged_owner() -> Result<Option<(u32, u32)>> {
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let entry = users.lines().find(|line| line.split(':').next() == Some(USER));
    let fields: Vec<&str> = entry.context("no user postgres to run PostgreSQL as")?.split(':').collect();
    let [_, _, user, group, ..] = fields[..] else { bail!("a short line in /etc/passwd") };
    Ok(Some((user.parse()?, group.parse()?)))
}

/// Debian's folder of the newest version installed.
fn packaged_bin() -> Result<PathBuf> {
    let versions = std::fs::read_dir(PACKAGED).with_context(|| format!("no PostgreSQL in {PACKAGED}"))?;
    let versions = versions.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let bins = versions.map(|version| (version, Path::new(PACKAGED).join(version.to_string()).join("bin")));
    let newest = bins.filter(|(_, bin)| bin.join("postgres").exists()).max();
    Ok(newest.with_context(|| format!("no PostgreSQL in {PACKAGED}"))?.1)
}
