use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::{ok, plain_task, refusal, texts};

waybill_testkit::both! {
    a12_8_only_the_inbox_is_filled,
    a_receipt_is_marked_as_delivered_once,
    a_session_begins_with_the_first_contact_a_new_instance_or_after_a_long_silence,
    r26_instances_that_take_turns_have_one_session_each,
    an_instance_that_is_over_is_forgotten,
    first_seen_at_stays_what_it_was,
    another_principals_is_for_the_admin_and_marks_nothing,
}

async fn a12_8_only_the_inbox_is_filled(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = plain_task(&on, &alice).await;
    let input = json!({ "agent_id": "alice", "agent_version": "1", "client_capabilities": ["x"], "max_items": 1 });
    let answer = ok(&on, &alice, "bootstrap", input).await;
    assert_eq!(texts(&answer["attention"]["inbox_receipts"], "task_id"), [task_id]);
    for bucket in ["assigned_tasks", "waiting_results", "running_or_scheduled", "anomalies"] {
        assert_eq!(answer["attention"][bucket], json!([]), "{bucket}");
    }
    let server = &answer["server"];
    assert_eq!((&server["version"], &server["spec"]), (&json!("0.3.0"), &json!("asyncgate/0.3.0")));
    assert_eq!(server["environment"], "production");
    let latest = answer["cursor"]["latest_receipt_id"].clone();
    assert_eq!(latest, answer["attention"]["inbox_receipts"][0]["receipt_id"]);
    let again = ok(&on, &alice, "bootstrap", json!({ "since_receipt_id": latest })).await;
    assert_eq!((&again["attention"]["inbox_receipts"], &again["cursor"]["latest_receipt_id"]), (&json!([]), &latest));
    for bad in
        [json!({ "max_items": 0 }), json!({ "agent_instance_id": "" }), json!({ "agent_id": "a", "principal_id": "b" })]
    {
        assert_eq!(refusal(&on, &alice, "bootstrap", bad).await, Code::InvalidRequest);
    }
}

async fn a_receipt_is_marked_as_delivered_once(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for _ in 0..30 {
        plain_task(&on, &alice).await;
    }
    let listed = ok(&on, &alice, "list_receipts", json!({})).await;
    assert!(listed["receipts"].as_array().unwrap().iter().all(|receipt| receipt.get("delivered_at").is_none()));
    let first = ok(&on, &alice, "bootstrap", json!({})).await;
    on.time.pass(Duration::from_secs(5));
    let again = ok(&on, &alice, "bootstrap", json!({})).await;
    let times = |answer: &Json| texts(&answer["attention"]["inbox_receipts"], "delivered_at");
    assert_eq!(times(&first).len(), 30);
    assert_eq!(times(&first), times(&again));
    let listed = ok(&on, &alice, "list_receipts", json!({})).await;
    assert_eq!(texts(&listed["receipts"], "delivered_at"), times(&first));
}

async fn sessions(on: &TestStore, caller: &Caller, input: Json) -> i64 {
    ok(on, caller, "bootstrap", input).await["relationship"]["sessions_count"].as_i64().unwrap()
}

async fn a_session_begins_with_the_first_contact_a_new_instance_or_after_a_long_silence(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    // Seen before, but only by a read.
    ok(&on, &alice, "list_open_obligations", json!({})).await;
    on.process.flush(&on.store).await.unwrap();
    assert_eq!(sessions(&on, &alice, json!({})).await, 1);
    assert_eq!(sessions(&on, &alice, json!({})).await, 1);
    let run = |instance: &str| json!({ "agent_instance_id": instance });
    assert_eq!(sessions(&on, &alice, run("one")).await, 2);
    assert_eq!(sessions(&on, &alice, run("one")).await, 2);
    assert_eq!(sessions(&on, &alice, run("two")).await, 3);
    assert_eq!(sessions(&on, &alice, json!({})).await, 3);
    on.time.pass(Duration::from_secs(29 * 60));
    assert_eq!(sessions(&on, &alice, run("two")).await, 3);
    on.time.pass(Duration::from_secs(31 * 60));
    assert_eq!(sessions(&on, &alice, run("two")).await, 4);
}

