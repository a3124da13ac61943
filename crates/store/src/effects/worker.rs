//! Works jobs off: claim, attempt outside of any transaction, then finish or fail under the claim's number.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use waybill_kernel::{Code, Error, Mode, Result, Time};

use super::job::{self, Claimed, Failed, Policy};
use crate::{Ctx, Store, Tx, Value, Work, metrics};

/// Does one kind of job.
pub trait Worker: Send + Sync + 'static {
    const KIND: &'static str;

    fn policy(&self) -> Policy {
        Policy::default()
    }

    /// Attempts at a time on one node.
    fn at_once(&self) -> u32 {
        16
    }

    /// How often a node with nothing to do looks for jobs.
    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// One attempt. It may have been made before, with or without success, and is given up when its claim ends.
    fn attempt(&self, job: &Claimed) -> impl Future<Output = Result<()>> + Send;
}

/// What one round came to, in jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    pub claimed: usize,
    pub done: usize,
    pub failed: usize,
    pub dead: usize,
    /// Finished or failed too late: the job had been claimed again.
    pub superseded: usize,
    /// As many as may be attempted at a time were claimed: there may be more at once.
    pub full: bool,
}

/// Claims what is due, up to what may be attempted at a time, and sees it through.
///
/// # Cancel safety
/// Dropped, it gives up the attempts under way; their jobs are claimed again when the claims end.
pub async fn work_once<W: Worker>(store: &Store, worker: &Arc<W>) -> Result<Round> {
    let take = Take { kind: W::KIND, policy: worker.policy(), limit: i64::from(worker.at_once().max(1)) };
    let limit = take.limit;
    let taken = store.system().run(take).await?;
    ::metrics::gauge!(metrics::JOB_LAG, "kind" => W::KIND).set(taken.lag.as_secs_f64());
    let mut round = Round { claimed: taken.jobs.len(), dead: taken.buried, ..Round::default() };
    round.full = (taken.jobs.len() + taken.buried) as i64 >= limit;
    let mut attempts = JoinSet::new();
    for job in taken.jobs {
        attempts.spawn(see_through(store.clone(), Arc::clone(worker), job));
    }
    let mut trouble = None;
    while let Some(ended) = attempts.join_next().await {
        match ended.map_err(Error::internal).flatten() {
            Ok(Seen::Done) => round.done += 1,
            Ok(Seen::Failed(Failed::Again { .. })) => round.failed += 1,
            Ok(Seen::Failed(Failed::Dead)) => round.dead += 1,
            Ok(Seen::Superseded) => round.superseded += 1,
            // Told when the others have ended: theirs is not this one's trouble.
            Err(error) => trouble = Some(error),
        }
    }
    let outcomes =
        [("done", round.done), ("failed", round.failed), ("dead", round.dead), ("superseded", round.superseded)];
    for (outcome, count) in outcomes.into_iter().filter(|(_, count)| *count > 0) {
        ::metrics::counter!(metrics::JOBS, "kind" => W::KIND, "outcome" => outcome).increment(count as u64);
    }
    trouble.map_or(Ok(round), Err)
}

enum Seen {
    Done,
    Failed(Failed),
    Superseded,
}

async fn see_through<W: Worker>(store: Store, worker: Arc<W>, job: Claimed) -> Result<Seen> {
    let policy = worker.policy();
    // In a task of its own, aborted with its set: a panic is a failed attempt and nobody else's trouble.
    let mut attempt = JoinSet::new();
    let claimed = job.clone();
    attempt.spawn(async move { tokio::time::timeout(policy.claim, worker.attempt(&claimed)).await });
    let error = match attempt.join_next().await {
        Some(Ok(Ok(Ok(())))) => None,
        Some(Ok(Ok(Err(error)))) => {
            let cause = error.cause().unwrap_or_default();
            tracing::info!(job.kind = W::KIND, job.id = %job.job_id, job.attempts = job.attempts, %error, cause,
                "an attempt at a job failed");
            Some(error.to_string())
        }
        Some(Ok(Err(_))) => Some("It took longer than a claim holds.".to_owned()),
        Some(Err(panic)) => {
            tracing::error!(job.kind = W::KIND, job.id = %job.job_id, error = %panic, "an attempt at a job panicked");
            Some("It failed in a way it should not.".to_owned())
        }
        None => Some("It was never begun.".to_owned()),
    };
    match store.system().run(Conclude { job, policy, error }).await {
        Ok(None) => Ok(Seen::Done),
        Ok(Some(failed)) => Ok(Seen::Failed(failed)),
        Err(error) if error.code() == Code::LeaseInvalidOrExpired => Ok(Seen::Superseded),
        Err(error) => Err(error),
    }
}

struct Take {
    kind: &'static str,
    policy: Policy,
    limit: i64,
}

struct Taken {
    jobs: Vec<Claimed>,
    buried: usize,
    /// How long the first job that is left has been due.
    lag: Duration,
}

impl Work for Take {
    type Output = Taken;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Taken> {
        const LEFT: &str = "SELECT next_at FROM jobs WHERE kind = $1 AND next_at <= $2 ORDER BY next_at LIMIT 1";
        let (jobs, buried) = job::claim_or_bury(tx, ctx, self.kind, &self.policy, self.limit).await?;
        let left = tx.query_opt(LEFT, &[Value::from(self.kind), Value::from(ctx.now)]).await?;
        let since = left.map_or(Ok(ctx.now), |row| row.time(0))?;
        Ok(Taken { jobs, buried, lag: Time::since(ctx.now, since) })
    }
}

struct Conclude {
    job: Claimed,
    policy: Policy,
    error: Option<String>,
}

impl Work for Conclude {
    /// None when the job is done.
    type Output = Option<Failed>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Failed>> {
        match &self.error {
            None => job::finish(tx, ctx, &self.job).await.map(|()| None),
            Some(error) => job::fail(tx, ctx, &self.job, &self.policy, error).await.map(Some),
        }
    }
}
