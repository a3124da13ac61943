//! How the archive is, as the process that writes it knows it: for `health_check`, which asks the database for the rest.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Result, Tenant, Time};
use waybill_store::Store;

/// Characters of an error that are shown.
const ERROR_CHARS_MAX: usize = 300;

/// Shared by the archiver, which writes it, and those who tell of it.
#[derive(Clone, Default)]
pub struct ArchiveHealth(Arc<Inner>);

/// A commit of the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct CommitView {
    pub commit: String,
    pub committed_ts: Time,
    pub author: String,
    pub subject: String,
}

/// Which commits are asked for: those about an agent, the newest first.
#[derive(Clone)]
pub struct CommitsOf {
    /// Where the project is looked up: whoever reads commits must not keep a store open.
    pub store: Store,
    pub tenant: Tenant,
    pub project: i64,
    pub agent: String,
    pub limit: usize,
}

/// How commits are read by whoever has the archive.
pub type History =
    Arc<dyn Fn(CommitsOf) -> Pin<Box<dyn Future<Output = Result<Vec<CommitView>>> + Send>> + Send + Sync>;

#[derive(Default)]
struct Inner {
    history: OnceLock<History>,
    bounds: Mutex<HealthBounds>,
    /// Projects whose archive failed so often that it rests.
    breakers_open: AtomicU64,
    /// Projects whose last window failed.
    failing: AtomicU64,
    disk: AtomicU64,
    /// Messages without their file that the probe has found.
    missing: AtomicU64,
    /// Windows that are being written, and those that were given up since the start.
    committing: AtomicU64,
    commit_errors: AtomicU64,
    error: Mutex<Option<String>>,
}

/// From where on a figure is yellow, and red.
#[derive(Clone, Copy, Debug)]
pub struct HealthBounds {
    pub capacity: i64,
    pub lag_yellow: Duration,
    pub lag_red: Duration,
}

impl Default for HealthBounds {
    fn default() -> Self {
        Self { capacity: 8_192, lag_yellow: Duration::from_secs(10), lag_red: Duration::from_secs(300) }
    }
}

/// Of the disk that the archive is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Pressure {
    #[default]
    None,
    Warning,
    /// Nothing is written to the archive.
    Critical,
}

impl Pressure {
    pub const fn level(self) -> u8 {
        match self {
            Pressure::None => 0,
            Pressure::Warning => 1,
            Pressure::Critical => 2,
        }
    }
}

/// What there is to know at a moment.
#[derive(Clone, Debug)]
pub struct ArchiveState {
    pub bounds: HealthBounds,
    pub breakers_open: u64,
    pub failing: u64,
    pub disk: Pressure,
    pub missing: u64,
    pub committing: u64,
    pub commit_errors: u64,
    pub error: Option<String>,
}

impl ArchiveHealth {
    pub fn set_bounds(&self, bounds: HealthBounds) {
        *self.0.bounds.lock().unwrap_or_else(PoisonError::into_inner) = bounds;
    }

    /// Set once, by the archiver.
    pub fn set_history(&self, history: History) {
        let _ = self.0.history.set(history);
    }

    pub fn history(&self) -> Option<History> {
        self.0.history.get().cloned()
    }

    pub fn set_troubles(&self, failing: u64, breakers_open: u64) {
        self.0.failing.store(failing, Ordering::Relaxed);
        self.0.breakers_open.store(breakers_open, Ordering::Relaxed);
        if failing == 0 && breakers_open == 0 {
            *self.0.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    pub fn set_error(&self, error: &str) {
        let shown = error.chars().take(ERROR_CHARS_MAX).collect();
        *self.0.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
    }

    pub fn set_disk(&self, disk: Pressure) {
        self.0.disk.store(u64::from(disk.level()), Ordering::Relaxed);
    }

    pub fn set_missing(&self, missing: u64) {
        self.0.missing.store(missing, Ordering::Relaxed);
    }

    pub fn set_committing(&self, windows: u64) {
        self.0.committing.store(windows, Ordering::Relaxed);
    }

    pub fn commit_given_up(&self) {
        self.0.commit_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub fn state(&self) -> ArchiveState {
        let disk = match self.0.disk.load(Ordering::Relaxed) {
            0 => Pressure::None,
            1 => Pressure::Warning,
            _ => Pressure::Critical,
        };
        ArchiveState {
            bounds: *self.0.bounds.lock().unwrap_or_else(PoisonError::into_inner),
            breakers_open: self.0.breakers_open.load(Ordering::Relaxed),
            failing: self.0.failing.load(Ordering::Relaxed),
            disk,
            missing: self.0.missing.load(Ordering::Relaxed),
            committing: self.0.committing.load(Ordering::Relaxed),
            commit_errors: self.0.commit_errors.load(Ordering::Relaxed),
            error: self.0.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
