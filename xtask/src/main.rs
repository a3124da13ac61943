//! `cargo xtask`: the one entry to everything that is done to this repository. CI calls the same commands.
//!
//! Each command is a file. Children inherit the terminal, so what a tool prints is what you see.

mod bench;
mod chaos;
mod deny;
mod foreign;
mod fuzz;
mod hostile;
mod planted;
mod process;
mod setup;
mod snapshots;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::process::say;
use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Everything that is done to this repository")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need (system packages, Python and npm clients); quick when all is there
    Setup,
    /// Everything CI checks: setup, tidy, deny, fmt, clippy, tests, a minute of fuzzing, short chaos, short attacks, foreign clients
    Test,
    /// Check the dependencies against deny.toml: licences, bans, sources, and advisories where they can be reached
    Deny,
    /// Check the repository itself: dependency edges, file sizes, banned words
    Tidy,
    /// Build in release and measure (arguments go to waybill-bench)
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build in release and break it on purpose (arguments go to waybill-chaos); --planted proves that the checks can fail
    Chaos {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build in release and attack it (arguments go to waybill-hostile); a table of what became of others meanwhile
    Hostile {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Feed every reader with what was never meant for it, on a small stack
    Fuzz {
        /// For all targets together
        #[arg(long, default_value_t = fuzz::SHORT_SECONDS, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
    },
    /// Rewrite the checked-in snapshots (OpenAPI, tool list, …) from the code; review the diff
    Snapshots,
    /// Only the foreign clients (MCP, OpenAPI, SQS) against a fresh dev binary
    Foreign,
}

fn main() -> ExitCode {
    let Some(command) = Cli::parse().command else {
        return match Cli::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    };
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match command {
        Command::Setup => setup::run(&workspace),
        Command::Test => test::run(&workspace),
        Command::Deny => deny::run(&workspace),
        Command::Tidy => tidy::run(&workspace),
        Command::Bench { args } => bench::run(&workspace, &args),
        Command::Chaos { args } => chaos::run(&workspace, &args),
        Command::Hostile { args } => hostile::run(&workspace, &args),
        Command::Fuzz { seconds } => fuzz::run(&workspace, seconds),
        Command::Snapshots => snapshots::run(&workspace),
        Command::Foreign => setup::run(&workspace).and_then(|()| foreign::run(&workspace)),
    }
}
