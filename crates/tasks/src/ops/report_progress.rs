//! Progress: what a worker has to say while it works. The newest report stands on the task; the first one says that
//! the work has begun.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Example, Json, OperationSpec, PrincipalKind, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Row, Statement, Tx, Value};

use crate::Settings;
use crate::lease::{self, Hold, LeaseId, lease_is_live};
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType, SYSTEM};
use crate::task::TaskId;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportProgress {
    pub task_id: TaskId,
    pub lease_id: LeaseId,
    /// Who you are; your key says it anyway, and must agree.
    #[schemars(extend("deprecated" = true))]
    pub worker_id: Option<String>,
    /// With `worker_id`.
    #[schemars(extend("deprecated" = true))]
    pub worker_kind: Option<PrincipalKind>,
    /// Anything, as JSON: a percentage, a step, a sentence.
    pub progress: Json,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Reported {
    pub ok: bool,
}

pub(crate) const RUNNING: &str = concat!(
    "UPDATE tasks SET status = 'running', started_at = coalesce(started_at, $6), updated_at = $6, \
     progress_receipts = progress_receipts + 1 WHERE ",
    lease_is_live!(),
    " RETURNING assigned_receipt, progress_receipts"
);

/// What [`RUNNING`] answers with.
struct Running {
    assigned: ReceiptId,
    /// This one counted.
    reports: i64,
}

impl Running {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self { assigned: ReceiptId::from_slice(row.bytes(0)?)?, reports: row.int(1)? })
    }
}

impl Operation for ReportProgress {
    const SPEC: OperationSpec = OperationSpec {
        name: "report_progress",
        domain: "tasks",
        route: Route::post("/v1/tasks/{task_id}/progress"),
        roles: &[Role::Worker, Role::Admin],
        scopes: &[Scope::TasksLease],
        title: "Report progress",
        description: "Say how far you are with a task you hold. Its owner sees the latest report with get_task. It does not \
                      extend the lease.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
                "lease_id": "0198c0df-2b3c-7d4e-9f50-6b7c8d9e0f1a", "progress": {"percent": 80}}"#,
            answer: r#"{"ok": true}"#,
        },
        stores: true,
        ..OperationSpec::WRITE
    };
    type Output = Reported;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Reported>> {
        const PROGRESS: &str = "INSERT INTO task_progress (tenant, task_id, progress, updated_at) VALUES ($1, $2, $3, $4) \
            ON CONFLICT (tenant, task_id) DO UPDATE SET progress = excluded.progress, updated_at = excluded.updated_at";
        let settings = ctx.settings::<Settings>();
        let body = json!({ "progress": receipts::tree(settings, "The report makes", &self.progress)? });
        // The bound is the same where no receipt is written.
        receipts::check_body(settings, "The report makes", &body)?;
        let worker = lease::worker(ctx, self.worker_kind, self.worker_id.as_deref())?;
        let hold = Hold::new(ctx, self.task_id, self.lease_id, &worker);
        let Some(row) = tx.query_opt(RUNNING, &hold.params(&[ctx.now.into()])).await? else {
            return Err(lease::refusal(ctx, tx, &hold).await);
        };
        let task = Running::read(&row)?;
        let latest: Statement<'_> =
            (PROGRESS, vec![self.task_id.as_bytes().into(), Value::from(self.progress.as_str()), ctx.now.into()]);
        let receipt = Receipt {
            id: ReceiptId(ctx.ids.next()),
            kind: ReceiptType::TaskProgress,
            from: &worker,
            to: SYSTEM,
            task_id: Some(self.task_id),
            lease_id: Some(self.lease_id),
            schedule_id: None,
            parents: &[task.assigned],
            unlocated: false,
            body: body.into(),
        };
        let proven = settings.progress_receipts && task.reports <= settings.progress_receipts_max;
        let receipts = if proven { std::slice::from_ref(&receipt) } else { &[] };
        receipts::emit_all(tx, ctx, vec![latest], receipts).await?;
        Ok(Reply::Done(Reported { ok: true }))
    }
}
