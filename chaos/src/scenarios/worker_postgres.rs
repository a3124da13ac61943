//! Two servers on one PostgreSQL, and workers who turn to either. One server is killed under them and stays away; the other
//! serves on, notices that it has fallen silent, and takes over the leased tasks that were its to look after.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinHandle;

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::cluster::Cluster;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::server::{self, Launch, Server};
use crate::shift::{self, Shift};

/// Three intervals of silence are most of a round.
const LOAD_MS_MAX: u64 = 500;
/// The times of a transaction are those of its beginning, and the order is that of their ends.
const SKEW_US: i64 = 500_000;
const TAKEN_OVER: &str = "took over the leased tasks";
/// By then one that was killed has left leased tasks behind.
const ROUNDS_SURE: u32 = 3;

pub struct WorkerPostgres {
    folder: PathBuf,
    cluster: Option<Cluster>,
    shift: Shift,
    launch: Option<Launch>,
    making: Option<JoinHandle<Result<Server>>>,
    second: Option<Server>,
    /// Where the one that is away has its data.
    away: PathBuf,
    home: PathBuf,
    log: PathBuf,
    round: u32,
    taken_over: usize,
}

impl WorkerPostgres {
    pub fn new(folder: PathBuf) -> Self {
        let (home, away) = (folder.join("data"), folder.join("data-2"));
        let shift = Shift::with_skew(SKEW_US);
        let log = folder.join("server.log");
        WorkerPostgres {
            folder,
            cluster: None,
            shift,
            launch: None,
            making: None,
            second: None,
            away,
            home,
            log,
            round: 0,
            taken_over: 0,
        }
    }

    /// Starts the one that is away, and shows it the keys.
    fn make_second(&mut self) -> Result<()> {
        let launch = self.launch.clone().context("nobody knows how to start a server")?;
        let staff = self.shift.staff.clone().context("nobody has a key yet")?;
        let away = self.away.clone();
        self.making = Some(tokio::spawn(async move {
            let second = Server::start(&launch, &away).await.context("the second server")?;
            staff.greet(&[second.endpoint.addr]).await?;
            Ok(second)
        }));
        Ok(())
    }
}

impl Scenario for WorkerPostgres {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        let cluster = self.cluster.insert(Cluster::at(&self.folder).await?);
        launch.extra.extend(["--store".into(), Cluster::url(cluster.port)]);
        configure(&self.folder, shift::SETTINGS, launch)
    }

    async fn resume(&mut self, launch: &mut Launch, _data: &Path) -> Result<PathBuf> {
        server::end_orphan(&self.away)?;
        self.prepare(launch).await
    }

    /// The server that made the database has the admin's key, and the harness looks for it beside each.
    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.shift.open(at).await?;
        fs::create_dir_all(&self.away)?;
        fs::copy(self.home.join("admin.key"), self.away.join("admin.key")).context("lending the admin's key")?;
        self.make_second()?;
        self.shift.greet(&[at.addr]).await
    }

    fn arm(&mut self, launch: &mut Launch) -> Result<()> {
        self.launch = Some(launch.clone());
        Ok(())
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    async fn begin(&mut self, server: Server, _launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        self.round += 1;
        self.second = Some(self.making.take().context("no second server is being made")?.await??);
        Ok(Some(server))
    }

    fn pace(&self, _connections: u32) -> Pace {
        shift::PACE
    }

    fn callers(&self, server: &Server) -> Vec<Endpoint> {
        let second = self.second.as_ref().map(|second| second.endpoint.addr);
        let servers: Vec<_> = [server.endpoint.addr].into_iter().chain(second).collect();
        self.shift.callers(&servers)
    }

    fn owners(&self) -> Vec<String> {
        self.shift.owners()
    }

    fn join(&mut self, server: &Server, load: &Load) -> Result<()> {
        let second = self.second.as_ref().context("no second server")?;
        self.shift.begin(vec![server.endpoint.addr, second.endpoint.addr], load)
    }

    /// The machine is busy enough with the crew.
    fn takes_queues(&self) -> bool {
        false
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        server.kill().await?;
        let second = self.second.take().context("no second server")?;
        self.shift.turn_to(vec![second.endpoint.addr]);
        std::mem::swap(&mut self.home, &mut self.away);
        Ok(After::Serving(Box::new(second)))
    }

    async fn account(&mut self, _tally: &Tally, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let violations = self.shift.end(at, journal).await?;
        self.taken_over = fs::read_to_string(&self.log).unwrap_or_default().matches(TAKEN_OVER).count();
        // Its tasks are the other's now: it may come back, while the rest of the check goes on.
        self.make_second()?;
        Ok(violations)
    }

    async fn close(&mut self, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        if let Some(making) = self.making.take() {
            making.await??.shut_down().await?;
        }
        self.shift.close(at, journal).await
    }

    fn told(&self) -> Option<String> {
        Some(format!("one of two servers killed, {} take-overs so far; {}", self.taken_over, self.shift.told()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        let untested = self.taken_over == 0 && self.round >= ROUNDS_SURE;
        ensure!(!untested, "in {} rounds no leased task was taken over, so nothing was tested", self.round);
        Ok(Some(format!("{} take-overs in {} rounds; {}", self.taken_over, self.round, self.shift.summary())))
    }
}
