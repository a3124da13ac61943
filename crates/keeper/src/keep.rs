//! The keeper of one program: a process of its own between the worker and the program, and this program itself under a
//! name that nobody needs to type.
//!
//! It adopts what the program leaves behind, also what has made itself a session of its own, and ends all of it when the
//! program has ended or when the worker lets go. The worker lets go by closing its end of the socket, which the kernel does
//! for one that was killed; a byte on it asks the program to end by itself. Nothing is left when the keeper has no child any
//! more: whatever the program started is beneath one.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process_group, set_child_subreaper,
    set_dumpable_behavior, setsid, wait, waitid,
};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::offspring;

/// The word of the command line that makes this program a keeper.
pub const NAME: &str = "exec-guard";

/// How often the ends of adopted processes are taken while the program runs.
const REAP_INTERVAL: Duration = Duration::from_secs(1);
/// How long killed processes may take to be gone. One that is not ours to kill, or hangs in the kernel, is left.
pub const KILL_WAIT_MAX: Duration = Duration::from_secs(3);
const KILL_PAUSE_FIRST: Duration = Duration::from_millis(1);
const KILL_PAUSE_MAX: Duration = Duration::from_millis(20);

/// What the watching threads tell.
enum Seen {
    /// The worker wants the program to end by itself.
    Asked,
    /// The program has ended, or the worker has let go.
    Over,
}

/// What the keeper says to the worker, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    NotStarted {
        why: String,
    },
    Ended {
        /// As `wait` gives it; None when the program could not be ended.
        status: Option<i32>,
        /// Processes that could not be ended.
        left: usize,
    },
}

/// `args` are the program and its arguments. Standard input is the socket: on it come eight bytes, the length of what the
/// program is to read, and then that.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let control = UnixStream::from(control);
    let Ok(word) = keep(&control, args) else { return ExitCode::FAILURE };
    // A worker that is gone wants to know nothing.
    let _ = serde_json::to_writer(&control, &word);
    ExitCode::SUCCESS
}

fn keep(mut control: &UnixStream, mut args: impl Iterator<Item = OsString>) -> io::Result<Word> {
    set_child_subreaper(Some(getpid()))?;
    // Groups of another session cannot be joined, so none of those we kill has a stranger in it.
    setsid()?;
    // Nobody but the kernel and root looks into it or bends it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let signals = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = signals.enter();
    // Whoever signals all processes of a service means the worker, which decides how long the program may go on. What is
    // caught once is caught for good, and forgotten.
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        let _caught = signal(kind)?;
    }
    let mut length = [0; 8];
    control.read_exact(&mut length)?;
    let mut input = Vec::new();
    let length = u64::from_be_bytes(length);
    if control.take(length).read_to_end(&mut input)? as u64 != length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let mut command = Command::new(args.next().unwrap_or_default());
    command.args(args).process_group(0).stdin(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Word::NotStarted { why: error.to_string() }),
    };
    let mut program = Program { pid: Pid::from_child(&child), status: None };
    program.watch(&mut child, input, control.try_clone()?);
    let left = program.end_all();
    Ok(Word::Ended { status: program.status, left })
}

struct Program {
    pid: Pid,
    /// Once its end was taken.
    status: Option<i32>,
}

impl Program {
    /// Until it has ended or the worker has let go.
    fn watch(&mut self, child: &mut Child, input: Vec<u8>, control: UnixStream) {
        if let Some(mut stdin) = child.stdin.take() {
            // A program may end without reading what it was given.
            std::thread::spawn(move || stdin.write_all(&input));
        }
        let (tell, told) = mpsc::channel();
        let worker_gone = tell.clone();
        std::thread::spawn(move || await_end_of(control, &worker_gone));
        let pid = self.pid;
        std::thread::spawn(move || await_exit(pid, &tell));
        while self.status.is_none() {
            match told.recv_timeout(REAP_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => drop(self.reap()),
                // Its end has not been taken, so the group is still its own.
                Ok(Seen::Asked) => drop(kill_process_group(self.pid, Signal::TERM)),
                Ok(Seen::Over) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Kills whatever is beneath until nothing is. How many are left when time is up.
    fn end_all(&mut self) -> usize {
        let deadline = Instant::now() + KILL_WAIT_MAX;
        let mut pause = KILL_PAUSE_FIRST;
        loop {
            let children = offspring::children();
            children.iter().for_each(offspring::Child::kill);
            if self.status.is_none() {
                // Also where there is no /proc to look into.
                let _ = kill_process_group(self.pid, Signal::KILL);
            }
            if !self.reap() {
                return 0;
            }
            if Instant::now() >= deadline {
                return children.len().max(1);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(KILL_PAUSE_MAX);
        }
    }

    /// Takes the ends there are; false when no child is left.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => self.status = Some(status.as_raw()),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

fn await_end_of(mut control: UnixStream, tell: &Sender<Seen>) {
    let mut byte = [0];
    loop {
        match control.read(&mut byte) {
            Ok(1..) => drop(tell.send(Seen::Asked)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
        }
    }
    let _ = tell.send(Seen::Over);
}

/// Leaves its end to be taken by the one who kills: until then its number is nobody else's.
fn await_exit(pid: Pid, tell: &Sender<Seen>) {
    while matches!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT), Err(Errno::INTR)) {}
    let _ = tell.send(Seen::Over);
}
