//! Real PostgreSQL clusters for tests.
//!
//! A cluster is a folder (`initdb`), a port and a server started by `pg_ctl`. `initdb` and `postgres` refuse to run
//! as root, so for root every program is started as the user `postgres` that the system package makes; that user
//! must be able to reach the folder, which decides where it lies.
//!
//! [`Postgres::shared`] is for most tests: one cluster per workspace, started by whoever comes first and left running,
//! since a runner with a process per test would otherwise pay a start per test. Each test makes its own
//! [`Database`] in it. [`Postgres::start`] is a cluster of one's own, to be killed and restarted at will.
//! `cargo xtask test` stops whatever runs below `target/testkit-pg` when it is done.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};
use waybill_kernel::Clock;
use waybill_kernel::entropy::OsEntropy;
use waybill_store::{Backend, PostgresOptions, Settings, Store};

use crate::paths;

/// The superuser that `initdb` makes; trust authentication lets every role in without a password.
const SUPERUSER: &str = "postgres";

/// Between choosing a free port and the server's bind somebody else may take it.
const START_ATTEMPTS_MAX: u32 = 5;

/// Unix socket paths end at 107 bytes; the file name needs some of them.
const SOCKET_FOLDER_BYTES_MAX: usize = 85;

/// Held by whoever makes the database that others are copies of.
const TEMPLATE_LOCK: i64 = 7_261_900;

const SIGNAL_WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Off by default: the page cache survives the death of a process, which is all that most tests inflict, and
    /// start-up and database creation are several times quicker. `synchronous_commit` stays on either way, so the
    /// order of commits and replies is the real one. Turn it on to measure, or to cut the power.
    pub fsync: bool,
}

/// A cluster. Dropping a private one stops it and removes its folder; the shared one stays.
#[derive(Debug)]
pub struct Postgres {
    /// Holds `data`, the server's log and its socket.
    folder: PathBuf,
    port: u16,
    /// Present for a private cluster, which goes with its owner.
    temporary: Option<TempDir>,
}

