use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{NOBODY, footprint, held, ledger, ok, refusal, with, worker};

waybill_testkit::both! {
    a_lease_is_extended_from_now_and_never_shortened,
    a12_8_an_ended_lease_cannot_be_renewed,
    another_workers_and_another_tenants_lease_cannot_be_renewed,
    the_eleventh_renewal_is_reported_once,
}

async fn a_lease_is_extended_from_now_and_never_shortened(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let ends = async || on.count("SELECT lease_expires_at FROM tasks").await.unwrap();
    let first = ends().await;
    on.time.pass(Duration::from_secs(100));
    let answer = ok(&on, &w, "renew_lease", lease.clone()).await;
    assert_eq!(answer["ok"], true);
    let second = ends().await;
    assert!((second - first) / 1_000_000 >= 99, "{first} {second}");
    ok(&on, &w, "renew_lease", with(&lease, json!({ "extend_by_seconds": 1 }))).await;
    assert_eq!(ends().await, second, "a lease was shortened");
    ok(&on, &w, "renew_lease", with(&lease, json!({ "extend_by_seconds": 100_000 }))).await;
    assert!(ends().await - second < 1_801_000_000);
    assert_eq!(
        refusal(&on, &w, "renew_lease", with(&lease, json!({ "extend_by_seconds": 0 }))).await,
        Code::InvalidRequest
    );
}

async fn a12_8_an_ended_lease_cannot_be_renewed(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    on.time.pass(Duration::from_secs(301));
    let before = footprint(&on).await;
    // Nobody has swept it yet; it is over all the same.
    for name in ["renew_lease", "complete", "report_progress", "fail"] {
        let input = match name {
            "report_progress" => with(&lease, json!({ "progress": 1 })),
            "fail" => with(&lease, json!({ "error": "x" })),
            _ => lease.clone(),
        };
        assert_eq!(refusal(&on, &w, name, input).await, Code::LeaseInvalidOrExpired, "{name}");
    }
    assert_eq!(footprint(&on).await, before);
}

async fn another_workers_and_another_tenants_lease_cannot_be_renewed(on: TestStore) {
    let lease = held(&on, &worker(&on, "w"), json!({ "type": "work" })).await;
    let before = footprint(&on).await;
    assert_eq!(refusal(&on, &worker(&on, "v"), "renew_lease", lease.clone()).await, Code::LeaseInvalidOrExpired);
    let theirs = on.tenant("other").await.unwrap();
    assert_eq!(refusal(&on, &theirs, "renew_lease", lease.clone()).await, Code::NotFound);
    let w = worker(&on, "w");
    let unknown = with(&lease, json!({ "lease_id": NOBODY }));
    assert_eq!(refusal(&on, &w, "renew_lease", unknown).await, Code::LeaseInvalidOrExpired);
    assert_eq!(refusal(&on, &w, "renew_lease", with(&lease, json!({ "task_id": NOBODY }))).await, Code::NotFound);
    assert_eq!(footprint(&on).await, before);
}

async fn the_eleventh_renewal_is_reported_once(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    for _ in 0..10 {
        ok(&on, &w, "renew_lease", lease.clone()).await;
    }
    assert_eq!(ledger(&on).await.len(), 2);
    for _ in 0..5 {
        ok(&on, &w, "renew_lease", lease.clone()).await;
    }
    let receipts = ledger(&on).await;
    assert_eq!(receipts[2..], ["system.anomaly system:asyncgate > agent:alice <- task.assigned"]);
}
