//! ListMessageMoveTasks: the latest tasks of one source, the newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use super::read;
use super::start_message_move_task::own_queue;
use crate::Settings;
use crate::catalog::Entry;
use crate::move_tasks::{MoveTaskId, handle_of};
use crate::rules::arn::Arns;
use crate::rules::check_range;

pub(super) const RESULTS_MAX: i64 = 10;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ListMessageMoveTasks {
    #[serde(default)]
    pub source_arn: String,
    pub max_results: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct MoveTasks {
    pub results: Vec<MoveTask>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct MoveTask {
    /// While it runs: what is over cannot be cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_handle: Option<String>,
    pub status: String,
    pub source_arn: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_number_of_messages_per_second: Option<i64>,
    pub approximate_number_of_messages_moved: i64,
    pub approximate_number_of_messages_to_move: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// In milliseconds since 1970.
    pub started_timestamp: i64,
}

impl Operation for ListMessageMoveTasks {
    const SPEC: OperationSpec = read("ListMessageMoveTasks", &[Scope::QueuesManage]);
    type Output = MoveTasks;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<MoveTasks>> {
        const LIST: &str = "SELECT task, active, status, destination, per_second, moved, to_move, reason, started_at \
                            FROM move_tasks WHERE tenant = $1 AND source = $2 ORDER BY started_at DESC LIMIT $3";
        let limit = check_range("MaxResults", self.max_results.unwrap_or(1), 1, RESULTS_MAX)?;
        let source = own_queue(ctx, "SourceArn", &self.source_arn)?;
        Entry::find(tx, &source).await?.ok_or_else(|| Error::not_found("queue"))?;
        let rows = tx.query(LIST, &[Value::from(&source), limit.into()]).await?;
        let arns = Settings::arns(ctx);
        let results = rows.iter().map(|row| MoveTask::read(row, &source, &arns)).collect::<Result<_>>()?;
        Ok(Reply::Done(MoveTasks { results }))
    }
}

impl MoveTask {
    fn read(row: &Row, source: &str, arns: &Arns) -> Result<Self> {
        let task = MoveTaskId::from_slice(row.bytes(0)?)?;
        Ok(Self {
            task_handle: row.bool(1)?.then(|| handle_of(task)),
            status: row.text(2)?.to_owned(),
            source_arn: arns.arn(source),
            destination_arn: row.text_opt(3)?.map(|name| arns.arn(name)),
            max_number_of_messages_per_second: row.int_opt(4)?,
            approximate_number_of_messages_moved: row.int(5)?,
            approximate_number_of_messages_to_move: row.int(6)?,
            failure_reason: row.text_opt(7)?.map(str::to_owned),
            started_timestamp: row.time(8)?.micros() / 1_000,
        })
    }
}
