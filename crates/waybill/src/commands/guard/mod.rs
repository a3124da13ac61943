//! `waybill guard …`: keeps a commit or a push from taking files that another agent has reserved.
//!
//! # The outside system
//! git runs an executable file `pre-commit` or `pre-push` in its folder of hooks, and gives up what it was about to do when
//! that ends with anything but 0. `--no-verify` passes both by. During a commit GIT_INDEX_FILE and GIT_DIR say what is being
//! committed, so the environment is handed on as it is to every git that is asked.
//!
//! # What we do
//! [`hooks`] puts a file of three lines there that calls `waybill guard check`, and keeps the hook that was there: it is run
//! first. [`git`] says which files are meant, [`check`] asks who holds them.
//!
//! # What may fail
//! A guard that cannot look lets the commit pass and says so: never does a server that is away stop one. What stops it is a
//! reservation, a name that is not known, or more reservations than are looked at.

mod check;
mod git;
mod held;
mod hooks;

use clap::{Args, Subcommand, ValueEnum};
use waybill_kernel::Result;

#[derive(Subcommand)]
pub enum Guard {
    /// Ask whether others have reserved the files of the commit or push that is being made.
    Check(Box<check::Check>),
    /// Put the guard into a repository. A hook that is there is kept, and run first.
    Install(hooks::Install),
    /// Take the guard out of a repository, and put back the hook that was there.
    Uninstall(hooks::Uninstall),
}

/// Before what git asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hook {
    PreCommit,
    PrePush,
}

impl Hook {
    pub const ALL: [Hook; 2] = [Hook::PreCommit, Hook::PrePush];
}

impl From<Hook> for waybill_checkout::hooks::Hook {
    fn from(hook: Hook) -> Self {
        match hook {
            Hook::PreCommit => Self::PreCommit,
            Hook::PrePush => Self::PrePush,
        }
    }
}

/// Which repository.
#[derive(Args, Clone, Default)]
pub struct Repository {
    /// A folder in the repository [default: the working directory].
    #[arg(long, value_name = "DIR")]
    pub repo: Option<std::path::PathBuf>,
}

pub async fn run(command: Guard) -> Result<()> {
    match command {
        Guard::Check(flags) => check::run(*flags).await,
        Guard::Install(flags) => hooks::install(&flags),
        Guard::Uninstall(flags) => hooks::uninstall(&flags),
    }
}
