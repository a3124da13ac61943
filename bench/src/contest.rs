//! The contestants, and the rounds in which they take turns.
//!
//! The machine is shared and its speed drifts, so nobody runs for long: each round gives every contestant one short
//! slice, every second round in reverse order, and only numbers of the same round are divided by each other.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cluster::{Cluster, Wal};
use crate::load::{self, Outcome, Plan, Template};
use crate::process::{Server, cpu_seconds, written_bytes};
use crate::{disk, http};

const WARMUP: Duration = Duration::from_millis(300);
/// Between slices: time for a contestant to finish what it does behind its answers.
const PAUSE: Duration = Duration::from_millis(200);
/// PostgreSQL's processes report what they did at most once a second, and then only when they do something.
const REPORT_INTERVAL: Duration = Duration::from_millis(1100);
const REPORT_NUDGE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contestant {
    Fdatasync,
    Hello,
    Sqlite,
    Postgres,
    Pgbench,
}

impl Contestant {
    pub const ALL: [Self; 5] = [Self::Fdatasync, Self::Hello, Self::Sqlite, Self::Postgres, Self::Pgbench];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fdatasync => "fdatasync",
            Self::Hello => "hello",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Pgbench => "pgbench",
        }
    }
}

/// A contestant and its number of connections.
pub type Slot = (Contestant, usize);

/// In the order of a round: those that are compared stand close to each other.
const SLOTS: [Slot; 12] = [
    (Contestant::Fdatasync, 1),
    (Contestant::Sqlite, 1),
    (Contestant::Hello, 1),
    (Contestant::Postgres, 1),
    (Contestant::Postgres, 8),
    (Contestant::Hello, 8),
    (Contestant::Sqlite, 8),
    (Contestant::Sqlite, 64),
    (Contestant::Hello, 64),
    (Contestant::Postgres, 64),
    (Contestant::Postgres, 32),
    (Contestant::Pgbench, 32),
];

pub struct Settings {
    pub waybill: PathBuf,
    pub pg_bin: Option<PathBuf>,
    pub measure: Duration,
    pub rounds: usize,
    pub idempotent: bool,
    pub contestants: Vec<Contestant>,
}

/// What one operation cost, by the counters of the server, the kernel and PostgreSQL.
#[derive(Clone, Default)]
pub struct Costs {
    pub fsyncs: Option<f64>,
    pub bytes: Option<f64>,
    pub writer_us: Option<f64>,
    /// Of the server's process only.
    pub cpu_us: Option<f64>,
    pub ops_per_commit: Option<f64>,
}

pub struct Sample {
    pub ops_per_second: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub costs: Costs,
    pub errors: BTreeMap<String, u64>,
}

#[derive(Default)]
pub struct Results {
    /// One entry per round, so that equal positions belong to the same round.
    pub samples: BTreeMap<Slot, Vec<Option<Sample>>>,
    /// Who could not run, and why.
    pub failures: BTreeMap<String, String>,
}

/// Everything that runs during the contest. Fields are dropped in order: servers before their database.
struct Fleet<'a> {
    settings: &'a Settings,
    dir: &'a Path,
    hello: Option<Server>,
    sqlite: Option<Server>,
    postgres: Option<Server>,
    cluster: Option<Cluster>,
    slices: usize,
}

pub async fn run(settings: &Settings, dir: &Path, results: &mut Results) -> Result<()> {
    let mut fleet = Fleet { settings, dir, hello: None, sqlite: None, postgres: None, cluster: None, slices: 0 };
    let slots = SLOTS.iter().filter(|(contestant, _)| settings.contestants.contains(contestant));
    let mut slots: Vec<Slot> = slots.copied().collect();
    for contestant in Contestant::ALL {
        if slots.iter().any(|slot| slot.0 == contestant)
            && let Err(error) = fleet.prepare(contestant).await
        {
            results.failures.insert(contestant.name().to_owned(), format!("{error:#}"));
            slots.retain(|slot| slot.0 != contestant);
        }
    }
    for round in 1..=settings.rounds {
        for slot in &slots {
            let name = format!("{} at {}", slot.0.name(), slot.1);
            writeln!(std::io::stderr(), "round {round} of {}: {name}", settings.rounds)?;
            let sample = fleet.slice(*slot).await;
            let sample = sample.map_err(|error| results.failures.insert(name, format!("{error:#}"))).ok();
            results.samples.entry(*slot).or_default().push(sample);
            tokio::time::sleep(PAUSE).await;
        }
        slots.reverse();
    }
    Ok(())
}

