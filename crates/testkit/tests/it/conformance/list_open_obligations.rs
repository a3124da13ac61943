use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use super::ledger::open;
use crate::support::{NOBODY, ok, plain_task, refusal, texts};

waybill_testkit::both! {
    a12_7_it_has_its_four_keys_and_no_bucket,
    a12_7_pages_of_two_over_five_are_disjoint_and_oldest_first,
    a12_7_it_is_filtered_to_the_principal,
    a12_7_it_excludes_the_terminated,
    a_read_writes_nothing_and_the_visit_is_written_down_later,
    a_cursor_must_be_a_receipt_of_the_same_principal,
}

fn keys(object: &Json) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

async fn a12_7_it_has_its_four_keys_and_no_bucket(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let empty = ok(&on, &alice, "list_open_obligations", json!({})).await;
    assert_eq!((&empty["open_obligations"], &empty["cursor"]), (&json!([]), &Json::Null));
    plain_task(&on, &alice).await;
    let answer = ok(&on, &alice, "list_open_obligations", json!({})).await;
    for answer in [&empty, &answer] {
        let mut names = keys(answer);
        names.sort_unstable();
        assert_eq!(names, ["cursor", "open_obligations", "relationship", "server"]);
    }
    let mut server = keys(&answer["server"]);
    server.sort_unstable();
    assert_eq!(server, ["instance_id", "name", "uptime", "version"]);
    assert_eq!((&answer["server"]["name"], &answer["server"]["version"]), (&json!("waybill"), &json!("0.3.0")));
    assert!(answer["server"]["uptime"].is_u64());
    let mut relationship = keys(&answer["relationship"]);
    relationship.sort_unstable();
    let expected = ["first_seen_at", "last_seen_at", "principal_id", "principal_kind", "sessions_count"];
    assert_eq!(relationship, expected);
    assert_eq!(answer["cursor"], answer["open_obligations"][0]["receipt_id"]);
    let text = answer.to_string();
    let buckets =
        ["attention", "inbox_receipts", "assigned_tasks", "waiting_results", "running_or_scheduled", "anomalies"];
    for bucket in buckets {
        assert!(!text.contains(bucket), "{bucket} in {text}");
    }
}

async fn a12_7_pages_of_two_over_five_are_disjoint_and_oldest_first(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(plain_task(&on, &alice).await);
    }
    let (mut seen, mut input) = (Vec::new(), json!({ "limit": 2 }));
    for length in [2, 2, 1, 0] {
        let page = ok(&on, &alice, "list_open_obligations", input.clone()).await;
        let ids = texts(&page["open_obligations"], "task_id");
        assert_eq!(ids.len(), length);
        assert_eq!(page["cursor"].is_null(), length == 0);
        seen.extend(ids);
        if length > 0 {
            input["since_receipt_id"] = page["cursor"].clone();
        }
    }
    assert_eq!(seen, tasks);
    for limit in [0, -5] {
        let input = json!({ "limit": limit });
        assert_eq!(refusal(&on, &alice, "list_open_obligations", input).await, Code::InvalidRequest);
    }
}

async fn a12_7_it_is_filtered_to_the_principal(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let (hers, his) = (plain_task(&on, &alice).await, plain_task(&on, &bob).await);
    assert_eq!(open(&on, &alice).await, [hers.as_str()]);
    assert_eq!(open(&on, &bob).await, [his]);
    let named = json!({ "principal_kind": "agent", "principal_id": "alice" });
    let shown = ok(&on, &on.admin, "list_open_obligations", named.clone()).await;
    assert_eq!(texts(&shown["open_obligations"], "task_id"), [hers]);
    assert_eq!(shown["relationship"]["principal_id"], "alice");
    assert_eq!(refusal(&on, &bob, "list_open_obligations", named.clone()).await, Code::Forbidden);
    let stranger = on.tenant("other").await.unwrap();
    assert_eq!(ok(&on, &stranger, "list_open_obligations", named).await["open_obligations"], json!([]));
}

async fn a12_7_it_excludes_the_terminated(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let (ended, kept) = (plain_task(&on, &alice).await, plain_task(&on, &alice).await);
    let both = ok(&on, &alice, "list_open_obligations", json!({})).await;
    let first = both["open_obligations"][0]["receipt_id"].clone();
    ok(&on, &alice, "cancel_task", json!({ "task_id": ended })).await;
    assert_eq!(open(&on, &alice).await, std::slice::from_ref(&kept));
    // A place stays good when the obligation at it has ended.
    let after = ok(&on, &alice, "list_open_obligations", json!({ "since_receipt_id": first })).await;
    assert_eq!(texts(&after["open_obligations"], "task_id"), [kept]);
}

async fn a_read_writes_nothing_and_the_visit_is_written_down_later(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let visits = async || {
        let rows = on.rows("SELECT principal, first_seen_at, last_seen_at, sessions_count FROM relationships").await;
        let read = |row: &waybill_store::Row| {
            (row.text(0).unwrap().to_owned(), row.int(2).unwrap() - row.int(1).unwrap(), row.int(3).unwrap())
        };
        rows.unwrap().iter().map(read).collect::<Vec<_>>()
    };
    let first = ok(&on, &alice, "list_open_obligations", json!({})).await;
    ok(&on, &on.admin, "list_open_obligations", json!({ "principal_id": "bob" })).await;
    assert_eq!(first["relationship"]["sessions_count"], 0);
    assert_eq!(visits().await, []);
    on.process.flush(&on.store).await.unwrap();
    assert_eq!(visits().await, [("agent:alice".to_owned(), 0, 0)], "an admin's look at bob is no visit of his");
    on.time.pass(Duration::from_secs(100));
    ok(&on, &alice, "list_open_obligations", json!({})).await;
    on.process.flush(&on.store).await.unwrap();
    let later = visits().await;
    assert!(later.len() == 1 && later[0].1 >= 99_000_000, "{later:?}");
    on.process.flush(&on.store).await.unwrap();
    assert_eq!(visits().await, later, "nothing new was seen");
}

async fn a_cursor_must_be_a_receipt_of_the_same_principal(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    plain_task(&on, &bob).await;
    let his = ok(&on, &bob, "list_open_obligations", json!({})).await["cursor"].clone();
    for cursor in [his, json!(NOBODY)] {
        let input = json!({ "since_receipt_id": cursor });
        assert_eq!(refusal(&on, &alice, "list_open_obligations", input).await, Code::InvalidCursor);
    }
}
