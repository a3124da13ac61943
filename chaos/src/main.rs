//! Breaks a running Waybill on purpose and checks that it kept its promises.
//!
//! A black box: it starts the release binary, talks HTTP, and knows none of our crates. One seed decides when the faults
//! strike; a failed run keeps its journal, its data folder and its seed.

mod audit;
mod campaign;
mod checker;
mod client;
mod cluster;
mod history;
mod image;
mod journal;
mod listing;
mod load;
mod proxy;
mod rng;
mod scenarios;
mod server;
mod stamp;
mod standby;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use tempfile::TempDir;
use tokio::signal::unix::{Signal, SignalKind, signal};

use campaign::{Plan, Report};
use checker::Invariant;
use scenarios::{About, Setting};
use server::Launch;

/// Break a running Waybill on purpose and check that it kept its promises.
#[derive(Parser)]
#[command(name = "waybill-chaos")]
struct Args {
    /// The scenario; without one, they are listed.
    scenario: Option<String>,
    /// Rounds of load, fault, restart and check.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    rounds: Option<u32>,
    /// Repeats the choices of an earlier run; decimal or 0x….
    #[arg(long, value_parser = parse_seed)]
    seed: Option<u64>,
    /// The longest load before a fault, in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=5))]
    seconds: u64,
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=512))]
    connections: u32,
    /// The program under test.
    #[arg(long, default_value = "target/release/waybill")]
    waybill: PathBuf,
    /// An extra argument for `waybill serve`; may be repeated. The environment is passed on as it is.
    #[arg(long = "serve-arg", allow_hyphen_values = true)]
    serve_args: Vec<String>,
    /// Folder for images, data and logs; each run makes its own inside.
    #[arg(long, default_value = "target/chaos")]
    work: PathBuf,
    /// libfaketime.so.1, when it is not where the package puts it.
    #[arg(long)]
    faketime: Option<PathBuf>,
    /// Keep everything, whatever the outcome; the image stays mounted.
    #[arg(long)]
    keep: bool,
    /// To see the check go red. With commit-cut and postgres-kill a proxy answers some commits and rolls them back; with
    /// failover-sync the standby is not synchronous.
    #[arg(long)]
    plant: bool,
    /// Succeed when an invariant is violated (this one, if named): for servers with a planted bug.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "any", value_name = "INVARIANT")]
    expect_red: Option<String>,
}

fn parse_seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16))
}

/// Progress and findings, to stderr. A closed stderr must not end a run that has something to clean up.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Results, to stdout.
fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<bool> {
    let Some(name) = args.scenario.as_deref() else {
        print("scenarios:");
        for About { name, rounds, what } in &scenarios::ALL {
            print(&format!("  {name:<14} {what} ({rounds} rounds)"));
        }
        return Ok(true);
    };
    let Some(about) = scenarios::ALL.iter().find(|about| about.name == name) else {
        bail!("no scenario {name}; a call without arguments lists them");
    };
    if let Some(expected) = args.expect_red.as_deref()
        && expected != "any"
        && !Invariant::ALL.iter().any(|invariant| invariant.name() == expected)
    {
        bail!("no invariant {expected}");
    }
    let interruption = Interruption::listen()?;
    if let Some(why) = scenarios::lacking(about.name, args.faketime.as_deref()) {
        print(&format!("skipped: {why}"));
        return Ok(true);
    }
    let seed = args.seed.unwrap_or_else(rng::fresh_seed);
    let rounds = args.rounds.unwrap_or(about.rounds);
    say(&format!("{name}: {rounds} rounds, seed {seed:#x}"));
    play(&args, about, rounds, seed, interruption).await
}

