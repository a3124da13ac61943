//! List redrives of a queue, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{MANAGE, answer, named, read};
use crate::Settings;
use crate::ops::list_message_move_tasks::{ListMessageMoveTasks, MoveTask, RESULTS_MAX};
use crate::rules::arn::Arns;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRedrives {
    /// The queue that messages are moved from.
    pub queue: String,
    /// How many at most; 10 are remembered, and shown when this is left out.
    #[serde(default)]
    #[schemars(range(min = 1, max = RESULTS_MAX))]
    pub limit: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Redrives {
    pub redrives: Vec<Redrive>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Redrive {
    /// While it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_handle: Option<String>,
    /// RUNNING, COMPLETED, CANCELLED or FAILED.
    pub status: String,
    /// Absent where each message goes to the queue it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_second: Option<i64>,
    pub moved: i64,
    /// As many as there were when it began.
    pub to_move: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    pub started_at: Time,
}

impl Operation for ListRedrives {
    const SPEC: OperationSpec = OperationSpec {
        title: "List redrives",
        description: "Shows the latest moves of messages out of a dead-letter queue, the one that runs first, and how far each has come.",
        example: Example {
            arguments: r#"{"queue": "orders-dead"}"#,
            answer: r#"{"redrives": [{"task_handle": "AZjA3hornD2OT1prfI2eEA", "status": "RUNNING", "per_second": 50,
                "moved": 120, "to_move": 400, "started_at": "2026-01-05T12:30:00.000000Z"}]}"#,
        },
        ..read("list_redrives", Route::get("/v1/queues/{queue}/redrives"), MANAGE)
    };
    type Output = Redrives;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Redrives>> {
        let limit = self.limit.unwrap_or(RESULTS_MAX);
        if !(1..=RESULTS_MAX).contains(&limit) {
            return Err(Error::invalid(format!("`limit` is from 1 to {RESULTS_MAX}.")));
        }
        let arns = Settings::arns(ctx);
        let action = ListMessageMoveTasks { source_arn: arns.arn(named(&self.queue)?), max_results: Some(limit) };
        let tasks = answer(ctx, tx, &action).await?.results;
        Ok(Reply::Done(Redrives { redrives: tasks.into_iter().map(|task| Redrive::of(task, &arns)).collect() }))
    }
}

impl Redrive {
    fn of(task: MoveTask, arns: &Arns) -> Self {
        Self {
            task_handle: task.task_handle,
            status: task.status,
            destination: task.destination_arn.and_then(|arn| arns.name(&arn).map(str::to_owned)),
            per_second: task.max_number_of_messages_per_second,
            moved: task.approximate_number_of_messages_moved,
            to_move: task.approximate_number_of_messages_to_move,
            failure_reason: task.failure_reason,
            started_at: Time::from_micros(task.started_timestamp.saturating_mul(1_000)),
        }
    }
}
