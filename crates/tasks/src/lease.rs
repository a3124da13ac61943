//! A lease: the right of one worker to work on one task for a time.
//!
//! Every call of a worker is guarded by it in the statement that changes the task: the lease must be the task's live
//! one, held by this worker, and not have ended. A call that finds no such row learns why from [`refusal`].

use waybill_kernel::{Code, Error, PrincipalKind, Result, Tenant, Time, id_type};
use waybill_store::{Ctx, Row, Topic, Tx, Value};

use crate::actor::actor;
use crate::misuse::Pair;
use crate::task::TaskId;
use crate::{Process, Settings};

id_type!(
    /// Identifies a lease within its tenant. Never used twice.
    LeaseId
);

/// The condition of every statement a worker changes a task by: `$2` task, `$3` lease, `$4` worker, `$5` lease horizon.
macro_rules! lease_is_live {
    () => {
        "tenant = $1 AND task_id = $2 AND lease_id = $3 AND worker = $4 AND lease_expires_at > $5 \
         AND status IN ('leased', 'running')"
    };
}
pub(crate) use lease_is_live;

/// Woken when a task of the tenant can be claimed.
pub fn claimable(tenant: Tenant) -> Topic {
    Topic::new("claimable", tenant, &[])
}

/// What a worker says about itself in each of its calls.
pub(crate) struct Hold<'a> {
    pub task_id: TaskId,
    pub lease_id: LeaseId,
    pub worker: &'a str,
    pub horizon: Time,
}

impl<'a> Hold<'a> {
    pub fn new(ctx: &Ctx<'_>, task_id: TaskId, lease_id: LeaseId, worker: &'a str) -> Self {
        Self { task_id, lease_id, worker, horizon: ctx.settings::<Settings>().lease_horizon(ctx.now) }
    }

    /// `$2` to `$5` of [`lease_is_live`], and what the statement needs besides.
    pub fn params<'b>(&'b self, further: &[Value<'b>]) -> Vec<Value<'b>> {
        let mut params = vec![
            Value::from(self.task_id.as_bytes()),
            Value::from(self.lease_id.as_bytes()),
            Value::from(self.worker),
            Value::from(self.horizon),
        ];
        params.extend_from_slice(further);
        params
    }
}

/// The caller as a worker. A kind alone says nothing: older clients send it with every call.
pub(crate) fn worker(ctx: &Ctx<'_>, kind: Option<PrincipalKind>, id: Option<&str>) -> Result<String> {
    actor(ctx, kind.filter(|_| id.is_some()), id, PrincipalKind::Worker)
}

/// Why a guarded statement found no row, when the call is no repetition either. Nothing was changed; the process remembers
/// that a worker used a lease it does not have.
pub(crate) async fn refusal(ctx: &Ctx<'_>, tx: &mut Tx<'_>, hold: &Hold<'_>) -> Error {
    const FOUND: &str = "SELECT t.lease_id, l.worker, l.end_reason, l.next_eligible_at FROM tasks t LEFT JOIN leases l \
        ON l.tenant = $1 AND l.task_id = t.task_id AND l.lease_id = $3 WHERE t.tenant = $1 AND t.task_id = $2";
    let params = [hold.task_id.as_bytes().into(), hold.lease_id.as_bytes().into()];
    let why = match tx.query_opt(FOUND, &params).await {
        Err(error) => return error,
        Ok(None) => return Error::not_found("task"),
        Ok(Some(row)) => match Why::read(&row, hold) {
            Err(error) => return error,
            Ok(why) => why,
        },
    };
    let (tenant, worker) = (ctx.caller.tenant, hold.worker.to_owned());
    ctx.settings::<Process>().misused(Pair { tenant, task_id: hold.task_id, worker }, ctx.ids.next());
    why.into_error()
}

/// Why a lease is not the live one of its task and worker.
struct Why {
    /// One word, for programs.
    reason: &'static str,
    told: &'static str,
    /// Somebody holds the task by another lease.
    replaced: bool,
}

impl Why {
    /// From the task's lease, and the worker, end and next time of the lease in question.
    fn read(row: &Row, hold: &Hold<'_>) -> Result<Self> {
        let own = hold.lease_id.as_bytes();
        let replaced = row.bytes_opt(0)?.is_some_and(|live| live != own);
        let (reason, told) = match (row.text_opt(1)?, row.text_opt(2)?, row.time_opt(3)?) {
            (None, ..) => ("unknown", "The task has never had this lease"),
            (Some(worker), ..) if worker != hold.worker => ("not_yours", "The lease is another worker's"),
            // Nobody has taken the task back yet, but nobody may act on it by this lease any more.
            (_, None | Some("expired"), _) => ("expired", "The lease ran out before it was renewed"),
            (_, Some("canceled"), _) => ("canceled", "The task was canceled, and the lease ended with it"),
            (_, Some("completed"), _) => ("completed", "The lease ended when you completed the task with it"),
            (_, Some("failed"), Some(_)) => {
                ("given_up", "The lease ended when you gave the task up, to be tried again")
            }
            (_, Some(_), _) => ("failed", "The lease ended when you failed the task with it"),
        };
        Ok(Self { reason, told, replaced })
    }

    fn into_error(self) -> Error {
        let Self { reason, told, replaced } = self;
        let later = replaced && matches!(reason, "expired" | "given_up");
        let now = if later { "; another lease has taken its place" } else { "" };
        Error::new(Code::LeaseInvalidOrExpired, format!("{told}{now}. Nothing was changed.")).with("reason", reason)
    }
}

/// Has this worker ever held the task?
pub(crate) async fn was_held_by(tx: &mut Tx<'_>, task_id: TaskId, worker: &str) -> Result<bool> {
    const HELD: &str = "SELECT 1 FROM leases WHERE tenant = $1 AND task_id = $2 AND worker = $3 LIMIT 1";
    Ok(tx.query_opt(HELD, &[task_id.as_bytes().into(), worker.into()]).await?.is_some())
}