/// Plays one scenario to its end, or to the first signal; either way what it started and mounted is taken down.
async fn play(args: &Args, about: &About, rounds: u32, seed: u64, interruption: Interruption) -> Result<bool> {
    std::fs::create_dir_all(&args.work).with_context(|| format!("creating {}", args.work.display()))?;
    let folder = TempDir::with_prefix_in(format!("{}-{seed:x}-", about.name), std::path::absolute(&args.work)?)?;
    let mut plan = Plan {
        run: format!("{}-{seed:x}", about.name),
        seed,
        rounds,
        seconds: args.seconds,
        connections: args.connections,
        launch: Launch {
            wrapper: Vec::new(),
            envs: Vec::new(),
            program: args.waybill.clone(),
            extra: args.serve_args.clone(),
            log: folder.path().join("server.log"),
        },
    };
    let kept_journal = folder.path().join("journal.jsonl");
    let mut report = Report::default();
    let setting = Setting {
        folder: folder.path().to_owned(),
        keep: args.keep,
        plant: args.plant,
        faketime: args.faketime.clone(),
    };
    let work = Box::pin(scenarios::play(about.name, setting, &mut plan, &kept_journal, &mut report));
    let outcome = tokio::select! {
        outcome = work => Some(outcome),
        () = interruption.arrived() => None,
    };
    report.failed += u32::from(matches!(outcome, Some(Err(_))) || !report.violations.is_empty());
    let good = conclude(about.name, seed, &report, outcome.as_ref(), args.expect_red.as_deref());
    // An expected violation is no evidence to keep; an interrupted run has none.
    if args.keep || (!good && outcome.is_some()) {
        say(&format!("kept: {} (seed {seed:#x})", folder.keep().display()));
    }
    Ok(good)
}

/// Listens from its making on, so that no signal ends the program while something is mounted.
struct Interruption {
    interrupt: Signal,
    terminate: Signal,
}

impl Interruption {
    fn listen() -> Result<Self> {
        Ok(Interruption { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn arrived(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Prints the closing lines and says whether the run counts as a success.
fn conclude(name: &str, seed: u64, report: &Report, outcome: Option<&Result<()>>, expect: Option<&str>) -> bool {
    match outcome {
        Some(Err(error)) => say(&format!("error: {error:#}")),
        None => say("interrupted"),
        Some(Ok(())) => {}
    }
    let counts = Invariant::ALL.map(|invariant| format!("{} {}", report.count(invariant), invariant.name()));
    print(&format!(
        "{name}: {} rounds, {} acknowledged, {} refused, {} unknown resolved, {} (seed {seed:#x}, longest round {:.1} s)",
        report.passed + report.failed,
        report.acknowledged,
        report.refused,
        report.resolved,
        counts.join(", "),
        report.longest.as_secs_f64(),
    ));
    print(&format!("{} passed, {} failed", report.passed, report.failed));
    verdict(report, matches!(outcome, Some(Ok(()))), expect)
}

/// With a planted bug only a violation is a success: a harness in trouble proves nothing in either direction.
fn verdict(report: &Report, finished: bool, expect: Option<&str>) -> bool {
    match expect {
        None => finished && report.violations.is_empty(),
        Some("any") => !report.violations.is_empty(),
        Some(name) => report.violations.iter().any(|violation| violation.invariant.name() == name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use checker::Violation;

    #[test]
    fn a_planted_bug_turns_the_verdict_around() {
        let clean = Report::default();
        let red = Report { violations: vec![Violation::new(Invariant::Lost, "planted")], ..Report::default() };
        for (report, finished, expect, good) in [
            (&clean, true, None, true),
            (&clean, false, None, false),
            (&red, true, None, false),
            (&clean, true, Some("any"), false),
            (&clean, false, Some("any"), false),
            (&red, true, Some("any"), true),
            (&red, true, Some("lost"), true),
            (&red, true, Some("doubled"), false),
        ] {
            assert_eq!(verdict(report, finished, expect), good, "finished {finished}, expected {expect:?}");
        }
    }

    #[test]
    fn seeds_are_read_as_printed() {
        assert_eq!(parse_seed(&format!("{:#x}", 255)), Ok(255));
        assert_eq!(parse_seed("12"), Ok(12));
    }
}
