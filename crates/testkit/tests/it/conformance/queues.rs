//! What operators do with queues, as every door calls it: by name, with JSON. What the operations promise beyond that is in
//! the tests of queues.

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{ok, refusal, text};

waybill_testkit::both! {
    a_queue_is_made_shown_set_and_purged,
    a_peek_shows_messages_and_changes_nothing,
    dead_letters_are_moved_back,
    what_is_not_understood_is_refused,
}

const EVERY: &[(&str, &str)] = &[
    ("get_queue", "{}"),
    ("set_queue_attributes", r#"{"attributes": {"DelaySeconds": "1"}}"#),
    ("peek_messages", "{}"),
    ("purge_queue", "{}"),
    ("start_redrive", "{}"),
    ("list_redrives", "{}"),
    ("cancel_redrive", "{}"),
];

async fn a_queue_is_made_shown_set_and_purged(on: TestStore) {
    let made = ok(&on, &on.admin, "create_queue", json!({ "queue": "jobs", "tags": { "team": "a" } })).await;
    assert_eq!(made["arn"], "arn:aws:sqs:us-east-1:000000000000:jobs");
    let listed = ok(&on, &on.admin, "list_queues", json!({ "limit": 1 })).await;
    assert_eq!(listed["queues"][0]["messages"], json!({ "visible": 0, "in_flight": 0, "delayed": 0 }));
    assert_eq!(listed.get("next_cursor"), None);
    let set = json!({ "queue": "jobs", "attributes": { "DelaySeconds": "7" } });
    assert_eq!(ok(&on, &on.admin, "set_queue_attributes", set).await["attributes"]["DelaySeconds"], "7");
    let shown = ok(&on, &on.admin, "get_queue", json!({ "queue": "jobs" })).await;
    assert_eq!((&shown["attributes"]["DelaySeconds"], &shown["tags"]), (&json!("7"), &json!({ "team": "a" })));
    let purged = ok(&on, &on.admin, "purge_queue", json!({ "queue": "jobs" })).await;
    assert_eq!(purged["generation_before"], shown["generation"]);
    assert_eq!(refusal(&on, &on.admin, "purge_queue", json!({ "queue": "jobs" })).await, Code::PurgeQueueInProgress);
}

/// There is no operation that sends by name: SQS's own protocol does.
async fn fill(on: &TestStore, queue: &str, source: &str) {
    let sql = format!(
        "INSERT INTO messages (mid, tenant, id, body, md5, sent_at, sender, source) \
         SELECT (p.part << 40) + 7, p.tenant, t.tenant_id, 'hello', t.tenant_id, {now}, 'agent:a', {source} \
         FROM parts p JOIN tenants t ON t.tenant = p.tenant WHERE p.queue = '{queue}' AND p.dead_at IS NULL",
        now = on.store.now().micros()
    );
    on.write(&sql).await.unwrap();
}

async fn a_peek_shows_messages_and_changes_nothing(on: TestStore) {
    ok(&on, &on.admin, "create_queue", json!({ "queue": "jobs" })).await;
    fill(&on, "jobs", "NULL").await;
    for _ in 0..2 {
        let peeked = ok(&on, &on.admin, "peek_messages", json!({ "queue": "jobs" })).await;
        assert_eq!((&peeked["messages"][0]["body"], &peeked["messages"][0]["receives"]), (&json!("hello"), &json!(0)));
        assert_eq!(peeked["messages"].as_array().map(Vec::len), Some(1));
    }
    assert_eq!(on.count("SELECT count(*) FROM flights").await.unwrap(), 0);
    let stranger = on.tenant("other").await.unwrap();
    for (name, input) in EVERY {
        let mut input: serde_json::Value = serde_json::from_str(input).unwrap();
        input["queue"] = json!("jobs");
        let code = refusal(&on, &stranger, name, input).await;
        assert!(matches!(code, Code::QueueDoesNotExist | Code::NotFound), "{name}: {code}");
    }
}

async fn dead_letters_are_moved_back(on: TestStore) {
    let dead = ok(&on, &on.admin, "create_queue", json!({ "queue": "dead" })).await;
    let policy = json!({ "deadLetterTargetArn": dead["arn"], "maxReceiveCount": 1 }).to_string();
    let attributes = json!({ "queue": "jobs", "attributes": { "RedrivePolicy": policy } });
    ok(&on, &on.admin, "create_queue", attributes).await;
    fill(&on, "dead", "'jobs'").await;
    let dead = || json!({ "queue": "dead" });
    let handle = text(&ok(&on, &on.admin, "start_redrive", dead()).await, "task_handle");
    let listed = ok(&on, &on.admin, "list_redrives", dead()).await;
    assert_eq!((&listed["redrives"][0]["task_handle"], &listed["redrives"][0]["to_move"]), (&json!(handle), &json!(1)));
    assert_eq!(ok(&on, &on.admin, "cancel_redrive", dead()).await["moved"], 0);
    assert_eq!(refusal(&on, &on.admin, "cancel_redrive", dead()).await, Code::NotFound);
}

async fn what_is_not_understood_is_refused(on: TestStore) {
    ok(&on, &on.admin, "create_queue", json!({ "queue": "jobs" })).await;
    for (name, input) in [
        ("list_queues", json!({ "limit": 0 })),
        ("list_queues", json!({ "colour": "red" })),
        ("create_queue", json!({})),
        ("create_queue", json!({ "queue": "new", "attributes": { "DelaySeconds": 3 } })),
        ("get_queue", json!({ "queue": 7 })),
        ("set_queue_attributes", json!({ "queue": "jobs" })),
        ("peek_messages", json!({ "queue": "jobs", "limit": 101 })),
        ("peek_messages", json!({ "queue": "jobs", "body_bytes": 1 })),
        ("start_redrive", json!({ "queue": "jobs", "per_second": 501 })),
        ("list_redrives", json!({ "queue": "jobs", "limit": 11 })),
    ] {
        assert_eq!(refusal(&on, &on.admin, name, input.clone()).await, Code::InvalidRequest, "{name} {input}");
    }
    for (name, input) in EVERY {
        let mut input: serde_json::Value = serde_json::from_str(input).unwrap();
        input["queue"] = json!("nowhere");
        let code = refusal(&on, &on.admin, name, input).await;
        assert!(matches!(code, Code::QueueDoesNotExist | Code::NotFound), "{name}: {code}");
    }
}
