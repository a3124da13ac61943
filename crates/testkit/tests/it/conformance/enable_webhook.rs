use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use super::list_webhook_deliveries::{one_delivery, receipt_and_feed};
use crate::support::{NOBODY, ok, refusal};

waybill_testkit::both! {
    a_disabled_webhook_gets_deliveries_again,
    one_that_is_not_disabled_stays_as_it_is,
    another_tenants_webhook_is_not_found,
}

/// As a runner leaves it whose endpoint has failed for too long.
async fn disable(on: &TestStore) {
    on.write("UPDATE webhooks SET disabled_at = 7, disabled_reason = 'x', due_at = NULL, ailing = 1, failures = 9, failing_since = 3")
        .await
        .unwrap();
}

async fn a_disabled_webhook_gets_deliveries_again(on: TestStore) {
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    let (webhook_id, delivery_id) = one_delivery(&on, &made).await;
    let named = json!({ "webhook_id": webhook_id });
    disable(&on).await;
    on.write("UPDATE webhook_deliveries SET next_at = next_at + 36000000000").await.unwrap();
    receipt_and_feed(&on).await;
    on.time.pass(Duration::from_secs(60));
    assert_eq!(ok(&on, &on.admin, "enable_webhook", named.clone()).await, json!({ "ok": true }));
    let listed = ok(&on, &on.admin, "list_webhooks", json!({})).await;
    for field in ["disabled_at", "disabled_reason", "failing_since"] {
        assert!(listed["webhooks"][0].get(field).is_none(), "{listed}");
    }
    let sound = "SELECT count(*) FROM webhooks WHERE ailing = 0 AND failures = 0 AND held = 0 AND due_at IS NOT NULL";
    assert_eq!(on.count(sound).await.unwrap(), 1);
    let due = "SELECT count(*) FROM webhook_deliveries d JOIN webhooks w ON w.webhook_id = d.webhook_id AND d.next_at <= w.due_at";
    assert_eq!(on.count(due).await.unwrap(), 1, "what waits is due at once");
    receipt_and_feed(&on).await;
    let listed = ok(&on, &on.admin, "list_webhook_deliveries", named).await;
    let ids: Vec<_> = listed["deliveries"].as_array().unwrap().iter().map(|one| one["delivery_id"].clone()).collect();
    assert_eq!((ids.len(), &ids[1]), (2, &json!(delivery_id)), "not the one from meanwhile: {listed}");
}

async fn one_that_is_not_disabled_stays_as_it_is(on: TestStore) {
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    on.write("UPDATE webhooks SET failures = 3, ailing = 1").await.unwrap();
    let named = json!({ "webhook_id": made["webhook_id"] });
    for _ in 0..2 {
        assert_eq!(ok(&on, &on.admin, "enable_webhook", named.clone()).await, json!({ "ok": false }));
    }
    assert_eq!(on.count("SELECT count(*) FROM webhooks WHERE failures = 3 AND ailing = 1").await.unwrap(), 1);
}

async fn another_tenants_webhook_is_not_found(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    disable(&on).await;
    for id in [made["webhook_id"].clone(), json!(NOBODY)] {
        assert_eq!(refusal(&on, &other, "enable_webhook", json!({ "webhook_id": id })).await, Code::NotFound);
    }
    assert_eq!(on.count("SELECT count(*) FROM webhooks WHERE disabled_at IS NOT NULL").await.unwrap(), 1);
}
