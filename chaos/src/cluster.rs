//! A private PostgreSQL with its fsync on: made, started, killed and started again in its place.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Child;
use tokio::time::{sleep, timeout};

const DATABASE: &str = "waybill";
const USER: &str = "postgres";
const PACKAGED: &str = "/usr/lib/postgresql";
/// After a crash every file is synced first, which a busy disk takes its time for.
const START_MAX: Duration = Duration::from_secs(90);
const EXIT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

pub struct Cluster {
    bin: PathBuf,
    folder: PathBuf,
    owner: Option<(u32, u32)>,
    pub port: u16,
    postmaster: Option<Child>,
    /// Parts of a postmaster that was killed. They hold on to its memory until they have noticed.
    orphans: Vec<u32>,
}

impl Cluster {
    /// The one that an earlier run has left inside `folder`, or a new one.
    pub async fn at(folder: &Path) -> Result<Cluster> {
        let home = folder.join("postgres");
        if !home.join("data/PG_VERSION").exists() {
            return Cluster::create(folder).await;
        }
        end_orphan(&home)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let owner = unprivileged_owner()?;
        let mut cluster =
            Cluster { bin: packaged_bin()?, folder: home, owner, port, postmaster: None, orphans: Vec::new() };
        cluster.start().await?;
        Ok(cluster)
    }

