use std::pin::pin;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;
use waybill_kernel::Code;
use waybill_store::Store;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{NOBODY, done, ok, plain_task, refusal, refused, task_status};

/// Long enough for the first run to have been made.
const SETTLED: Duration = Duration::from_millis(200);
/// A wait that takes longer was not woken: the call itself would give up only after this.
const FAILED: Duration = Duration::from_secs(15);
const NEVER: Duration = Duration::from_secs(3600);

waybill_testkit::both! {
    an_unknown_task_and_another_tenants_task_are_the_same_not_found,
    another_principals_task_is_forbidden_and_an_admin_sees_it,
    a_waiter_is_answered_when_the_task_is_canceled,
    a_waiter_is_answered_at_once_when_the_task_has_ended,
    a_waiter_whose_patience_ends_gets_the_task_as_it_is,
    stopping_sends_waiters_home,
}

async fn an_unknown_task_and_another_tenants_task_are_the_same_not_found(on: TestStore) {
    let theirs = plain_task(&on, &on.tenant("other").await.unwrap()).await;
    let unknown = refused(&on, &on.admin, "get_task", json!({ "task_id": NOBODY })).await;
    let foreign = refused(&on, &on.admin, "get_task", json!({ "task_id": theirs })).await;
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(foreign.to_json(), unknown.to_json());
    assert_eq!(refusal(&on, &on.admin, "get_task", json!({ "task_id": "no id" })).await, Code::InvalidRequest);
}

async fn another_principals_task_is_forbidden_and_an_admin_sees_it(on: TestStore) {
    let task_id = plain_task(&on, &on.agent("alice").unwrap()).await;
    let bob = on.agent("bob").unwrap();
    assert_eq!(refusal(&on, &bob, "get_task", json!({ "task_id": task_id })).await, Code::Forbidden);
    assert_eq!(task_status(&on, &on.admin, &task_id).await, "queued");
}

async fn a_waiter_is_answered_when_the_task_is_canceled(on: TestStore) {
    wakes(&on, &on.store, &on.store).await;
}

/// One node waits, the other cancels.
async fn wakes(on: &TestStore, waits: &Store, cancels: &Store) {
    let task_id = plain_task(on, &on.admin).await;
    let patient = json!({ "task_id": task_id, "wait_seconds": 20 });
    let mut waiter = pin!(on.call_on(waits, &on.admin, "get_task", patient));
    assert!(timeout(SETTLED, &mut waiter).await.is_err(), "it did not wait");
    done(on.call_on(cancels, &on.admin, "cancel_task", json!({ "task_id": task_id })).await);
    let answer = done(timeout(FAILED, waiter).await.unwrap());
    assert_eq!(answer.json["status"], "canceled");
}

async fn a_waiter_is_answered_at_once_when_the_task_has_ended(on: TestStore) {
    let task_id = plain_task(&on, &on.admin).await;
    ok(&on, &on.admin, "cancel_task", json!({ "task_id": task_id })).await;
    let patient = on.call(&on.admin, "get_task", json!({ "task_id": task_id, "wait_seconds": 20 }));
    let answer = done(timeout(FAILED, patient).await.unwrap());
    assert_eq!(answer.json["result"]["outcome"], "canceled");
}

async fn a_waiter_whose_patience_ends_gets_the_task_as_it_is(on: TestStore) {
    let task_id = plain_task(&on, &on.admin).await;
    let answer = ok(&on, &on.admin, "get_task", json!({ "task_id": task_id, "wait_seconds": 1 })).await;
    assert_eq!(answer["status"], "queued");
}

async fn stopping_sends_waiters_home(on: TestStore) {
    let task_id = plain_task(&on, &on.admin).await;
    let mut waiter = pin!(on.call(&on.admin, "get_task", json!({ "task_id": task_id, "wait_seconds": 20 })));
    assert!(timeout(SETTLED, &mut waiter).await.is_err(), "it did not wait");
    on.store.stop_waiting();
    assert_eq!(done(timeout(FAILED, waiter).await.unwrap()).json["status"], "queued");
}

/// A listener connects in the background; a notification before that would be nobody's.
async fn listeners(on: &TestStore, count: i64) {
    let client = on.database().unwrap().connect().await.unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    let listening = async {
        while client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(FAILED, listening).await.unwrap();
}

#[tokio::test]
async fn a_waiter_on_another_node_hears_of_it_by_notification() {
    let on = stores::open_postgres().await.unwrap();
    let other = on.second_node(|options| options.wait_poll = NEVER).await.unwrap();
    listeners(&on, 2).await;
    wakes(&on, &other, &on.store).await;
}

#[tokio::test]
async fn a_listener_whose_connection_is_lost_hears_again() {
    let on = stores::open_postgres().await.unwrap();
    let other = on.second_node(|options| options.wait_poll = NEVER).await.unwrap();
    listeners(&on, 2).await;
    let client = on.database().unwrap().connect().await.unwrap();
    let lost = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert_eq!(client.query(lost, &[]).await.unwrap().len(), 2);
    // They are gone from the list at once, and come back after a pause.
    tokio::time::sleep(Duration::from_millis(100)).await;
    listeners(&on, 2).await;
    wakes(&on, &other, &on.store).await;
}

#[tokio::test]
async fn a_waiter_on_another_node_looks_again_when_notifications_are_lost() {
    let on = stores::open_postgres_with(|options| options.notify_interval = NEVER).await.unwrap();
    let other = on.second_node(|options| options.wait_poll = Duration::from_millis(50)).await.unwrap();
    wakes(&on, &other, &on.store).await;
}
