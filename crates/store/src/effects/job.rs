//! Jobs: work that is done outside of transactions (a webhook, a delivery), each in a row of its own.
//!
//! ```text
//! ready ──claim──▶ running ──finish──▶ done
//!   ▲                │  │
//!   └──fail, later───┘  └──fail for the last time──▶ dead
//! ```
//!
//! # Contract
//! A claim has a number, raised by every claim, and an end: a job whose runner is gone is claimed again. Whoever finishes
//! or fails a job shows the number and is refused when it is not the latest, together with everything else in the
//! same transaction. So a job may be done more than once, and is finished once.

use std::time::Duration;

use waybill_kernel::{Code, Error, Result, Tenant, Time, id_type};

use crate::{Ctx, Row, Topic, Tx, Value};

id_type!(
    /// Identifies a job within its tenant.
    JobId
);

/// How often and how long a kind of job is tried.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// After so many attempts the job is dead.
    pub attempts_max: i64,
    /// The longest wait after the first failure; it doubles with each further one …
    pub backoff: Duration,
    /// … up to this.
    pub backoff_max: Duration,
    /// How long a claim holds. Longer than an attempt may take.
    pub claim: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts_max: 10,
            backoff: Duration::from_secs(5),
            backoff_max: Duration::from_secs(3600),
            claim: Duration::from_secs(60),
        }
    }
}

impl Policy {
    /// Anything from nothing to the longest wait of this attempt, by chance: those who failed together do not come
    /// back together.
    pub fn wait_after(&self, attempts: i64, chance: u32) -> Duration {
        let doublings = u32::try_from(attempts.saturating_sub(1).clamp(0, 31)).unwrap_or(0);
        let longest = self.backoff.saturating_mul(1 << doublings).min(self.backoff_max);
        longest.mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }
}

/// A job in the hands of a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub tenant: Tenant,
    pub job_id: JobId,
    pub kind: &'static str,
    pub payload: String,
    /// This attempt included.
    pub attempts: i64,
    pub claim: i64,
}

/// What a failure came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    Again { at: Time },
    Dead,
}

/// Woken when there is a new job of this kind, of whichever tenant.
pub(super) fn topic(kind: &'static str) -> Topic {
    Topic::new("jobs", Tenant(0), kind.as_bytes())
}

/// Adds a job of the caller's tenant, in the transaction that gives the reason for it.
pub async fn enqueue(
    tx: &mut Tx<'_>,
    ctx: &Ctx<'_>,
    tenant: Tenant,
    kind: &'static str,
    payload: &str,
    not_before: Time,
) -> Result<JobId> {
    const INSERT: &str = "INSERT INTO jobs (tenant, job_id, kind, payload, state, attempts, next_at, claim, created_at) \
                          VALUES ($1, $2, $3, $4, 'ready', 0, $5, 0, $6)";
    let id = JobId(ctx.ids.next());
    let params = [
        Value::from(id.as_bytes()),
        Value::from(kind),
        Value::from(payload),
        Value::from(not_before),
        Value::from(ctx.now),
    ];
    write(tx, tenant, INSERT, &params).await?;
    tx.wake(topic(kind), u32::MAX);
    Ok(id)
}

/// Takes up to `limit` jobs that are due, of all tenants: for the program's own work.
pub async fn claim(
    tx: &mut Tx<'_>,
    ctx: &Ctx<'_>,
    kind: &'static str,
    policy: &Policy,
    limit: i64,
) -> Result<Vec<Claimed>> {
    claim_or_bury(tx, ctx, kind, policy, limit).await.map(|(claimed, _)| claimed)
}

/// A job that has no attempts left, because its last runner vanished with it, is buried instead of given out. Answers
/// with the jobs and with how many were buried.
pub(super) async fn claim_or_bury(
    tx: &mut Tx<'_>,
    ctx: &Ctx<'_>,
    kind: &'static str,
    policy: &Policy,
    limit: i64,
) -> Result<(Vec<Claimed>, usize)> {
    // Past what others are about to take, and not behind it; the outer condition holds under the row's lock. Materialized, or
    // PostgreSQL may look once per row, find others each time, and claim more than it should.
    const CLAIM: &str = "WITH due (owner, found) AS MATERIALIZED (SELECT tenant, job_id FROM jobs WHERE kind = $1 \
        AND next_at <= $2 ORDER BY next_at LIMIT $4 FOR UPDATE SKIP LOCKED) \
        UPDATE jobs SET state = 'running', attempts = attempts + 1, claim = claim + 1, next_at = $3 \
        WHERE (tenant, job_id) IN (SELECT due.owner, due.found FROM due) AND next_at <= $2 \
        RETURNING tenant, job_id, payload, attempts, claim";
    let until = ctx.now.after(policy.claim);
    let params = [Value::from(kind), Value::from(ctx.now), Value::from(until), Value::from(limit)];
    let rows = tx.query(CLAIM, &params).await?;
    let mut claimed = Vec::with_capacity(rows.len());
    for row in &rows {
        let job = Claimed::read(row, kind)?;
        if job.attempts > policy.attempts_max {
            end(tx, ctx, &job, "dead", Some("Its last runner was never heard of again.")).await?;
        } else {
            claimed.push(job);
        }
    }
    let buried = rows.len() - claimed.len();
    Ok((claimed, buried))
}

