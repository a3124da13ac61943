//! Keeps sweeps and what reaches outside running while the program serves. A thin shell: whatever a sweep does, [`super::Run`]
//! does, and the rest is in `outward.rs`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use waybill_kernel::Time;

use super::outward::keep_reaching;
use super::{Holder, Outward, Run, Sweep};
use crate::{Store, WakeFlag};

/// Between two looks at the same row at least, whatever a plan says.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// From a sweep's wake to its run: what is written meanwhile is done in the same run.
const GATHERING: Duration = Duration::from_millis(100);

pub struct Runner {
    store: Store,
    holder: Holder,
    names: HashSet<&'static str>,
    tasks: JoinSet<()>,
    stopping: CancellationToken,
}

impl Runner {
    /// `lease` is how long a sweep of this node may be silent before another node takes it over.
    pub fn new(store: Store, lease: Duration) -> Self {
        let holder = if store.is_postgres() { Holder::new(&store) } else { Holder::alone() }.for_at_least(lease);
        Self { store, holder, names: HashSet::new(), tasks: JoinSet::new(), stopping: CancellationToken::new() }
    }

    /// # Panics
    /// When the name is taken: two sweeps would share one row, and each would keep the other from running.
    #[must_use]
    pub fn with<S: Sweep>(mut self, sweep: S) -> Self {
        assert!(self.names.insert(S::NAME), "there are two sweeps {}", S::NAME);
        self.tasks.spawn(keep_sweeping(self.store.clone(), Arc::new(sweep), self.holder, self.stopping.clone()));
        self
    }

    /// # Panics
    /// When the name is taken: metrics could not tell the two apart.
    #[must_use]
    pub fn with_outward<O: Outward>(mut self, outward: O) -> Self {
        assert!(self.names.insert(outward.name()), "there are two of {}", outward.name());
        self.tasks.spawn(keep_reaching(self.store.clone(), Arc::new(outward), self.stopping.clone()));
        self
    }

    /// What every process does for itself, about what it has in memory: there is no row, and no other node does it instead.
    ///
    /// # Panics
    /// When the name is taken.
    #[must_use]
    pub fn with_chore(mut self, name: &'static str, interval: Duration, chore: impl Fn(Time) + Send + 'static) -> Self {
        assert!(self.names.insert(name), "there are two of {name}");
        let (store, stopping) = (self.store.clone(), self.stopping.clone());
        self.tasks.spawn(async move {
            while stopping.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
                chore(store.now());
            }
        });
        self
    }

    /// Every sweep ends after the batch it is at; what reaches outside has a moment to end what is in hand, and gives back the
    /// rest. To be awaited before the store is closed.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the task of a sweep or a worker ended by itself");
            }
        }
    }
}

async fn keep_sweeping<S: Sweep>(store: Store, sweep: Arc<S>, holder: Holder, stopping: CancellationToken) {
    let interval = sweep.plan().interval;
    let mut woken = false;
    while !stopping.is_cancelled() {
        // Before the run: what is woken after it began is seen.
        let flag = sweep.topic().map(|topic| store.flag(topic));
        let run = Run::new(&store, &sweep, holder);
        let run = if woken { run.at_any_time() } else { run };
        let wait = match run.to_end(&stopping).await {
            Ok(report) => report.next.since(store.now()),
            Err(error) => {
                let cause = error.cause().unwrap_or_default();
                tracing::warn!(sweep.name = S::NAME, %error, cause, "a sweep failed; it is tried again when next due");
                interval
            }
        };
        // No longer than the interval: the row may be given back before the lease that was read ends.
        let wait = wait.min(interval).max(PAUSE_MIN);
        woken = tokio::select! {
            () = stopping.cancelled() => false,
            () = tokio::time::sleep(wait) => false,
            () = gathered(flag.as_ref()) => true,
        };
    }
}

/// Some time after the wake; never where there is none.
async fn gathered(flag: Option<&WakeFlag>) {
    match flag {
        Some(flag) => flag.wait().await,
        None => std::future::pending().await,
    }
    tokio::time::sleep(GATHERING).await;
}
