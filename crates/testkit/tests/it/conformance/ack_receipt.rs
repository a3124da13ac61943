use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use super::ledger::open;
use crate::support::{NOBODY, done, ok, plain_task, refusal};

waybill_testkit::both! {
    it_is_put_on_record_once_and_ends_nothing,
    only_the_addressee_and_an_admin_may,
    an_unknown_receipt_is_not_found,
}

async fn assigned(on: &TestStore, caller: &Caller) -> Json {
    plain_task(on, caller).await;
    json!({ "receipt_id": ok(on, caller, "list_receipts", json!({})).await["next_cursor"] })
}

async fn it_is_put_on_record_once_and_ends_nothing(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let receipt = assigned(&on, &alice).await;
    for replay in [false, true] {
        let answer = done(on.call(&alice, "ack_receipt", receipt.clone()).await);
        assert_eq!((answer.json, answer.replay), (json!({ "ok": true }), replay));
    }
    // Another reader's word is another receipt.
    assert!(!done(on.call(&on.admin, "ack_receipt", receipt.clone()).await).replay);
    let task_id = open(&on, &alice).await.remove(0);
    let listed = ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    let acks = &listed["receipts"].as_array().unwrap()[1..];
    assert_eq!(acks.len(), 2, "{acks:?}");
    let first = &acks[0];
    assert_eq!(first["receipt_type"], "receipt.acknowledged");
    assert_eq!(first["from"], json!({ "kind": "agent", "id": "alice" }));
    assert_eq!(first["to"], json!({ "kind": "system", "id": "asyncgate" }));
    assert_eq!(first["parents"], json!([receipt["receipt_id"]]));
    assert_eq!(first["body"]["acknowledged_receipt_id"], receipt["receipt_id"]);
}

async fn only_the_addressee_and_an_admin_may(on: TestStore) {
    let receipt = assigned(&on, &on.agent("alice").unwrap()).await;
    let bob = on.agent("bob").unwrap();
    assert_eq!(refusal(&on, &bob, "ack_receipt", receipt.clone()).await, Code::Forbidden);
    assert_eq!(on.count("SELECT count(*) FROM receipts").await.unwrap(), 1);
    ok(&on, &on.admin, "ack_receipt", receipt).await;
}

async fn an_unknown_receipt_is_not_found(on: TestStore) {
    let theirs = assigned(&on, &on.tenant("other").await.unwrap()).await;
    for input in [json!({ "receipt_id": NOBODY }), theirs] {
        assert_eq!(refusal(&on, &on.admin, "ack_receipt", input).await, Code::NotFound);
    }
}
