//! A server that lets a lease be renewed only so often.

use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{footprint, held, ok, refusal, refused, text, with, worker};

waybill_testkit::both! {
    waybill_tasks::Settings { renewals_max: 2, ..waybill_tasks::Settings::default() } =>
    a_lease_that_was_renewed_often_enough_runs_out_and_the_next_one_counts_anew,
    r71_asking_for_one_renewal_more_is_no_misuse_of_a_lease_that_is_live,
}

async fn a_lease_that_was_renewed_often_enough_runs_out_and_the_next_one_counts_anew(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work", "retry_backoff_seconds": 0 })).await;
    for _ in 0..2 {
        ok(&on, &w, "renew_lease", lease.clone()).await;
    }
    let before = footprint(&on).await;
    assert_eq!(refusal(&on, &w, "renew_lease", lease.clone()).await, Code::InvalidStateTransition);
    assert_eq!(footprint(&on).await, before);
    // It is the worker's to its end all the same.
    ok(&on, &w, "fail", with(&lease, json!({ "error": "slow", "retryable": true }))).await;
    let again = crate::support::claim(&on, &w, json!({})).await.remove(0);
    let again = json!({ "task_id": again["task_id"], "lease_id": again["lease_id"] });
    ok(&on, &w, "renew_lease", again).await;
}

async fn r71_asking_for_one_renewal_more_is_no_misuse_of_a_lease_that_is_live(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &w, "renew_lease", lease.clone()).await;
    let until = text(&ok(&on, &w, "renew_lease", lease.clone()).await, "expires_at");
    let misuses = async || {
        on.process.flush(&on.store).await.unwrap();
        on.count("SELECT count(*) FROM lease_misuses").await.unwrap()
    };
    for _ in 0..4 {
        let error = refused(&on, &w, "renew_lease", lease.clone()).await;
        assert_eq!(error.code(), Code::InvalidStateTransition);
        assert!(error.message().contains("2 times") && error.message().contains(&until), "{error}");
        assert_eq!(error.detail("renewals_max"), Some(&json!(2)));
        assert_eq!(error.detail("expires_at"), Some(&json!(until)));
    }
    assert_eq!(misuses().await, 0);
    // Another's is another's, however often it was renewed; and what has ended has ended.
    let stranger = refused(&on, &worker(&on, "v"), "renew_lease", lease.clone()).await;
    on.time.pass(Duration::from_secs(301));
    let late = refused(&on, &w, "renew_lease", lease.clone()).await;
    for error in [stranger, late] {
        assert_eq!((error.code(), error.detail("renewals_max")), (Code::LeaseInvalidOrExpired, None), "{error}");
    }
    assert_eq!(misuses().await, 2);
}