/// Two runs of one agent beside each other are two sessions, however often they come.
async fn r26_instances_that_take_turns_have_one_session_each(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let run = |instance: &str| json!({ "agent_instance_id": instance });
    for (instance, expected) in [("one", 1), ("two", 2), ("one", 2), ("two", 2)] {
        assert_eq!(sessions(&on, &alice, run(instance)).await, expected, "{instance}");
    }
    for minutes in [20, 20, 20] {
        on.time.pass(Duration::from_secs(minutes * 60));
        for input in [run("one"), json!({})] {
            assert_eq!(sessions(&on, &alice, input).await, 2, "neither of them was silent");
        }
    }
    // The other has been, for an hour.
    assert_eq!(sessions(&on, &alice, run("two")).await, 3);
    assert_eq!(sessions(&on, &alice, run("one")).await, 3);
    // Another's instances are none of hers.
    let bob = on.agent("bob").unwrap();
    assert_eq!(sessions(&on, &bob, run("one")).await, 1);
    assert_eq!(sessions(&on, &alice, run("three")).await, 4);
}

async fn an_instance_that_is_over_is_forgotten(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for number in 1..=5 {
        let run = json!({ "agent_instance_id": format!("run {number}") });
        assert_eq!(sessions(&on, &alice, run).await, number);
        on.time.pass(Duration::from_secs(20 * 60));
    }
    let kept = on.rows("SELECT instances FROM relationships").await.unwrap();
    let kept: Json = serde_json::from_str(kept[0].text(0).unwrap()).unwrap();
    assert_eq!(kept.as_object().unwrap().keys().collect::<Vec<_>>(), ["run 4", "run 5"]);
}

/// Whether it is read from memory, from its row, or written by whichever of the two calls comes first.
async fn first_seen_at_stays_what_it_was(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let first_seen = async |caller: &Caller, name: &str| {
        on.time.pass(Duration::from_secs(7));
        ok(&on, caller, name, json!({})).await["relationship"]["first_seen_at"].clone()
    };
    let hers = first_seen(&alice, "list_open_obligations").await;
    for _ in 0..2 {
        assert_eq!(first_seen(&alice, "list_open_obligations").await, hers, "not written down yet");
    }
    on.process.flush(&on.store).await.unwrap();
    for name in ["list_open_obligations", "bootstrap", "list_open_obligations", "bootstrap"] {
        assert_eq!(first_seen(&alice, name).await, hers, "{name}");
    }
    let his = first_seen(&bob, "list_open_obligations").await;
    assert_eq!(first_seen(&bob, "bootstrap").await, his, "bootstrap writes what was remembered");
    on.process.flush(&on.store).await.unwrap();
    for name in ["list_open_obligations", "bootstrap"] {
        assert_eq!(first_seen(&bob, name).await, his, "{name}");
    }
    let named = json!({ "principal_kind": "agent", "principal_id": "bob" });
    assert_eq!(ok(&on, &on.admin, "bootstrap", named).await["relationship"]["first_seen_at"], his);
}

async fn another_principals_is_for_the_admin_and_marks_nothing(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    plain_task(&on, &alice).await;
    let hers = json!({ "principal_kind": "agent", "principal_id": "alice" });
    assert_eq!(refusal(&on, &bob, "bootstrap", hers.clone()).await, Code::Forbidden);
    let seen = ok(&on, &on.admin, "bootstrap", hers).await;
    assert!(seen["attention"]["inbox_receipts"][0].get("delivered_at").is_none());
    assert_eq!(seen["relationship"]["sessions_count"], 0);
    assert_eq!(on.count("SELECT count(*) FROM relationships").await.unwrap(), 0);
    assert_eq!(on.count("SELECT count(*) FROM receipts WHERE delivered_at IS NOT NULL").await.unwrap(), 0);
}
