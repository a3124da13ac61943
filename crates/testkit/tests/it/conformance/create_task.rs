use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{done, ok, plain_task, refusal, refused, task};

waybill_testkit::both! {
    a_task_is_stored_as_asked_with_the_defaults_filled_in,
    the_receipt_of_assignment_opens_an_obligation_of_the_owner,
    a_second_call_with_the_key_gets_the_first_task_and_writes_nothing,
    keys_of_two_tenants_do_not_meet,
    of_fifty_calls_at_once_with_one_key_one_makes_the_task,
    what_is_out_of_range_is_refused_and_nothing_written,
    a_payload_of_just_the_limit_fits_and_one_byte_more_does_not,
    nul_is_refused_in_a_text_and_kept_in_a_payload,
}

async fn a_task_is_stored_as_asked_with_the_defaults_filled_in(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let payload = json!({ "ü": [1, null, "😀"], "deep": { "a": 0.5 } });
    let task_id = task(
        &on,
        &alice,
        json!({
            "type": "build", "payload": payload, "requirements": { "capabilities": ["rust"], "tags": ["x"] },
            "priority": -3, "idempotency_key": "k", "max_attempts": 7, "retry_backoff_seconds": 0,
            "delay_seconds": 60, "principal_instance_id": "run-1",
        }),
    )
    .await;
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await;
    for (field, expected) in [
        ("task_id", json!(task_id)),
        ("type", json!("build")),
        ("status", json!("queued")),
        ("payload", payload),
        ("requirements", json!({ "capabilities": ["rust"], "tags": ["x"] })),
        ("priority", json!(-3)),
        ("attempt", json!(0)),
        ("max_attempts", json!(7)),
        ("retry_backoff_seconds", json!(0)),
        ("idempotency_key", json!("k")),
        ("created_by", json!({ "principal_kind": "agent", "principal_id": "alice", "instance_id": "run-1" })),
        ("started_at", Json::Null),
        ("result", Json::Null),
    ] {
        assert_eq!(shown[field], expected, "{field}");
    }
    let eligible = on.rows("SELECT next_eligible_at - created_at, updated_at - created_at FROM tasks").await.unwrap();
    assert_eq!((eligible[0].int(0).unwrap(), eligible[0].int(1).unwrap()), (60_000_000, 0));

    let plain = plain_task(&on, &alice).await;
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": plain })).await;
    assert_eq!((&shown["payload"], &shown["requirements"]), (&Json::Null, &json!({})));
    assert_eq!((&shown["max_attempts"], &shown["retry_backoff_seconds"]), (&json!(3), &json!(30)));
    assert_eq!(shown["idempotency_key"], Json::Null);
}

async fn the_receipt_of_assignment_opens_an_obligation_of_the_owner(on: TestStore) {
    plain_task(&on, &on.agent("alice").unwrap()).await;
    let rows = on
        .rows(
            "SELECT r.receipt_type, r.sender, r.addressee, r.open, r.body FROM receipts r
             JOIN tasks t ON t.tenant = r.tenant AND t.task_id = r.task_id AND t.assigned_receipt = r.receipt_id",
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 1);
    let words: Vec<&str> = (0..3).map(|column| rows[0].text(column).unwrap()).collect();
    assert_eq!(words, ["task.assigned", "agent:alice", "agent:alice"]);
    assert!(rows[0].bool(3).unwrap());
    let body: Json = serde_json::from_str(rows[0].text(4).unwrap()).unwrap();
    assert_eq!((&body["schema_version"], &body["instructions"]), (&json!("1"), &json!({ "type": "work" })));
    assert_eq!(on.count("SELECT count(*) FROM receipt_parents").await.unwrap(), 0);
}

async fn a_second_call_with_the_key_gets_the_first_task_and_writes_nothing(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let input = json!({ "type": "work", "idempotency_key": "k" });
    let first = done(on.call(&alice, "create_task", input.clone()).await);
    assert!(!first.replay);
    for again in [input, json!({ "type": "other", "payload": 1, "idempotency_key": "k" })] {
        let second = done(on.call(&alice, "create_task", again).await);
        assert_eq!((second.json, second.replay), (first.json.clone(), true));
    }
    ok(&on, &alice, "cancel_task", json!({ "task_id": first.json["task_id"] })).await;
    let late = done(on.call(&alice, "create_task", json!({ "type": "work", "idempotency_key": "k" })).await);
    assert_eq!((late.json["status"].as_str(), late.replay), (Some("canceled"), true));
    let assigned = on.count("SELECT count(*) FROM receipts WHERE receipt_type = 'task.assigned'").await.unwrap();
    assert_eq!((on.count("SELECT count(*) FROM tasks").await.unwrap(), assigned), (1, 1));
}

