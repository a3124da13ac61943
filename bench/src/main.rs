//! Measures the product against the bare minimum: an HTTP server that stores nothing, a disk that only syncs, a
//! database nothing stands before. It starts all of them itself, on the loopback, in a folder it removes afterwards.

mod burst;
mod contest;
mod costs;
mod disk;
mod fill;
mod fleet;
mod graphile;
mod hello;
mod histogram;
mod idle;
mod load;
mod mail;
mod mesh;
mod partitions;
mod pgbench;
mod product;
mod queues;
mod report;
mod request;
mod script;
mod site;
mod targets;
mod waits;
mod wire;

use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use waybill_bench::{cluster, http, process, table};

use crate::contest::{Contestant, Results, Settings};
use crate::idle::{Idle, Wanted};
use crate::queues::Homes;
use crate::report::Report;

const MEMORY: &str = "memory";
const STARTUP: &str = "startup";
const BURST: &str = "burst";
/// Also a part of the contest.
const MESH: &str = "mesh";

/// How fast Waybill is, as ratios of one run.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Seconds of each contestant's slice
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Rounds in which every contestant has one slice
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Also write the results to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only these: fdatasync, hello, sqlite, postgres, sends, pgbench, lifecycle, graphile, obligations, backlog, queues,
    /// rivals, depths, mail, mail-rivals, mesh, memory, burst, startup
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The program to measure [default: the one beside this program]
    #[arg(long)]
    waybill: Option<PathBuf>,
    /// Create tasks without an idempotency key
    #[arg(long)]
    keyless: bool,
    /// Idle sockets of members at one broker
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    sockets: u64,
    /// Messages that are queued without a broker and then drained
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    queued: u64,
    /// Where to put the temporary folder, on a real disk [default: the target folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Folder of PostgreSQL's programs [default: the newest in /usr/lib/postgresql]
    #[arg(long)]
    pg_bin: Option<PathBuf>,
    /// Folder in which npm has installed graphile-worker and node
    #[arg(long)]
    graphile: Option<PathBuf>,
    /// Folder in which npm has installed fauxqs and node
    #[arg(long)]
    fauxqs: Option<PathBuf>,
    /// Folder in which npm has installed elasticmq
    #[arg(long)]
    elasticmq: Option<PathBuf>,
    /// Virtual environment in which pip has installed mcp-agent-mail
    #[arg(long)]
    agent_mail: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Be the bare hello server
    #[command(hide = true)]
    Hello {
        #[arg(long)]
        data: PathBuf,
    },
    /// A FIFO queue in one store against one in four, on a disk that is slow and on one that is not
    Partitions {
        /// A program with the feature `sabotage`, which can make its disk slow
        #[arg(long)]
        sabotaged: PathBuf,
    },
    /// Mail for an hour: what memory and open files come to
    Soak {
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_440))]
        minutes: u64,
        /// Messages sent
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        per_second: u64,
    },
}

fn main() -> ExitCode {
    start(&Cli::parse()).unwrap_or_else(|error| {
        drop(writeln!(std::io::stderr(), "error: {error:#}"));
        ExitCode::FAILURE
    })
}

fn start(cli: &Cli) -> Result<ExitCode> {
    if let Some(Role::Hello { data }) = &cli.command {
        hello::serve(data)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        // Dropping the run stops its processes and removes its folder.
        tokio::select! {
            code = run(cli) => code,
            _ = interrupt.recv() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
        }
    });
    // A slice on a thread of its own ends with the process.
    runtime.shutdown_background();
    code
}

