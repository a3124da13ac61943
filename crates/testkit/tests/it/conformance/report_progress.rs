use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{footprint, held, ledger, ok, refusal, with, worker};

waybill_testkit::both! {
    the_first_report_says_that_work_has_begun_and_the_last_one_is_shown,
    a_report_may_be_as_long_as_a_receipt_has_room_for_it,
    a_report_that_is_too_long_changes_nothing,
    anothers_lease_cannot_report,
}

async fn the_first_report_says_that_work_has_begun_and_the_last_one_is_shown(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    for percent in [10, 55] {
        let report = with(&lease, json!({ "progress": { "percent": percent } }));
        assert_eq!(ok(&on, &w, "report_progress", report).await, json!({ "ok": true }));
    }
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": lease["task_id"] })).await;
    assert_eq!((&shown["status"], &shown["progress"]["progress"]), (&json!("running"), &json!({ "percent": 55 })));
    assert!(shown["started_at"].is_string());
    let told = "task.progress worker:w > system:asyncgate <- task.assigned";
    assert_eq!(ledger(&on).await[2..], [told, told]);
}

/// Of a text, in a receipt of the usual size.
fn room() -> usize {
    65_536 - json!({ "progress": "", "schema_version": "1" }).to_string().len()
}

async fn a_report_may_be_as_long_as_a_receipt_has_room_for_it(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    for length in [50_000, room()] {
        let progress = json!("x".repeat(length));
        ok(&on, &w, "report_progress", with(&lease, json!({ "progress": progress }))).await;
        let shown = ok(&on, &alice, "get_task", json!({ "task_id": lease["task_id"] })).await;
        assert_eq!(shown["progress"]["progress"], progress);
    }
    let written = "SELECT max(length(body)) FROM receipts WHERE receipt_type = 'task.progress'";
    assert_eq!(on.count(written).await.unwrap(), 65_536);
}

async fn a_report_that_is_too_long_changes_nothing(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let before = footprint(&on).await;
    let report = with(&lease, json!({ "progress": "x".repeat(room() + 1) }));
    assert_eq!(refusal(&on, &w, "report_progress", report).await, Code::ReceiptTooLarge);
    assert_eq!(footprint(&on).await, before);
}

async fn anothers_lease_cannot_report(on: TestStore) {
    let lease = held(&on, &worker(&on, "w"), json!({ "type": "work" })).await;
    let before = footprint(&on).await;
    let report = with(&lease, json!({ "progress": 1 }));
    assert_eq!(refusal(&on, &worker(&on, "v"), "report_progress", report).await, Code::LeaseInvalidOrExpired);
    assert_eq!(footprint(&on).await, before);
}
