//! StartMessageMoveTask: dead letters go back to the queues they came from, or to another. The sweep `queues.moves` does
//! the work, and `shards/moves.rs` where they are in several stores.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::Settings;
use crate::catalog::Entry;
use crate::counts::Counts;
use crate::move_tasks::{self, MoveTaskId, PER_SECOND_MAX, RUNNING, handle_of};
use crate::queue::Queue;
use crate::rules::names::is_fifo;
use crate::rules::{check_range, missing};

/// Tasks that are remembered of each source: as many as a list shows.
const REMEMBERED_MAX: i64 = 10;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct StartMessageMoveTask {
    #[serde(default)]
    pub source_arn: String,
    /// Without it each message goes to the queue it came from.
    pub destination_arn: Option<String>,
    pub max_number_of_messages_per_second: Option<i64>,
    /// Messages that could be received now in other stores than home. Left alone by whoever makes a request.
    #[serde(skip)]
    #[schemars(skip)]
    pub elsewhere: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct MoveTaskStarted {
    pub task_handle: String,
}

impl Operation for StartMessageMoveTask {
    const SPEC: OperationSpec = write("StartMessageMoveTask", &[Scope::QueuesManage]);
    type Output = MoveTaskStarted;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<MoveTaskStarted>> {
        const INSERT: &str = "INSERT INTO move_tasks (tenant, task, source, destination, per_second, status, active, moved, \
                              to_move, started_at, paced_to) VALUES ($1, $2, $3, $4, $5, $6, 1, 0, $7, $8, $8) \
                              ON CONFLICT (tenant, source) WHERE active = 1 DO NOTHING";
        const FORGET: &str = "DELETE FROM move_tasks WHERE tenant = $1 AND source = $2 AND active = 0 AND task NOT IN \
                              (SELECT t.task FROM move_tasks t WHERE t.tenant = $1 AND t.source = $2 \
                              ORDER BY t.started_at DESC LIMIT $3)";
        if let Some(rate) = self.max_number_of_messages_per_second {
            check_range("MaxNumberOfMessagesPerSecond", rate, 1, PER_SECOND_MAX)?;
        }
        let source = self.source(ctx, tx).await?;
        let destination = self.destination(ctx, tx, &source.name).await?;
        let to_move = Counts::of(tx, &source.name, source.generation, ctx.now).await?.visible + self.elsewhere;
        let task = MoveTaskId(ctx.ids.next());
        let params = [
            task.as_bytes().into(),
            Value::from(&source.name),
            Value::from(destination.as_deref()),
            Value::from(self.max_number_of_messages_per_second),
            Value::from(RUNNING),
            to_move.into(),
            ctx.now.into(),
        ];
        if tx.execute(INSERT, &params).await? == 0 {
            return Err(Error::invalid("A task moves the messages of this queue already.")
                .with_cure("Wait until it has ended, or cancel it."));
        }
        tx.execute(FORGET, &[Value::from(&source.name), REMEMBERED_MAX.into()]).await?;
        // The sweep and those who move between stores look for different tasks.
        tx.wake(move_tasks::started(), u32::MAX);
        Ok(Reply::Done(MoveTaskStarted { task_handle: handle_of(task) }))
    }
}

impl StartMessageMoveTask {
    async fn source(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Queue> {
        const IS_TARGET: &str = "SELECT 1 FROM queues WHERE tenant = $1 AND dead_letter = $2 LIMIT 1";
        let name = own_queue(ctx, "SourceArn", &self.source_arn)?;
        let queue = Queue::find(tx, &name).await?.ok_or_else(|| Error::not_found("queue"))?;
        if tx.query_opt(IS_TARGET, &[Value::from(&name)]).await?.is_none() {
            return Err(Error::invalid("SourceArn must be of a queue that other queues send dead letters to."));
        }
        Ok(queue)
    }

    async fn destination(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, source: &str) -> Result<Option<String>> {
        let Some(arn) = self.destination_arn.as_deref() else { return Ok(None) };
        let name = own_queue(ctx, "DestinationArn", arn)?;
        if name == source {
            return Err(Error::invalid("DestinationArn must be of another queue than SourceArn."));
        }
        Entry::find(tx, &name).await?.ok_or_else(|| Error::not_found("queue"))?;
        if is_fifo(&name) != is_fifo(source) {
            return Err(Error::invalid("DestinationArn must be of a queue of the same kind: FIFO or standard."));
        }
        Ok(Some(name))
    }
}

/// The name of the queue that an ARN is of.
pub(super) fn own_queue(ctx: &Ctx<'_>, parameter: &str, arn: &str) -> Result<String> {
    if arn.is_empty() {
        return Err(missing(parameter));
    }
    Settings::arns(ctx).name(arn).map(str::to_owned).ok_or_else(|| Error::not_found("queue"))
}
