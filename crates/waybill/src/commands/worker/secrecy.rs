//! Keeps the key of a worker or a scheduler from the programs that run beside it as the same user.
//!
//! Whoever is the same user may read the command line of a process, the environment it was started with, and its memory. So
//! a process that was given a key there begins anew without it: the key comes to it through a pipe, which holds it once.
//! After that the process shuts itself to everybody but root, and with it what it was started with and what it knows.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use waybill_kernel::{Code, Error, Result};

use super::exec::OWN;
use super::flags::Connection;
use crate::commands::session;

/// A pipe takes as much without a reader; a key is far shorter.
const KEY_BYTES_MAX: usize = 4_096;
/// Of ours, those that hold nothing secret. A store's address has a password in it.
const PLAIN: [&str; 3] = ["WAYBILL_URL", "WAYBILL_LOG", "WAYBILL_SCHEDULER_FILE"];

/// Returns in a process whose command line and environment hold no key, with `--key-file -` where one was given there.
pub fn keep(connection: &Connection) -> Result<()> {
    let (args, has_key) = without_key(std::env::args_os().skip(1));
    let secrets = secrets(std::env::vars_os().map(|(name, _)| name));
    if has_key || !secrets.is_empty() {
        return Err(begin_anew(connection, args, &secrets));
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(Error::internal)
}

/// Never comes back but with an error.
fn begin_anew(connection: &Connection, args: Vec<OsString>, secrets: &[OsString]) -> Error {
    let own = std::env::current_exe().ok().filter(|own| own.exists()).unwrap_or_else(|| PathBuf::from(OWN));
    let mut command = Command::new(own);
    command.arg0(std::env::args_os().next().unwrap_or_else(|| OsString::from("waybill"))).args(args);
    for name in secrets {
        command.env_remove(name);
    }
    if connection.key_file.is_none()
        && let Some(key) = session::named_key(connection.key.clone())
    {
        match piped(&key) {
            Ok(pipe) => command.args(["--key-file", "-"]).stdin(pipe),
            Err(error) => return error,
        };
    }
    Error::internal(command.exec())
}

fn piped(key: &str) -> Result<std::io::PipeReader> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::new(
            Code::Unauthorized,
            format!("The key has more than {KEY_BYTES_MAX} bytes: it is none."),
        ));
    }
    let (reader, mut writer) = std::io::pipe().map_err(Error::internal)?;
    writer.write_all(key.as_bytes()).map_err(Error::internal)?;
    Ok(reader)
}

/// The arguments without `--key KEY`, and whether it was among them.
fn without_key(mut args: impl Iterator<Item = OsString>) -> (Vec<OsString>, bool) {
    let (mut kept, mut found) = (Vec::new(), false);
    while let Some(arg) = args.next() {
        if arg == "--key" {
            args.next();
            found = true;
        } else if arg.as_encoded_bytes().starts_with(b"--key=") {
            found = true;
        } else {
            kept.push(arg);
        }
    }
    (kept, found)
}

fn secrets(names: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let is_secret = |name: &OsStr| {
        let ours = name.as_encoded_bytes().starts_with(b"WAYBILL_") && !PLAIN.iter().any(|plain| name == *plain);
        ours || name == "ASYNCGATE_API_KEY"
    };
    names.filter(|name| is_secret(name)).collect()
}

/// The text of a key file; `-` is what comes on stdin.
pub fn read_key_file(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_key_leaves_the_command_line_and_everything_else_stays() {
        let rest = words(&["worker", "run", "--key-file", "f", "--log", "info"]);
        for (given, found) in [
            (&["worker", "run", "--key", "k", "--key-file", "f", "--log", "info"][..], true),
            (&["worker", "run", "--key=k", "--key-file", "f", "--log", "info"], true),
            (&["worker", "run", "--key-file", "f", "--log", "info", "--key"], true),
            (&["worker", "run", "--key-file", "f", "--log", "info"], false),
        ] {
            assert_eq!(without_key(words(given).into_iter()), (rest.clone(), found), "{given:?}");
        }
    }

    #[test]
    fn a_second_look_finds_nothing_to_hide() {
        let names = words(&["PATH", "WAYBILL_KEY", "WAYBILL_URL", "WAYBILL_STORE", "ASYNCGATE_API_KEY", "WAYBILL_LOG"]);
        let secret = secrets(names.iter().cloned());
        assert_eq!(secret, words(&["WAYBILL_KEY", "WAYBILL_STORE", "ASYNCGATE_API_KEY"]));
        assert!(secrets(names.into_iter().filter(|name| !secret.contains(name))).is_empty());
    }
}
