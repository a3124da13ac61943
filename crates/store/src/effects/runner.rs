//! Keeps sweeps and workers running while the program serves. A thin shell: whatever a sweep does, [`super::Run`] does, and
//! whatever a worker does, [`super::work_once`].

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Holder, Run, Sweep, Worker, work_once};
use crate::Store;

/// Between two looks at the same row at least, whatever a plan says.
const PAUSE_MIN: Duration = Duration::from_millis(10);

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
    /// When the kind is taken: each worker would take the other's jobs.
    #[must_use]
    pub fn with_worker<W: Worker>(mut self, worker: W) -> Self {
        assert!(self.names.insert(W::KIND), "there are two workers for {}", W::KIND);
        self.tasks.spawn(keep_working(self.store.clone(), Arc::new(worker), self.stopping.clone()));
        self
    }

    /// Every sweep ends after the batch it is at, every worker at once. To be awaited before the store is closed.
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
    while !stopping.is_cancelled() {
        let wait = match Run::new(&store, &sweep, holder).to_end(&stopping).await {
            Ok(report) => report.next.since(store.now()),
            Err(error) => {
                let cause = error.cause().unwrap_or_default();
                tracing::warn!(sweep.name = S::NAME, %error, cause, "a sweep failed; it is tried again when next due");
                interval
            }
        };
        // No longer than the interval: the row may be given back before the lease that was read ends.
        let wait = wait.min(interval).max(PAUSE_MIN);
        tokio::select! {
            () = stopping.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn keep_working<W: Worker>(store: Store, worker: Arc<W>, stopping: CancellationToken) {
    loop {
        let round = tokio::select! {
            () = stopping.cancelled() => return,
            round = work_once(&store, &worker) => round,
        };
        let wait = match round {
            Ok(round) if round.full => PAUSE_MIN,
            Ok(_) => worker.interval().max(PAUSE_MIN),
            Err(error) => {
                let cause = error.cause().unwrap_or_default();
                tracing::warn!(job.kind = W::KIND, %error, cause, "jobs could not be claimed or ended; they are tried again");
                worker.interval().max(PAUSE_MIN)
            }
        };
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}
