//! The worker's loop: lease what there is room for, work, report, and stop in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use waybill_client::{Claim, Client, Lease};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Clock, Result};

use super::connect::{self, Stop};
use super::flags::Run;
use super::handlers::{Handlers, Work};
use super::held::{Held, Recorded};
use crate::config::LogFormat;
use crate::log;

/// An empty answer that comes sooner means that the server does not wait for us: then we do.
const EMPTY_ANSWER_MIN: Duration = Duration::from_secs(1);
/// What killed handlers and closing connections may take once they were told to end.
const LET_GO_WAIT: Duration = Duration::from_secs(5);

struct Worker {
    client: Client,
    handlers: Handlers,
    claim: Claim,
    clock: Clock,
    stop: Stop,
}

/// What became of a task that was leased.
enum End {
    Recorded,
    /// It was canceled; or somebody else has it, or will: its lease was lost, or its outcome could not be delivered.
    Lost,
    /// Let go of because the worker stops; its lease runs out.
    Left(Uuid),
}

pub async fn run(flags: Run) -> Result<()> {
    let _log = log::start(&flags.connection.log, LogFormat::Text)?;
    let handlers = Handlers::new(&flags)?;
    let claim = Claim {
        worker_id: flags.connection.worker_id.clone(),
        worker_instance_id: connect::instance_id(),
        capabilities: flags.capability.clone(),
        accept_types: handlers.types(&flags.accept_type)?,
        max_tasks: 1,
        lease_ttl_seconds: flags.connection.lease_ttl_seconds,
        // A lease is counted from before it was asked for: after a long wait a short one would be over.
        wait_seconds: connect::LEASE_WAIT_S.min(flags.connection.lease_ttl_seconds / 3),
    };
    let worker = Arc::new(Worker {
        client: connect::client(&flags.connection)?,
        handlers,
        claim,
        clock: Clock::system(),
        stop: Stop::on_signals()?,
    });
    tracing::info!(
        instance = worker.claim.worker_instance_id,
        server = worker.client.base(),
        types = worker.claim.accept_types.join(","),
        "working"
    );
    let tasks_max = if flags.once { Some(1) } else { flags.max_tasks };
    let mut running = JoinSet::new();
    let leased = worker.lease(&mut running, flags.concurrency, tasks_max).await;
    worker.drain(running, Duration::from_secs(flags.drain_seconds)).await;
    leased
}

impl Worker {
    /// Until asked to stop, done with `tasks_max`, or refused for good.
    async fn lease(
        self: &Arc<Self>,
        running: &mut JoinSet<End>,
        concurrency: u64,
        tasks_max: Option<u64>,
    ) -> Result<()> {
        let mut away = connect::away();
        let mut left = tasks_max.unwrap_or(u64::MAX);
        while left > 0 && !self.stop.stopping.is_cancelled() {
            while running.try_join_next().is_some() {}
            let free = concurrency.saturating_sub(running.len() as u64).min(left);
            if free == 0 {
                tokio::select! { _ = running.join_next() => {}, () = self.stop.stopping.cancelled() => {} }
                continue;
            }
            let claim = Claim { max_tasks: usize::try_from(free).unwrap_or(1), ..self.claim.clone() };
            let asked_at = Instant::now();
            // A claim that is dropped here may have been granted at that very moment; then its lease runs out.
            let leases = tokio::select! {
                leases = self.client.lease_next(&claim) => leases,
                () = self.stop.stopping.cancelled() => break,
            };
            let pause = match leases {
                Ok(leases) if leases.is_empty() => (asked_at.elapsed() < EMPTY_ANSWER_MIN).then(|| away.pause()),
                Ok(leases) => {
                    away.reset();
                    left -= left.min(leases.len() as u64);
                    for lease in leases {
                        running.spawn(Arc::clone(self).work(lease, asked_at));
                    }
                    None
                }
                Err(error) if connect::is_final(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, cause = error.cause(), "nothing was leased; trying again");
                    Some(away.pause())
                }
            };
            if let Some(pause) = pause {
                tokio::select! { () = sleep(pause) => {}, () = self.stop.stopping.cancelled() => {} }
            }
        }
        Ok(())
    }

    async fn work(self: Arc<Self>, lease: Lease, asked_at: Instant) -> End {
        let held = Held::new(&self.client, &lease, &self.claim, asked_at, self.clock.now());
        let (task_id, kind) = (lease.task_id, lease.kind.clone());
        tracing::info!(%task_id, kind, attempt = lease.attempt, "leased");
        // The worker's own end is that of all its work; this work may end before.
        let end = self.stop.abandon.child_token();
        let work = self.handlers.run(&lease, &end);
        tokio::pin!(work);
        let worked = tokio::select! {
            worked = &mut work => worked,
            lost = held.keep() => {
                end.cancel();
                let how = match timeout(LET_GO_WAIT, work).await {
                    Ok(Work::Stopped(how)) => how,
                    Ok(Work::Ended(_)) => "the work had just ended, and its outcome is not recorded".to_owned(),
                    Err(_) => "the work was told to stop".to_owned(),
                };
                tracing::warn!(%task_id, "{lost}: {how}");
                return End::Lost;
            }
        };
        // A handler that saw the same signal first has no outcome worth telling.
        let outcome = match worked {
            Work::Ended(outcome) if !self.stop.abandon.is_cancelled() => outcome,
            _ => return End::Left(task_id),
        };
        let delivered = tokio::select! {
            delivered = held.deliver(outcome) => delivered,
            () = self.stop.abandon.cancelled() => return End::Left(task_id),
        };
        match delivered {
            Ok(recorded) => {
                let how = match recorded {
                    Recorded::Succeeded => "succeeded",
                    Recorded::Failed => "failed",
                    Recorded::Requeued => "will be tried again",
                };
                tracing::info!(%task_id, kind, "{how}");
                End::Recorded
            }
            Err(_) if held.is_canceled().await => {
                tracing::warn!(%task_id, "the task was canceled: the work was done, and its outcome is not recorded");
                End::Lost
            }
            Err(error) => {
                tracing::warn!(%task_id, %error, "the outcome was not taken; the task is done again when its lease has run out");
                End::Lost
            }
        }
    }

    /// Lets what is in hand end, then lets go of the rest and says which.
    async fn drain(&self, mut running: JoinSet<End>, patience: Duration) {
        if !running.is_empty() {
            tracing::info!(tasks = running.len(), seconds = patience.as_secs(), "finishing what is in hand");
        }
        let stop = &self.stop;
        let all = async {
            while let Some(end) = running.join_next().await {
                if let Ok(End::Left(task_id)) = end {
                    tracing::warn!(%task_id, "left unfinished; another worker gets it when its lease has run out");
                }
            }
        };
        tokio::pin!(all);
        // Only a signal makes it hurry: a worker that has done its number of tasks finishes them.
        let patience_ends = async {
            stop.stopping.cancelled().await;
            tokio::select! { () = sleep(patience) => {}, () = stop.abandon.cancelled() => {} }
        };
        tokio::select! {
            () = &mut all => return,
            () = patience_ends => {}
        }
        stop.abandon.cancel();
        let _ = timeout(LET_GO_WAIT, all).await;
    }
}
