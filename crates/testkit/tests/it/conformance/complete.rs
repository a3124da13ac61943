use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{claim, footprint, held, ledger, ok, refusal, with, worker};

waybill_testkit::both! {
    a12_5_a_completion_with_artifacts_ends_the_obligation,
    a12_5_one_without_leaves_it_open_and_a_located_resend_closes_it,
    r12_a_repair_with_the_artifacts_alone_keeps_the_result,
    a_repetition_is_answered_the_same_and_other_words_are_a_conflict,
    a12_6_a_large_result_completes_and_too_many_artifacts_do_not,
    empty_artifacts_are_none,
    a_canceled_task_cannot_be_completed,
    a_lease_that_was_replaced_cannot_complete,
    a_lease_that_was_given_up_cannot_say_where_the_work_of_a_later_one_is,
}

fn located(lease: &Json) -> Json {
    with(lease, json!({ "result": { "sum": 42 }, "artifacts": [{ "type": "file", "path": "out.txt" }] }))
}

async fn open_obligations(on: &TestStore) -> i64 {
    on.count("SELECT count(*) FROM receipts WHERE open = 1").await.unwrap()
}

async fn a12_5_a_completion_with_artifacts_ends_the_obligation(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    assert_eq!(ok(&on, &w, "complete", located(&lease)).await, json!({ "ok": true }));
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": lease["task_id"] })).await;
    assert_eq!((&shown["status"], &shown["result"]["result"]), (&json!("succeeded"), &json!({ "sum": 42 })));
    assert_eq!(shown["result"]["artifacts"], json!([{ "type": "file", "path": "out.txt" }]));
    assert_eq!(open_obligations(&on).await, 0);
    assert_eq!(
        ledger(&on).await[2..],
        [
            "task.completed worker:w > agent:alice <- task.assigned",
            "task.result_ready system:asyncgate > agent:alice <- task.completed",
        ]
    );
    assert_eq!(on.count("SELECT count(*) FROM leases WHERE end_reason = 'completed'").await.unwrap(), 1);
}

async fn a12_5_one_without_leaves_it_open_and_a_located_resend_closes_it(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let bare = with(&lease, json!({ "result": { "sum": 42 } }));
    ok(&on, &w, "complete", bare.clone()).await;
    assert_eq!(open_obligations(&on).await, 1);
    assert_eq!(
        ledger(&on).await[2..],
        [
            "task.completed worker:w > agent:alice",
            "task.result_ready system:asyncgate > agent:alice <- task.completed",
            "system.anomaly system:asyncgate > agent:alice <- task.assigned",
        ]
    );
    // The same again is a repetition, another result a conflict, and neither changes anything.
    let before = footprint(&on).await;
    assert!(on.call(&w, "complete", bare).await.unwrap().replay);
    let other = with(&located(&lease), json!({ "result": 43 }));
    assert_eq!(refusal(&on, &w, "complete", other).await, Code::InvalidStateTransition);
    assert_eq!(footprint(&on).await, before);

    ok(&on, &w, "complete", located(&lease)).await;
    assert_eq!(open_obligations(&on).await, 0);
    let receipts = ledger(&on).await;
    assert_eq!(receipts[5..], ["task.completed worker:w > agent:alice <- task.assigned"]);
    assert!(on.call(&w, "complete", located(&lease)).await.unwrap().replay);
    assert_eq!(ledger(&on).await.len(), 6);
}

