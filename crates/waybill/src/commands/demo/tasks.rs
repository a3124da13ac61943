//! The scene of the tasks: handed over, a worker dies, another finishes, and the receipts prove it.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use waybill_client::{Client, NewTask, Task};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Result};

use super::stage::{Stage, shown, until};
use super::tree;
use crate::output::line;

/// Short, so that the death of a worker is noticed while somebody watches.
const LEASE_TTL_S: u64 = 4;
/// Longer than the lease, so that the second worker is seen to renew it.
const WORK_S: u64 = 6;

pub async fn play(stage: &Stage) -> Result<()> {
    let alice = stage.client("agent:alice").await?;
    line("\n1. agent:alice hands over a task and goes on with her own work.")?;
    let task = NewTask {
        kind: "sleep_then_return".to_owned(),
        payload: json!({ "seconds": WORK_S, "value": { "answer": 42 } }),
        idempotency_key: Some("demo-1".to_owned()),
        ..NewTask::default()
    };
    let task_id = alice.create_task(&task).await?.task_id;
    line(&format!("   task {task_id} is queued. From here on it cannot be lost."))?;
    let again = alice.create_task(&task).await?.task_id;
    line(&format!("   She was not sure her call arrived, so she sends it again: the same task {again}."))?;

    line(&format!("\n2. worker-1 leases it for {LEASE_TTL_S} s at a time … and is killed in the middle (kill -9)."))?;
    let mut first = stage.worker("worker-1", LEASE_TTL_S).await?;
    task_until(&alice, task_id, "worker-1 to take it", |task| task.status != "queued").await?;
    sleep(Duration::from_secs(1)).await;
    let pid = first.pid();
    first.kill().await;
    line(&format!("   Process {pid} is gone. It said nothing to anybody."))?;

    line("\n3. Nobody renews the lease. It runs out, and the task is queued again.")?;
    let waiting = task_until(&alice, task_id, "the lease to run out", |task| task.status == "queued").await?;
    line(&format!("   Queued, attempt {} as before: a worker's death is not the task's fault.", waiting.attempt))?;

    line(&format!("\n4. worker-2 takes it. The work takes {WORK_S} s, so it renews its lease on the way."))?;
    let mut second = stage.worker("worker-2", LEASE_TTL_S).await?;
    task_until(&alice, task_id, "worker-2 to finish it", Task::has_ended).await?;
    if !second.ended().await? {
        return Err(Error::internal("worker-2 ended with an error"));
    }

    line("\n5. Whenever alice asks, the result is there.")?;
    let ended = alice.get_task(task_id, Duration::ZERO).await?;
    line(&format!(
        "   {}: {}",
        ended.status,
        shown(ended.rest.get("result").and_then(|outcome| outcome.get("result")))
    ))?;

    line("\n6. And who promised what, and who delivered it, can be shown.\n")?;
    for drawn in tree::draw(&alice.task_receipts(task_id).await?) {
        line(&format!("   {drawn}"))?;
    }
    Ok(())
}

/// The first time the task is as wanted.
async fn task_until(client: &Client, task_id: Uuid, what: &str, wanted: impl Fn(&Task) -> bool) -> Result<Task> {
    until(what, async || Ok(Some(client.get_task(task_id, Duration::ZERO).await?).filter(&wanted))).await
}