impl Fleet<'_> {
    async fn prepare(&mut self, contestant: Contestant) -> Result<()> {
        let waybill = &self.settings.waybill;
        match contestant {
            Contestant::Fdatasync => {}
            Contestant::Hello => self.hello = Some(Server::hello(&self.dir.join("hello")).await?),
            Contestant::Sqlite => {
                let server = Server::waybill(waybill, &self.dir.join("sqlite"), None).await?;
                create_one(&server).await?;
                self.sqlite = Some(server);
            }
            // pgbench needs the tables that the product's migrations make.
            Contestant::Postgres | Contestant::Pgbench if self.postgres.is_some() => {}
            Contestant::Postgres | Contestant::Pgbench => {
                if self.cluster.is_none() && !self.dir.join("pg").exists() {
                    let pg_bin = self.settings.pg_bin.as_deref();
                    self.cluster = Some(Cluster::start(pg_bin, &self.dir.join("pg")).await?);
                }
                let url = self.cluster.as_ref().context("PostgreSQL did not start")?.url();
                let server = Server::waybill(waybill, &self.dir.join("postgres"), Some(&url)).await?;
                create_one(&server).await?;
                self.postgres = Some(server);
            }
        }
        Ok(())
    }

    async fn slice(&mut self, (contestant, connections): Slot) -> Result<Sample> {
        self.slices += 1;
        match contestant {
            Contestant::Fdatasync => {
                let (dir, measure) = (self.dir.to_owned(), self.settings.measure);
                let outcome = tokio::task::spawn_blocking(move || disk::write_and_sync(&dir, measure)).await??;
                let costs = Costs { fsyncs: Some(1.0), bytes: Some(4096.0), ..Costs::default() };
                sample(outcome, costs)
            }
            Contestant::Hello => {
                let server = self.hello.as_mut().context("not running")?;
                server.check_running()?;
                let before = cpu_seconds(server.pid());
                let outcome = load::run(plan(server, "/hello", connections, self.settings, self.slices)).await?;
                let per_op = PerOp(outcome.ops_total);
                let cpu_us = per_op.share(before, cpu_seconds(server.pid()), 1e6);
                sample(outcome, Costs { cpu_us, ..Costs::default() })
            }
            Contestant::Sqlite => {
                let server = self.sqlite.as_mut().context("not running")?;
                server.check_running()?;
                let before = Counters::read(server).await?;
                let outcome = load::run(plan(server, "/v1/tasks", connections, self.settings, self.slices)).await?;
                let costs = Counters::read(server).await?.since(&before, outcome.ops_total);
                sample(outcome, costs)
            }
            Contestant::Postgres => self.postgres_slice(connections).await,
            Contestant::Pgbench => {
                let cluster = self.cluster.as_ref().context("not running")?;
                let before = cluster.wal().await?;
                let outcome = cluster.pgbench(connections, self.settings.measure).await?;
                let costs = wal_costs(&before, &cluster.wal().await?, outcome.ops_total);
                sample(outcome, costs)
            }
        }
    }

    async fn postgres_slice(&mut self, connections: usize) -> Result<Sample> {
        let server = self.postgres.as_mut().context("not running")?;
        let cluster = self.cluster.as_ref().context("not running")?;
        server.check_running()?;
        let (before, wal_before) = (Counters::read(server).await?, cluster.wal().await?);
        let load = plan(server, "/v1/tasks", connections, self.settings, self.slices);
        let outcome = load::run(load.clone()).await?;
        let own = Counters::read(server).await?.since(&before, outcome.ops_total);

        // The nudge makes every busy backend report; what it creates is part of the division. It is a slice of its own,
        // or its keys would be repeats.
        tokio::time::sleep(REPORT_INTERVAL).await;
        self.slices += 1;
        let nudge = plan(server, "/v1/tasks", connections, self.settings, self.slices);
        let nudge = Plan { warmup: Duration::ZERO, measure: REPORT_NUDGE, ..nudge };
        let all = outcome.ops_total + load::run(nudge).await?.ops_total;
        tokio::time::sleep(PAUSE).await;
        let wal = wal_costs(&wal_before, &cluster.wal().await?, all);
        sample(outcome, Costs { fsyncs: wal.fsyncs, bytes: wal.bytes, ..own })
    }
}

