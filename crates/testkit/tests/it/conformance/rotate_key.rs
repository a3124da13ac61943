use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::{ok, refusal, refused, text};

waybill_testkit::both! {
    the_successor_grants_the_same_and_the_old_key_ends_after_the_overlap,
    a_key_is_rotated_once,
    an_ended_key_is_not_rotated,
    an_unknown_key_and_another_tenants_key_are_the_same_not_found,
    an_overlap_is_at_most_thirty_days,
}

async fn key(on: &TestStore, caller: &Caller) -> String {
    let input = json!({ "principal": "agent:a", "role": "worker", "expires_in_seconds": 864_000 });
    text(&ok(on, caller, "create_key", input).await, "key_id")
}

async fn shown(on: &TestStore, key_id: &str) -> Json {
    let list = ok(on, &on.admin, "list_keys", json!({})).await;
    list["keys"].as_array().unwrap().iter().find(|key| key["key_id"] == key_id).unwrap().clone()
}

async fn the_successor_grants_the_same_and_the_old_key_ends_after_the_overlap(on: TestStore) {
    let old = key(&on, &on.admin).await;
    let made = ok(&on, &on.admin, "rotate_key", json!({ "key_id": old, "overlap_seconds": 60 })).await;
    let new = text(&made, "key_id");
    assert_ne!(new, old);
    assert_eq!((&made["principal"], &made["roles"]), (&json!("agent:a"), &json!(["worker"])));
    let rows = on
        .rows_with(
            "SELECT o.expires_at - n.created_at, n.expires_at - n.created_at, o.replaced_by, n.replaced_by
             FROM api_keys o JOIN api_keys n ON n.key_id = $2 WHERE o.key_id = $1",
            &[&old, &new],
        )
        .await
        .unwrap();
    assert_eq!((rows[0].int(0).unwrap(), rows[0].int(1).unwrap()), (60_000_000, 864_000_000_000));
    assert_eq!((rows[0].text(2).unwrap(), rows[0].text_opt(3).unwrap()), (new.as_str(), None));
    assert_eq!(shown(&on, &new).await["scopes"], shown(&on, &old).await["scopes"]);
}

async fn a_key_is_rotated_once(on: TestStore) {
    let old = key(&on, &on.admin).await;
    let first = ok(&on, &on.admin, "rotate_key", json!({ "key_id": old })).await;
    let error = refused(&on, &on.admin, "rotate_key", json!({ "key_id": old })).await;
    assert_eq!(error.code(), Code::InvalidStateTransition);
    assert_eq!(error.detail("replaced_by"), Some(&first["key_id"]));
    ok(&on, &on.admin, "rotate_key", json!({ "key_id": first["key_id"] })).await;
    let sql = "SELECT count(*) FROM api_keys WHERE principal = 'agent:a'";
    assert_eq!(on.count(sql).await.unwrap(), 3);
}

async fn an_ended_key_is_not_rotated(on: TestStore) {
    let (revoked, expired) = (key(&on, &on.admin).await, key(&on, &on.admin).await);
    ok(&on, &on.admin, "revoke_key", json!({ "key_id": revoked })).await;
    on.time.pass(Duration::from_secs(900_000));
    for ended in [revoked, expired] {
        let code = refusal(&on, &on.admin, "rotate_key", json!({ "key_id": ended })).await;
        assert_eq!(code, Code::InvalidStateTransition);
        assert_eq!(shown(&on, &ended).await["replaced_by"], Json::Null);
    }
}

async fn an_unknown_key_and_another_tenants_key_are_the_same_not_found(on: TestStore) {
    let theirs = key(&on, &on.tenant("other").await.unwrap()).await;
    let unknown = refused(&on, &on.admin, "rotate_key", json!({ "key_id": "000000000000" })).await;
    let foreign = refused(&on, &on.admin, "rotate_key", json!({ "key_id": theirs })).await;
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(foreign.to_json(), unknown.to_json());
    assert_eq!(on.count("SELECT count(*) FROM api_keys WHERE replaced_by IS NOT NULL").await.unwrap(), 0);
}

async fn an_overlap_is_at_most_thirty_days(on: TestStore) {
    let old = key(&on, &on.admin).await;
    for wrong in [json!(2_592_001), json!(-1), json!("1")] {
        let input = json!({ "key_id": old, "overlap_seconds": wrong });
        assert_eq!(refusal(&on, &on.admin, "rotate_key", input).await, Code::InvalidRequest);
    }
    assert_eq!(refusal(&on, &on.admin, "rotate_key", json!({ "key_id": "short" })).await, Code::InvalidRequest);
    // The longest overlap does not outlive the expiry the key already has.
    let expires_at = shown(&on, &old).await["expires_at"].clone();
    ok(&on, &on.admin, "rotate_key", json!({ "key_id": old, "overlap_seconds": 2_592_000 })).await;
    assert_eq!(shown(&on, &old).await["expires_at"], expires_at);
}
