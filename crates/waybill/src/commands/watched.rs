//! Long work at a terminal: says how far it has come, and Ctrl-C ends it without leaving anything half-done.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use waybill_kernel::{Error, Result};
use waybill_store::safety::{Step, Watch};

use crate::output;

/// Between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(100);
const MIB: f64 = (1 << 20) as f64;

/// Runs blocking work off the runtime; a signal asks it to stop, and its own clean-up runs before this returns.
pub async fn watched<T: Send + 'static>(work: impl FnOnce(&Watch) -> Result<T> + Send + 'static) -> Result<T> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::internal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::internal)?;
    let stop = Arc::new(AtomicBool::new(false));
    let watch = Watch::new(Arc::clone(&stop), progress());
    let mut running = tokio::task::spawn_blocking(move || work(&watch));
    let done = loop {
        tokio::select! {
            done = &mut running => break done,
            _ = interrupt.recv() => stop.store(true, Ordering::Relaxed),
            _ = terminate.recv() => stop.store(true, Ordering::Relaxed),
        }
    };
    if std::io::stderr().is_terminal() {
        output::status("");
    }
    done.map_err(Error::internal)?
}

fn progress() -> impl Fn(Step, u64, u64) + Send + Sync + 'static {
    let shows = std::io::stderr().is_terminal();
    let last = Mutex::new(None::<(Step, Instant)>);
    move |step, done, total| {
        if !shows {
            return;
        }
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|(shown, at)| shown == step && at.elapsed() < INTERVAL) {
            return;
        }
        *last = Some((step, Instant::now()));
        output::status(&line(step, done, total));
    }
}

fn line(step: Step, done: u64, total: u64) -> String {
    let what = match step {
        Step::Copying => "copying",
        Step::Checking => "checking",
        Step::Hashing => "hashing",
    };
    if total == 0 {
        return format!("{what} …");
    }
    let percent = 100.0 * done as f64 / total as f64;
    format!("{what} {percent:3.0} %  {:.1} of {:.1} MiB", done as f64 / MIB, total as f64 / MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_percent_and_mebibytes() {
        assert_eq!(line(Step::Copying, 1 << 20, 4 << 20), "copying  25 %  1.0 of 4.0 MiB");
        assert_eq!(line(Step::Checking, 0, 0), "checking …");
    }
}
