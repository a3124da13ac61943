//! A server that lets a lease be renewed only so often.

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{footprint, held, ok, refusal, with, worker};

waybill_testkit::both! {
    waybill_tasks::Settings { renewals_max: 2, ..waybill_tasks::Settings::default() } =>
    a_lease_that_was_renewed_often_enough_runs_out_and_the_next_one_counts_anew,
}

async fn a_lease_that_was_renewed_often_enough_runs_out_and_the_next_one_counts_anew(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work", "retry_backoff_seconds": 0 })).await;
    for _ in 0..2 {
        ok(&on, &w, "renew_lease", lease.clone()).await;
    }
    let before = footprint(&on).await;
    assert_eq!(refusal(&on, &w, "renew_lease", lease.clone()).await, Code::LeaseInvalidOrExpired);
    assert_eq!(footprint(&on).await, before);
    // It is the worker's to its end all the same.
    ok(&on, &w, "fail", with(&lease, json!({ "error": "slow", "retryable": true }))).await;
    let again = crate::support::claim(&on, &w, json!({})).await.remove(0);
    let again = json!({ "task_id": again["task_id"], "lease_id": again["lease_id"] });
    ok(&on, &w, "renew_lease", again).await;
}
