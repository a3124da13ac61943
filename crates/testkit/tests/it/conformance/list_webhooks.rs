use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{ok, pages, refusal, text};

waybill_testkit::both! {
    pages_are_disjoint_and_newest_first,
    another_tenants_webhooks_are_not_listed_and_its_cursor_is_no_good,
}

async fn pages_are_disjoint_and_newest_first(on: TestStore) {
    let mut made = Vec::new();
    for _ in 0..5 {
        on.time.pass(Duration::from_secs(1));
        let webhook = ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
        made.insert(0, text(&webhook, "webhook_id"));
    }
    let pages = pages(&on, &on.admin, "list_webhooks", json!({ "limit": 2 }), "webhooks", "webhook_id").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(pages.concat(), made);
    assert_eq!(refusal(&on, &on.admin, "list_webhooks", json!({ "limit": 0 })).await, Code::InvalidRequest);
}

async fn another_tenants_webhooks_are_not_listed_and_its_cursor_is_no_good(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    for _ in 0..2 {
        ok(&on, &on.admin, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
    }
    assert_eq!(ok(&on, &other, "list_webhooks", json!({})).await, json!({ "webhooks": [] }));
    let cursor = text(&ok(&on, &on.admin, "list_webhooks", json!({ "limit": 1 })).await, "next_cursor");
    for (caller, cursor) in [(&other, cursor.as_str()), (&on.admin, &cursor[2..]), (&on.admin, "x")] {
        assert_eq!(refusal(&on, caller, "list_webhooks", json!({ "cursor": cursor })).await, Code::InvalidCursor);
    }
}
