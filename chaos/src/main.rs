//! Breaks a running Waybill on purpose and checks that it kept its promises.
//!
//! A black box: it starts the release binary, talks HTTP, and knows none of our crates. One seed decides when the faults
//! strike; a failed run keeps its journal, its data folder and its seed.

mod audit;
mod books;
mod campaign;
mod checker;
mod client;
mod cluster;
mod crew;
mod foreign;
mod history;
mod image;
mod journal;
mod leases;
mod ledger;
mod listing;
mod load;
mod mail;
mod mesh;
mod proxy;
mod queues;
mod rng;
mod saved;
mod scenarios;
mod server;
mod session;
mod shift;
mod stamp;
mod standby;
mod tasks;
mod workload;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;

use checker::Invariant;
use saved::Saved;
use scenarios::About;
use session::{Interruption, Outcome, Session};

/// Break a running Waybill on purpose and check that it kept its promises.
#[derive(Parser)]
#[command(name = "waybill-chaos")]
struct Args {
    /// The scenario, or `all`; without one, they are listed.
    scenario: Option<String>,
    /// Rounds of load, fault, restart and check.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    rounds: Option<u32>,
    /// Repeats the choices of an earlier run; decimal or 0x….
    #[arg(long, value_parser = parse_seed)]
    seed: Option<u64>,
    /// The longest load before a fault, in seconds.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=5))]
    seconds: u64,
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=512))]
    connections: u32,
    /// The program under test.
    #[arg(long, default_value = "target/release/waybill")]
    waybill: PathBuf,
    /// The program with kill points, for kill-points: `cargo build -p waybill --features sabotage`.
    #[arg(long, default_value = "target/debug/waybill-sabotaged")]
    sabotaged: PathBuf,
    /// Continue the interrupted run whose folder this is; scenario, seed and rounds are its own.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["scenario", "seed"])]
    resume: Option<PathBuf>,
    /// With `all`: the scenario to begin with, when an earlier run was broken off.
    #[arg(long, value_name = "SCENARIO")]
    from: Option<String>,
    /// With `all`: leave these out
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
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
    /// Succeed when an invariant is violated (this one, or one of these with a comma between): for servers with a planted bug.
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
    let known = |name: &&str| *name == "any" || Invariant::ALL.iter().any(|invariant| invariant.name() == *name);
    if let Some(unknown) = args.expect_red.iter().flat_map(|names| names.split(',')).find(|name| !known(name)) {
        bail!("no invariant {unknown}");
    }
    let mut interruption = Interruption::listen()?;
    if let Some(folder) = &args.resume {
        let saved = Saved::read(folder)?;
        let about = find(&saved.scenario)?;
        if !scenarios::resumes(about.name) {
            bail!("a run of {} cannot be continued: play it anew with --seed {:#x}", about.name, saved.seed);
        }
        let seed = saved.seed;
        return Ok(Session { args: &args, about, seed, resumed: Some(saved) }.play(&mut interruption).await?.good());
    }
    let Some(name) = args.scenario.as_deref() else {
        print("scenarios (or `all`):");
        for About { name, rounds, what } in scenarios::ALL {
            print(&format!("  {name:<16} {what} ({rounds} rounds)"));
        }
        return Ok(true);
    };
    let seed = args.seed.unwrap_or_else(rng::fresh_seed);
    if args.from.is_some() && name != "all" {
        bail!("--from is for `all`");
    }
    if name == "all" {
        return all(&args, seed, &mut interruption).await;
    }
    Ok(Session { args: &args, about: find(name)?, seed, resumed: None }.play(&mut interruption).await?.good())
}

fn find(name: &str) -> Result<&'static About> {
    match scenarios::ALL.iter().find(|about| about.name == name) {
        Some(about) => Ok(about),
        None => bail!("no scenario {name}; a call without arguments lists them"),
    }
}

/// Every scenario in its turn, whatever became of the one before, and a table at the end.
async fn all(args: &Args, seed: u64, interruption: &mut Interruption) -> Result<bool> {
    let mut lines = Vec::new();
    let mut good = true;
    let first = args.from.as_deref().map(find).transpose()?.map_or(scenarios::ALL[0].name, |about| about.name);
    let is_wanted = |about: &&About| !args.without.iter().any(|name| name == about.name);
    let mut left = scenarios::ALL.iter().skip_while(|about| about.name != first).filter(is_wanted).peekable();
    while let Some(about) = left.next() {
        let began = std::time::Instant::now();
        let outcome = Session { args, about, seed, resumed: None }.play(interruption).await;
        let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        good &= outcome.good();
        lines.push(format!("{:<16} {:>5.0} s  {}", about.name, began.elapsed().as_secs_f64(), outcome.line()));
        if matches!(outcome, Outcome::Interrupted) {
            if let Some(next) = left.peek() {
                say(&format!("and the rest: cargo xtask chaos all --from {} --seed {seed:#x}", next.name));
            }
            break;
        }
    }
    print("");
    lines.iter().for_each(|line| print(line));
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_as_printed() {
        assert_eq!(parse_seed(&format!("{:#x}", 255)), Ok(255));
        assert_eq!(parse_seed("12"), Ok(12));
    }
}