async fn r12_a_repair_with_the_artifacts_alone_keeps_the_result(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let work = json!({ "sum": 42, "parts": [1, { "b": null, "a": "x" }] });
    let pointer = json!({ "artifacts": [{ "type": "file", "path": "out.txt" }] });
    let proof = json!({ "delivery_proof": { "mode": "push" } });
    for (result, location, otherwise) in [
        (json!({ "result": work }), &pointer, &proof),
        (json!({}), &pointer, &proof),
        (json!({ "result": work }), &proof, &pointer),
    ] {
        let lease = held(&on, &w, json!({ "type": "work" })).await;
        ok(&on, &w, "complete", with(&lease, result.clone())).await;
        assert_eq!(open_obligations(&on).await, 1);
        let before = footprint(&on).await;
        // Neither nothing at all nor another result is the success that was recorded.
        if result != json!({}) {
            assert_eq!(refusal(&on, &w, "complete", lease.clone()).await, Code::InvalidStateTransition);
        }
        let other = with(&with(&lease, location.clone()), json!({ "result": 43 }));
        assert_eq!(refusal(&on, &w, "complete", other).await, Code::InvalidStateTransition);
        assert_eq!(footprint(&on).await, before);

        let repair = with(&lease, location.clone());
        let repaired = on.call(&w, "complete", repair.clone()).await.unwrap();
        assert!(!repaired.replay);
        assert_eq!(open_obligations(&on).await, 0);
        let shown = ok(&on, &alice, "get_task", json!({ "task_id": lease["task_id"] })).await;
        assert_eq!(shown["result"]["result"], result.get("result").cloned().unwrap_or_default(), "it is kept");
        let field = location.as_object().unwrap().keys().next().unwrap();
        assert_eq!(shown["result"][field], location[field]);
        let bodies = on.rows("SELECT body FROM receipts WHERE receipt_type = 'task.completed' ORDER BY seq DESC").await;
        let body: Json = serde_json::from_str(bodies.unwrap()[0].text(0).unwrap()).unwrap();
        assert_eq!((&body["result_payload"], &body[field]), (&shown["result"]["result"], &location[field]));

        // After a lost answer: the same again, with the result or without; another place is another matter.
        let before = footprint(&on).await;
        for again in [repair.clone(), with(&repair, result.clone())] {
            assert!(on.call(&w, "complete", again).await.unwrap().replay);
        }
        let elsewhere = with(&lease, otherwise.clone());
        assert_eq!(refusal(&on, &w, "complete", elsewhere).await, Code::InvalidStateTransition);
        assert_eq!(footprint(&on).await, before);
    }
}

async fn a_repetition_is_answered_the_same_and_other_words_are_a_conflict(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &w, "complete", located(&lease)).await;
    let before = footprint(&on).await;
    let again = on.call(&w, "complete", located(&lease)).await.unwrap();
    assert_eq!((again.json, again.replay), (json!({ "ok": true }), true));
    for other in [json!({ "result": 1 }), json!({ "artifacts": { "type": "other" } })] {
        assert_eq!(refusal(&on, &w, "complete", with(&located(&lease), other)).await, Code::InvalidStateTransition);
    }
    let fail = with(&lease, json!({ "error": "no" }));
    assert_eq!(refusal(&on, &w, "fail", fail).await, Code::InvalidStateTransition);
    let stranger = worker(&on, "v");
    assert_eq!(refusal(&on, &stranger, "complete", located(&lease)).await, Code::LeaseInvalidOrExpired);
    assert_eq!(footprint(&on).await, before);
}

