use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{claim, footprint, held, ledger, ok, refusal, with, worker};

waybill_testkit::both! {
    a_retryable_failure_goes_back_to_the_queue_after_a_doubling_pause,
    a12_5_the_last_attempt_ends_the_task_and_its_obligation,
    a_failure_that_is_not_retryable_is_final,
    a_repetition_is_answered_the_same,
    an_error_may_be_as_long_as_its_receipts_have_room_for_it,
    an_error_that_is_too_long_changes_nothing,
}

fn failed(lease: &Json, retryable: bool) -> Json {
    with(lease, json!({ "error": { "message": "no luck" }, "retryable": retryable }))
}

async fn a_retryable_failure_goes_back_to_the_queue_after_a_doubling_pause(on: TestStore) {
    let w = worker(&on, "w");
    let mut lease = held(&on, &w, json!({ "type": "work", "max_attempts": 4 })).await;
    for (attempt, pause) in [(1, 30), (2, 60), (3, 120)] {
        let answer = ok(&on, &w, "fail", failed(&lease, true)).await;
        assert_eq!((&answer["ok"], &answer["requeued"]), (&json!(true), &json!(true)));
        assert!(answer["next_eligible_at"].is_string());
        assert_eq!(on.count("SELECT attempt FROM tasks").await.unwrap(), attempt);
        on.time.pass(Duration::from_secs(pause - 1));
        assert!(claim(&on, &w, json!({})).await.is_empty(), "attempt {attempt} came too early");
        on.time.pass(Duration::from_secs(2));
        let again = claim(&on, &w, json!({})).await;
        assert_eq!(again[0]["attempt"], attempt);
        lease["lease_id"] = again[0]["lease_id"].clone();
    }
    assert_eq!(on.count("SELECT count(*) FROM receipts WHERE open = 1").await.unwrap(), 1);
    let told = "task.retry_scheduled worker:w > agent:alice <- task.assigned";
    assert_eq!(ledger(&on).await.iter().filter(|line| *line == told).count(), 3);
}

async fn a12_5_the_last_attempt_ends_the_task_and_its_obligation(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let lease = held(&on, &w, json!({ "type": "work", "max_attempts": 1 })).await;
    let answer = ok(&on, &w, "fail", failed(&lease, true)).await;
    assert_eq!(answer, json!({ "ok": true, "requeued": false }));
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": lease["task_id"] })).await;
    assert_eq!((&shown["status"], &shown["attempt"]), (&json!("failed"), &json!(0)));
    assert_eq!(shown["result"]["error"], json!({ "message": "no luck" }));
    assert_eq!(on.count("SELECT count(*) FROM receipts WHERE open = 1").await.unwrap(), 0);
    assert_eq!(
        ledger(&on).await[2..],
        [
            "task.failed worker:w > agent:alice <- task.assigned",
            "task.result_ready system:asyncgate > agent:alice <- task.failed",
        ]
    );
}

async fn a_failure_that_is_not_retryable_is_final(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let answer = ok(&on, &w, "fail", with(&lease, json!({ "error": "no" }))).await;
    assert_eq!(answer["requeued"], false);
    assert_eq!(on.count("SELECT count(*) FROM tasks WHERE status = 'failed'").await.unwrap(), 1);
}

async fn a_repetition_is_answered_the_same(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let first = ok(&on, &w, "fail", failed(&lease, true)).await;
    let before = footprint(&on).await;
    let again = on.call(&w, "fail", failed(&lease, true)).await.unwrap();
    assert_eq!((again.json, again.replay), (first, true));
    assert_eq!(refusal(&on, &w, "fail", failed(&lease, false)).await, Code::LeaseInvalidOrExpired);
    assert_eq!(refusal(&on, &worker(&on, "v"), "fail", failed(&lease, true)).await, Code::LeaseInvalidOrExpired);
    assert_eq!(footprint(&on).await, before);
}

/// Of a text, in the receipt of a failure that is final.
fn room() -> usize {
    let around = json!({ "error": "", "retry_recommended": false, "retry_after_seconds": null, "schema_version": "1" });
    65_536 - around.to_string().len()
}

async fn an_error_may_be_as_long_as_its_receipts_have_room_for_it(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    for (length, retryable) in [(50_000, true), (50_000, false), (room(), false)] {
        let lease = held(&on, &w, json!({ "type": "work" })).await;
        let error = json!("x".repeat(length));
        let answer = ok(&on, &w, "fail", with(&lease, json!({ "error": error, "retryable": retryable }))).await;
        assert_eq!(answer["requeued"], retryable);
        let shown = ok(&on, &alice, "get_task", json!({ "task_id": lease["task_id"] })).await;
        assert!(retryable || shown["result"]["error"] == error, "{length}");
    }
    let written = "SELECT max(length(body)) FROM receipts WHERE receipt_type = 'task.failed'";
    assert_eq!(on.count(written).await.unwrap(), 65_536);
}

async fn an_error_that_is_too_long_changes_nothing(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let before = footprint(&on).await;
    for retryable in [true, false] {
        let input = with(&lease, json!({ "error": "x".repeat(room() + 1), "retryable": retryable }));
        assert_eq!(refusal(&on, &w, "fail", input).await, Code::ReceiptTooLarge);
    }
    assert_eq!(footprint(&on).await, before);
}
