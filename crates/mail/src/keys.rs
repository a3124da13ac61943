//! Idempotency keys: a call that is repeated under its key has been made once.
//!
//! The key is claimed before the work and the answer is stored after it, both in the work's own transaction. Of two calls that come
//! together the second waits for the first one's row on PostgreSQL, and then finds it.

use std::time::Duration;

use serde::Serialize;
use waybill_kernel::idempotency::{Decision, Fingerprint, Found, OnMismatch, Policy, Presented, decide};
use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Ctx, Row, Tx, Value};

pub const KEY_CHARS_MAX: usize = 255;
/// How long a key is remembered.
pub const WINDOW: Duration = Duration::from_secs(24 * 3600);

/// A key that is nearly forgotten could be so before the transaction that it is looked up for.
const MARGIN: Duration = Duration::from_secs(600);

const POLICY: Policy = Policy { on_mismatch: OnMismatch::Conflict, window: Some(WINDOW) };

/// Whose key it is.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub project: i64,
    pub agent: i64,
    pub tool: &'a str,
    /// None where the caller gave no key: then nothing is looked up and nothing kept.
    pub key: Option<&'a str>,
}

/// What the key says about the call.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    /// Do it; then [`keep`] the answer.
    Fresh,
    /// It was done: what was kept then.
    Replay(String),
}

/// `request` is everything that makes the call this call, without the key itself. Called before anything is written.
pub async fn claim(ctx: &Ctx<'_>, tx: &mut Tx<'_>, scope: Scope<'_>, request: &impl Serialize) -> Result<Claim> {
    if scope.key.is_none() {
        return Ok(Claim::Fresh);
    }
    let fingerprint = Fingerprint::of(request)?;
    claim_as(ctx, tx, scope, fingerprint).await
}

/// As [`claim`], for a call whose fingerprint was taken before.
pub async fn claim_as(ctx: &Ctx<'_>, tx: &mut Tx<'_>, scope: Scope<'_>, fingerprint: Fingerprint) -> Result<Claim> {
    // One whose window has ended is given to the new call. The first call's row is locked until its transaction ends.
    const CLAIM: &str = "INSERT INTO mail_keys (tenant, project, agent, tool, key, fingerprint, answer, created_at) \
        VALUES ($1, $2, $3, $4, $5, $6, '', $7) ON CONFLICT (tenant, project, agent, tool, key) DO UPDATE \
        SET fingerprint = excluded.fingerprint, answer = '', created_at = excluded.created_at \
        WHERE mail_keys.created_at <= $8";
    const FOUND: &str = "SELECT fingerprint, created_at, answer FROM mail_keys \
        WHERE tenant = $1 AND project = $2 AND agent = $3 AND tool = $4 AND key = $5";
    let Some(key) = scope.key else { return Ok(Claim::Fresh) };
    check(key)?;
    let ended = Time::from_micros(ctx.now.micros().saturating_sub(WINDOW.as_micros() as i64));
    let whose = [scope.project.into(), scope.agent.into(), Value::from(scope.tool), Value::from(key)];
    let mut params = whose.to_vec();
    params.extend([Value::from(&fingerprint.as_bytes()[..]), Value::from(ctx.now), Value::from(ended)]);
    if tx.execute(CLAIM, &params).await? == 1 {
        return Ok(Claim::Fresh);
    }
    let row = tx.query_opt(FOUND, &whose).await?;
    let row = row.ok_or_else(|| Error::internal("a key was refused that nobody has"))?;
    let presented = Presented { fingerprint: Some(fingerprint), now: ctx.now };
    match decide(Some(found(&row)?), presented, POLICY) {
        Decision::Replay => Ok(Claim::Replay(row.text(2)?.to_owned())),
        Decision::Conflict => Err(Error::new(
            Code::IdempotencyKeyConflict,
            format!("The key {key:?} was used for another call of {} within the last 24 hours.", scope.tool),
        )),
        Decision::Fresh => Err(Error::internal("a key whose window has ended was not given to a new call")),
    }
}

/// Whether a call was made under the key, and [`claim`] will say so: for whoever has work to do before the transaction.
pub async fn is_known(ctx: &Ctx<'_>, tx: &mut Tx<'_>, scope: Scope<'_>) -> Result<bool> {
    const KNOWN: &str = "SELECT 1 FROM mail_keys WHERE tenant = $1 AND project = $2 AND agent = $3 AND tool = $4 \
                         AND key = $5 AND created_at > $6";
    let Some(key) = scope.key else { return Ok(false) };
    check(key)?;
    let remembered = (WINDOW - MARGIN).as_micros() as i64;
    let since = Time::from_micros(ctx.now.micros().saturating_sub(remembered));
    let params = [scope.project.into(), scope.agent.into(), scope.tool.into(), Value::from(key), since.into()];
    Ok(tx.query_opt(KNOWN, &params).await?.is_some())
}

/// What a repeated call is to be answered from.
pub async fn keep(tx: &mut Tx<'_>, scope: Scope<'_>, answer: &str) -> Result<()> {
    const KEEP: &str = "UPDATE mail_keys SET answer = $6 \
        WHERE tenant = $1 AND project = $2 AND agent = $3 AND tool = $4 AND key = $5";
    let Some(key) = scope.key else { return Ok(()) };
    let params = [scope.project.into(), scope.agent.into(), scope.tool.into(), key.into(), answer.into()];
    match tx.execute(KEEP, &params).await? {
        1 => Ok(()),
        _ => Err(Error::internal("a key was not there when its answer was kept")),
    }
}

/// Nothing was done that the key could stand for: a later call under it is a new one.
pub async fn release(tx: &mut Tx<'_>, scope: Scope<'_>) -> Result<()> {
    const RELEASE: &str = "DELETE FROM mail_keys \
        WHERE tenant = $1 AND project = $2 AND agent = $3 AND tool = $4 AND key = $5";
    let Some(key) = scope.key else { return Ok(()) };
    let whose = [scope.project.into(), scope.agent.into(), scope.tool.into(), Value::from(key)];
    tx.execute(RELEASE, &whose).await.map(drop)
}

fn found(row: &Row) -> Result<Found> {
    let bytes = row.bytes(0)?.try_into().map_err(|_| Error::internal("a fingerprint is not 32 bytes long"))?;
    Ok(Found { fingerprint: Some(Fingerprint::from_bytes(bytes)), at: row.time(1)? })
}

fn check(key: &str) -> Result<()> {
    if key.is_empty() || key.chars().count() > KEY_CHARS_MAX {
        return Err(Error::invalid(format!("idempotency_key must have 1 to {KEY_CHARS_MAX} characters.")));
    }
    Ok(())
}
