//! The faults, by name. A scenario owns the data folder and knows how to take the server away from it, or what to do to it;
//! load, restart and checks are the same for all and live in `campaign`.

pub mod archive;
pub mod clock;
pub mod commit_cut;
pub mod damage;
pub mod disk_full;
pub mod failover;
pub mod fsync_error;
pub mod fsync_kill;
pub mod kill;
pub mod kill_points;
pub mod kill_shards;
pub mod mesh;
pub mod mesh_cut;
pub mod mesh_daemon_kill;
pub mod mesh_points;
pub mod mesh_postgres;
pub mod mesh_power;
pub mod pause;
mod points;
pub mod postgres_kill;
mod postgres_pause;
pub mod power;
pub mod worker_kill;
pub mod worker_pause;
pub mod worker_postgres;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::campaign::{self, Plan, Report};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::cluster;
use crate::history::Op;
use crate::image;
use crate::journal::Journal;
use crate::load::{Load, Pace, Stamp, Tally};
use crate::mesh::Party;
use crate::queues::Choice;
use crate::server::{Launch, Server};
use mesh::{BrokerKill, Fault, Mesh};

pub struct About {
    pub name: &'static str,
    pub rounds: u32,
    pub what: &'static str,
}

pub const ALL: &[About] = &[
    About { name: "kill", rounds: 50, what: "SIGKILL at a random moment under load, restart on the same folder" },
    About {
        name: "kill-shards",
        rounds: 30,
        what: "the same, with the partitions of FIFO queues in home and two further SQLite files",
    },
    About { name: "power", rounds: 10, what: "power cut: drops what was not fsynced (loop-mounted ext4, needs root)" },
    About { name: "pause", rounds: 10, what: "SIGSTOP for 0.1 to 2 s, several times under load; the server serves on" },
    About {
        name: "fsync-kill",
        rounds: 20,
        what: "killed by the kernel at its N-th fsync, N from 1 to 200 (needs strace)",
    },
    About {
        name: "clock",
        rounds: 10,
        what: "the clock stepped by ±1 h and ±5 d and strobed under load (needs libfaketime)",
    },
    About {
        name: "postgres-kill",
        rounds: 10,
        what: "SIGKILL of PostgreSQL under load, restart in place; the server serves on",
    },
    About {
        name: "postgres-pause",
        rounds: 10,
        what: "SIGSTOP of all of PostgreSQL, several times under load; the server serves on",
    },
    About { name: "commit-cut", rounds: 10, what: "the connection to PostgreSQL cut between COMMIT and its reply" },
    About {
        name: "kill-points",
        rounds: 22,
        what: "killed at each named point of the code (needs the sabotaged build)",
    },
    About { name: "fsync-error", rounds: 10, what: "fsync fails once, for a while, or for good (needs strace)" },
    About {
        name: "damage",
        rounds: 10,
        what: "log flipped or cut, database torn or rolled back while the server is down",
    },
    About {
        name: "archive",
        rounds: 10,
        what: "the archive of mail collected by git, locked, read-only, full and deleted under load (needs root)",
    },
    About { name: "disk-full", rounds: 10, what: "a disk that fills up under load and is cleared again (needs root)" },
    About {
        name: "failover-sync",
        rounds: 10,
        what: "SIGKILL of the primary, promotion of its synchronous standby behind a proxy; the old primary comes back",
    },
    About {
        name: "failover-async",
        rounds: 10,
        what: "the same with two addresses and an asynchronous standby: what is lost is bounded and counted",
    },
    About {
        name: "worker-kill",
        rounds: 20,
        what: "workers vanish, oversleep and repeat themselves; SIGKILL of the server under them, restart",
    },
    About {
        name: "worker-pause",
        rounds: 10,
        what: "the same with the server or its workers stopped for longer than a lease; worker programs killed",
    },
    About {
        name: "worker-postgres",
        rounds: 10,
        what: "the same with two servers on one PostgreSQL: one is killed, the other takes its leased tasks over",
    },
    About {
        name: "mesh-daemon-kill",
        rounds: 20,
        what: "SIGKILL of one or two of three mesh daemons under load, restart",
    },
    About { name: "mesh-broker-kill", rounds: 20, what: "SIGKILL of the mesh's broker under its daemons, restart" },
    About {
        name: "mesh-cut",
        rounds: 20,
        what: "the line between daemons and broker down, still, deaf or slow; nobody is restarted",
    },
    About { name: "mesh-power", rounds: 10, what: "power cut under one daemon (loop-mounted ext4, needs root)" },
    About {
        name: "mesh-postgres",
        rounds: 10,
        what: "PostgreSQL below the broker killed, cut off between COMMIT and its reply, failed over to a standby, in turn",
    },
    About {
        name: "mesh-limit",
        rounds: 10,
        what: "SIGKILL of a broker whose budget is used up, under members that send directly and repeat themselves",
    },
    About {
        name: "mesh-points",
        rounds: 14,
        what: "daemon or broker killed at each named point of a message's way (needs the sabotaged build)",
    },
];

