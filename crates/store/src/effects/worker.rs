//! Works jobs off: the rows of [`job`] as something that reaches outside.

use std::future::Future;

use waybill_kernel::{Result, Time};

use super::job::{self, Claimed, Failed, Policy};
use super::outward::{Bounds, Ended, GivenUp, Outward, Taken};
use crate::{Ctx, Store, Topic, Tx, Value};

/// Does one kind of job.
pub trait Worker: Send + Sync + 'static {
    const KIND: &'static str;

    fn policy(&self) -> Policy {
        Policy::default()
    }

    /// Attempts at a time on one node.
    fn at_once(&self) -> usize {
        16
    }

    /// One attempt. It may have been made before, with or without success, and is given up when its claim ends.
    fn attempt(&self, job: &Claimed) -> impl Future<Output = Result<()>> + Send;

    /// What else the end of the job means, in the transaction that ends it.
    fn finish(&self, _ctx: &Ctx<'_>, _tx: &mut Tx<'_>, _job: &Claimed) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// The jobs of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Jobs<W>(pub W);

/// How an attempt at a job ended.
#[derive(Debug)]
pub enum Attempt {
    Done,
    /// With what the row will say; causes are for the log alone.
    Failed(String),
    /// It is as if it had not been begun.
    Undone,
}

impl<W: Worker> Outward for Jobs<W> {
    type Claimed = Claimed;
    type Outcome = Attempt;

    fn name(&self) -> &'static str {
        W::KIND
    }

    fn topic(&self) -> Topic {
        job::topic(W::KIND)
    }

    fn bounds(&self) -> Bounds {
        Bounds { at_once: self.0.at_once(), attempt_max: self.0.policy().claim }
    }

    async fn due(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Time>> {
        const DUE: &str = "SELECT next_at FROM jobs WHERE kind = $1 AND next_at IS NOT NULL ORDER BY next_at LIMIT 1";
        let row = tx.query_opt(DUE, &[Value::from(W::KIND)]).await?;
        row.map(|row| row.time(0)).transpose()
    }

    async fn take(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, room: usize) -> Result<Taken<Claimed>> {
        let limit = i64::try_from(room).unwrap_or(i64::MAX);
        let (claimed, dead) = job::claim_or_bury(tx, ctx, W::KIND, &self.0.policy(), limit).await?;
        Ok(Taken { claimed, dead })
    }

    async fn attempt(&self, _: &Store, job: &Claimed) -> Attempt {
        let Err(error) = self.0.attempt(job).await else { return Attempt::Done };
        let cause = error.cause().unwrap_or_default();
        tracing::info!(job.kind = W::KIND, job.id = %job.job_id, job.attempts = job.attempts, %error, cause,
            "an attempt at a job failed");
        Attempt::Failed(error.to_string())
    }

    fn given_up(&self, _: &Claimed, why: GivenUp) -> Attempt {
        match why {
            GivenUp::TooLong => Attempt::Failed("It took longer than a claim holds.".to_owned()),
            GivenUp::Panicked => Attempt::Failed("It failed in a way it should not.".to_owned()),
            GivenUp::Stopping => Attempt::Undone,
        }
    }

    async fn record(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, job: &Claimed, attempt: &Attempt) -> Result<Ended> {
        match attempt {
            Attempt::Done => {
                job::finish(tx, ctx, job).await?;
                self.0.finish(ctx, tx, job).await?;
                Ok(Ended::Done)
            }
            Attempt::Failed(error) => match job::fail(tx, ctx, job, &self.0.policy(), error).await? {
                Failed::Again { .. } => Ok(Ended::Failed),
                Failed::Dead => Ok(Ended::Dead),
            },
            Attempt::Undone => job::give_back(tx, ctx, job).await.map(|()| Ended::Failed),
        }
    }
}
