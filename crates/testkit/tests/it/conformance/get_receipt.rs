use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use super::ledger::{claimed, worker};
use crate::support::{NOBODY, ok, plain_task, refusal, refused, text};

waybill_testkit::both! {
    it_is_for_addressee_sender_owner_and_admin,
    an_unknown_receipt_and_another_tenants_are_the_same_not_found,
}

async fn it_is_for_addressee_sender_owner_and_admin(on: TestStore) {
    let (alice, bob, worker) = (on.agent("alice").unwrap(), on.agent("bob").unwrap(), worker(&on, "w"));
    let task_id = plain_task(&on, &alice).await;
    claimed(&on, &worker).await;
    let listed = ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    let assigned = json!({ "receipt_id": text(&listed["receipts"][0], "receipt_id") });
    // From the worker to the server: the owner is neither.
    let accepted = json!({ "receipt_id": text(&listed["receipts"][1], "receipt_id") });
    for caller in [&alice, &worker, &on.admin] {
        assert_eq!(ok(&on, caller, "get_receipt", accepted.clone()).await, listed["receipts"][1]);
    }
    assert_eq!(ok(&on, &alice, "get_receipt", assigned.clone()).await, listed["receipts"][0]);
    for (caller, input) in [(&bob, &assigned), (&bob, &accepted), (&worker, &assigned)] {
        assert_eq!(refusal(&on, caller, "get_receipt", input.clone()).await, Code::Forbidden);
    }
}

async fn an_unknown_receipt_and_another_tenants_are_the_same_not_found(on: TestStore) {
    let stranger = on.tenant("other").await.unwrap();
    plain_task(&on, &stranger).await;
    let theirs = ok(&on, &stranger, "list_receipts", json!({})).await["next_cursor"].clone();
    let foreign = refused(&on, &on.admin, "get_receipt", json!({ "receipt_id": theirs })).await;
    let unknown = refused(&on, &on.admin, "get_receipt", json!({ "receipt_id": NOBODY })).await;
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(foreign.to_json(), unknown.to_json());
}
