//! DeleteQueue: the queue is gone at once, and its messages soon after.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Settings, Tx, Value};

use super::write;
use crate::parts;
use crate::process::forget_rotation;
use crate::queue::{Queue, topic};
use crate::rules::names::{queue_name, unknown_queue};
use crate::shards::{note_change, read_shards};
use crate::throttle::Limiter;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DeleteQueue {
    #[serde(default)]
    pub queue_url: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct QueueDeleted {}

impl Operation for DeleteQueue {
    const SPEC: OperationSpec =
        OperationSpec { destructive: true, relieves: true, ..write("DeleteQueue", &[Scope::QueuesManage]) };
    type Output = QueueDeleted;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<QueueDeleted>> {
        const DELETE: &str = "DELETE FROM queues WHERE tenant = $1 AND name = $2 RETURNING generation, shards, version";
        const TASKS: &str = "DELETE FROM move_tasks WHERE tenant = $1 AND source = $2";
        let name = queue_name(&self.queue_url)?;
        Queue::exclude_senders(tx, name).await?;
        let row = tx.query_opt(DELETE, &[Value::from(name)]).await?.ok_or_else(|| unknown_queue(name))?;
        parts::retire(tx, name, row.int(0)?, ctx.now).await?;
        let shards = read_shards(row.text_opt(1)?)?;
        note_change(tx, name, shards.as_deref(), (row.int(0)?, row.int(2)?)).await?;
        tx.execute(TASKS, &[Value::from(name)]).await?;
        forget_rotation(ctx, name);
        // Whoever waits for messages learns that there will be none.
        tx.wake(topic(ctx.caller.tenant, name), u32::MAX);
        Ok(Reply::Done(QueueDeleted {}))
    }

    fn committed(&self, caller: &Caller, settings: &Settings, _: &QueueDeleted) {
        if let Ok(name) = queue_name(&self.queue_url) {
            Limiter::of_settings(settings).forget(caller.tenant, name);
        }
    }
}
