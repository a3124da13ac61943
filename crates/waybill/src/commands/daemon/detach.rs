//! A daemon in a process of its own: this executable again, without a terminal, with its log in daemon.log.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use waybill_daemon::{Folder, folder};
use waybill_kernel::{Code, Error, Result};
use waybill_store::safety;

use super::logs::tail;
use crate::commands::peer::home::unusable;
use crate::commands::peer::socket::Socket;
use crate::commands::worker::exec::OWN;
use crate::output;

/// What it says outside of its log: why it did not start, or a panic.
pub const STDERR: &str = "daemon.stderr";
const POLL: Duration = Duration::from_millis(20);
const LAST_LINES: usize = 10;

/// Starts it and waits until its socket answers; the number of its process. `secret` is a name and a value of its environment.
pub async fn start(
    folder: &Folder,
    args: &[OsString],
    secret: Option<(&str, &str)>,
    patience: Duration,
) -> Result<u32> {
    let path = folder.file(STDERR);
    let mut options = File::options();
    options.create(true).write(true).truncate(true).mode(0o600);
    let stderr = safety::open_private(&mut options, &path).map_err(|error| unusable(&path, &error))?;
    let mut command = command(folder, args, secret);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let child = command.spawn().map_err(Error::internal)?;
    wait(child, folder, patience).await
}

fn command(folder: &Folder, args: &[OsString], secret: Option<(&str, &str)>) -> Command {
    let own = std::env::current_exe().ok().filter(|own| own.exists()).unwrap_or_else(|| OWN.into());
    let mut command = Command::new(own);
    command.arg0("waybill").args(args).current_dir(folder.path());
    command.envs(secret);
    command
}

async fn wait(mut child: Child, folder: &Folder, patience: Duration) -> Result<u32> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().map_err(Error::internal)? {
            return Err(ended(folder, status.code()));
        }
        if Socket::find(folder).await?.is_some() {
            return Ok(child.id());
        }
        if Instant::now() > deadline {
            let message = format!(
                "The daemon, process {}, does not answer on its socket after {} s.",
                child.id(),
                patience.as_secs()
            );
            show_log(folder)?;
            return Err(Error::new(Code::DaemonUnreachable, message).with_cure(
                "It goes on starting; see `waybill daemon logs`, or ask again with `waybill daemon status`.",
            ));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// As it said itself, in its own words and with its own exit code.
fn ended(folder: &Folder, exit: Option<i32>) -> Error {
    let _ = show_log(folder);
    let said = std::fs::read_to_string(folder.file(STDERR)).unwrap_or_default();
    let code = said.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(code, _)| code);
    let known = Code::ALL.iter().copied().find(|known| Some(known.entry().code) == code);
    let known = known.or_else(|| Code::ALL.iter().copied().find(|known| Some(i32::from(known.entry().exit)) == exit));
    let mut lines = said.trim().lines();
    let first = lines.next().unwrap_or("It said nothing about why.").trim_start_matches("waybill: ");
    let first = first.rsplit_once(" [").map_or(first, |(message, _)| message);
    let message = format!("The daemon did not start: {first}");
    let error = Error::new(known.unwrap_or(Code::DaemonUnreachable), message);
    match lines.next_back() {
        Some(cure) => error.with_cure(cure.trim()),
        None => error,
    }
}

/// The last lines of its log, for whoever waits for it.
fn show_log(folder: &Folder) -> Result<()> {
    let Ok(mut file) = File::open(folder.file(folder::LOG)) else { return Ok(()) };
    for line in tail(&mut file, LAST_LINES).unwrap_or_default() {
        output::note(&line)?;
    }
    Ok(())
}

/// In the process that was started: away from the terminal and the group of whoever started it.
pub fn let_go() -> Result<()> {
    rustix::process::setsid().map(drop).map_err(Error::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_the_environment_and_not_among_the_arguments() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let command = command(&folder, &["daemon".into(), "up".into()], Some(("WAYBILL_INVITE", "s3cret")));
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["daemon", "up"]);
        let given: Vec<_> = command.get_envs().collect();
        assert_eq!(given, [("WAYBILL_INVITE".as_ref(), Some("s3cret".as_ref()))]);
    }

    #[test]
    fn why_it_did_not_start_is_told_as_it_was_said() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let entry = Code::OutboxDamaged.entry();
        let said = format!("waybill: A page is torn [{}]\n  because: x\n  {}\n", entry.code, entry.cure);
        std::fs::write(folder.file(STDERR), said).unwrap();
        let error = ended(&folder, Some(i32::from(entry.exit)));
        assert_eq!((error.code(), error.cure()), (Code::OutboxDamaged, entry.cure));
        assert_eq!(error.message(), "The daemon did not start: A page is torn");
        std::fs::write(folder.file(STDERR), "").unwrap();
        assert_eq!(ended(&folder, None).code(), Code::DaemonUnreachable);
    }
}
