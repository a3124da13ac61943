use std::sync::Arc;

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_store::effects::{Follow, Holder};
use waybill_testkit::stores::TestStore;
use waybill_webhooks::{FanOut, Settings};

use crate::support::{NOBODY, ok, pages, plain_task, refusal, sweep_to_end, text};

waybill_testkit::both! {
    what_is_to_be_sent_is_listed_newest_first,
    another_tenants_deliveries_are_not_found,
}

/// A receipt of the default tenant, and the feed over all there are.
pub async fn receipt_and_feed(on: &TestStore) {
    plain_task(on, &on.agent("alice").unwrap()).await;
    let fan_out = Arc::new(Follow(FanOut::new(&Settings::default())));
    sweep_to_end(on, &fan_out, Holder::new(&on.store)).await;
}

/// The ids of a webhook and of the one thing that is due to it.
pub async fn one_delivery(on: &TestStore, webhook: &Json) -> (String, String) {
    let webhook_id = text(webhook, "webhook_id");
    receipt_and_feed(on).await;
    let listed = ok(on, &on.admin, "list_webhook_deliveries", json!({ "webhook_id": webhook_id })).await;
    assert_eq!(listed["deliveries"].as_array().unwrap().len(), 1, "{listed}");
    (webhook_id, text(&listed["deliveries"][0], "delivery_id"))
}

async fn what_is_to_be_sent_is_listed_newest_first(on: TestStore) {
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    let (webhook_id, first) = one_delivery(&on, &made).await;
    for _ in 0..4 {
        receipt_and_feed(&on).await;
    }
    let named = json!({ "webhook_id": webhook_id, "limit": 2 });
    let pages = pages(&on, &on.admin, "list_webhook_deliveries", named, "deliveries", "delivery_id").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(pages.concat().last(), Some(&first));
    assert!(pages.concat().is_sorted_by(|later, earlier| later > earlier));
    let shown = ok(&on, &on.admin, "list_webhook_deliveries", json!({ "webhook_id": webhook_id })).await;
    let delivery = &shown["deliveries"][0];
    assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("pending"), &json!(0)));
    assert_eq!(
        (&delivery["receipt_type"], &delivery["next_attempt_at"]),
        (&json!("task.assigned"), &delivery["created_at"])
    );
    assert!(delivery.get("last_error").is_none() && delivery.get("ended_at").is_none());
}

async fn another_tenants_deliveries_are_not_found(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    for _ in 0..2 {
        receipt_and_feed(&on).await;
    }
    let webhook_id = text(&made, "webhook_id");
    for id in [webhook_id.as_str(), NOBODY] {
        let input = json!({ "webhook_id": id });
        assert_eq!(refusal(&on, &other, "list_webhook_deliveries", input).await, Code::NotFound);
    }
    let page = ok(&on, &on.admin, "list_webhook_deliveries", json!({ "webhook_id": webhook_id, "limit": 1 })).await;
    let second = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    let input = json!({ "webhook_id": second["webhook_id"], "cursor": page["next_cursor"] });
    assert_eq!(refusal(&on, &on.admin, "list_webhook_deliveries", input).await, Code::InvalidCursor);
}