/// Verifies the key and the route once, before anything is measured.
async fn create_one(server: &Server) -> Result<()> {
    let body = r#"{"type":"echo","payload":{"n":1},"idempotency_key":"b-first"}"#;
    let answer = http::post(server.http, "/v1/tasks", server.key.as_deref(), body).await?;
    if answer.status != 201 {
        bail!("create_task answered {}: {}", answer.status, answer.body.trim());
    }
    Ok(())
}

fn plan(server: &Server, path: &str, connections: usize, settings: &Settings, slice: usize) -> Plan {
    let template = Template::task(server.http, path, server.key.as_deref(), slice, settings.idempotent);
    Plan { addr: server.http, connections, template, warmup: WARMUP, measure: settings.measure }
}

fn sample(outcome: Outcome, costs: Costs) -> Result<Sample> {
    if outcome.ops == 0 {
        bail!("not one success: {:?}", outcome.errors);
    }
    Ok(Sample {
        ops_per_second: outcome.ops as f64 / outcome.seconds,
        p50_us: outcome.latencies.quantile_us(0.5),
        p99_us: outcome.latencies.quantile_us(0.99),
        costs,
        errors: outcome.errors,
    })
}

/// Differences of counters, divided by a number of operations; a counter that is missing stays missing.
struct PerOp(u64);

impl PerOp {
    fn share(&self, before: Option<f64>, after: Option<f64>, unit: f64) -> Option<f64> {
        Some((after? - before?) * unit / self.0.max(1) as f64)
    }
}

/// What a server has done since its start.
struct Counters {
    commits: Option<f64>,
    fsyncs: Option<f64>,
    ops: Option<f64>,
    writer_seconds: Option<f64>,
    cpu_seconds: Option<f64>,
    written_bytes: Option<f64>,
}

impl Counters {
    async fn read(server: &Server) -> Result<Self> {
        let answer = http::get(server.http, "/metrics", server.key.as_deref()).await?;
        if answer.status != 200 {
            bail!("/metrics answered {}", answer.status);
        }
        let text = &answer.body;
        // The log goes to a file only here, so it is not part of the price.
        let log_bytes = server.log_bytes();
        Ok(Self {
            commits: http::counter(text, "waybill_store_commits_total"),
            fsyncs: http::counter(text, "waybill_store_fsyncs_total"),
            ops: http::counter(text, "waybill_store_ops_total"),
            writer_seconds: http::counter(text, "waybill_store_writer_busy_nanoseconds_total").map(|ns| ns / 1e9),
            cpu_seconds: cpu_seconds(server.pid()),
            written_bytes: written_bytes(server.pid()).map(|bytes| bytes.saturating_sub(log_bytes) as f64),
        })
    }

    fn since(&self, before: &Self, ops: u64) -> Costs {
        let per_op = PerOp(ops);
        let commits = self.commits.zip(before.commits).map(|(after, before)| after - before);
        let stored = self.ops.zip(before.ops).map(|(after, before)| after - before);
        Costs {
            fsyncs: per_op.share(before.fsyncs, self.fsyncs, 1.0),
            bytes: per_op.share(before.written_bytes, self.written_bytes, 1.0),
            writer_us: per_op.share(before.writer_seconds, self.writer_seconds, 1e6),
            cpu_us: per_op.share(before.cpu_seconds, self.cpu_seconds, 1e6),
            ops_per_commit: stored
                .zip(commits)
                .filter(|(_, commits)| *commits > 0.0)
                .map(|(ops, commits)| ops / commits),
        }
    }
}

fn wal_costs(before: &Wal, after: &Wal, ops: u64) -> Costs {
    let per_op = PerOp(ops);
    Costs {
        fsyncs: per_op.share(before.syncs, after.syncs, 1.0),
        bytes: per_op.share(Some(before.bytes), Some(after.bytes), 1.0),
        ..Costs::default()
    }
}
