//! Which receipts become deliveries, and for whom.

use serde_json::json;
use waybill_testkit::stores::TestStore;

use crate::support::{deliveries, fan_out, ok, receipt, webhook};

waybill_testkit::both! {
    each_webhook_of_the_tenant_gets_what_it_wants_once,
    what_is_older_than_the_webhook_is_not_for_it,
    a_batch_is_small_where_a_receipt_has_many_takers,
}

const URL: &str = "https://hooks.example/";

async fn each_webhook_of_the_tenant_gets_what_it_wants_once(on: TestStore) {
    let (alice, other) = (on.agent("alice").unwrap(), on.tenant("other").await.unwrap());
    let (all, _) = webhook(&on, &on.admin, json!({ "url": URL })).await;
    let (ends, _) = webhook(&on, &on.admin, json!({ "url": URL, "kinds": ["task.canceled", "task.failed"] })).await;
    webhook(&on, &other, json!({ "url": URL, "kinds": ["task.failed"] })).await;
    let task_id = receipt(&on, &alice).await;
    receipt(&on, &other).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
    for _ in 0..2 {
        fan_out(&on).await;
    }
    let kinds = async |webhook: &str| {
        let all = deliveries(&on, webhook).await;
        all.iter().map(|delivery| delivery["receipt_type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&all).await, ["task.result_ready", "task.canceled", "task.assigned"]);
    assert_eq!(kinds(&ends).await, ["task.canceled"]);
    assert_eq!(on.count("SELECT count(*) FROM webhook_deliveries").await.unwrap(), 4);
}

async fn what_is_older_than_the_webhook_is_not_for_it(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    receipt(&on, &alice).await;
    on.time.pass(crate::support::SECOND);
    let (id, _) = webhook(&on, &on.admin, json!({ "url": URL })).await;
    receipt(&on, &alice).await;
    fan_out(&on).await;
    assert_eq!(deliveries(&on, &id).await.len(), 1);
}

async fn a_batch_is_small_where_a_receipt_has_many_takers(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for _ in 0..30 {
        webhook(&on, &on.admin, json!({ "url": URL })).await;
    }
    for _ in 0..50 {
        receipt(&on, &alice).await;
    }
    fan_out(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM webhook_deliveries").await.unwrap(), 1_500);
    let least = "SELECT min(n) FROM (SELECT count(*) AS n FROM webhook_deliveries GROUP BY webhook_id) AS counted";
    assert_eq!(on.count(least).await.unwrap(), 50);
}
