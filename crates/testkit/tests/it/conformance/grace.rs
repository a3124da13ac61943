//! A server that is patient with workers and writes no receipts of progress.

use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{footprint, held, ledger, ok, refusal, with, worker};

waybill_testkit::both! {
    waybill_tasks::Settings { lease_grace_s: 60, progress_receipts: false, ..waybill_tasks::Settings::default() } =>
    r33_a_worker_may_act_within_the_grace_and_not_after_it,
    r74_where_receipts_of_progress_are_turned_off_progress_is_kept_without_them,
}

async fn r33_a_worker_may_act_within_the_grace_and_not_after_it(on: TestStore) {
    let w = worker(&on, "w");
    let in_time = held(&on, &w, json!({ "type": "work" })).await;
    on.time.pass(Duration::from_secs(330));
    ok(&on, &w, "complete", with(&in_time, json!({ "result": 1, "artifacts": { "p": 1 } }))).await;
    let late = held(&on, &w, json!({ "type": "work" })).await;
    on.time.pass(Duration::from_secs(365));
    let before = footprint(&on).await;
    let done = with(&late, json!({ "result": 1, "artifacts": { "p": 1 } }));
    assert_eq!(refusal(&on, &w, "complete", done).await, Code::LeaseInvalidOrExpired);
    assert_eq!(refusal(&on, &w, "renew_lease", late).await, Code::LeaseInvalidOrExpired);
    assert_eq!(footprint(&on).await, before);
}

async fn r74_where_receipts_of_progress_are_turned_off_progress_is_kept_without_them(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let before = ledger(&on).await;
    ok(&on, &w, "report_progress", with(&lease, json!({ "progress": { "percent": 50 } }))).await;
    assert_eq!(ledger(&on).await, before);
    let shown = ok(&on, &on.admin, "get_task", json!({ "task_id": lease["task_id"] })).await;
    assert_eq!(shown["progress"]["progress"], json!({ "percent": 50 }));
}
