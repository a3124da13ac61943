//! A program, seen from the one who started it: its keeper, what it reads and says, and its end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, waitpid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::keep::{self, KILL_WAIT_MAX, Word};
use crate::offspring;
use crate::output::Output;

/// Any byte does.
const ASK: u8 = 1;
/// More than a keeper says.
const WORD_BYTES_MAX: u64 = 64 << 10;
/// How long the streams of an ended program may stay open: only a process that could not be ended holds them.
const STREAMS_WAIT_MAX: Duration = Duration::from_secs(1);
/// For a keeper that was told to end its program, beside what the killed may take.
const KEEPER_WAIT_MAX: Duration = Duration::from_secs(1);
const ORPHANS_PAUSE: Duration = Duration::from_millis(5);

/// The keepers among the children of this process. Whoever else is a child of it was left by one that was killed.
static KEEPERS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

pub struct Program {
    control: UnixStream,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    pub out: Output,
    pub err: Output,
    keeper: Keeper,
    ask: CancellationToken,
}

/// What to start, and how much of what it says is kept.
pub struct Start<'a> {
    /// Where this executable is found, which runs as the keeper.
    pub own: &'a Path,
    pub program: &'a Path,
    pub args: &'a [OsString],
    /// All that it is given of an environment.
    pub environment: &'a [(OsString, OsString)],
    pub folder: Option<&'a Path>,
    pub output_bytes_max: usize,
}

/// The process, which is looked after by a task of its own.
#[derive(Clone, Default)]
struct Keeper {
    kill: CancellationToken,
    /// It has ended, and what it kept is ours.
    gone: CancellationToken,
}

/// How it ended.
pub enum Exit {
    NotStarted(String),
    Known(ExitStatus),
    /// Its keeper was killed, or it could not be ended.
    Unknown,
}

impl Program {
    /// Starts it by way of a keeper.
    pub fn start(start: &Start<'_>) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(start.own);
        command.arg0("waybill").arg(keep::NAME).arg(start.program).args(start.args);
        command.env_clear().envs(start.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = start.folder {
            command.current_dir(folder);
        }
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = {
            // Nobody may take a keeper for an orphan before it is on the list.
            let mut keepers = keepers();
            let child = command.spawn()?;
            keepers.extend(number(&child));
            child
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let keeper = Keeper::default();
        tokio::spawn(keeper.clone().reap(child));
        Ok(Self {
            control: UnixStream::from_std(ours)?,
            stdout,
            stderr,
            out: Output::up_to(start.output_bytes_max),
            err: Output::up_to(start.output_bytes_max),
            keeper,
            ask: CancellationToken::new(),
        })
    }

    /// Cancelled, it has the program asked to end by itself (SIGTERM to its group), while [`Program::finish`] goes on.
    pub fn ask(&self) -> CancellationToken {
        self.ask.clone()
    }

    /// Gives it what it is to read, takes what it says, and waits for its end.
    ///
    /// # Cancel safety
    /// To be followed by [`Program::end`] when dropped: dropping the program ends it as well, but nobody hears when.
    pub async fn finish(&mut self, input: &[u8]) -> Exit {
        let (mut from, mut to) = self.control.split();
        let (over, ask) = (CancellationToken::new(), &self.ask);
        let word = async {
            let feed = async {
                // It may be killed before it has read all of it; its word, or that there is none, tells.
                let _ = to.write_all(&(input.len() as u64).to_be_bytes()).await;
                let _ = to.write_all(input).await;
                ask.cancelled().await;
                let _ = to.write_all(&[ASK]).await;
                std::future::pending().await
            };
            let word = tokio::select! {
                word = hear(&mut from) => word,
                () = feed => None,
            };
            over.cancel();
            word
        };
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let read = async { tokio::join!(self.out.read(stdout), self.err.read(stderr)) };
        let held_open = async {
            over.cancelled().await;
            sleep(STREAMS_WAIT_MAX).await;
        };
        let streams = async {
            tokio::select! { _ = read => {}, () = held_open => {} }
        };
        let (word, ()) = tokio::join!(word, streams);
        match word {
            Some(Word::NotStarted { why }) => Exit::NotStarted(why),
            Some(Word::Ended { status, left }) => {
                note_left(left);
                status.map_or(Exit::Unknown, |status| Exit::Known(ExitStatus::from_raw(status)))
            }
            None => {
                self.keeper.gone.cancelled().await;
                end_orphans().await;
                Exit::Unknown
            }
        }
    }

    /// Ends it with everything it has started; how many processes could not be ended.
    pub async fn end(mut self) -> usize {
        // The streams are closed with it: nobody is interested in what it says now.
        drop((self.stdout.take(), self.stderr.take()));
        let ended = async {
            let _ = self.control.shutdown().await;
            hear(&mut self.control).await
        };
        let word = timeout(KILL_WAIT_MAX + KEEPER_WAIT_MAX, ended).await.ok().flatten();
        let left = match word {
            Some(Word::NotStarted { .. }) => 0,
            Some(Word::Ended { left, .. }) => left,
            None => {
                // A program can also make its keeper stand still. We do its work then.
                self.keeper.kill.cancel();
                self.keeper.gone.cancelled().await;
                return end_orphans().await;
            }
        };
        note_left(left);
        left
    }
}

/// The keeper's word; None when it was killed before it could say it.
async fn hear(control: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<Word> {
    let mut said = Vec::new();
    control.take(WORD_BYTES_MAX).read_to_end(&mut said).await.ok()?;
    serde_json::from_slice(&said).ok()
}

fn note_left(left: usize) {
    if left > 0 {
        tracing::error!(left, "processes of a program could not be ended: they are another user's, or hang");
    }
}

fn keepers() -> MutexGuard<'static, BTreeSet<i32>> {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(keeper: &Child) -> Option<i32> {
    keeper.id().and_then(|id| i32::try_from(id).ok())
}

impl Keeper {
    /// In a task of its own, so that its end is taken whatever becomes of the work.
    async fn reap(self, mut process: Child) {
        let number = number(&process);
        tokio::select! {
            _ = process.wait() => {}
            () = self.kill.cancelled() => drop(process.kill().await),
        }
        if let Some(number) = number {
            keepers().remove(&number);
        }
        self.gone.cancel();
    }
}

/// A program can kill its keeper, which is the same user's. What it leaves then is adopted by this process.
async fn end_orphans() -> usize {
    let left = tokio::task::spawn_blocking(|| {
        let deadline = Instant::now() + KILL_WAIT_MAX;
        loop {
            let left = kill_orphans();
            if left == 0 || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(ORPHANS_PAUSE);
        }
    });
    let left = left.await.unwrap_or_default();
    note_left(left);
    left
}

fn kill_orphans() -> usize {
    let keepers = keepers();
    let children = offspring::children();
    let orphans: Vec<_> = children.iter().filter(|child| !keepers.contains(&child.pid.as_raw_pid())).collect();
    for orphan in &orphans {
        orphan.kill();
        let _ = waitpid(Some(orphan.pid), WaitOptions::NOHANG);
    }
    orphans.len()
}
