use std::pin::pin;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;
use waybill_kernel::{Caller, Code, Scope, Scopes};
use waybill_store::Store;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{NOBODY, done, held, ok, plain_task, refusal, refused, task_status, text, with, worker};

/// Long enough for the first run to have been made.
const SETTLED: Duration = Duration::from_millis(200);
/// A wait that takes longer was not woken: the call itself would give up only after this.
const FAILED: Duration = Duration::from_secs(15);
const NEVER: Duration = Duration::from_secs(3600);

waybill_testkit::both! {
    an_unknown_task_and_another_tenants_task_are_the_same_not_found,
    another_principals_task_is_forbidden_and_an_admin_sees_it,
    a_task_of_a_principal_that_could_not_be_made_today_is_shown,
    r60_the_scope_of_leasing_shows_what_was_leased_and_nothing_else,
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

async fn a_task_of_a_principal_that_could_not_be_made_today_is_shown(on: TestStore) {
    let task_id = plain_task(&on, &on.agent("alice").unwrap()).await;
    on.write("UPDATE tasks SET owner = 'agent:alice\u{200B}'").await.unwrap();
    on.write("UPDATE receipts SET sender = 'agent:alice ', addressee = 'agent:alice\u{200B}'").await.unwrap();
    let shown = ok(&on, &on.admin, "get_task", json!({ "task_id": task_id })).await;
    assert_eq!(shown["created_by"]["principal_id"], "alice\u{200B}");
    let listed = ok(&on, &on.admin, "list_receipts", json!({ "task_id": task_id })).await;
    assert_eq!(listed["receipts"][0]["from"]["id"], "alice ");
}

async fn r60_the_scope_of_leasing_shows_what_was_leased_and_nothing_else(on: TestStore) {
    let only = |of: &Caller, scope: Scope| Caller { scopes: Scopes::new([scope]), ..of.clone() };
    let (alice, w) = (on.agent("alice").unwrap(), only(&worker(&on, "w"), Scope::TasksLease));
    let lease = held(&on, &w, json!({ "type": "work" })).await;
    let leased = text(&lease, "task_id");
    let waiting = plain_task(&on, &alice).await;
    assert_eq!(task_status(&on, &w, &leased).await, "leased");
    // Whose task it is makes no difference to the scope.
    for of in [&alice, &on.admin] {
        for task_id in [&leased, &waiting] {
            let error = refused(&on, &only(of, Scope::TasksLease), "get_task", json!({ "task_id": task_id })).await;
            assert_eq!((error.code(), error.detail("required_scope")), (Code::Forbidden, Some(&json!("tasks:read"))));
        }
        for scope in [Scope::TasksRead, Scope::AdminRead, Scope::AdminWrite] {
            assert_eq!(task_status(&on, &only(of, scope), &waiting).await, "queued", "{scope}");
        }
    }
    // Another's is answered as to anybody else.
    let get = json!({ "task_id": waiting });
    let everybodys = refused(&on, &worker(&on, "w"), "get_task", get.clone()).await;
    assert_eq!(refused(&on, &w, "get_task", get).await.to_json(), everybodys.to_json());
    ok(&on, &w, "fail", with(&lease, json!({ "error": "no" }))).await;
    assert_eq!(task_status(&on, &w, &leased).await, "failed", "what was leased once stays readable");
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

/// A listener connects in the background; a notification before that would be nobody's. Returns when both nodes have one that
/// is none of those that are gone, and says which.
async fn listeners(on: &TestStore, gone: &[i32]) -> Vec<i32> {
    let client = on.database().unwrap().connect().await.unwrap();
    let sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' \
               AND state = 'idle' AND pid <> ALL ($1)";
    let listening = async {
        loop {
            let rows = client.query(sql, &[&gone]).await.unwrap();
            if rows.len() >= 2 {
                return rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(FAILED, listening).await.unwrap()
}

#[tokio::test]
async fn a_waiter_on_another_node_hears_of_it_by_notification() {
    let on = stores::open_postgres().await.unwrap();
    let other = on.second_node(|options| options.wait_poll = NEVER).await.unwrap();
    listeners(&on, &[]).await;
    wakes(&on, &other, &on.store).await;
}

#[tokio::test]
async fn a_listener_whose_connection_is_lost_hears_again() {
    let on = stores::open_postgres().await.unwrap();
    let other = on.second_node(|options| options.wait_poll = NEVER).await.unwrap();
    let first = listeners(&on, &[]).await;
    let client = on.database().unwrap().connect().await.unwrap();
    let lost = "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS listener (pid)";
    assert_eq!(client.query(lost, &[&first]).await.unwrap().len(), 2);
    listeners(&on, &first).await;
    wakes(&on, &other, &on.store).await;
}

#[tokio::test]
async fn a_waiter_on_another_node_looks_again_when_notifications_are_lost() {
    let on = stores::open_postgres_with(|options| options.notify_interval = NEVER).await.unwrap();
    let other = on.second_node(|options| options.wait_poll = Duration::from_millis(50)).await.unwrap();
    wakes(&on, &other, &on.store).await;
}
