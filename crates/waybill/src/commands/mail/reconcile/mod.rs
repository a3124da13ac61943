//! `waybill mail reconcile`: the database and the archive compared, and one made from the other, while no server runs on the data folder.

mod from_database;

use clap::Args;
use waybill_kernel::{Code, Error, Result};

use super::reindex;
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
    /// Take what the archive has and the database has not. Exit code 79 when some of it was refused.
    #[arg(long)]
    reindex: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Check,
    Rebuild,
    Reindex,
}

impl Modes {
    fn chosen(&self) -> Result<Mode> {
        match (self.check, self.rebuild, self.reindex) {
            (true, false, false) => Ok(Mode::Check),
            (false, true, false) => Ok(Mode::Rebuild),
            (false, false, true) => Ok(Mode::Reindex),
            _ => Err(Error::new(Code::InvalidRequest, "Say one of --check, --rebuild and --reindex.")),
        }
    }
}

pub async fn run(flags: Reconcile) -> Result<()> {
    match flags.mode.chosen()? {
        Mode::Check => from_database::check(&flags.location, flags.json).await,
        Mode::Rebuild => from_database::rebuild(&flags.location, flags.json).await,
        Mode::Reindex => reindex::from_own(&flags.location, flags.json).await,
    }
}
