use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Role};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{done, ok, plain_task, refusal, refused, task, text, texts, with};

waybill_testkit::both! {
    a_task_is_stored_as_asked_with_the_defaults_filled_in,
    the_receipt_of_assignment_opens_an_obligation_of_the_owner,
    a12_3_a_second_call_with_the_key_gets_the_first_task_and_writes_nothing,
    keys_of_two_tenants_do_not_meet,
    r11_keys_of_two_owners_do_not_meet_and_tell_nothing_of_each_other,
    r11_who_acts_for_an_owner_uses_the_owners_keys,
    a12_3_of_fifty_calls_at_once_with_one_key_one_makes_the_task,
    what_is_out_of_range_is_refused_and_nothing_written,
    a_payload_of_just_the_limit_fits_and_one_byte_more_does_not,
    nul_is_refused_in_a_text_and_kept_in_a_payload,
    r49_what_a_schedule_fires_belongs_to_its_owner,
    r49_only_the_owner_of_the_schedule_can_be_named_and_only_by_a_delegate,
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

async fn a12_3_a_second_call_with_the_key_gets_the_first_task_and_writes_nothing(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let input = json!({ "type": "work", "idempotency_key": "k" });
    let first = done(on.call(&alice, "create_task", input.clone()).await);
    assert!(!first.replay);
    for again in [input, json!({ "type": "other", "payload": 1, "idempotency_key": "k" })] {
        let second = done(on.call(&alice, "create_task", again).await);
        assert_eq!((second.json, second.replay), (first.json.clone(), true));
    }
    assert_eq!(obligations(&on, &alice).await, [text(&first.json, "task_id")]);
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

/// Neither who comes first nor who comes second learns anything.
async fn r11_keys_of_two_owners_do_not_meet_and_tell_nothing_of_each_other(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let input = json!({ "type": "work", "idempotency_key": "invoice-4711" });
    let hers = done(on.call(&alice, "create_task", input.clone()).await);
    let his = done(on.call(&bob, "create_task", input.clone()).await);
    assert!(!his.replay, "bob is told of alice's task");
    assert_ne!(hers.json["task_id"], his.json["task_id"]);
    for (owner, first) in [(&alice, &hers), (&bob, &his)] {
        let again = done(on.call(owner, "create_task", input.clone()).await);
        assert_eq!((&again.json, again.replay), (&first.json, true));
        assert_eq!(obligations(&on, owner).await, [text(&first.json, "task_id")]);
    }
    // A name that another begins with, or a key that continues it, is no other's.
    let alic = on.agent("alic").unwrap();
    let near = done(on.call(&alic, "create_task", json!({ "type": "work", "idempotency_key": "einvoice-4711" })).await);
    assert!(!near.replay);
    assert_eq!(on.count("SELECT count(*) FROM tasks").await.unwrap(), 3);
}

async fn r11_who_acts_for_an_owner_uses_the_owners_keys(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let own = json!({ "type": "work", "idempotency_key": "k" });
    let for_her = with(&own, json!({ "created_by": "agent:alice" }));
    let hers = done(on.call(&alice, "create_task", own.clone()).await);
    let again = done(on.call(&on.admin, "create_task", for_her.clone()).await);
    assert_eq!((&again.json, again.replay), (&hers.json, true), "the admin, in her name");
    let admins = done(on.call(&on.admin, "create_task", own).await);
    assert!(!admins.replay, "the admin, in its own name");

    // What a scheduler fires is alice's, also when she has used such a key before.
    scheduled(&on, &alice, "s1").await;
    let delegate = scheduler(&on, &[Role::Agent, Role::Worker, Role::Delegate]);
    let fired = done(on.call(&delegate, "create_task", firing("s1", "agent:alice")).await);
    assert!(!fired.replay);
    let hers_too = done(on.call(&alice, "create_task", firing("s1", "agent:alice")).await);
    assert_eq!((&hers_too.json, hers_too.replay), (&fired.json, true));
    let mine = json!({ "type": "tick", "idempotency_key": firing("s1", "agent:alice")["idempotency_key"] });
    assert!(!done(on.call(&delegate, "create_task", mine).await).replay, "the scheduler's own");
}

async fn a12_3_of_fifty_calls_at_once_with_one_key_one_makes_the_task(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let calls = (0..50).map(|number| {
        on.call(&alice, "create_task", json!({ "type": "work", "payload": number, "idempotency_key": "k" }))
    });
    let answers: Vec<_> = join_all(calls).await.into_iter().map(done).collect();
    assert_eq!(answers.iter().filter(|answer| !answer.replay).count(), 1);
    assert!(answers.iter().all(|answer| answer.json["task_id"] == answers[0].json["task_id"]));
    let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
    assert_eq!((on.count("SELECT count(*) FROM tasks").await.unwrap(), receipts), (1, 1));
    assert_eq!(obligations(&on, &alice).await, [text(&answers[0].json, "task_id")]);
}

/// The tasks somebody has open.
async fn obligations(on: &TestStore, caller: &Caller) -> Vec<String> {
    texts(&ok(on, caller, "list_open_obligations", json!({})).await["open_obligations"], "task_id")
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

fn scheduler(on: &TestStore, roles: &[Role]) -> Caller {
    stores::caller(&on.admin, "service:scheduler", roles).unwrap()
}

/// A schedule of this name, made for `owner`.
async fn scheduled(on: &TestStore, owner: &Caller, name: &str) {
    let scheduler = scheduler(on, &[Role::Agent, Role::Worker]);
    task(on, owner, json!({ "type": "schedule.create", "payload": { "interval_seconds": 60 }, "priority": 9 })).await;
    let leased = ok(on, &scheduler, "lease_next", json!({})).await["tasks"][0].clone();
    let lease = json!({ "task_id": leased["task_id"], "lease_id": leased["lease_id"] });
    let result = json!({ "result": { "schedule_id": name }, "artifacts": { "url": "x" } });
    ok(on, &scheduler, "complete", with(&lease, result)).await;
}

fn firing(schedule: &str, owner: &str) -> Json {
    let key = format!("schedule:{schedule}:2026-01-01T00:00:00Z");
    json!({ "type": "tick", "idempotency_key": key, "created_by": owner })
}

async fn r49_what_a_schedule_fires_belongs_to_its_owner(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    scheduled(&on, &alice, "s1").await;
    let delegate = scheduler(&on, &[Role::Agent, Role::Worker, Role::Delegate]);
    let task_id = task(&on, &delegate, firing("s1", "agent:alice")).await;
    // A second firing finds the first.
    assert_eq!(task(&on, &delegate, firing("s1", "agent:alice")).await, task_id);
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await;
    assert_eq!(shown["created_by"], json!({ "principal_kind": "agent", "principal_id": "alice" }));
    let open = ok(&on, &alice, "list_open_obligations", json!({})).await;
    assert!(texts(&open["open_obligations"], "receipt_type").contains(&"task.assigned".to_owned()), "{open}");
    let of_task = ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    let assigned = &of_task["receipts"][0];
    assert_eq!(assigned["from"], json!({ "kind": "service", "id": "scheduler" }), "who made it");
    assert_eq!(assigned["to"], json!({ "kind": "agent", "id": "alice" }), "whose it is");
    // Its result is hers to read, and hers alone.
    let leased = ok(&on, &delegate, "lease_next", json!({ "accept_types": ["tick"] })).await["tasks"][0].clone();
    let lease = json!({ "task_id": leased["task_id"], "lease_id": leased["lease_id"], "result": 7 });
    ok(&on, &delegate, "complete", with(&lease, json!({ "artifacts": { "url": "x" } }))).await;
    assert_eq!(ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await["result"]["result"], 7);
    assert_eq!(refusal(&on, &bob, "get_task", json!({ "task_id": task_id })).await, Code::Forbidden);
}

async fn r49_only_the_owner_of_the_schedule_can_be_named_and_only_by_a_delegate(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    scheduled(&on, &alice, "s1").await;
    let stranger = on.tenant("other").await.unwrap();
    let before = on.count("SELECT count(*) FROM tasks").await.unwrap();
    let delegate = scheduler(&on, &[Role::Agent, Role::Worker, Role::Delegate]);
    let without = scheduler(&on, &[Role::Agent, Role::Worker]);
    let foreign = stores::caller(&stranger, "service:scheduler", &[Role::Agent, Role::Delegate]).unwrap();
    for (caller, input) in [
        (&without, firing("s1", "agent:alice")),
        (&bob, firing("s1", "agent:alice")),
        (&bob, json!({ "type": "tick", "created_by": "agent:alice" })),
        (&delegate, firing("s1", "agent:bob")),
        (&delegate, firing("s2", "agent:alice")),
        (&delegate, json!({ "type": "tick", "created_by": "agent:alice" })),
        (&delegate, json!({ "type": "tick", "created_by": "agent:alice", "idempotency_key": "schedule:s1" })),
        (&foreign, firing("s1", "agent:alice")),
    ] {
        assert_eq!(refusal(&on, caller, "create_task", input.clone()).await, Code::Forbidden, "{input}");
    }
    assert_eq!(on.count("SELECT count(*) FROM tasks").await.unwrap(), before);
    // Naming oneself is no delegation, and an admin acts for anybody.
    task(&on, &bob, json!({ "type": "tick", "created_by": "agent:bob" })).await;
    let hers = task(&on, &on.admin, json!({ "type": "tick", "created_by": "agent:alice" })).await;
    ok(&on, &alice, "get_task", json!({ "task_id": hers })).await;
    // A worker stays one, delegate or not.
    let spec = on.registry.find("create_task").unwrap().spec();
    for roles in [&[Role::Worker][..], &[Role::Delegate], &[Role::Worker, Role::Delegate]] {
        assert!(!spec.allows(&scheduler(&on, roles)), "{roles:?}");
    }
}
