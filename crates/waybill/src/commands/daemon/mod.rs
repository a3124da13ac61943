//! `waybill daemon …`: the local peer of a mesh, one process per user and mesh.

mod control;
mod detach;
mod fleet;
mod keeping;
mod logs;
mod outbox;
mod service;
mod up;

use clap::Subcommand;
use waybill_kernel::Result;

use super::peer::home::At;

#[derive(Subcommand)]
pub enum Daemon {
    /// Start a daemon; returns once it answers on its socket.
    Up(Box<up::Up>),
    /// Stop a daemon; returns once it has ended.
    Down(control::Down),
    /// Stop a daemon and start it again.
    Restart(Box<up::Up>),
    /// Show how a daemon is.
    Status(At),
    /// List the daemons of this user, running or not.
    Ps(control::Ps),
    /// Print the last lines of a daemon's log.
    Logs(logs::Logs),
    /// Have a daemon read hooks.toml again.
    Reload(At),
    /// Make a damaged outbox usable again, and keep the damaged file.
    Recover(At),
    /// Give programs on TCP a new token; the old one is good for another minute.
    RotateToken(At),
    /// Make new keys for the member; what was sent to the old ones can still be opened for a week.
    RotateKeypair(At),
    /// Forget archived keys whose time is over.
    ArchiveCleanup(At),
    /// Say that a folder which was made on another host belongs to this one now.
    AcceptHost(At),
    /// Become a new member with new keys in a folder that was copied, with an invite.
    Remint(keeping::Remint),
    /// Write keys, archive, subscriptions and settings to a file that a passphrase opens.
    Backup(keeping::Backup),
    /// Make a membership from a backup.
    Restore(keeping::Restore),
    /// Write a unit that starts the daemon with the system.
    InstallService(service::Install),
    /// Leave the mesh, and take away its folder and unit.
    Uninstall(keeping::Remove),
    /// Take away the folder of a mesh. The mesh is not told.
    Reset(keeping::Remove),
    /// Messages that wait, were sent or could not be.
    Outbox {
        #[command(subcommand)]
        command: outbox::Outbox,
    },
}

pub async fn run(command: Daemon) -> Result<()> {
    match command {
        Daemon::Up(flags) => up::run(*flags).await,
        Daemon::Down(flags) => control::down(flags).await,
        Daemon::Restart(flags) => up::restart(*flags).await,
        Daemon::Status(at) => control::status(&at).await,
        Daemon::Ps(flags) => control::ps(flags).await,
        Daemon::Logs(flags) => logs::run(&flags).await,
        Daemon::Reload(at) => control::ask(&at, "reload", "Read again: hooks.toml.").await,
        Daemon::Recover(at) => keeping::recover(&at).await,
        Daemon::RotateToken(at) => control::ask(&at, "rotate-token", "local_token holds a new token.").await,
        Daemon::RotateKeypair(at) => control::ask(&at, "rotate-keypair", "The member has new keys.").await,
        Daemon::ArchiveCleanup(at) => {
            control::ask(&at, "archive-cleanup", "Archived keys whose time is over are gone.").await
        }
        Daemon::AcceptHost(at) => keeping::accept_host(&at),
        Daemon::Remint(flags) => keeping::remint(flags).await,
        Daemon::Backup(flags) => keeping::backup(flags).await,
        Daemon::Restore(flags) => keeping::restore(flags).await,
        Daemon::InstallService(flags) => service::install(&flags),
        Daemon::Uninstall(flags) => keeping::uninstall(flags).await,
        Daemon::Reset(flags) => keeping::reset(flags).await,
        Daemon::Outbox { command } => outbox::run(command).await,
    }
}
