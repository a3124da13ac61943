use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_kernel::id::Uuid;
use waybill_testkit::stores::TestStore;

use crate::support::{NOBODY, ok, plain_task, refusal, refused, task_status};

waybill_testkit::both! {
    the_owner_cancels_and_sees_why,
    it_leaves_two_receipts_with_their_parents_and_ends_the_obligation,
    a_second_cancel_says_so_and_writes_nothing,
    an_unknown_task_and_another_tenants_task_are_the_same_not_found,
    another_principals_task_is_forbidden_and_an_admin_may,
    r53_a_principal_that_is_named_must_be_the_callers_own_but_for_an_admin,
    r53_an_admin_cancels_in_the_name_it_gives,
    a_reason_of_two_thousand_characters_fits_and_a_longer_one_does_not,
}

async fn the_owner_cancels_and_sees_why(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = plain_task(&on, &alice).await;
    let answer = ok(&on, &alice, "cancel_task", json!({ "task_id": task_id, "reason": "no need\u{0}" })).await;
    assert_eq!(answer, json!({ "ok": true, "status": "canceled" }));
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await;
    assert_eq!((&shown["status"], &shown["result"]["outcome"]), (&json!("canceled"), &json!("canceled")));
    assert_eq!(shown["result"]["error"], json!({ "reason": "no need\u{0}", "canceled_by": "agent:alice" }));
    assert_eq!(shown["result"]["completed_at"], shown["updated_at"]);
    assert!(shown["updated_at"].as_str() > shown["created_at"].as_str());
}

async fn it_leaves_two_receipts_with_their_parents_and_ends_the_obligation(on: TestStore) {
    let task_id = plain_task(&on, &on.agent("alice").unwrap()).await;
    ok(&on, &on.admin, "cancel_task", json!({ "task_id": task_id })).await;
    let rows = on
        .rows(
            "SELECT r.receipt_type, r.sender, r.addressee, r.open, p.receipt_type, l.child_type, r.task_id, r.body
             FROM receipts r LEFT JOIN receipt_parents l ON l.tenant = r.tenant AND l.child_id = r.receipt_id
             LEFT JOIN receipts p ON p.tenant = r.tenant AND p.receipt_id = l.parent_id ORDER BY r.seq",
        )
        .await
        .unwrap();
    let seen: Vec<_> = rows
        .iter()
        .map(|row| {
            assert_eq!(row.bytes(6).unwrap(), task_id.parse::<Uuid>().unwrap().as_bytes());
            let (kind, from, to) = (row.text(0).unwrap(), row.text(1).unwrap(), row.text(2).unwrap());
            (kind, from, to, row.bool(3).unwrap(), row.text_opt(4).unwrap(), row.text_opt(5).unwrap())
        })
        .collect();
    let (alice, system) = ("agent:alice", "system:asyncgate");
    assert_eq!(
        seen,
        [
            ("task.assigned", alice, alice, false, None, None),
            ("task.canceled", "human:admin", alice, false, Some("task.assigned"), Some("task.canceled")),
            ("task.result_ready", system, alice, false, Some("task.canceled"), Some("task.result_ready")),
        ]
    );
    let body: Json = serde_json::from_str(rows[2].text(7).unwrap()).unwrap();
    assert_eq!((&body["status"], &body["schema_version"]), (&json!("canceled"), &json!("1")));
}

async fn a_second_cancel_says_so_and_writes_nothing(on: TestStore) {
    let task_id = plain_task(&on, &on.admin).await;
    ok(&on, &on.admin, "cancel_task", json!({ "task_id": task_id, "reason": "first" })).await;
    let ended = ok(&on, &on.admin, "get_task", json!({ "task_id": task_id })).await;
    let again = ok(&on, &on.admin, "cancel_task", json!({ "task_id": task_id, "reason": "second" })).await;
    assert_eq!(again, json!({ "ok": false, "status": "canceled" }));
    assert_eq!(ok(&on, &on.admin, "get_task", json!({ "task_id": task_id })).await, ended);
    let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
    assert_eq!((receipts, on.count("SELECT count(*) FROM results").await.unwrap()), (3, 1));
}

