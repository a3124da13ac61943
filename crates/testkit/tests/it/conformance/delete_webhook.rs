use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use super::list_webhook_deliveries::one_delivery;
use crate::support::{NOBODY, ok, refusal};

waybill_testkit::both! {
    a_webhook_is_gone_and_gets_nothing_more,
    another_tenants_webhook_is_not_found,
}

async fn a_webhook_is_gone_and_gets_nothing_more(on: TestStore) {
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    let (webhook_id, _) = one_delivery(&on, &made).await;
    let named = json!({ "webhook_id": webhook_id });
    assert_eq!(ok(&on, &on.admin, "delete_webhook", named.clone()).await, json!({ "ok": true }));
    for name in ["delete_webhook", "list_webhook_deliveries"] {
        assert_eq!(refusal(&on, &on.admin, name, named.clone()).await, Code::NotFound, "{name}");
    }
    assert_eq!(ok(&on, &on.admin, "list_webhooks", json!({})).await, json!({ "webhooks": [] }));
    super::list_webhook_deliveries::receipt_and_feed(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM webhook_deliveries").await.unwrap(), 1);
}

async fn another_tenants_webhook_is_not_found(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    for id in [made["webhook_id"].clone(), json!(NOBODY)] {
        assert_eq!(refusal(&on, &other, "delete_webhook", json!({ "webhook_id": id })).await, Code::NotFound);
    }
    assert_eq!(on.count("SELECT count(*) FROM webhooks").await.unwrap(), 1);
}
