//! `waybill scheduler`: a worker that keeps schedules and creates a task each time one is due.
//!
//! To the server it is a worker like any other: `schedule.create`, `pause`, `resume`, `delete` and `status` are tasks that
//! need the capability `scheduler`, and a firing is a `create_task`. The schedules are in a file of its own. Two rules make
//! restarts harmless: a change is applied only after the server has recorded the task that asked for it, and a firing is
//! recorded only after the server has its task, whose key it would find again.

pub mod book;
pub mod control;
pub mod cron;
pub mod definition;
pub mod fire;
#[cfg(test)]
mod fuzz;
pub mod rules;
pub mod template;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::{Args, Subcommand};
use tokio::sync::Notify;
use waybill_client::{Claim, Client};
use waybill_kernel::{Clock, Code, Error, Result, Time};

use super::worker::connect::{self, Stop};
use super::worker::flags::Connection;
use crate::config::LogFormat;
use crate::log;
use book::Book;

/// A wall clock that is further ahead than this has not drifted: the machine has slept, and so have we.
const SLEPT_US: i64 = 60_000_000;

#[derive(Subcommand)]
pub enum Scheduler {
    /// Keep schedules and create a task each time one is due. The key needs the roles agent, worker and delegate.
    Run(Run),
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub connection: Connection,
    /// The file the schedules are kept in [default: ~/.local/share/waybill/scheduler.db].
    #[arg(long, env = "WAYBILL_SCHEDULER_FILE", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// What the two loops share.
pub struct Shared {
    pub client: Client,
    pub claim: Claim,
    pub book: Book,
    pub stop: Stop,
    /// A change was applied: what is due next may be something else now.
    pub changed: Notify,
    clock: Mutex<Clock>,
}

impl Shared {
    pub fn now(&self) -> Time {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        if clock.offset_us() > SLEPT_US {
            tracing::info!(behind_us = clock.offset_us(), "the machine has slept: taking its clock's word anew");
            *clock = Clock::system();
        }
        clock.now()
    }

    /// Whole seconds since 1970: schedules know nothing smaller.
    pub fn now_s(&self) -> i64 {
        self.now().micros().div_euclid(1_000_000)
    }
}

pub async fn run(command: Scheduler) -> Result<()> {
    let Scheduler::Run(flags) = command;
    let _log = log::start(&flags.connection.log, LogFormat::Text)?;
    let file = flags.file.map_or_else(default_file, Ok)?;
    let shared = Arc::new(Shared {
        client: connect::client(&flags.connection)?,
        claim: control::claim(&flags.connection),
        book: Book::open(&file)?,
        stop: Stop::on_signals()?,
        changed: Notify::new(),
        clock: Mutex::new(Clock::system()),
    });
    tracing::info!(
        instance = shared.claim.worker_instance_id,
        server = shared.client.base(),
        file = %file.display(),
        "keeping schedules"
    );
    let firing = tokio::spawn(fire::run(Arc::clone(&shared)));
    let controlled = control::run(&shared).await;
    // Refused for good, or asked to stop: either way the other loop ends as well.
    shared.stop.stopping.cancel();
    firing.await.map_err(Error::internal)?;
    controlled
}

fn default_file() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| Error::new(Code::ConfigInvalid, "There is no home folder: say --file <file>."))?;
    Ok(PathBuf::from(home).join(".local/share/waybill/scheduler.db"))
}