/// Operations per second of a load that nobody works on.
const PER_SECOND: u64 = 1_000;

/// What the fault leaves.
pub enum After {
    /// No server; the next one starts on this folder.
    Restart(PathBuf),
    /// The same process, which has to serve on.
    Serving(Box<Server>),
}

pub trait Scenario {
    /// Makes the data folder's place and says how the server is started; called once, before the first start.
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf>;

    /// As `prepare`, for the data folder that an interrupted run has left.
    async fn resume(&mut self, launch: &mut Launch, _data: &Path) -> Result<PathBuf> {
        self.prepare(launch).await
    }

    /// Called once, when the first server is up.
    async fn open(&mut self, _at: &Endpoint) -> Result<()> {
        Ok(())
    }

    /// The longest load that this fault has use for, in milliseconds; `--seconds` may ask for less.
    fn load_ms_max(&self) -> u64 {
        u64::MAX
    }

    /// Whether queues are worked on beside the tasks.
    fn takes_queues(&self) -> bool {
        true
    }

    /// Which queues those are.
    fn queues(&self) -> Choice {
        Choice::default()
    }

    /// Whether mail is written beside the tasks. Where there is an archive, it is judged as well.
    fn takes_mail(&self) -> bool {
        false
    }

    /// Called before each start.
    fn arm(&mut self, _launch: &mut Launch) -> Result<()> {
        Ok(())
    }

    /// Was it asked while promises may be broken? Two callers may then both have been told the truth.
    fn forgives(&self, _asked: &Stamp) -> bool {
        false
    }

    /// Called before each load. May answer with another server, or with none: then the fault has already struck.
    async fn begin(&mut self, server: Server, _launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        Ok(Some(server))
    }

    /// How the load asks.
    fn pace(&self, connections: u32) -> Pace {
        Pace { connections, per_second: PER_SECOND, sprints: true }
    }

    /// As whom and where.
    fn callers(&self, server: &Server) -> Vec<Endpoint> {
        vec![server.endpoint.clone()]
    }

    /// Whose tasks they are, in turn, where the callers are not the admin that checks them afterwards.
    fn owners(&self) -> Vec<String> {
        Vec::new()
    }

    /// Called when the load has begun, for those who have a part of their own in it.
    fn join(&mut self, _server: &Server, _load: &Load) -> Result<()> {
        Ok(())
    }

    /// Whether the server may be gone before `strike` is called.
    fn ends_by_itself(&self) -> bool {
        false
    }

    /// Does the scenario's harm, under load.
    async fn strike(&mut self, server: Server, load: &Load) -> Result<After>;

    /// From when to when the fault may have cost what was answered. What it may cost of tasks is told by `account`.
    fn voids(&self) -> Option<(Instant, Instant)> {
        None
    }

    /// Called before the check: declares what this fault may cost (`Event::Void`), and judges it.
    async fn account(&mut self, _tally: &Tally, _at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        Ok(Vec::new())
    }

    /// What only this scenario can tell from the round's load and the times that the tasks bear.
    fn judge(&mut self, _tally: &Tally, _created_us: &HashMap<Op, i64>) -> Vec<Violation> {
        Vec::new()
    }

    /// What was done in this round, in a few words.
    fn told(&self) -> Option<String> {
        None
    }

    /// Called after the last round and its check, with nobody else about.
    async fn close(&mut self, _at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        Ok(Vec::new())
    }