impl Postgres {
    /// A private cluster with default options.
    pub fn start() -> anyhow::Result<Postgres> {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> anyhow::Result<Postgres> {
        let temporary = tempfile::Builder::new().prefix("private-").tempdir_in(home()?)?;
        let folder = temporary.path().to_path_buf();
        let port = create(&folder, options)?;
        Ok(Postgres { folder, port, temporary: Some(temporary) })
    }

    /// The workspace's cluster, started if it does not run. Safe to call from many processes at once.
    pub async fn shared() -> anyhow::Result<&'static Postgres> {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        if let Some(cluster) = SHARED.get() {
            return Ok(cluster);
        }
        let found = tokio::task::spawn_blocking(find_or_start).await??;
        Ok(SHARED.get_or_init(|| found))
    }

    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A fresh, empty database of its own for one test.
    pub async fn database(&self) -> anyhow::Result<Database> {
        self.database_like("template0").await
    }

    /// As `database`, with every table there is: a copy of one that was migrated once for all tests.
    pub async fn migrated(&self) -> anyhow::Result<Database> {
        static TEMPLATE: OnceCell<String> = OnceCell::const_new();
        match self.temporary {
            None => self.database_like(TEMPLATE.get_or_try_init(|| self.template()).await?).await,
            // Few are made in a cluster of one's own.
            Some(_) => self.database().await,
        }
    }

    async fn database_like(&self, template: &str) -> anyhow::Result<Database> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let client = connect(&self.url("postgres")).await?;
        // A process id comes round again; what an earlier bearer left behind is nobody's.
        client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {template}")).await?;
        Ok(Database { url: self.url(&name), addr: self.addr(), name, maintenance_url: self.url("postgres") })
    }

    /// Named by what the migrations say, so that one of an older build is not taken for it. Whoever comes first makes it, and
    /// the others wait.
    async fn template(&self) -> anyhow::Result<String> {
        let migrations = waybill_domains::migrations();
        let mut hasher = DefaultHasher::new();
        migrations.iter().for_each(|migration| (migration.version, migration.sql).hash(&mut hasher));
        let name = format!("migrated_{:016x}", hasher.finish());
        let client = connect(&self.url("postgres")).await?;
        client.batch_execute(&format!("SELECT pg_advisory_lock({TEMPLATE_LOCK})")).await?;
        let known = client.query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&name]).await?;
        if known.is_none() {
            let draft = format!("draft_{name}");
            client.batch_execute(&format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)")).await?;
            client.batch_execute(&format!("CREATE DATABASE {draft} TEMPLATE template0")).await?;
            let backend = Backend::Postgres(PostgresOptions::at(self.url(&draft)));
            let (clock, entropy) = (Arc::new(Clock::system()), Arc::new(OsEntropy));
            let store = Store::open(backend, &migrations, Settings::default(), clock, entropy).await?;
            tokio::task::spawn_blocking(move || store.close()).await?;
            // A database with connections is not copied; the store's may take a moment to be gone.
            client
                .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", &[&draft])
                .await?;
            client.batch_execute(&format!("ALTER DATABASE {draft} RENAME TO {name}")).await?;
        }
        client.batch_execute(&format!("SELECT pg_advisory_unlock({TEMPLATE_LOCK})")).await?;
        Ok(name)
    }

    /// The machine's end as a client sees it: no shutdown, no goodbye on any connection.
    ///
    /// The backends are killed with the postmaster: left alone they linger for a moment, and a restart would refuse
    /// to share memory with them.
    pub fn kill9(&self) -> anyhow::Result<()> {
        self.must_be_private()?;
        let postmaster = running(&self.folder).context("the cluster does not run")?.pid;
        // Stopped first: one it made between the look and the kill would outlive them all.
        Command::new("kill").args(["-STOP", &postmaster.to_string()]).status()?;
        wait_until("stopped", || state(postmaster) == Some('T'))?;
        let mut pids = children(postmaster);
        pids.insert(0, postmaster);
        // Its status says nothing: a backend may end by itself between the look and the kill.
        Command::new("kill").arg("-9").args(pids.iter().map(u32::to_string)).stderr(Stdio::null()).status()?;
        wait_gone(&pids)?;
        // In a container the dead postmaster may stay a zombie, which a restart would take for a live server.
        let socket_lock = format!(".s.PGSQL.{}.lock", self.port);
        for lock in [self.folder.join("data/postmaster.pid"), self.folder.join(socket_lock)] {
            if lock.exists() {
                fs::remove_file(lock)?;
            }
        }
        Ok(())
    }

    /// Clean stop; connected clients are told that the server goes away.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.must_be_private()?;
        pg_ctl(&self.folder, &["stop", "-m", "fast"])
    }

    /// Starts a stopped or killed cluster, or stops and starts a running one, on the same port and data.
    pub fn restart(&self) -> anyhow::Result<()> {
        if running(&self.folder).is_some() {
            self.stop()?;
        }
        self.must_be_private()?;
        pg_ctl(&self.folder, &["start"])
    }

    fn url(&self, database: &str) -> String {
        url(SUPERUSER, self.addr(), database)
    }

    fn must_be_private(&self) -> anyhow::Result<()> {
        ensure!(self.temporary.is_some(), "the shared cluster serves other tests: start one of your own to break it");
        Ok(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.temporary.is_some() && running(&self.folder).is_some() {
            let _ = pg_ctl(&self.folder, &["stop", "-m", "immediate"]);
        }
    }
}

/// One test's database. Dropped with the value, except after a panic: then it stays for a look until the shared
/// cluster is started anew.
#[derive(Debug)]
pub struct Database {
    /// As the superuser. Row-level security does not bind a superuser: see [`Database::url_as`].
    pub url: String,
    pub name: String,
    pub addr: SocketAddr,
    maintenance_url: String,
}

impl Database {
    /// The same database for another role, which must exist. Roles belong to the cluster: name yours uniquely.
    pub fn url_as(&self, role: &str) -> String {
        url(role, self.addr, &self.name)
    }