async fn keys_of_two_tenants_do_not_meet(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let input = json!({ "type": "work", "idempotency_key": "k" });
    let ours = done(on.call(&on.admin, "create_task", input.clone()).await);
    let theirs = done(on.call(&other, "create_task", input).await);
    assert!(!theirs.replay);
    assert_ne!(ours.json["task_id"], theirs.json["task_id"]);
}

async fn of_fifty_calls_at_once_with_one_key_one_makes_the_task(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let calls = (0..50).map(|number| {
        on.call(&alice, "create_task", json!({ "type": "work", "payload": number, "idempotency_key": "k" }))
    });
    let answers: Vec<_> = join_all(calls).await.into_iter().map(done).collect();
    assert_eq!(answers.iter().filter(|answer| !answer.replay).count(), 1);
    assert!(answers.iter().all(|answer| answer.json["task_id"] == answers[0].json["task_id"]));
    let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
    assert_eq!((on.count("SELECT count(*) FROM tasks").await.unwrap(), receipts), (1, 1));
}

async fn what_is_out_of_range_is_refused_and_nothing_written(on: TestStore) {
    let long = |length: usize| "x".repeat(length);
    for wrong in [
        json!({}),
        json!({ "type": 1 }),
        json!({ "type": "" }),
        json!({ "type": long(201) }),
        json!({ "type": "t", "unknown": 1 }),
        json!({ "type": "t", "idempotency_key": "" }),
        json!({ "type": "t", "idempotency_key": long(256) }),
        json!({ "type": "t", "principal_instance_id": "" }),
        json!({ "type": "t", "max_attempts": 0 }),
        json!({ "type": "t", "max_attempts": 1001 }),
        json!({ "type": "t", "retry_backoff_seconds": -1 }),
        json!({ "type": "t", "retry_backoff_seconds": 86_401 }),
        json!({ "type": "t", "delay_seconds": -1 }),
        json!({ "type": "t", "delay_seconds": 31_622_401 }),
        json!({ "type": "t", "priority": 1i64 << 40 }),
        json!({ "type": "t", "requirements": { "capabilities": [""] } }),
        json!({ "type": "t", "requirements": { "tags": vec!["x"; 65] } }),
        json!({ "type": "t", "requirements": { "wishes": [] } }),
    ] {
        assert_eq!(refusal(&on, &on.admin, "create_task", wrong.clone()).await, Code::InvalidRequest, "{wrong}");
    }
    // Lengths are counted in characters, not in bytes.
    task(&on, &on.admin, json!({ "type": "ü".repeat(200), "max_attempts": 1000, "delay_seconds": 31_622_400 })).await;
    assert_eq!(on.count("SELECT count(*) FROM tasks").await.unwrap(), 1);
}

async fn a_payload_of_just_the_limit_fits_and_one_byte_more_does_not(on: TestStore) {
    // Two of the bytes are the quotes.
    let most = (1 << 20) - 2;
    task(&on, &on.admin, json!({ "type": "t", "payload": "x".repeat(most) })).await;
    let error = refused(&on, &on.admin, "create_task", json!({ "type": "t", "payload": "x".repeat(most + 1) })).await;
    assert_eq!((error.code(), error.detail("limit_bytes")), (Code::PayloadTooLarge, Some(&json!(1 << 20))));
    assert_eq!(on.count("SELECT count(*) FROM tasks").await.unwrap(), 1);
}

async fn nul_is_refused_in_a_text_and_kept_in_a_payload(on: TestStore) {
    for wrong in [
        json!({ "type": "a\u{0}b" }),
        json!({ "type": "t", "idempotency_key": "\u{0}" }),
        json!({ "type": "t", "principal_instance_id": "i\u{0}" }),
    ] {
        let error = refused(&on, &on.admin, "create_task", wrong).await;
        assert_eq!((error.code(), error.message()), (Code::InvalidRequest, "A text holds a NUL character."));
    }
    assert_eq!(on.count("SELECT count(*) FROM tasks").await.unwrap(), 0);
    let task_id = task(&on, &on.admin, json!({ "type": "t", "payload": "a\u{0}b" })).await;
    let shown = ok(&on, &on.admin, "get_task", json!({ "task_id": task_id })).await;
    assert_eq!(shown["payload"], json!("a\u{0}b"));
}
