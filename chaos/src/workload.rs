//! What a scenario can be played under: work of one domain, with its own load, journal and judge. A round runs all
//! workloads of its scenario under one fault, so that the time of a run does not grow with the domains.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;

use crate::checker::Violation;
use crate::client::Endpoint;

/// Workloads are kept in a list, so their futures are boxed.
pub type Held<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Where a server is, for every protocol that it speaks.
#[derive(Clone, Debug)]
pub struct Site {
    pub endpoint: Endpoint,
    pub sqs: SocketAddr,
    /// Its data folder.
    pub data: PathBuf,
}

/// What those who make a round's load listen to, whichever workload they belong to.
#[derive(Clone, Default)]
pub struct Signals(Arc<Flags>);

#[derive(Default)]
struct Flags {
    stop: AtomicBool,
    sprint: AtomicBool,
    cut: AtomicBool,
}

impl Signals {
    /// From here on without pauses.
    pub fn sprint(&self) {
        self.0.sprint.store(true, Ordering::SeqCst);
    }

    /// From here on no answer is a promise: it may have left the server after the moment that the fault preserves.
    pub fn cut(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
    }

    /// Nothing more is asked for.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }

    pub fn sprints(&self) -> bool {
        self.0.sprint.load(Ordering::SeqCst)
    }

    pub fn is_cut(&self) -> bool {
        self.0.cut.load(Ordering::SeqCst)
    }

    pub fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::SeqCst)
    }
}

/// What became of a round's calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub acknowledged: u64,
    pub refused: u64,
    pub unknown: u64,
}

pub trait Workload {
    fn name(&self) -> &'static str;

    /// Once, when the first server is up.
    fn open<'a>(&'a mut self, at: &'a Site) -> Held<'a, ()>;

    /// Begins the load of a round.
    fn start(&mut self, round: u32, at: &Site, signals: &Signals) -> Result<()>;

    /// Waits, when everybody has been told to stop, until every outcome is journaled.
    fn finish(&mut self) -> Held<'_, Count>;

    /// The fault was declared to cost what was answered between these moments: from here on that binds nobody.
    fn void(&mut self, _since: Instant, _until: Instant) {}

    /// After the fault, on a server that serves again: settles what is unknown, and judges the round.
    fn check<'a>(&'a mut self, round: u32, at: &'a Site) -> Held<'a, Vec<Violation>>;

    /// After the last round: everything that is there is looked at, and judged once more.
    fn close<'a>(&'a mut self, at: &'a Site) -> Held<'a, Vec<Violation>>;

    /// Unknown operations that were settled so far.
    fn resolved(&self) -> u64;

    fn journal(&self) -> &Path;

    /// What it has to say about all rounds together.
    fn summary(&self) -> Option<String>;
}