    /// What all rounds together have to say. An error when they have not done what they were for.
    fn finish(&mut self) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Gives the server a settings file in the run's folder, and answers with the place of its data.
fn configure(folder: &Path, settings: &str, launch: &mut Launch) -> Result<PathBuf> {
    let config = folder.join("waybill.toml");
    std::fs::write(&config, settings)?;
    launch.extra.extend(["--config".to_owned(), config.display().to_string()]);
    let data = folder.join("data");
    std::fs::create_dir_all(&data)?;
    Ok(data)
}

/// What a scenario is made from, beside the plan.
pub struct Setting {
    /// The run's own folder.
    pub folder: PathBuf,
    /// Leave what is mounted in its place.
    pub keep: bool,
    /// The scenario's own planted lie, where it has one.
    pub plant: bool,
    /// libfaketime, when it is not where the package puts it.
    pub faketime: Option<PathBuf>,
    /// The program with kill points.
    pub sabotaged: PathBuf,
}

/// Why this machine cannot play the scenario, with the way out.
pub fn lacking(name: &str, setting: &Setting) -> Option<String> {
    let no_strace = || (!fsync_kill::available()).then(|| "install the package strace".to_owned());
    match name {
        "power" | "disk-full" | "mesh-power" => {
            image::available().err().map(|why| format!("{name} needs root and loop mounts on this machine: {why:#}"))
        }
        "archive" => {
            archive::available().err().map(|why| format!("{name} needs root and mounts on this machine: {why:#}"))
        }
        "fsync-kill" | "fsync-error" => no_strace(),
        "kill-points" | "mesh-points" => {
            let build = "cargo build -p waybill --features sabotage --bin waybill-sabotaged";
            let missing = || Some(format!("no program with kill points: {build}"));
            let strace = || if name == "kill-points" { no_strace() } else { None };
            if setting.sabotaged.exists() { strace() } else { missing() }
        }
        "clock" => {
            clock::library(setting.faketime.as_deref()).is_none().then(|| "install the package faketime".to_owned())
        }
        "postgres-kill" | "postgres-pause" | "commit-cut" | "failover-sync" | "failover-async" | "worker-postgres"
        | "mesh-postgres" => cluster::lacking(),
        _ => None,
    }
}

/// Can a run that was broken off be continued? Which of two servers was the primary then is nowhere written down, and the
/// address by which daemons know their broker ends with the harness.
pub fn resumes(name: &str) -> bool {
    !matches!(name, "failover-sync" | "failover-async" | "archive") && !name.starts_with("mesh-")
}

/// A run that must meet each of its points needs as many rounds.
pub fn rounds_min(name: &str) -> u32 {
    match name {
        "kill-points" => kill_points::POINTS.len() as u32,
        "mesh-points" => mesh_points::POINTS.len() as u32,
        _ => 1,
    }
}

pub async fn play(name: &str, setting: Setting, plan: &mut Plan, report: &mut Report) -> Result<()> {
    let Setting { folder, keep, plant, faketime, sabotaged } = setting;
    let (data, seed) = (folder.join("data"), plan.choices());
    match name {
        "kill" => campaign::run(plan, &mut kill::Kill { data }, report).await,
        "kill-shards" => campaign::run(plan, &mut kill_shards::KillShards::new(folder, plan.rounds), report).await,
        "pause" => campaign::run(plan, &mut pause::Pause::new(data, seed), report).await,
        "fsync-kill" => campaign::run(plan, &mut fsync_kill::FsyncKill::new(data, seed), report).await,
        "fsync-error" => campaign::run(plan, &mut fsync_error::FsyncError::new(folder, seed), report).await,
        "kill-points" => campaign::run(plan, &mut kill_points::KillPoints::new(folder, sabotaged, seed), report).await,
        "damage" => campaign::run(plan, &mut damage::Damage::new(folder, seed), report).await,
        "archive" => campaign::run(plan, &mut archive::Archive::new(folder, seed), report).await,
        "disk-full" => campaign::run(plan, &mut disk_full::DiskFull::new(folder, keep, seed), report).await,
        "clock" => {
            let library = clock::library(faketime.as_deref()).context("no libfaketime")?;
            campaign::run(plan, &mut clock::Clock::new(&folder, library, seed), report).await
        }
        "postgres-kill" => {
            campaign::run(plan, &mut postgres_kill::PostgresKill::new(folder, seed, plant), report).await
        }
        "postgres-pause" => campaign::run(plan, &mut postgres_pause::PostgresPause::new(folder, seed), report).await,
        "commit-cut" => campaign::run(plan, &mut commit_cut::CommitCut::new(folder, seed, plant), report).await,
        "worker-kill" => campaign::run(plan, &mut worker_kill::WorkerKill::new(folder), report).await,
        "worker-pause" => campaign::run(plan, &mut worker_pause::WorkerPause::new(folder, seed), report).await,
        "worker-postgres" => campaign::run(plan, &mut worker_postgres::WorkerPostgres::new(folder), report).await,
        "power" => campaign::run(plan, &mut power::Power::new(folder, keep), report).await,
        "failover-sync" | "failover-async" => {
            let mut failover = failover::Failover::new(folder, seed, name == "failover-sync", plant);
            campaign::run(plan, &mut failover, report).await
        }
        "mesh-limit" => campaign::run(plan, &mut Mesh::of_members(folder, seed, BrokerKill), report).await,
        _ if name.starts_with("mesh-") => play_daemons(name, folder, seed, keep, sabotaged, plan, report).await,
        _ => bail!("scenario {name} is listed and not written"),
    }
}

/// Scenarios on a mesh of daemons: one frame, and the fault in it.
async fn play_daemons(
    name: &str,
    folder: PathBuf,
    seed: u64,
    keep: bool,
    sabotaged: PathBuf,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<()> {
    let at = folder.clone();
    match name {
        "mesh-daemon-kill" => under(mesh_daemon_kill::DaemonKill::new(seed), folder, seed, plan, report).await,
        "mesh-broker-kill" => under(BrokerKill, folder, seed, plan, report).await,
        "mesh-cut" => under(mesh_cut::Cut::new(seed), folder, seed, plan, report).await,
        "mesh-power" => under(mesh_power::PowerCut::new(at, keep), folder, seed, plan, report).await,
        "mesh-postgres" => under(mesh_postgres::Database::new(at, seed), folder, seed, plan, report).await,
        "mesh-points" => under(mesh_points::AtPoints::new(sabotaged, seed), folder, seed, plan, report).await,
        _ => bail!("scenario {name} is listed and not written"),
    }
}

async fn under(
    fault: impl Fault<Party>,
    folder: PathBuf,
    seed: u64,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<()> {
    campaign::run(plan, &mut Mesh::of_daemons(folder, seed, fault), report).await
}
