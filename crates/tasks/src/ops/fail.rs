//! Fail: the worker could not do it. Back to the queue if it may be tried again, otherwise the task ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Tree, json};
use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{Code, Error, Example, Json, OperationSpec, PrincipalKind, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Tx};

use crate::Settings;
use crate::lease::{self, Hold, LeaseId, lease_is_live};
use crate::outcome::{EndReason, Ended, end_lease, unsuccessful};
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType};
use crate::rules::{AfterFailure, Status, after_failure};
use crate::settings::seconds_of;
use crate::task::TaskId;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    pub task_id: TaskId,
    pub lease_id: LeaseId,
    /// Who you are; your key says it anyway, and must agree.
    #[schemars(extend("deprecated" = true))]
    pub worker_id: Option<String>,
    /// With `worker_id`.
    #[schemars(extend("deprecated" = true))]
    pub worker_kind: Option<PrincipalKind>,
    /// What went wrong, as JSON.
    pub error: Json,
    /// True if trying again may help. The task then goes back to the queue while it has attempts left.
    #[serde(default)]
    pub retryable: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FailedReply {
    pub ok: bool,
    /// True when the task will be tried again.
    pub requeued: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_eligible_at: Option<Time>,
}

impl Operation for Fail {
    const SPEC: OperationSpec = OperationSpec {
        name: "fail",
        domain: "tasks",
        route: Route::post("/v1/tasks/{task_id}/fail"),
        repeatable: true,
        relieves: true,
        roles: &[Role::Worker, Role::Admin],
        scopes: &[Scope::TasksLease],
        title: "Give a task up",
        description: "Say that you could not do a task you hold. With retryable: true it goes back to the queue, after a \
                      pause, while it has attempts left; otherwise it has failed for good. Safe to repeat with the same \
                      content after a lost answer.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
                "lease_id": "0198c0df-2b3c-7d4e-9f50-6b7c8d9e0f1a", "error": {"code": "printer_away",
                "message": "The printer does not answer."}, "retryable": true}"#,
            answer: r#"{"ok": true, "requeued": true, "next_eligible_at": "2026-01-05T12:35:04.250000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    const REPLAYS: bool = true;
    type Output = FailedReply;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<FailedReply>> {
        let settings = ctx.settings::<Settings>();
        let error = receipts::tree(settings, "The error makes", &self.error)?;
        let digest = Fingerprint::of(&(&error, self.retryable))?;
        let worker = lease::worker(ctx, self.worker_kind, self.worker_id.as_deref())?;
        let hold = Hold::new(ctx, self.task_id, self.lease_id, &worker);
        let Some(row) = tx.query_opt(HELD, &hold.params(&[])).await? else {
            return self.repeat(ctx, tx, &hold, digest).await;
        };
        let task = Held::read(&row)?;
        let after = after_failure(
            task.attempt,
            task.max_attempts,
            self.retryable,
            task.backoff_s,
            settings.retry_backoff_s_max,
        );
        let next_eligible_at = match after {
            AfterFailure::Again { delay_s, .. } => Some(ctx.now.after(seconds_of(delay_s))),
            AfterFailure::Final => None,
        };
        // The receipt that the result is ready has less around the error, so it fits as well.
        receipts::check_body(settings, "The error makes", &self.told(&error, &task, next_eligible_at))?;
        if !self.end(ctx, tx, &hold, after, next_eligible_at).await? {
            // Ended by somebody else between the two statements.
            return self.repeat(ctx, tx, &hold, digest).await;
        }
        self.record(ctx, tx, &task, &worker, (&error, &digest), next_eligible_at).await?;
        Ok(Reply::Done(FailedReply { ok: true, requeued: next_eligible_at.is_some(), next_eligible_at }))
    }
}

const HELD: &str = concat!(
    "SELECT owner, assigned_receipt, attempt, max_attempts, retry_backoff_s, epoch FROM tasks WHERE ",
    lease_is_live!()
);

/// What [`HELD`] answers with. What is decided from it still holds when it is written: that write has the same guards.
struct Held<'r> {
    owner: &'r str,
    assigned: ReceiptId,
    attempt: i64,
    max_attempts: i64,
    backoff_s: i64,
    epoch: i64,
}

impl<'r> Held<'r> {
    fn read(row: &'r Row) -> Result<Self> {
        Ok(Self {
            owner: row.text(0)?,
            assigned: ReceiptId::from_slice(row.bytes(1)?)?,
            attempt: row.int(2)?,
            max_attempts: row.int(3)?,
            backoff_s: row.int(4)?,
            epoch: row.int(5)?,
        })
    }
}

