//! Whoever follows receipts is told of one when it is written, not when its patience ends.

use std::pin::pin;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::time::timeout;
use waybill_kernel::Caller;
use waybill_store::Turn;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{ok, plain_task};

/// Long enough for a follower to have begun to wait.
const SETTLED: Duration = Duration::from_millis(100);
/// Much less than a follower waits by itself.
const FAILED: Duration = Duration::from_secs(10);
/// Longer than any test: nobody looks again by himself.
const NEVER: Duration = Duration::from_secs(3600);

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
