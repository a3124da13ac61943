//! Renew: more time for a worker that is still at it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Tx};

use super::lease_next::positive;
use crate::Settings;
use crate::anomaly::{self, Anomaly};
use crate::lease::{self, Hold, LeaseId, lease_is_live};
use crate::receipts::ReceiptId;
use crate::task::TaskId;

/// One lease renewed more often than this is worth a look.
const RENEWALS_USUAL: i64 = 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewLease {
    pub task_id: TaskId,
    pub lease_id: LeaseId,
    /// Who you are; your key says it anyway, and must agree.
    #[schemars(extend("deprecated" = true))]
    pub worker_id: Option<String>,
    /// With `worker_id`.
    #[schemars(extend("deprecated" = true))]
    pub worker_kind: Option<PrincipalKind>,
    /// How long from now: 300 unless given, never more than 1,800. A lease is never shortened.
    #[schemars(range(min = 1))]
    pub extend_by_seconds: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Renewed {
    pub ok: bool,
    pub expires_at: Time,
}

impl Operation for RenewLease {
    const SPEC: OperationSpec = OperationSpec {
        name: "renew_lease",
        domain: "tasks",
        route: Route::post("/v1/leases/renew"),
        repeatable: true,
        relieves: true,
        roles: &[Role::Worker, Role::Admin],
        scopes: &[Scope::TasksLease],
        title: "Keep a task",
        description: "Keep a task you are working on: moves the end of its lease. Call it well before expires_at, at a third \
                      of the lease's length. LEASE_INVALID_OR_EXPIRED means the task is no longer yours: stop working on it.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
                "lease_id": "0198c0df-2b3c-7d4e-9f50-6b7c8d9e0f1a", "extend_by_seconds": 300}"#,
            answer: r#"{"ok": true, "expires_at": "2026-01-05T12:35:04.250000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Renewed;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Renewed>> {
        const RENEW: &str = concat!(
            "UPDATE tasks SET renewals = renewals + 1, updated_at = $6, \
             lease_expires_at = CASE WHEN lease_expires_at > $7 THEN lease_expires_at ELSE $7 END WHERE ",
            lease_is_live!(),
            " AND ($8 = 0 OR renewals < $8) RETURNING lease_expires_at, renewals, owner, assigned_receipt"
        );
        positive("extend_by_seconds", self.extend_by_seconds)?;
        let settings = ctx.settings::<Settings>();
        let worker = lease::worker(ctx, self.worker_kind, self.worker_id.as_deref())?;
        let hold = Hold::new(ctx, self.task_id, self.lease_id, &worker);
        let until = settings.lease_end(ctx.now, self.extend_by_seconds);
        let params = hold.params(&[ctx.now.into(), until.into(), settings.renewals_max.into()]);
        let Some(row) = tx.query_opt(RENEW, &params).await? else { return Err(refusal(ctx, tx, &hold).await?) };
        if row.int(1)? == RENEWALS_USUAL + 1 {
            self.report(ctx, tx, &row, &worker).await?;
        }
        Ok(Reply::Done(Renewed { ok: true, expires_at: row.time(0)? }))
    }
}

impl RenewLease {
    async fn report(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, task: &Row, worker: &str) -> Result<()> {
        let anomaly = Anomaly {
            kind: anomaly::Kind::ExcessiveRenewals,
            to: task.text(2)?,
            task_id: Some(self.task_id),
            related: Some(ReceiptId::from_slice(task.bytes(3)?)?),
            // Once per lease: the same crossing has the same id.
            crossing: self.lease_id.as_bytes(),
            details: json!({ "lease_id": self.lease_id, "worker": worker, "renewals": RENEWALS_USUAL + 1 }),
            recommended_action: "Look whether the worker is making progress; cancel the task if it is not.",
        };
        anomaly::report(tx, ctx, anomaly).await
    }
}

/// Why nothing was renewed. A lease that has had all the renewals the server allows is its worker's to its end: asking for
/// one more is no misuse.
async fn refusal(ctx: &Ctx<'_>, tx: &mut Tx<'_>, hold: &Hold<'_>) -> Result<Error> {
    const LIVE: &str = concat!("SELECT lease_expires_at FROM tasks WHERE ", lease_is_live!());
    let max = ctx.settings::<Settings>().renewals_max;
    let live = if max > 0 { tx.query_opt(LIVE, &hold.params(&[])).await? } else { None };
    let Some(task) = live else { return Ok(lease::refusal(ctx, tx, hold).await) };
    let until = task.time(0)?;
    let message = format!(
        "The lease has been renewed as often as the server allows ({max} times); it is good until {until}, finish or fail \
         the task by then."
    );
    // Not the code of a lease that is over: whoever reads that stops working.
    let error = Error::new(Code::InvalidStateTransition, message);
    Ok(error.with("renewals_max", max).with("expires_at", until.to_string()))
}
