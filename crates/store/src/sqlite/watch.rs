//! What a long run (a backup, a restore, a check) tells while it goes on, and how it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use waybill_kernel::{Code, Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Copying,
    Checking,
    Hashing,
}

/// Told how far a step has come, in bytes of a total; a total of zero when nobody can say.
type Progress = dyn Fn(Step, u64, u64) + Send + Sync;

pub struct Watch {
    stop: Arc<AtomicBool>,
    progress: Arc<Progress>,
}

impl Watch {
    pub fn new(stop: Arc<AtomicBool>, progress: impl Fn(Step, u64, u64) + Send + Sync + 'static) -> Self {
        Self { stop, progress: Arc::new(progress) }
    }

    /// Nobody looks and nobody stops it.
    pub fn none() -> Self {
        Self::new(Arc::default(), |_, _, _| {})
    }

    /// For one of several files, whose bytes are told as a part of those of all. `before` is how many came before it.
    pub(super) fn within(&self, before: u64, all: u64) -> Self {
        let progress = Arc::clone(&self.progress);
        Self::new(Arc::clone(&self.stop), move |step, done, total| match total {
            0 => progress(step, 0, 0),
            _ => progress(step, before + done, all.max(before + total)),
        })
    }

    pub(super) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Between two pieces of work: says how far it came, and ends it if it was told to stop.
    pub(super) fn at(&self, step: Step, done: u64, total: u64) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        (self.progress)(step, done, total);
        Ok(())
    }
}

pub(super) fn interrupted() -> Error {
    Error::new(Code::Interrupted, Code::Interrupted.entry().title)
}
