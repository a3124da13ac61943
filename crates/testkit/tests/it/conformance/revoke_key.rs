use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{ok, refusal, refused, text};

waybill_testkit::both! {
    a_key_ends_now_and_the_second_time_nothing_changes,
    an_unknown_key_and_another_tenants_key_are_the_same_not_found,
}

async fn a_key_ends_now_and_the_second_time_nothing_changes(on: TestStore) {
    let made = ok(&on, &on.admin, "create_key", json!({ "principal": "agent:a" })).await;
    let input = json!({ "key_id": made["key_id"] });
    let first = ok(&on, &on.admin, "revoke_key", input.clone()).await;
    assert_eq!(first["ok"], true);
    let again = ok(&on, &on.admin, "revoke_key", input).await;
    assert_eq!(again, json!({ "ok": false, "revoked_at": first["revoked_at"] }));
    assert_eq!(on.count("SELECT count(*) FROM api_keys WHERE revoked_at IS NOT NULL").await.unwrap(), 1);
}

async fn an_unknown_key_and_another_tenants_key_are_the_same_not_found(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let theirs = text(&ok(&on, &other, "create_key", json!({ "principal": "agent:a" })).await, "key_id");
    let unknown = refused(&on, &on.admin, "revoke_key", json!({ "key_id": "000000000000" })).await;
    let foreign = refused(&on, &on.admin, "revoke_key", json!({ "key_id": theirs })).await;
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(foreign.to_json(), unknown.to_json());
    assert_eq!(on.count("SELECT count(*) FROM api_keys WHERE revoked_at IS NOT NULL").await.unwrap(), 0);
    assert_eq!(refusal(&on, &on.admin, "revoke_key", json!({ "key_id": "a\u{0}b" })).await, Code::InvalidRequest);
}
