//! A lease: the right of one worker to work on one task for a time.
//!
//! Every call of a worker is guarded by it in the statement that changes the task: the lease must be the task's live
//! one, held by this worker, and not have ended. A call that finds no such row learns why from [`refusal`].

use waybill_kernel::{Code, Error, PrincipalKind, Result, Tenant, Time, id_type};
use waybill_store::{Ctx, Topic, Tx, Value};

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
    let found = tx
        .query_opt("SELECT status FROM tasks WHERE tenant = $1 AND task_id = $2", &[hold.task_id.as_bytes().into()])
        .await;
    match found {
        Err(error) => error,
        Ok(None) => Error::not_found("task"),
        Ok(Some(_)) => {
            let (tenant, worker) = (ctx.caller.tenant, hold.worker.to_owned());
            ctx.settings::<Process>().misused(Pair { tenant, task_id: hold.task_id, worker }, ctx.ids.next());
            Error::new(
                Code::LeaseInvalidOrExpired,
                "The lease has ended, was replaced by a later one, or is another worker's; nothing was changed.",
            )
        }
    }
}

/// Has this worker ever held the task?
pub(crate) async fn was_held_by(tx: &mut Tx<'_>, task_id: TaskId, worker: &str) -> Result<bool> {
    const HELD: &str = "SELECT 1 FROM leases WHERE tenant = $1 AND task_id = $2 AND worker = $3 LIMIT 1";
    Ok(tx.query_opt(HELD, &[task_id.as_bytes().into(), worker.into()]).await?.is_some())
}
