//! Running other programs: the command line is shown, output is inherited, a failure carries the command's name.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};

const NETWORK_PAUSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(20), Duration::from_secs(60)];
/// Enough for the table at the end of a run, or the names of the tests that failed.
const REMEMBERED_LINES: usize = 40;

/// A line on stderr. The write may fail only when nobody listens any more.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A line on stdout: results, as opposed to progress.
pub fn result(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = show(command);
    say(&format!("$ {shown}"));
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed: {status}");
    }
    Ok(())
}

/// As `run`; a failure carries the last lines too, for a reader who sees only the end of a long log. At a terminal the program
/// has it to itself: there its progress is seen, and nothing has to be said twice.
pub fn run_remembered(command: &mut Command) -> anyhow::Result<()> {
    if std::io::stderr().is_terminal() {
        return run(command);
    }
    let shown = show(command);
    say(&format!("$ {shown}"));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let last = Mutex::new(VecDeque::new());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| stdout.map(|lines| pass_on(lines, result, &last)));
        scope.spawn(|| stderr.map(|lines| pass_on(lines, say, &last)));
    });
    let status = child.wait().with_context(|| format!("cannot wait for `{shown}`"))?;
    if !status.success() {
        let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
        let last: Vec<String> = last.into();
        bail!("`{shown}` failed: {status}; its last lines:\n{}", last.join("\n"));
    }
    Ok(())
}

fn pass_on(lines: impl Read, say: fn(&str), last: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        say(&line);
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == REMEMBERED_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
}

/// As `run`, for what comes over the network: a failure is waited out and tried again.
pub fn run_over_network(command: &mut Command) -> anyhow::Result<()> {
    for pause in NETWORK_PAUSES {
        match run(command) {
            Ok(()) => return Ok(()),
            Err(error) => say(&format!("{error:#}; trying again in {} s", pause.as_secs())),
        }
        std::thread::sleep(pause);
    }
    run(command)
}

/// Standard output of a command that must succeed; its stderr is inherited.
pub fn capture(command: &mut Command) -> anyhow::Result<String> {
    let shown = show(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed broken UTF-8"))
}

/// As `run`, with the standard output handed back; it is shown as well.
pub fn run_captured(command: &mut Command) -> anyhow::Result<String> {
    say(&format!("$ {}", show(command)));
    let output = capture(command);
    output.iter().for_each(|text| say(text.trim_end()));
    output
}

/// Whether a probe succeeds; a program that does not exist is a plain no.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a program of this name is on the path.
pub fn on_path(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