pub(crate) const FINAL: &str = concat!(
    "UPDATE tasks SET status = 'failed', lease_id = NULL, worker = NULL, lease_expires_at = NULL, updated_at = $6 WHERE ",
    lease_is_live!()
);
pub(crate) const AGAIN: &str = concat!(
    "UPDATE tasks SET status = 'queued', lease_id = NULL, worker = NULL, lease_expires_at = NULL, updated_at = $6, \
     started_at = NULL, attempt = $7, next_eligible_at = $8, held = 1 WHERE ",
    lease_is_live!(),
    " AND attempt = $7 - 1"
);

impl Fail {
    /// False when the lease is no longer live.
    async fn end(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        hold: &Hold<'_>,
        after: AfterFailure,
        next_eligible_at: Option<Time>,
    ) -> Result<bool> {
        let written = match after {
            AfterFailure::Final => tx.execute(FINAL, &hold.params(&[ctx.now.into()])).await?,
            AfterFailure::Again { attempt, .. } => {
                let params = hold.params(&[ctx.now.into(), attempt.into(), next_eligible_at.into()]);
                tx.execute(AGAIN, &params).await?
            }
        };
        Ok(written == 1)
    }

    async fn record(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        task: &Held<'_>,
        worker: &str,
        (error, digest): (&Tree, &Fingerprint),
        next_eligible_at: Option<Time>,
    ) -> Result<()> {
        let (owner, assigned) = (task.owner, [task.assigned]);
        let task_id = self.task_id.as_bytes();
        let end = end_lease(task_id, task.epoch, ctx.now, EndReason::Failed, Some(digest), next_eligible_at);
        let kind = match next_eligible_at {
            Some(_) => ReceiptType::TaskRetryScheduled,
            None => ReceiptType::TaskFailed,
        };
        let parts = [task_id, worker.as_bytes(), self.lease_id.as_bytes(), assigned[0].as_bytes()];
        let told = Receipt {
            id: receipts::keyed_id(kind, &self.lease_id.0, &parts),
            kind,
            from: worker,
            to: owner,
            task_id: Some(self.task_id),
            lease_id: Some(self.lease_id),
            schedule_id: None,
            parents: &assigned,
            unlocated: false,
            body: self.told(error, task, next_eligible_at).into(),
        };
        if let Some(at) = next_eligible_at {
            receipts::emit_all(tx, ctx, vec![end], &[told]).await?;
            tx.wake_at(lease::claimable(ctx.caller.tenant), ctx.now, at);
            return Ok(());
        }
        let failed_id = told.id;
        let result = unsuccessful(task_id, Status::Failed, self.error.as_str(), &failed_id, ctx.now);
        let (ready_id, parent) = (ReceiptId(ctx.ids.next()), std::slice::from_ref(&failed_id));
        let body = json!({ "status": Status::Failed, "error": error });
        let ready = Receipt::result_ready(ready_id, self.task_id, owner, parent, body);
        receipts::emit_all(tx, ctx, vec![result, end], &[told, ready]).await?;
        tx.wake(self.task_id.topic(ctx.caller.tenant), u32::MAX);
        Ok(())
    }

    /// What the owner is told: when it is tried again, or that it has failed.
    fn told(&self, error: &Tree, task: &Held<'_>, next_eligible_at: Option<Time>) -> Tree {
        match next_eligible_at {
            Some(at) => json!({
                "error": error, "attempt": task.attempt + 1, "max_attempts": task.max_attempts, "requeued": true,
                "next_eligible_at": at,
            }),
            None => json!({ "error": error, "retry_recommended": self.retryable, "retry_after_seconds": null }),
        }
    }

    /// For a lease that is not live. If this worker gave the task up with the same call, it gets the same answer again.
    async fn repeat(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        hold: &Hold<'_>,
        digest: Fingerprint,
    ) -> Result<Reply<FailedReply>> {
        let Some(ended) = Ended::find(tx, hold).await? else { return Err(lease::refusal(ctx, tx, hold).await) };
        if ended.is_repeated_by(ctx, EndReason::Failed, digest) {
            let next_eligible_at = ended.next_eligible_at;
            return Ok(Reply::Replay(FailedReply { ok: true, requeued: next_eligible_at.is_some(), next_eligible_at }));
        }
        if ended.went_back_to_the_queue() {
            return Err(lease::refusal(ctx, tx, hold).await);
        }
        Err(Error::new(
            Code::InvalidStateTransition,
            "This lease has already been ended, with another outcome or other content; nothing was changed.",
        ))
    }
}
