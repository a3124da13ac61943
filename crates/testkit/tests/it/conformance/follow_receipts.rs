//! Whoever follows receipts is told of one when it is written, not when its patience ends.

use std::pin::pin;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::time::timeout;
use waybill_kernel::Caller;
use waybill_store::Turn;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{held, ok, plain_task, with, worker};

/// Long enough for a follower to have begun to wait.
const SETTLED: Duration = Duration::from_millis(100);
/// Much less than a follower waits by itself.
const FAILED: Duration = Duration::from_secs(10);
/// Longer than any test: nobody looks again by himself.
const NEVER: Duration = Duration::from_secs(3600);
/// What a turn has, and the receipt that goes over.
const TURN_BYTES_MAX: usize = (256 + 64) << 10;

async fn turn(on: &TestStore, caller: &Caller, input: Json) -> Turn {
    let follow = on.registry.streams().find(|stream| stream.spec().name == "follow_receipts").unwrap();
    follow.turn(&on.store, caller, &input.to_string()).await.unwrap()
}

/// What a follower of the server's inbox or its own gets of what is done meanwhile.
async fn followed(on: &TestStore, caller: &Caller, whose: Json, done: impl Future<Output = Json>) -> Vec<String> {
    let mut input = whose;
    input["last_event_id"] = json!(turn(on, caller, input.clone()).await.position);
    input["wait_seconds"] = json!(20);
    let mut waits = pin!(turn(on, caller, input));
    assert!(timeout(SETTLED, &mut waits).await.is_err(), "it did not wait");
    done.await;
    let turn = timeout(FAILED, waits).await.unwrap();
    let kind = |text: &str| serde_json::from_str::<Json>(text).unwrap()["receipt_type"].as_str().unwrap().to_owned();
    turn.events.iter().map(|event| kind(&event.data)).collect()
}

async fn hears(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let created = async { json!(plain_task(&on, &alice).await) };
    assert_eq!(followed(&on, &alice, json!({}), created).await, ["task.assigned"]);
    let receipt_id = ok(&on, &alice, "list_receipts", json!({})).await["next_cursor"].clone();
    let system = json!({ "principal_kind": "system", "principal_id": "asyncgate" });
    let acknowledged = ok(&on, &alice, "ack_receipt", json!({ "receipt_id": receipt_id }));
    assert_eq!(followed(&on, &on.admin, system, acknowledged).await, ["receipt.acknowledged"]);
}

#[tokio::test]
async fn a_follower_is_woken_on_sqlite() {
    hears(stores::open_sqlite().await.unwrap()).await;
}

#[tokio::test]
async fn a_follower_is_woken_on_postgresql() {
    hears(stores::open_postgres_with(|options| options.wait_poll = NEVER).await.unwrap()).await;
}

/// Results of nearly the largest size that a receipt has room for, each in two receipts.
async fn is_given_a_part_at_a_time(on: TestStore) {
    let (alice, worker) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let begin = turn(&on, &alice, json!({})).await.position;
    for _ in 0..4 {
        let lease = held(&on, &worker, json!({ "type": "work" })).await;
        let done = json!({ "result": "x".repeat(60_000), "artifacts": { "url": "https://files.example/x" } });
        ok(&on, &worker, "complete", with(&lease, done)).await;
    }
    let mut input = json!({ "last_event_id": begin, "wait_seconds": 20 });
    let (mut seen, mut turns) = (Vec::new(), 0);
    // Each is assigned, completed, and has a result that is ready.
    while seen.len() < 12 {
        let turn = timeout(FAILED, turn(&on, &alice, input.clone())).await.unwrap();
        let bytes: usize = turn.events.iter().map(|event| event.data.len()).sum();
        assert!(bytes <= TURN_BYTES_MAX, "{bytes} bytes in a turn");
        seen.extend(turn.events.iter().map(|event| event.id.clone()));
        input["last_event_id"] = json!(turn.position);
        turns += 1;
    }
    assert!(turns > 1 && seen.len() == 12, "{turns} turns, {} receipts", seen.len());
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 12, "a receipt came twice");
}

#[tokio::test]
async fn a_follower_of_large_receipts_is_given_a_part_at_a_time_on_sqlite() {
    is_given_a_part_at_a_time(stores::open_sqlite().await.unwrap()).await;
}

#[tokio::test]
async fn a_follower_of_large_receipts_is_given_a_part_at_a_time_on_postgresql() {
    is_given_a_part_at_a_time(stores::open_postgres().await.unwrap()).await;
}
