//! What a worker is told about a lease that it does not have.

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::{NOBODY, claim, footprint, held, ok, refused, with, worker};
use crate::tasks::{HELD, LONG, sweep};

waybill_testkit::both! {
    a_lease_that_is_over_says_why,
    a_lease_that_another_has_taken_the_place_of_says_so,
    a_lease_that_never_was_or_is_anothers_says_so,
}

/// By every call that a lease is needed for. What is a repetition of what ended it is none of these.
async fn told(on: &TestStore, worker: &Caller, lease: &Json, reason: &str, words: &str) {
    let calls = [
        ("renew_lease", json!({})),
        ("report_progress", json!({ "progress": 1 })),
        ("complete", json!({ "result": "another", "artifacts": { "p": 1 } })),
        ("fail", json!({ "error": "another" })),
    ];
    // Whoever has ended a task for good is told so when it ends it otherwise, and not that its lease is over.
    let ended = matches!(reason, "completed" | "failed");
    let before = footprint(on).await;
    for (name, further) in calls.into_iter().take(if ended { 2 } else { 4 }) {
        let error = refused(on, worker, name, with(lease, further)).await;
        assert_eq!(error.code(), Code::LeaseInvalidOrExpired, "{name}");
        assert_eq!(error.detail("reason"), Some(&json!(reason)), "{name}: {error}");
        assert!(error.message().contains(words), "{name}: {error}");
    }
    assert_eq!(footprint(on).await, before);
}

async fn a_lease_that_is_over_says_why(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let completed = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &w, "complete", with(&completed, json!({ "artifacts": { "p": 1 } }))).await;
    told(&on, &w, &completed, "completed", "you completed the task").await;
    let failed = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &w, "fail", with(&failed, json!({ "error": "no" }))).await;
    told(&on, &w, &failed, "failed", "you failed the task").await;
    let canceled = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": canceled["task_id"] })).await;
    told(&on, &w, &canceled, "canceled", "The task was canceled").await;
    let given_up = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &w, "fail", with(&given_up, json!({ "error": "later", "retryable": true }))).await;
    told(&on, &w, &given_up, "given_up", "you gave the task up, to be tried again. Nothing").await;

    // Before the sweep has seen it and after.
    let expired = held(&on, &w, json!({ "type": "work", "priority": 1 })).await;
    on.time.pass(LONG);
    told(&on, &w, &expired, "expired", "The lease ran out before it was renewed. Nothing").await;
    sweep(&on).await;
    told(&on, &w, &expired, "expired", "The lease ran out before it was renewed. Nothing").await;
}

async fn a_lease_that_another_has_taken_the_place_of_says_so(on: TestStore) {
    let (w, v) = (worker(&on, "w"), worker(&on, "v"));
    let expired = held(&on, &w, json!({ "type": "work" })).await;
    on.time.pass(LONG);
    sweep(&on).await;
    on.time.pass(HELD);
    assert_eq!(claim(&on, &v, json!({})).await.len(), 1);
    told(&on, &w, &expired, "expired", "ran out before it was renewed; another lease has taken its place").await;
    let given_up = held(&on, &w, json!({ "type": "work", "retry_backoff_seconds": 0 })).await;
    ok(&on, &w, "fail", with(&given_up, json!({ "error": "later", "retryable": true }))).await;
    on.time.pass(HELD);
    // The same worker has it again: its old lease is over all the same.
    assert_eq!(claim(&on, &w, json!({})).await.len(), 1);
    told(&on, &w, &given_up, "given_up", "to be tried again; another lease has taken its place").await;
}

async fn a_lease_that_never_was_or_is_anothers_says_so(on: TestStore) {
    let (w, v) = (worker(&on, "w"), worker(&on, "v"));
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    told(&on, &v, &lease, "not_yours", "The lease is another worker's. Nothing").await;
    let none = with(&lease, json!({ "lease_id": NOBODY }));
    told(&on, &w, &none, "unknown", "The task has never had this lease. Nothing").await;
    let other = held(&on, &w, json!({ "type": "work" })).await;
    let mixed = with(&lease, json!({ "lease_id": other["lease_id"] }));
    told(&on, &w, &mixed, "unknown", "The task has never had this lease. Nothing").await;
}
