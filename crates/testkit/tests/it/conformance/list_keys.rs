use std::time::Duration;

use serde_json::json;
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::{ok, pages, refusal, text};

waybill_testkit::both! {
    pages_are_disjoint_and_newest_first,
    ended_keys_are_listed_and_secrets_never,
    another_tenants_keys_are_not_listed,
    a_cursor_is_good_for_its_own_tenant_only,
}

async fn keys(on: &TestStore, caller: &Caller, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        on.time.pass(Duration::from_secs(1));
        ids.insert(0, text(&ok(on, caller, "create_key", json!({ "principal": "agent:a" })).await, "key_id"));
    }
    ids
}

async fn pages_are_disjoint_and_newest_first(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let made = keys(&on, &other, 5).await;
    let pages = pages(&on, &other, "list_keys", json!({ "limit": 2 }), "keys", "key_id").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(pages.concat(), made);
    assert_eq!(refusal(&on, &other, "list_keys", json!({ "limit": 0 })).await, Code::InvalidRequest);
}

async fn ended_keys_are_listed_and_secrets_never(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let made = ok(&on, &other, "create_key", json!({ "principal": "agent:a" })).await;
    ok(&on, &other, "revoke_key", json!({ "key_id": made["key_id"] })).await;
    let list = ok(&on, &other, "list_keys", json!({})).await;
    assert_eq!(list["keys"][0]["key_id"], made["key_id"]);
    assert!(list["keys"][0]["revoked_at"].is_string());
    let shown = list.to_string();
    assert!(!shown.contains("argon2") && !shown.contains(&text(&made, "key")[16..48]));
}

async fn another_tenants_keys_are_not_listed(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    keys(&on, &on.admin, 2).await;
    assert_eq!(ok(&on, &other, "list_keys", json!({})).await, json!({ "keys": [] }));
}

async fn a_cursor_is_good_for_its_own_tenant_only(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    keys(&on, &on.admin, 1).await;
    let cursor = text(&ok(&on, &on.admin, "list_keys", json!({ "limit": 1 })).await, "next_cursor");
    for (caller, cursor) in [(&other, cursor.as_str()), (&on.admin, &cursor[2..]), (&on.admin, "x"), (&on.admin, "")] {
        assert_eq!(refusal(&on, caller, "list_keys", json!({ "cursor": cursor })).await, Code::InvalidCursor);
    }
}
