//! The `waybill` program, as a library so that its tests can read the registry it is wired with.

mod cli;
mod commands;
mod config;
mod data;
mod log;
mod memory;
mod output;
mod shared_token;
mod wiring;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use commands::worker::secrecy;
use waybill_keeper::keep;
use waybill_kernel::{Code, Error, Result};

/// Runs the command line this process was started with.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|word| word == keep::NAME) {
        return keep::run(args);
    }
    let command = Cli::parse().command;
    if let Some(connection) = command.connection()
        && let Err(error) = secrecy::keep(connection)
    {
        return report(&error);
    }
    waybill_heap::give_back_large_blocks();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // A server is for many at once. All else, a daemon above all, waits more than it computes, and with one thread hands less from
    // one to another; its disk has threads of its own.
    if !matches!(command, Command::Serve(_)) {
        builder.worker_threads(1);
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Error::internal(error)),
    };
    match runtime.block_on(run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Serve(flags) => commands::serve::run(flags).await,
        Command::Key { command } => commands::key::run(command).await,
        Command::ServerKey { command } => commands::server_key::run(command).await,
        Command::Tenant { command } => commands::tenant::run(command).await,
        Command::Receipts { command } => commands::receipts::run(command).await,
        Command::Webhook { command } => commands::webhook::run(command).await,
        Command::Queue { command } => commands::queue::run(command).await,
        Command::Mail { command } => commands::mail::run(command).await,
        Command::Guard { command } => commands::guard::run(command).await,
        Command::Mesh { command } => commands::mesh::run(command).await,
        Command::Daemon { command } => commands::daemon::run(command).await,
        Command::Send(flags) => commands::peer::send(flags).await,
        Command::Post(flags) => commands::peer::post(flags).await,
        Command::Inbox(flags) => commands::peer::inbox(flags).await,
        Command::Peers(at) => commands::peer::peers(at).await,
        Command::Sweeps { reach } => commands::sweeps::run(reach).await,
        Command::Backup(flags) => commands::backup::run(flags).await,
        Command::Restore(flags) => commands::restore::run(flags).await,
        Command::Doctor(flags) => commands::doctor::run(flags).await,
        Command::Mcp(flags) => {
            let url = commands::session::address(&flags.location, flags.url)?;
            let url = url.ok_or_else(|| Error::new(Code::ServerUnreachable, "No server runs on this data folder."))?;
            commands::mcp::run(&url, commands::session::named_key(flags.key), &flags.wanted).await
        }
        Command::Worker { command } => commands::worker::run(command).await,
        Command::Scheduler { command } => commands::scheduler::run(command).await,
        Command::Demo(flags) => commands::demo::run(flags).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "waybill", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// What happened, why, and what to do; the catalogue gives the exit code.
fn report(error: &Error) -> ExitCode {
    let entry = error.code().entry();
    let cause = error.cause().map(|cause| format!("\n  because: {cause}")).unwrap_or_default();
    let _ = output::note(&format!("waybill: {} [{}]{cause}\n  {}", error.message(), entry.code, error.cure()));
    ExitCode::from(entry.exit)
}