    /// The same database through another address: a [`crate::proxy::Proxy`].
    pub fn url_via(&self, addr: SocketAddr) -> String {
        url(SUPERUSER, addr, &self.name)
    }

    pub async fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.url).await
    }
}

impl Drop for Database {
    #[expect(clippy::print_stderr, reason = "a failed test says where its data is")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for a look: {}", self.url);
            return;
        }
        let (url, name) = (self.maintenance_url.clone(), self.name.clone());
        // Its own thread and runtime: the test's runtime may be the very thread that drops us.
        let dropper = std::thread::spawn(move || -> anyhow::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = connect(&url).await?;
                Ok(client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?)
            })
        });
        // Best effort: the cluster may be dead on purpose.
        let _ = dropper.join();
    }
}

fn url(role: &str, addr: SocketAddr, database: &str) -> String {
    format!("postgres://{role}@{addr}/{database}")
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.with_context(|| format!("cannot reach {url}"))?;
    tokio::spawn(connection);
    Ok(client)
}

/// The file lock makes the first process start the cluster and the others wait for it.
fn find_or_start() -> anyhow::Result<Postgres> {
    let home = home()?;
    let lock = File::create(home.join("lock"))?;
    lock.lock()?;
    let folder = home.join("shared");
    if let Some(Running { port, .. }) = running(&folder) {
        return Ok(Postgres { folder, port, temporary: None });
    }
    // Made anew rather than started again: without fsync its files are not to be trusted after a crash, and databases
    // of failed tests would pile up.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir(&folder)?;
    let port = create(&folder, Options::default())?;
    Ok(Postgres { folder, port, temporary: None })
}

/// The folder of all clusters of this workspace: in the target folder when the server's user can reach that,
/// else below the system's temporary folder, with a note in the target folder for whoever cleans up.
fn home() -> anyhow::Result<PathBuf> {
    let preferred = paths::target().join("testkit-pg");
    fs::create_dir_all(&preferred)?;
    let preferred = preferred.canonicalize()?;
    if as_server_user("test").arg("-x").arg(&preferred).status()?.success() {
        return Ok(preferred);
    }
    let key = preferred.to_string_lossy().replace('/', "-");
    let fallback = std::env::temp_dir().join(format!("waybill{key}"));
    fs::create_dir_all(&fallback)?;
    fs::write(preferred.join("elsewhere"), fallback.to_string_lossy().as_bytes())?;
    Ok(fallback)
}

/// Fills an empty folder with a cluster and starts it. Returns its port.
fn create(folder: &Path, options: Options) -> anyhow::Result<u16> {
    if is_root() {
        run(Command::new("chown").arg(SUPERUSER).arg(folder))?;
    }
    let mut initdb = as_server_user(bin()?.join("initdb"));
    initdb.args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--no-locale", "-U", SUPERUSER, "-D"]);
    run(initdb.arg(folder.join("data")).current_dir(folder))?;
    let defaults = fs::read_to_string(folder.join("data/postgresql.conf"))?;
    for attempt in 1.. {
        let port = free_port()?;
        let text = format!("{defaults}\n{}", settings(folder, port, options));
        fs::write(folder.join("data/postgresql.conf"), text)?;
        match pg_ctl(folder, &["start"]) {
            Ok(()) => return Ok(port),
            Err(error) if attempt == START_ATTEMPTS_MAX => return Err(error),
            Err(_) => {}
        }
    }
    bail!("no attempt was made")
}