/// The job is done. In the transaction of whatever else its end means.
pub async fn finish(tx: &mut Tx<'_>, ctx: &Ctx<'_>, job: &Claimed) -> Result<()> {
    end(tx, ctx, job, "done", None).await
}

/// The attempt failed: later again, or never.
pub async fn fail(tx: &mut Tx<'_>, ctx: &Ctx<'_>, job: &Claimed, policy: &Policy, error: &str) -> Result<Failed> {
    const AGAIN: &str = "UPDATE jobs SET state = 'ready', next_at = $4, last_error = $5 \
                         WHERE tenant = $1 AND job_id = $2 AND claim = $3 AND state = 'running'";
    if job.attempts >= policy.attempts_max {
        end(tx, ctx, job, "dead", Some(error)).await?;
        return Ok(Failed::Dead);
    }
    // From the call's ids, so that a second run of the same call waits for as long.
    let [.., a, b, c, d] = *ctx.ids.next().as_bytes();
    let at = ctx.now.after(policy.wait_after(job.attempts, u32::from_be_bytes([a, b, c, d])));
    let params = [Value::from(job.job_id.as_bytes()), Value::from(job.claim), Value::from(at), Value::from(error)];
    unless_superseded(write(tx, job.tenant, AGAIN, &params).await?)?;
    Ok(Failed::Again { at })
}

/// The attempt was not made after all: at once again, and not counted.
pub(super) async fn give_back(tx: &mut Tx<'_>, ctx: &Ctx<'_>, job: &Claimed) -> Result<()> {
    const BACK: &str = "UPDATE jobs SET state = 'ready', next_at = $4, attempts = attempts - 1 \
                        WHERE tenant = $1 AND job_id = $2 AND claim = $3 AND state = 'running'";
    let params = [Value::from(job.job_id.as_bytes()), Value::from(job.claim), Value::from(ctx.now)];
    unless_superseded(write(tx, job.tenant, BACK, &params).await?)
}

async fn end(tx: &mut Tx<'_>, ctx: &Ctx<'_>, job: &Claimed, state: &str, error: Option<&str>) -> Result<()> {
    const END: &str = "UPDATE jobs SET state = $4, next_at = NULL, ended_at = $5, last_error = coalesce($6, last_error) \
                       WHERE tenant = $1 AND job_id = $2 AND claim = $3 AND state = 'running'";
    let params = [
        Value::from(job.job_id.as_bytes()),
        Value::from(job.claim),
        Value::from(state),
        Value::from(ctx.now),
        Value::from(error),
    ];
    unless_superseded(write(tx, job.tenant, END, &params).await?)
}

/// `$1` is the tenant, which a tenant's own transaction binds by itself.
async fn write(tx: &mut Tx<'_>, tenant: Tenant, sql: &'static str, params: &[Value<'_>]) -> Result<u64> {
    match tx.tenant() {
        Some(own) if own == tenant => tx.execute(sql, params).await,
        Some(_) => Err(Error::internal("a job of another tenant")),
        None => tx.execute(sql, &[&[Value::from(tenant.0)], params].concat()).await,
    }
}

fn unless_superseded(written: u64) -> Result<()> {
    if written == 1 {
        return Ok(());
    }
    Err(Error::new(Code::LeaseInvalidOrExpired, "The claim is not the latest one of this job."))
}

impl Claimed {
    fn read(row: &Row, kind: &'static str) -> Result<Self> {
        Ok(Self {
            tenant: Tenant(row.int(0)?),
            job_id: JobId::from_slice(row.bytes(1)?)?,
            kind,
            payload: row.text(2)?.to_owned(),
            attempts: row.int(3)?,
            claim: row.int(4)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_cap_and_chance_has_all_of_it() {
        let policy =
            Policy { backoff: Duration::from_secs(5), backoff_max: Duration::from_secs(60), ..Policy::default() };
        for (attempts, longest) in [(0, 5), (1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (6, 60), (i64::MAX, 60)] {
            let wait = |chance| policy.wait_after(attempts, chance).as_secs_f64();
            assert_eq!(wait(u32::MAX), f64::from(longest), "attempt {attempts}");
            assert_eq!(wait(0), 0.0);
            assert!((wait(u32::MAX / 2) - f64::from(longest) / 2.0).abs() < 0.001);
        }
    }
}
