//! `waybill mail reconcile`: the database and the archive compared, and one made from the other, while no server runs on the data folder.

mod from_database;

use clap::Args;
use waybill_kernel::{Code, Error, Result};

use crate::cli::Location;

#[derive(Args)]
pub struct Reconcile {
    #[command(flatten)]
    mode: Modes,
    #[command(flatten)]
    location: Location,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// One of them.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct Modes {
    /// Compare the archive with the database and change nothing. Exit code 79 when they differ.
    #[arg(long)]
    check: bool,
    /// Make the archive what the database says.
    #[arg(long)]
    rebuild: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Check,
    Rebuild,
}

impl Modes {
    fn chosen(&self) -> Result<Mode> {
        match (self.check, self.rebuild) {
            (true, false) => Ok(Mode::Check),
            (false, true) => Ok(Mode::Rebuild),
            _ => Err(Error::new(Code::InvalidRequest, "Say either --check or --rebuild.")),
        }
    }
}

pub async fn run(flags: Reconcile) -> Result<()> {
    match flags.mode.chosen()? {
        Mode::Check => from_database::check(&flags.location, flags.json).await,
        Mode::Rebuild => from_database::rebuild(&flags.location, flags.json).await,
    }
}
