//! The log: lines are gathered in memory and written by a thread of their own, many at a time.
//!
//! A line that was written by whoever had something to say would cost every request a system call, and a terminal or a pipe
//! that takes nothing would stop the server. Here it stops the log alone: what has no room is dropped, counted, and said.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use waybill_kernel::{Code, Error, Result};

use crate::config::{Config, LogFormat};

/// Lines that wait to be written.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// So many are written at once without waiting for more.
const ENOUGH_BYTES: usize = 64 << 10;
/// How long a line waits for others at most.
const LINGER: Duration = Duration::from_millis(20);

/// The MCP library tells two lines per request and every client's mistake, and from `debug` on the arguments of every
/// tool call; the migrations' library tells each step of a first start. From `debug` on PostgreSQL's client tells the
/// values of every statement, payloads and hashes of keys among them, and HTTP's libraries what they carry.
const QUIET: &str = "rmcp=warn,rmcp::service=error,refinery_core=warn,tokio_postgres=warn,h2=info,hyper=info,\
                     hyper_util=info,reqwest=info";

/// Writes what is left when it is dropped.
#[must_use]
pub struct Log {
    lines: Lines,
    writing: Option<JoinHandle<()>>,
}

/// From now on, to standard error.
pub fn start(config: &Config) -> Result<Log> {
    // Before what was asked for, so that naming them goes above it.
    let filter = EnvFilter::try_new(format!("{QUIET},{}", config.log))
        .map_err(|error| Error::new(Code::ConfigInvalid, format!("--log {:?}: {error}.", config.log)))?;
    let lines = Lines::default();
    let written = lines.clone();
    let writing =
        std::thread::Builder::new().name("log".to_owned()).spawn(move || written.write_all_to(&mut io::stderr()));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(lines.clone());
    match config.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(Log { lines, writing: Some(writing.map_err(Error::internal)?) })
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines.lock().is_over = true;
        self.lines.0.some.notify_one();
        if let Some(writing) = self.writing.take() {
            let _ = writing.join();
        }
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    some: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    dropped: u64,
    is_over: bool,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.bytes.len() + line.len() > WAITING_BYTES_MAX {
            waiting.dropped += 1;
            return;
        }
        let before = waiting.bytes.len();
        waiting.bytes.extend_from_slice(line);
        let is_enough = before < ENOUGH_BYTES && waiting.bytes.len() >= ENOUGH_BYTES;
        drop(waiting);
        if before == 0 || is_enough {
            self.0.some.notify_one();
        }
    }

    fn write_all_to(&self, out: &mut impl Write) {
        let mut batch = Vec::new();
        loop {
            let (dropped, is_over) = self.take(&mut batch);
            // Where nobody reads there is nobody to tell.
            let _ = out.write_all(&batch);
            if dropped > 0 {
                let _ = writeln!(out, "{dropped} lines of the log were dropped: they came faster than they were taken");
            }
            let _ = out.flush();
            batch.clear();
            if is_over {
                return;
            }
        }
    }

    /// Waits for a line, then a moment for others.
    fn take(&self, batch: &mut Vec<u8>) -> (u64, bool) {
        let mut waiting = self.lock();
        while waiting.bytes.is_empty() && !waiting.is_over {
            waiting = self.0.some.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.bytes.len() < ENOUGH_BYTES && !waiting.is_over {
            let more = self.0.some.wait_timeout(waiting, LINGER);
            waiting = more.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut waiting.bytes, batch);
        (std::mem::take(&mut waiting.dropped), waiting.is_over)
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// The subscriber writes a line whole.
struct Line<'a>(&'a Lines);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_in_their_order_and_those_without_room_are_counted() {
        let lines = Lines::default();
        let line = [b'x'; 1 << 10];
        let room = WAITING_BYTES_MAX / line.len();
        for _ in 0..room + 3 {
            lines.add(&line);
        }
        lines.add(b"");
        lines.lock().is_over = true;
        let mut out = Vec::new();
        lines.write_all_to(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with(&"x".repeat(room * line.len())));
        assert!(
            text[room * line.len()..].starts_with("3 lines of the log were dropped"),
            "{}",
            &text[room * line.len()..]
        );
    }

    #[test]
    fn a_line_is_written_while_others_may_still_come() {
        let lines = Lines::default();
        let (sender, received) = std::sync::mpsc::channel();
        struct Out(std::sync::mpsc::Sender<Vec<u8>>);
        impl Write for Out {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let _ = self.0.send(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let writing = std::thread::spawn({
            let lines = lines.clone();
            move || lines.write_all_to(&mut Out(sender))
        });
        lines.add(b"one\n");
        assert_eq!(received.recv().unwrap(), b"one\n");
        lines.add(b"two\n");
        lines.lock().is_over = true;
        lines.0.some.notify_one();
        writing.join().unwrap();
        assert_eq!(received.recv().unwrap(), b"two\n");
    }
}
