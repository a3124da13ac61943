use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use super::list_webhook_deliveries::one_delivery;
use crate::support::{NOBODY, ok, refusal};

waybill_testkit::both! {
    what_has_ended_is_due_again,
    what_is_not_there_or_disabled_is_not_sent_again,
}

async fn what_has_ended_is_due_again(on: TestStore) {
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    let (webhook_id, delivery_id) = one_delivery(&on, &made).await;
    on.write("UPDATE webhook_deliveries SET state = 'failed', attempts = 9, next_at = NULL, ended_at = 1")
        .await
        .unwrap();
    on.write("UPDATE webhooks SET due_at = NULL").await.unwrap();
    let again = json!({ "webhook_id": webhook_id, "delivery_id": delivery_id });
    let answer = ok(&on, &on.admin, "redeliver_webhook", again).await;
    let shown = ok(&on, &on.admin, "list_webhook_deliveries", json!({ "webhook_id": webhook_id })).await;
    let delivery = &shown["deliveries"][0];
    assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("pending"), &json!(0)));
    assert_eq!(delivery["next_attempt_at"], answer["next_attempt_at"]);
    assert_eq!(on.count("SELECT count(*) FROM webhooks WHERE due_at IS NOT NULL").await.unwrap(), 1);
}

async fn what_is_not_there_or_disabled_is_not_sent_again(on: TestStore) {
    let made = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    let (webhook_id, delivery_id) = one_delivery(&on, &made).await;
    let other = on.tenant("other").await.unwrap();
    let named = |webhook: &str, delivery: &str| json!({ "webhook_id": webhook, "delivery_id": delivery });
    for (caller, input) in [
        (&on.admin, named(NOBODY, &delivery_id)),
        (&on.admin, named(&webhook_id, NOBODY)),
        (&other, named(&webhook_id, &delivery_id)),
    ] {
        assert_eq!(refusal(&on, caller, "redeliver_webhook", input).await, Code::NotFound);
    }
    on.write("UPDATE webhooks SET disabled_at = 1, due_at = NULL").await.unwrap();
    let refused = refusal(&on, &on.admin, "redeliver_webhook", named(&webhook_id, &delivery_id)).await;
    assert_eq!(refused, Code::InvalidStateTransition);
}