async fn a12_6_a_large_result_completes_and_too_many_artifacts_do_not(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let before = footprint(&on).await;
    let many = with(&lease, json!({ "artifacts": vec![json!({ "p": 1 }); 101] }));
    assert_eq!(refusal(&on, &w, "complete", many).await, Code::ReceiptTooLarge);
    let long = with(&lease, json!({ "artifacts": { "p": "x".repeat(66_000) } }));
    assert_eq!(refusal(&on, &w, "complete", long).await, Code::ReceiptTooLarge);
    let huge = with(&lease, json!({ "result": "x".repeat(1 << 20) }));
    assert_eq!(refusal(&on, &w, "complete", huge).await, Code::PayloadTooLarge);
    for odd in [json!({ "artifacts": "a.txt" }), json!({ "artifacts": [1] }), json!({ "delivery_proof": "yes" })] {
        assert_eq!(refusal(&on, &w, "complete", with(&lease, odd)).await, Code::InvalidRequest);
    }
    for odd in [
        json!({ "status": "succeeded" }),
        json!({ "mode": "carried" }),
        json!({ "mode": "push", "target": "https://example.com" }),
        json!({ "mode": "push", "proof": 200 }),
        json!({ "mode": "push", "status": 200 }),
        json!({ "mode": "push", "at": "yesterday" }),
    ] {
        let proved = with(&lease, json!({ "delivery_proof": odd }));
        assert_eq!(refusal(&on, &w, "complete", proved).await, Code::InvalidRequest);
    }
    assert_eq!(footprint(&on).await, before);

    let large = "x".repeat(70_000);
    ok(&on, &w, "complete", with(&lease, json!({ "result": large, "artifacts": vec![json!({ "p": 1 }); 100] }))).await;
    let shown = ok(&on, &on.admin, "get_task", json!({ "task_id": lease["task_id"] })).await;
    assert_eq!(shown["result"]["result"], json!(large));
    let rows = on.rows("SELECT body FROM receipts WHERE receipt_type = 'task.completed'").await.unwrap();
    let body: Json = serde_json::from_str(rows[0].text(0).unwrap()).unwrap();
    assert!(body["result_payload"].is_null() && body["how_to_retrieve"]["operation"] == "get_task", "{body}");
}

async fn empty_artifacts_are_none(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &w, "complete", with(&lease, json!({ "artifacts": [], "delivery_proof": {} }))).await;
    assert_eq!(open_obligations(&on).await, 1);
}

async fn a_canceled_task_cannot_be_completed(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": lease["task_id"] })).await;
    let before = footprint(&on).await;
    for name in ["complete", "renew_lease"] {
        assert_eq!(refusal(&on, &w, name, lease.clone()).await, Code::LeaseInvalidOrExpired);
    }
    assert_eq!(footprint(&on).await, before);
    assert_eq!(on.count("SELECT count(*) FROM leases WHERE end_reason = 'canceled'").await.unwrap(), 1);
}

async fn a_lease_that_was_replaced_cannot_complete(on: TestStore) {
    let w = worker(&on, "w");
    let lease = held(&on, &w, json!({ "type": "work", "retry_backoff_seconds": 0 })).await;
    ok(&on, &w, "fail", with(&lease, json!({ "error": "later", "retryable": true }))).await;
    on.time.pass(std::time::Duration::from_secs(1));
    let again = crate::support::claim(&on, &worker(&on, "v"), json!({})).await;
    assert_eq!(again.len(), 1);
    let before = footprint(&on).await;
    assert_eq!(refusal(&on, &w, "complete", located(&lease)).await, Code::LeaseInvalidOrExpired);
    let theirs = json!({ "task_id": lease["task_id"], "lease_id": again[0]["lease_id"] });
    assert_eq!(refusal(&on, &w, "complete", located(&theirs)).await, Code::LeaseInvalidOrExpired);
    assert_eq!(footprint(&on).await, before);
    let epochs = on.count("SELECT max(epoch) FROM leases").await.unwrap();
    assert_eq!(epochs, 2);
}

/// R12: the repair is for the worker and the lease that completed the task.
async fn a_lease_that_was_given_up_cannot_say_where_the_work_of_a_later_one_is(on: TestStore) {
    let (first, second) = (worker(&on, "first"), worker(&on, "second"));
    let given_up = held(&on, &first, json!({ "type": "work", "retry_backoff_seconds": 0 })).await;
    ok(&on, &first, "fail", with(&given_up, json!({ "error": {}, "retryable": true }))).await;
    let later = claim(&on, &second, json!({})).await.remove(0);
    let later = json!({ "task_id": later["task_id"], "lease_id": later["lease_id"] });
    ok(&on, &second, "complete", with(&later, json!({ "result": { "sum": 42 } }))).await;
    let before = footprint(&on).await;
    assert_eq!(refusal(&on, &first, "complete", located(&given_up)).await, Code::LeaseInvalidOrExpired);
    assert_eq!(footprint(&on).await, before);
    ok(&on, &second, "complete", located(&later)).await;
    assert_eq!(open_obligations(&on).await, 0);
}
