//! Attacks a running Waybill and looks at what becomes of others meanwhile.
//!
//! A black box: it starts the program, talks HTTP from several addresses of this machine, and shares no code with it. Every
//! attack has a server of its own; an innocent second tenant calls before, during and after it, and the marks in
//! `marks.rs` say what has to hold.

mod attacks;
mod caller;
mod holder;
mod keys;
mod limits;
mod marks;
mod round;
mod scale;
mod series;
mod stage;
mod swarm;
mod tally;
mod wire;
mod witness;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use waybill_bench::cluster::Cluster;
use waybill_bench::table::print_table;

use crate::attacks::Attack;
use crate::marks::{HEADINGS, Outcome};
use crate::scale::Scale;
use crate::stage::Stage;

/// Files beside the connections of an attack: the witnesses' own, and what the runtime needs.
const FILES_BESIDE: u64 = 500;

/// Attack a running Waybill and look at what becomes of others meanwhile.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// A few seconds of each attack, with a server of fewer places: for CI
    #[arg(long)]
    short: bool,
    /// Only these attacks, by their names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Attack a server on a PostgreSQL of its own
    #[arg(long)]
    postgres: bool,
    /// Also write the results to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// The program to attack [default: the one beside this program]
    #[arg(long)]
    waybill: Option<PathBuf>,
    /// Where to put the temporary folder [default: the target folder]
    #[arg(long)]
    dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    start(&Cli::parse()).unwrap_or_else(|error| {
        say(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

/// Progress is a courtesy; a closed stderr is no reason to stop.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

fn start(cli: &Cli) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        // Dropping the run stops its server and removes its folder.
        tokio::select! {
            code = Box::pin(run(cli)) => code,
            _ = interrupt.recv() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
        }
    });
    runtime.shutdown_background();
    code
}

async fn run(cli: &Cli) -> Result<ExitCode> {
    let attacks = chosen(&cli.only)?;
    let mut scale = if cli.short { Scale::short() } else { Scale::whole() };
    fit_to_files(&mut scale, limits::raise()?);
    let binary = std::env::current_exe()?;
    let beside = binary.parent().context("this program has no folder")?;
    let base = cli.dir.as_deref().or_else(|| beside.parent()).context("no target folder; give --dir")?;
    let waybill = std::path::absolute(cli.waybill.clone().unwrap_or_else(|| beside.join("waybill")))?;
    let folder = tempfile::Builder::new().prefix("hostile-").tempdir_in(base)?;
    let dir = folder.path().canonicalize()?;

    say("making keys and tasks");
    let cluster = if cli.postgres { Some(cluster(&dir).await.context("starting PostgreSQL")?) } else { None };
    let stage = Stage::make(&waybill, &dir, &scale, &attacks, cluster).await?;
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    for attack in attacks {
        say(&format!("{}: {}", attack.name(), attack.what()));
        match Box::pin(round::play(&stage, attack, &scale)).await {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => failures.push(format!("{}: {error:#}", attack.name())),
        }
    }
    report(cli, &outcomes, &failures)
}

async fn cluster(dir: &Path) -> Result<Cluster> {
    // PostgreSQL runs as a user of its own, which has to pass through. What else is in the folder stays closed.
    std::fs::set_permissions(dir, Permissions::from_mode(0o711))?;
    Cluster::start(None, &dir.join("pg")).await
}

fn chosen(only: &[String]) -> Result<Vec<Attack>> {
    let names = || Attack::ALL.iter().map(|attack| attack.name()).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = only.iter().find(|name| !Attack::ALL.iter().any(|attack| attack.name() == *name)) {
        bail!("--only {unknown}: there are {}", names());
    }
    let wanted = |attack: &&Attack| only.is_empty() || only.iter().any(|name| name == attack.name());
    Ok(Attack::ALL.iter().filter(wanted).copied().collect())
}

/// Where the machine allows fewer files than the attack has connections, it has fewer.
fn fit_to_files(scale: &mut Scale, files: u64) {
    let most = usize::try_from(files.saturating_sub(FILES_BESIDE)).unwrap_or(usize::MAX);
    if scale.idle_connections > most {
        say(&format!("{files} files may be open: {most} idle connections instead of {}", scale.idle_connections));
        scale.idle_connections = most;
    }
}

fn report(cli: &Cli, outcomes: &[Outcome], failures: &[String]) -> Result<ExitCode> {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().map(Outcome::row));
    let mut out = std::io::stdout().lock();
    print_table(&mut out, &rows)?;
    writeln!(
        out,
        "\nLatencies of the innocent are p50/p99/longest; errors and MiB resident are before/during/after and"
    )?;
    writeln!(
        out,
        "before/peak/after; keys, revokes and metrics are those that went well during the attack, and the longest."
    )?;
    for outcome in outcomes {
        writeln!(out, "\n{}: {}", outcome.name, outcome.attackers)?;
        for check in outcome.checks.iter().filter(|check| check.holds) {
            writeln!(out, "  holds: {}", check.what)?;
        }
        for miss in outcome.misses() {
            writeln!(out, "  MISSED: {miss}")?;
        }
    }
    for failure in failures {
        writeln!(out, "\ncould not run: {failure}")?;
    }
    let missed = outcomes.iter().filter(|outcome| !outcome.misses().is_empty()).count();
    writeln!(out, "\nhostile: {} attacks, {} held, {missed} not", outcomes.len(), outcomes.len() - missed)?;
    if let Some(path) = &cli.json {
        let attacks: Vec<_> = outcomes.iter().map(Outcome::json).collect();
        let text =
            serde_json::to_string_pretty(&json!({ "short": cli.short, "attacks": attacks, "failures": failures }))?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(if missed == 0 && failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap(), Attack::ALL);
        assert_eq!(chosen(&["keys".to_owned()]).unwrap().len(), 1);
        assert!(chosen(&["kings".to_owned()]).is_err());
    }
}
