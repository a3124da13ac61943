//! Cancel: the owner's way out. Ends any live lease at once; the worker learns it on its next call, or at once if it waits on the task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Error, Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use crate::actor::actor;
use crate::outcome::{EndReason, end_lease, unsuccessful};
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType};
use crate::rules::Status;
use crate::task::TaskId;

const REASON_CHARS_MAX: usize = 2_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelTask {
    pub task_id: TaskId,
    /// Why, for the receipt. At most 2,000 characters.
    #[schemars(length(max = 2000))]
    pub reason: Option<String>,
    /// Accepted if it is yours; an admin's cancel is recorded in this name.
    #[schemars(extend("deprecated" = true))]
    pub principal_kind: Option<PrincipalKind>,
    /// Accepted if it is yours; an admin's cancel is recorded in this name.
    #[schemars(extend("deprecated" = true))]
    pub principal_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Canceled {
    /// False when the task had already ended; nothing was changed then.
    pub ok: bool,
    /// The task's state now.
    pub status: Status,
}

impl Operation for CancelTask {
    const SPEC: OperationSpec = OperationSpec {
        name: "cancel_task",
        domain: "tasks",
        route: Route::post("/v1/tasks/{task_id}/cancel"),
        destructive: true,
        repeatable: true,
        relieves: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::TasksWrite],
        title: "Cancel a task",
        description: "Stop a task you own. A worker that holds it loses its lease at once. Answers ok: false with the \
                      task's status when it had already ended. Safe to repeat.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "reason": "The month is not over yet."}"#,
            answer: r#"{"ok": true, "status": "canceled"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Canceled;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Canceled>> {
        if self.reason.as_ref().is_some_and(|reason| reason.chars().count() > REASON_CHARS_MAX) {
            return Err(Error::invalid(format!("reason must have at most {REASON_CHARS_MAX} characters.")));
        }
        let canceller = actor(ctx, self.principal_kind, self.principal_id.as_deref(), PrincipalKind::Agent)?;
        let Some(task) = self.end(ctx, tx, &canceller).await? else { return self.explain(ctx, tx).await };
        self.record(ctx, tx, &task, &canceller).await?;
        tx.wake(self.task_id.topic(ctx.caller.tenant), u32::MAX);
        Ok(Reply::Done(Canceled { ok: true, status: Status::Canceled }))
    }
}

pub(crate) const CANCEL: &str = "UPDATE tasks SET status = 'canceled', updated_at = $3, lease_id = NULL, worker = NULL, \
    lease_expires_at = NULL WHERE tenant = $1 AND task_id = $2 AND status IN ('queued', 'leased', 'running') \
    AND (owner = $4 OR $5 = 1) RETURNING owner, assigned_receipt, epoch";

/// What [`CANCEL`] answers with.
struct Ended {
    owner: String,
    assigned: ReceiptId,
    epoch: i64,
}

impl Ended {
    fn read(row: &Row) -> Result<Self> {
        let assigned = ReceiptId::from_slice(row.bytes(1)?)?;
        Ok(Self { owner: row.text(0)?.to_owned(), assigned, epoch: row.int(2)? })
    }
}

impl CancelTask {
    /// The transition, guarded by everything it depends on: of several that race for the task, one finds its row.
    async fn end(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, canceller: &str) -> Result<Option<Ended>> {
        let params = [
            Value::from(self.task_id.as_bytes()),
            Value::from(ctx.now),
            Value::from(canceller),
            Value::from(ctx.caller.sees_all_owners()),
        ];
        tx.query_opt(CANCEL, &params).await?.map(|row| Ended::read(&row)).transpose()
    }

    async fn record(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, task: &Ended, canceller: &str) -> Result<()> {
        let owner = task.owner.as_str();
        let mut error = json!({ "reason": self.reason, "canceled_by": canceller });
        let caller = ctx.caller.principal.to_string();
        if caller != canceller {
            error["requested_by"] = json!(caller);
        }
        let text = error.to_string();
        let (canceled_id, assigned) = (ReceiptId(ctx.ids.next()), [task.assigned]);
        let canceled = Receipt {
            id: canceled_id,
            kind: ReceiptType::TaskCanceled,
            from: canceller,
            to: owner,
            task_id: Some(self.task_id),
            lease_id: None,
            schedule_id: None,
            parents: &assigned,
            unlocated: false,
            body: error.clone().into(),
        };
        let (ready_id, parent) = (ReceiptId(ctx.ids.next()), std::slice::from_ref(&canceled_id));
        let body = json!({ "status": Status::Canceled, "error": error });
        let ready = Receipt::result_ready(ready_id, self.task_id, owner, parent, body);
        let end = end_lease(self.task_id.as_bytes(), task.epoch, ctx.now, EndReason::Canceled, None, None);
        let result = unsuccessful(self.task_id.as_bytes(), Status::Canceled, &text, &canceled_id, ctx.now);
        receipts::emit_all(tx, ctx, vec![result, end], &[canceled, ready]).await
    }

    /// Nothing was changed: because there is no such task, it is another's, or it had ended.
    async fn explain(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Canceled>> {
        let row = tx
            .query_opt(
                "SELECT owner, status FROM tasks WHERE tenant = $1 AND task_id = $2",
                &[self.task_id.as_bytes().into()],
            )
            .await?
            .ok_or_else(|| Error::not_found("task"))?;
        ctx.caller.require_owner(row.text(0)?, "task")?;
        let status = Status::from_stored(row.text(1)?)?;
        if !status.is_terminal() {
            return Err(Error::internal(format!("a {status} task could not be canceled")));
        }
        Ok(Reply::Done(Canceled { ok: false, status }))
    }
}
