//! CancelMessageMoveTask: what was moved stays where it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::move_tasks::{CANCELLED, from_handle, unknown_task};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct CancelMessageMoveTask {
    #[serde(default)]
    pub task_handle: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct MoveTaskCancelled {
    pub approximate_number_of_messages_moved: i64,
}

impl Operation for CancelMessageMoveTask {
    const SPEC: OperationSpec = write("CancelMessageMoveTask", &[Scope::QueuesManage]);
    type Output = MoveTaskCancelled;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<MoveTaskCancelled>> {
        const CANCEL: &str = "UPDATE move_tasks SET status = $3, active = 0 WHERE tenant = $1 AND task = $2 \
                              AND active = 1 RETURNING moved";
        let task = from_handle(&self.task_handle)?;
        let row = tx.query_opt(CANCEL, &[task.as_bytes().into(), Value::from(CANCELLED)]).await?;
        let moved = row.ok_or_else(unknown_task)?.int(0)?;
        Ok(Reply::Done(MoveTaskCancelled { approximate_number_of_messages_moved: moved }))
    }
}