fn settings(folder: &Path, port: u16, options: Options) -> String {
    let sockets = folder.to_string_lossy();
    let sockets = if sockets.len() > SOCKET_FOLDER_BYTES_MAX { "" } else { &sockets };
    let fsync = if options.fsync { "on" } else { "off" };
    format!(
        "listen_addresses = '127.0.0.1'\n\
         port = {port}\n\
         unix_socket_directories = '{sockets}'\n\
         max_connections = 200\n\
         fsync = {fsync}\n\
         synchronous_commit = on\n\
         log_min_messages = warning\n\
         log_line_prefix = '%m %d '\n"
    )
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn pg_ctl(folder: &Path, action: &[&str]) -> anyhow::Result<()> {
    let mut command = as_server_user(bin()?.join("pg_ctl"));
    command.args(action).args(["-s", "-w", "-t", "60", "-D"]).arg(folder.join("data"));
    // The log also keeps the server from holding our own output open, for which a test runner would wait.
    command.arg("-l").arg(folder.join("log")).current_dir(folder);
    run(&mut command).with_context(|| fs::read_to_string(folder.join("log")).unwrap_or_default())
}

struct Running {
    pid: u32,
    port: u16,
}

/// What `postmaster.pid` says, if it is true. A killed server leaves the file, and its pid may be another's by now.
fn running(folder: &Path) -> Option<Running> {
    let text = fs::read_to_string(folder.join("data/postmaster.pid")).ok()?;
    let lines: Vec<&str> = text.lines().collect();
    let (pid, port) = (lines.first()?.trim().parse().ok()?, lines.get(3)?.trim().parse().ok()?);
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let answers = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    (name.trim() == "postgres" && answers).then_some(Running { pid, port })
}

fn children(parent: u32) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// `/proc/<pid>/stat` is `pid (name) state parent …`, where the name may hold anything, hence the last parenthesis.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The letter `/proc` has for what a process does, as long as it is there at all.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// A zombie counts as gone: it holds nothing but its number, and whoever adopted it may be slow to collect.
fn wait_gone(pids: &[u32]) -> anyhow::Result<()> {
    wait_until("gone", || pids.iter().all(|pid| matches!(state(*pid), None | Some('Z'))))
}

fn wait_until(what: &str, reached: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + SIGNAL_WAIT_MAX;
    while !reached() {
        ensure!(Instant::now() < deadline, "the cluster's processes are not {what} after the signal");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The newest installed server programs, which distributions keep off the path.
fn bin() -> anyhow::Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").context("PostgreSQL is missing: run `cargo xtask setup`")?;
    let folders = versions.flatten().map(|version| version.path().join("bin"));
    folders.filter(|bin| bin.join("pg_ctl").is_file()).max().context("PostgreSQL is missing: run `cargo xtask setup`")
}

fn as_server_user(program: impl AsRef<std::ffi::OsStr>) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", SUPERUSER, "--"]).arg(program);
    command
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_test_has_its_own_database() {
        let cluster = Postgres::shared().await.unwrap();
        let (one, two) = (cluster.database().await.unwrap(), cluster.database().await.unwrap());
        one.connect().await.unwrap().batch_execute("CREATE TABLE mine (id BIGINT)").await.unwrap();
        let elsewhere = two.connect().await.unwrap().query("SELECT * FROM mine", &[]).await;
        assert!(elsewhere.is_err());
        let (url, name) = (one.maintenance_url.clone(), one.name.clone());
        drop(one);
        let client = connect(&url).await.unwrap();
        let left = client.query("SELECT 1 FROM pg_database WHERE datname = $1", &[&name]).await.unwrap();
        assert!(left.is_empty());
    }

    #[tokio::test]
    async fn a_private_cluster_survives_kill_and_restart_with_its_commits() {
        let cluster = Postgres::start_with(Options { fsync: true }).unwrap();
        let database = cluster.database().await.unwrap();
        let client = database.connect().await.unwrap();
        client.batch_execute("CREATE TABLE kept (id BIGINT); INSERT INTO kept VALUES (7)").await.unwrap();
        cluster.kill9().unwrap();
        assert!(client.batch_execute("SELECT 1").await.is_err());
        cluster.restart().unwrap();
        let row = database.connect().await.unwrap().query_one("SELECT id FROM kept", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 7);
        cluster.stop().unwrap();
        assert!(database.connect().await.is_err());
    }

    #[tokio::test]
    async fn the_shared_cluster_is_not_for_breaking() {
        assert!(Postgres::shared().await.unwrap().kill9().is_err());
    }
}
