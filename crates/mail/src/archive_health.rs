//! How the archive is, as the process that writes it knows it: for `health_check`, which asks the database for the rest.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Result, Tenant, Time};
use waybill_store::Store;

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
    /// The caller may read the agent's mail: others are told that it wrote, and neither to whom nor about what.
    pub with_mail: bool,
    pub limit: usize,
}

/// How commits are read by whoever has the archive.
pub type History =
    Arc<dyn Fn(CommitsOf) -> Pin<Box<dyn Future<Output = Result<Vec<CommitView>>> + Send>> + Send + Sync>;

#[derive(Default)]
struct Inner {
    history: OnceLock<History>,
    bounds: Mutex<HealthBounds>,
    disk: AtomicU64,
    troubles: Mutex<HashMap<Tenant, Troubles>>,
}

/// Of one tenant: what is broken for others is neither its trouble nor its business.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Projects whose archive failed so often that it rests.
    pub breakers_open: u64,
    /// Projects whose last window failed.
    pub failing: u64,
    /// Messages without their file that the probe has found.
    pub missing: u64,
    /// What the last failure was, in words that name no path.
    pub error: Option<String>,
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

/// What a tenant may know at a moment.
#[derive(Clone, Debug)]
pub struct ArchiveState {
    pub bounds: HealthBounds,
    pub breakers_open: u64,
    pub failing: u64,
    pub disk: Pressure,
    pub missing: u64,
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

    /// Of those tenants that have any.
    pub fn set_troubles(&self, troubles: HashMap<Tenant, Troubles>) {
        *self.0.troubles.lock().unwrap_or_else(PoisonError::into_inner) = troubles;
    }

    pub fn set_disk(&self, disk: Pressure) {
        self.0.disk.store(u64::from(disk.level()), Ordering::Relaxed);
    }

    pub fn state(&self, tenant: Tenant) -> ArchiveState {
        let disk = match self.0.disk.load(Ordering::Relaxed) {
            0 => Pressure::None,
            1 => Pressure::Warning,
            _ => Pressure::Critical,
        };
        let troubles = self.0.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let Troubles { breakers_open, failing, missing, error } = troubles.get(&tenant).cloned().unwrap_or_default();
        let bounds = *self.0.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        ArchiveState { bounds, breakers_open, failing, disk, missing, error }
    }
}
