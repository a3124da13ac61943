//! Get: one task as it is now, or as soon as it has ended.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::principal::out_of_scope;
use waybill_kernel::{Caller, Error, Example, Mode, OperationSpec, Resource, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Until, Wait};

use crate::lease;
use crate::task::{TaskId, TaskRecord, columns, example_task, task_with_result};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetTask {
    pub task_id: TaskId,
    /// Wait up to this many seconds (at most 20) for the task to end. 0 answers at once.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4_294_967_295_u32))]
    pub wait_seconds: u32,
}

impl Operation for GetTask {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_task",
        domain: "tasks",
        route: Route::get("/v1/tasks/{task_id}"),
        resources: &[Resource::at("resource://tasks/{task_id}", "task", "One task as it is now.")],
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: &[Scope::TasksRead, Scope::TasksLease],
        title: "Read a task",
        description: "Read one task: its status, and its result once it has ended (succeeded, failed or canceled). With \
                      wait_seconds the call waits until the task ends or the time is up, so there is no need to poll.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "wait_seconds": 20}"#,
            answer: example_task!(),
        },
        ..OperationSpec::READ
    };
    type Output = TaskRecord;

    fn wait(&self, caller: &Caller) -> Option<Wait> {
        Wait::up_to(self.wait_seconds, self.task_id.topic(caller.tenant))
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<TaskRecord>> {
        let sql = concat!("SELECT ", columns!(), " ", task_with_result!(), " WHERE t.tenant = $1 AND t.task_id = $2");
        let row =
            tx.query_opt(sql, &[self.task_id.as_bytes().into()]).await?.ok_or_else(|| Error::not_found("task"))?;
        let allowed = may_read(ctx.caller, row.text(4)?);
        // A worker may read what it works on or has worked on.
        if allowed.is_err() && !lease::was_held_by(tx, self.task_id, &ctx.caller.principal.to_string()).await? {
            allowed?;
        }
        let task = TaskRecord::from_row(&row)?;
        if task.status.is_terminal() {
            Ok(Reply::Done(task))
        } else {
            Ok(Reply::Empty { answer: task, until: Until::default() })
        }
    }
}

/// Whether it is the caller's to read without ever having leased it, which `tasks:lease` alone does not give.
fn may_read(caller: &Caller, owner: &str) -> Result<()> {
    caller.require_owner(owner, "task")?;
    if caller.may_use(&[Scope::TasksRead], Mode::Read) {
        return Ok(());
    }
    let message = "Without the scope tasks:read a key reads only tasks that its principal has leased.";
    Err(out_of_scope(message, &[Scope::TasksRead], &caller.scopes))
}
