//! Open files: the attackers need many, the server is started with what a login shell gives.

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit of most systems. A server that wants more has to raise it itself.
const ORDINARY: u64 = 1_024;

/// Raises the own soft limit to the hard one; how many files that is.
pub fn raise() -> Result<u64> {
    let hard = getrlimit(Resource::Nofile).maximum;
    set_soft(hard)?;
    Ok(hard.unwrap_or(u64::MAX))
}

/// Children started after this have the ordinary limit, until [`raise`] is called again.
pub fn ordinary() -> Result<()> {
    let hard = getrlimit(Resource::Nofile).maximum;
    set_soft(Some(hard.map_or(ORDINARY, |hard| hard.min(ORDINARY))))
}

fn set_soft(current: Option<u64>) -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).context("setting the limit of open files")
}
