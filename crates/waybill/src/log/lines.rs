//! Lines are gathered in memory and written by a thread of their own, many at a time.
//!
//! A line that was written by whoever had something to say would cost every request a system call, and a terminal or a pipe
//! that takes nothing would stop the server. Here it stops the log alone: what has no room is dropped, counted, and said.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use waybill_kernel::{Error, Result};

/// Lines that wait to be written.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// So many are written at once without waiting for more.
const ENOUGH_BYTES: usize = 64 << 10;
/// How long a line waits for others at most.
const LINGER: Duration = Duration::from_millis(20);

/// The thread that writes. What is left is written when it is dropped.
pub(super) struct Writing {
    lines: Lines,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.lines.lock().is_over = true;
        self.lines.0.some.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Shared>);

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
    pub(super) fn write_on_a_thread(self, mut out: impl Write + Send + 'static) -> Result<Writing> {
        let lines = self.clone();
        let thread = Builder::new().name("log".to_owned()).spawn(move || self.write_all_to(&mut out));
        Ok(Writing { lines, thread: Some(thread.map_err(Error::internal)?) })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, line: &[u8]) {
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

#[cfg(test)]
mod tests {
    use std::io;

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