async fn an_unknown_task_and_another_tenants_task_are_the_same_not_found(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let theirs = plain_task(&on, &other).await;
    let unknown = refused(&on, &on.admin, "cancel_task", json!({ "task_id": NOBODY })).await;
    let foreign = refused(&on, &on.admin, "cancel_task", json!({ "task_id": theirs })).await;
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(foreign.to_json(), unknown.to_json());
    assert_eq!(task_status(&on, &other, &theirs).await, "queued");
}

async fn another_principals_task_is_forbidden_and_an_admin_may(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let task_id = plain_task(&on, &alice).await;
    assert_eq!(refusal(&on, &bob, "cancel_task", json!({ "task_id": task_id })).await, Code::Forbidden);
    assert_eq!(task_status(&on, &alice, &task_id).await, "queued");
    ok(&on, &on.admin, "cancel_task", json!({ "task_id": task_id })).await;
    assert_eq!(refusal(&on, &bob, "cancel_task", json!({ "task_id": task_id })).await, Code::Forbidden);
}

async fn a_reason_of_two_thousand_characters_fits_and_a_longer_one_does_not(on: TestStore) {
    let task_id = plain_task(&on, &on.admin).await;
    let reason = |length: usize| json!({ "task_id": task_id, "reason": "ü".repeat(length) });
    assert_eq!(refusal(&on, &on.admin, "cancel_task", reason(2001)).await, Code::InvalidRequest);
    assert_eq!(ok(&on, &on.admin, "cancel_task", reason(2000)).await["ok"], true);
}

async fn r53_an_admin_cancels_in_the_name_it_gives(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for (named, canceller) in [("alice", "agent:alice"), ("bob", "agent:bob")] {
        let task_id = plain_task(&on, &alice).await;
        let input = json!({ "task_id": task_id, "principal_kind": "agent", "principal_id": named });
        ok(&on, &on.admin, "cancel_task", input).await;
        let shown = ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await;
        assert_eq!(shown["result"]["error"]["canceled_by"], canceller);
        let admin = on.admin.principal.to_string();
        assert_eq!(shown["result"]["error"]["requested_by"], admin, "who did it is on record too");
        let sent = "SELECT sender, body FROM receipts WHERE receipt_type = 'task.canceled' ORDER BY seq DESC LIMIT 1";
        let sent = on.rows(sent).await.unwrap();
        let body: Json = serde_json::from_str(sent[0].text(1).unwrap()).unwrap();
        assert_eq!((sent[0].text(0).unwrap(), &body["canceled_by"]), (canceller, &json!(canceller)));
    }
}

async fn r53_a_principal_that_is_named_must_be_the_callers_own_but_for_an_admin(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let task_id = plain_task(&on, &alice).await;
    let named = |id: &str| json!({ "task_id": task_id, "principal_kind": "agent", "principal_id": id });
    assert_eq!(refusal(&on, &bob, "cancel_task", named("alice")).await, Code::Forbidden);
    assert_eq!(refusal(&on, &alice, "cancel_task", named("bob")).await, Code::Forbidden);
    assert_eq!(ok(&on, &alice, "cancel_task", named("alice")).await["ok"], true);

    let receipt = on.rows("SELECT receipt_id FROM receipts WHERE receipt_type = 'task.result_ready'").await.unwrap();
    let receipt_id = Uuid::from_slice(receipt[0].bytes(0).unwrap()).unwrap();
    let acked = |id: &str| json!({ "receipt_id": receipt_id, "principal_kind": "agent", "principal_id": id });
    assert_eq!(refusal(&on, &bob, "ack_receipt", acked("alice")).await, Code::Forbidden);
    assert_eq!(refusal(&on, &alice, "ack_receipt", acked("bob")).await, Code::Forbidden);
    ok(&on, &on.admin, "ack_receipt", acked("alice")).await;
    let from = "SELECT sender FROM receipts WHERE receipt_type = 'receipt.acknowledged'";
    assert_eq!(on.rows(from).await.unwrap()[0].text(0).unwrap(), "agent:alice");
}