    /// Made inside `folder`, which is opened to the user that PostgreSQL runs as, and started.
    pub async fn create(folder: &Path) -> Result<Cluster> {
        let owner = unprivileged_owner()?;
        let home = folder.join("postgres");
        fs::create_dir(&home)?;
        if let Some((user, group)) = owner {
            // Passing through is enough; what else is in the folder stays closed.
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
            chown(&home, Some(user), Some(group)).context("giving the cluster's folder away")?;
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut cluster =
            Cluster { bin: packaged_bin()?, folder: home, owner, port, postmaster: None, orphans: Vec::new() };
        let mut initdb = cluster.command("initdb");
        // Only the making of it goes without fsync.
        initdb.args(["--no-sync", "--username", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]);
        run(initdb.args(["--pgdata", "data"]), "initdb").await?;
        cluster.start().await?;
        let port = cluster.port.to_string();
        run(cluster.command("createdb").args(["-h", "127.0.0.1", "-p", &port, "-U", USER, DATABASE]), "createdb")
            .await?;
        Ok(cluster)
    }

    /// On the same port and files. Tries again while the processes of a killed postmaster still hold them.
    pub async fn start(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_MAX;
        while Instant::now() < deadline {
            let child = self.postmaster.insert(self.spawn()?);
            while Instant::now() < deadline && child.try_wait()?.is_none() {
                if is_ready(&self.bin, self.port).await {
                    return Ok(());
                }
                sleep(POLL).await;
            }
            self.end_orphans().await?;
            sleep(POLL).await;
        }
        bail!("PostgreSQL does not start; its log is in {}", self.folder.display())
    }

    fn spawn(&self) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.folder.with_extension("log"))?;
        let mut command = self.command("postgres");
        command.args(["-D", "data", "-p", &self.port.to_string()]);
        // No unix socket: its path is limited to 107 bytes.
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=on"] {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        tokio::process::Command::from(command).kill_on_drop(true).spawn().context("starting postgres")
    }

    /// SIGKILL to the postmaster; its children end when they notice.
    pub async fn kill(&mut self) -> Result<()> {
        let mut postmaster = self.postmaster.take().context("PostgreSQL is not running")?;
        self.orphans = postmaster.id().map(children).transpose()?.unwrap_or_default();
        postmaster.start_kill()?;
        timeout(EXIT_MAX, postmaster.wait()).await.context("the killed postmaster does not end")??;
        Ok(())
    }

    /// To all of its processes: the postmaster first, which then makes no more of them.
    pub async fn signal(&self, signal: &str) -> Result<()> {
        let postmaster = self.postmaster.as_ref().and_then(Child::id).context("PostgreSQL is not running")?;
        crate::standby::signal(postmaster, signal).await?;
        for child in children(postmaster)? {
            // One may have ended in between.
            let _ = crate::standby::signal(child, signal).await;
        }
        Ok(())
    }

    /// Those that have not noticed by the time it is started again.
    async fn end_orphans(&mut self) -> Result<()> {
        for pid in std::mem::take(&mut self.orphans) {
            // The number alone may long belong to somebody else.
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.starts_with(b"postgres: ") {
                tokio::process::Command::new("kill").arg("-KILL").arg(pid.to_string()).status().await?;
            }
        }
        Ok(())
    }

    /// The database, by way of this port.
    pub fn url(port: u16) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/{DATABASE}")
    }

    /// A place for another cluster in the same folder: no files yet, a port of its own.
    pub fn beside(&self, name: &str) -> Result<Cluster> {
        let home = self.folder.with_file_name(name);
        fs::create_dir(&home)?;
        if let Some((user, group)) = self.owner {
            chown(&home, Some(user), Some(group)).context("giving the cluster's folder away")?;
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        Ok(Cluster {
            bin: self.bin.clone(),
            folder: home,
            owner: self.owner,
            port,
            postmaster: None,
            orphans: Vec::new(),
        })
    }

    /// Where its files are.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The output of one of PostgreSQL's programs, run in the cluster's folder.
    pub async fn program(&self, name: &str, args: &[&str]) -> Result<String> {
        let output = self.attempt(name, args).await?;
        if !output.status.success() {
            bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// As `program`, for those that end with an error when they have done their work.
    pub async fn attempt(&self, name: &str, args: &[&str]) -> Result<std::process::Output> {
        let mut command = self.command(name);
        command.args(args).stdin(Stdio::null()).process_group(0);
        let output = tokio::process::Command::from(command).kill_on_drop(true).output().await;
        output.with_context(|| format!("starting {name}"))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(&self.folder).env("LC_ALL", "C");
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Cluster {
    /// The children notice within moments that their postmaster is gone.
    fn drop(&mut self) {
        let Some(postmaster) = &mut self.postmaster else { return };
        if postmaster.start_kill().is_err() {
            return;
        }
        for _ in 0..100 {
            if !matches!(postmaster.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Ends the postmaster that a killed harness left running. Its working folder tells that the process is still the one.
fn end_orphan(home: &Path) -> Result<()> {
    let Ok(text) = fs::read_to_string(home.join("data/postmaster.pid")) else { return Ok(()) };
    let Some(pid) = text.lines().next().and_then(|line| line.trim().parse::<u32>().ok()) else { return Ok(()) };
    if fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == home.join("data")) {
        Command::new("kill").args(["-KILL", &pid.to_string()]).status()?;
    }
    Ok(())
}

/// Why there can be no cluster here.
pub fn lacking() -> Option<String> {
    packaged_bin()
        .and_then(|_| unprivileged_owner())
        .err()
        .map(|why| format!("install the package postgresql: {why:#}"))
}

async fn is_ready(bin: &Path, port: u16) -> bool {
    let mut command = Command::new(bin.join("pg_isready"));
    run(command.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string(), "-U", USER]), "pg_isready").await.is_ok()
}

/// Waits for a short command; killed when the future is dropped.
async fn run(command: &mut Command, name: &str) -> Result<()> {
    command.stdin(Stdio::null()).process_group(0);
    let command = std::mem::replace(command, Command::new(name));
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await;
    let output = output.with_context(|| format!("starting {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// PostgreSQL refuses to run as root, so root lends it the packaged user. `None` when we are not root.
fn unprivileged_owner() -> Result<Option<(u32, u32)>> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let entry = users.lines().find(|line| line.split(':').next() == Some(USER));
    let fields: Vec<&str> = entry.context("no user postgres to run it as")?.split(':').collect();
    let [_, _, user, group, ..] = fields[..] else { bail!("a short line in /etc/passwd") };
    Ok(Some((user.parse()?, group.parse()?)))
}

/// Debian's folder of the newest version installed.
fn packaged_bin() -> Result<PathBuf> {
    let versions = fs::read_dir(PACKAGED).with_context(|| format!("no PostgreSQL in {PACKAGED}"))?;
    let versions = versions.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let bins = versions.map(|version| (version, Path::new(PACKAGED).join(version.to_string()).join("bin")));
    let newest = bins.filter(|(_, bin)| bin.join("postgres").exists()).max();
    Ok(newest.with_context(|| format!("no PostgreSQL in {PACKAGED}"))?.1)
}

/// The processes that this one has started.
fn children(parent: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // State and parent follow the name, which is in parentheses and may contain anything.
        let of = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        if of == Some(parent) {
            found.push(pid);
        }
    }
    Ok(found)
}