async fn run(cli: &Cli) -> Result<ExitCode> {
    check_names(&cli.only)?;
    let binary = std::env::current_exe()?;
    let beside = binary.parent().context("this program has no folder")?;
    let base = cli.dir.as_deref().or_else(|| beside.parent()).context("no target folder; give --dir")?;
    let waybill = cli.waybill.clone().unwrap_or_else(|| beside.join("waybill"));
    if let Some(Role::Partitions { sabotaged }) = &cli.command {
        let folder = bench_folder(base)?;
        let (slice, rounds) = (Duration::from_secs(cli.seconds), cli.rounds as usize);
        let asked =
            partitions::Asked { waybill: std::path::absolute(sabotaged)?, pg_bin: cli.pg_bin.clone(), slice, rounds };
        partitions::run(&asked, &folder.path().canonicalize()?).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Role::Soak { minutes, per_second }) = cli.command {
        let folder = bench_folder(base)?;
        let asked = mail::soak::Asked {
            waybill: std::path::absolute(waybill)?,
            time: Duration::from_secs(60 * minutes),
            per_second,
        };
        mail::soak::run(&asked, &folder.path().canonicalize()?).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = Settings {
        // Servers run in folders of their own, where a relative path would mean something else.
        waybill: std::path::absolute(waybill)?,
        pg_bin: cli.pg_bin.clone(),
        graphile: cli.graphile.clone(),
        rivals: Homes { fauxqs: cli.fauxqs.clone(), elasticmq: cli.elasticmq.clone() },
        agent_mail: cli.agent_mail.clone(),
        measure: Duration::from_secs(cli.seconds),
        rounds: cli.rounds as usize,
        idempotent: !cli.keyless,
        contestants: Contestant::ALL.into_iter().filter(|contestant| cli.wants(contestant.part())).collect(),
    };
    let folder = bench_folder(base)?;
    let dir = folder.path().canonicalize()?;

    let mut results = Results::default();
    let idle = measure_idle(cli, &settings, &dir, &mut results).await;
    contest::run(&settings, &dir, &mut results).await?;
    finish(cli, &dir, &results, &idle)
}

/// PostgreSQL may run as another user, who has to find its folder below this one.
fn bench_folder(base: &Path) -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(base)?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// Before the contest: the machine should be as idle as the server.
async fn measure_idle(cli: &Cli, settings: &Settings, dir: &Path, results: &mut Results) -> Idle {
    let wanted = Wanted {
        startup: cli.wants(STARTUP),
        memory: cli.wants(MEMORY),
        burst: cli.wants(BURST),
        mesh: cli.wants(MESH).then_some(mesh::Size { sockets: cli.sockets as usize, messages: cli.queued as usize }),
    };
    if !wanted.startup && !wanted.memory && !wanted.burst && wanted.mesh.is_none() {
        return Idle::default();
    }
    // Progress is a courtesy; a closed stderr is no reason to stop.
    drop(writeln!(std::io::stderr(), "starting and stopping an idle server"));
    let idle = idle::measure(&settings.waybill, &dir.join("idle"), wanted).await;
    let idle = idle.unwrap_or_else(|error| {
        results.failures.insert("an idle server".to_owned(), format!("{error:#}"));
        Idle::default()
    });
    let of_mesh = idle.mesh.iter().flat_map(|load| &load.failures);
    results.failures.extend(of_mesh.map(|(what, why)| ((*what).to_owned(), why.clone())));
    idle
}

fn finish(cli: &Cli, dir: &Path, results: &Results, idle: &Idle) -> Result<ExitCode> {
    let file_system = disk::file_system(dir);
    let settings = json!({
        "seconds": cli.seconds,
        "rounds": cli.rounds,
        "idempotency_keys": !cli.keyless,
        "file_system": file_system,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
    });
    let report = Report { settings, results, idle, targets: targets::judge(results, idle) };
    let mut out = std::io::stdout().lock();
    report.print(&mut out)?;
    if file_system.as_deref() == Some("tmpfs") {
        writeln!(out, "\n{} is memory, not a disk: nothing here was durable.", dir.display())?;
    }
    if let Some(path) = &cli.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(if results.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Cli {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == name)
    }
}

fn check_names(names: &[String]) -> Result<()> {
    let mut known = Contestant::ALL.map(Contestant::part).to_vec();
    known.dedup();
    for name in names {
        if !known.contains(&name.as_str()) && ![MEMORY, BURST, STARTUP].contains(&name.as_str()) {
            bail!("--only {name}: there are {}, {MEMORY}, {BURST}, {STARTUP}", known.join(", "));
        }
    }
    Ok(())
}
