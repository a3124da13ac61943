//! A server that takes no success whose work cannot be found.

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use super::ledger::{claimed, open, types, with, worker};
use crate::support::{footprint, ok, plain_task, refusal, task_status};

waybill_testkit::both! {
    waybill_tasks::Settings { strict_locatability: true, ..waybill_tasks::Settings::default() } =>
    a12_5_a_strict_server_refuses_a_completion_without_a_place_before_anything_is_changed,
}

async fn a12_5_a_strict_server_refuses_a_completion_without_a_place_before_anything_is_changed(on: TestStore) {
    let (alice, worker) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let task_id = plain_task(&on, &alice).await;
    let hold = claimed(&on, &worker).await;
    let before = footprint(&on).await;
    for unlocated in [
        json!({ "result": 1 }),
        json!({ "result": 1, "artifacts": [] }),
        json!({ "result": 1, "artifacts": {}, "delivery_proof": {} }),
        json!({ "result": 1, "artifacts": null, "delivery_proof": null }),
    ] {
        let refused = refusal(&on, &worker, "complete", with(hold.clone(), unlocated.clone())).await;
        assert_eq!(refused, Code::LocatabilityRequired, "{unlocated}");
        assert_eq!(footprint(&on).await, before, "{unlocated}");
    }
    assert_eq!(task_status(&on, &alice, &task_id).await, "leased", "the lease is as good as before");
    ok(&on, &worker, "complete", with(hold, json!({ "result": 1, "delivery_proof": { "mode": "push" } }))).await;
    assert!(open(&on, &alice).await.is_empty());
    let expected = ["task.assigned", "task.accepted", "task.completed", "task.result_ready"];
    assert_eq!(types(&on, &alice, &task_id).await, expected);
}
