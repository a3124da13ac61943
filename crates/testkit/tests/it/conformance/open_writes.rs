//! What is committed is shown, whoever else is writing. A list is a state; what is followed is a feed, which waits for older
//! writes of its own database and of no other.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::time::timeout;
use tokio_postgres::Client;
use waybill_kernel::Caller;
use waybill_store::{Gate, Turn};
use waybill_tasks::ops::create_task::CreateTask;
use waybill_testkit::postgres::{Database, Postgres};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{ok, plain_task, texts};

/// Long enough for a follower to have looked several times.
const SETTLED: Duration = Duration::from_millis(300);
const FAILED: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    SameDatabase,
    AnotherDatabase,
}

/// Somebody's write that does not end. On SQLite there is none beside the server's own.
struct OpenWrite {
    session: Option<Client>,
    _database: Option<Database>,
}

impl OpenWrite {
    async fn begin(on: &TestStore, database: Where) -> Self {
        let Ok(own) = on.database() else { return Self { session: None, _database: None } };
        let another = match database {
            Where::SameDatabase => None,
            Where::AnotherDatabase => Some(Postgres::shared().await.unwrap().database().await.unwrap()),
        };
        let session = another.as_ref().unwrap_or(own).connect().await.unwrap();
        session.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
        Self { session: Some(session), _database: another }
    }

    async fn end(self) {
        if let Some(session) = self.session {
            session.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

/// It would wait as long as the write is open.
async fn open_postgres() -> TestStore {
    stores::open_postgres_with(|options| options.settle_max = Duration::from_millis(50)).await.unwrap()
}

/// Both engines, and a write that is open in either place.
macro_rules! everywhere {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case(waybill_testkit::stores::open_sqlite().await.unwrap(), super::Where::SameDatabase).await;
            })+
        }

        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                for database in [super::Where::SameDatabase, super::Where::AnotherDatabase] {
                    super::$case(super::open_postgres().await, database).await;
                }
            })+
        }
    };
}

everywhere! {
    obligations_are_shown_on_all_pages,
    obligations_that_have_ended_are_gone,
    an_inbox_is_shown,
    the_receipts_of_a_task_are_shown,
    bootstrap_delivers,
}

async fn several(on: &TestStore, caller: &Caller) -> Vec<String> {
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(plain_task(on, caller).await);
    }
    tasks
}

async fn obligations_are_shown_on_all_pages(on: TestStore, database: Where) {
    let alice = on.agent("alice").unwrap();
    let open = OpenWrite::begin(&on, database).await;
    let tasks = several(&on, &alice).await;
    let (mut seen, mut input) = (Vec::new(), json!({ "limit": 2 }));
    for length in [2, 2, 1] {
        let page = ok(&on, &alice, "list_open_obligations", input.clone()).await;
        assert_eq!(page["open_obligations"].as_array().unwrap().len(), length, "{database:?}");
        seen.extend(texts(&page["open_obligations"], "task_id"));
        input["since_receipt_id"] = page["cursor"].clone();
    }
    assert_eq!(seen, tasks, "{database:?}");
    open.end().await;
}

async fn obligations_that_have_ended_are_gone(on: TestStore, database: Where) {
    let alice = on.agent("alice").unwrap();
    let open = OpenWrite::begin(&on, database).await;
    let tasks = several(&on, &alice).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": tasks[2] })).await;
    let left = ok(&on, &alice, "list_open_obligations", json!({})).await;
    let expected: Vec<_> = tasks.iter().filter(|task| **task != tasks[2]).cloned().collect();
    assert_eq!(texts(&left["open_obligations"], "task_id"), expected, "{database:?}");
    open.end().await;
}

async fn an_inbox_is_shown(on: TestStore, database: Where) {
    let alice = on.agent("alice").unwrap();
    let before = plain_task(&on, &alice).await;
    let since = ok(&on, &alice, "list_receipts", json!({})).await["next_cursor"].clone();
    let open = OpenWrite::begin(&on, database).await;
    let tasks = several(&on, &alice).await;
    let listed = ok(&on, &alice, "list_receipts", json!({})).await;
    assert_eq!(texts(&listed["receipts"], "task_id"), [vec![before], tasks.clone()].concat(), "{database:?}");
    open.end().await;
    // Whoever goes on from a receipt misses none of them.
    let later = ok(&on, &alice, "list_receipts", json!({ "since_receipt_id": since })).await;
    assert_eq!(texts(&later["receipts"], "task_id"), tasks, "{database:?}");
}

async fn the_receipts_of_a_task_are_shown(on: TestStore, database: Where) {
    let alice = on.agent("alice").unwrap();
    let open = OpenWrite::begin(&on, database).await;
    let task_id = plain_task(&on, &alice).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
    let listed = ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    let expected = ["task.assigned", "task.canceled", "task.result_ready"];
    assert_eq!(texts(&listed["receipts"], "receipt_type"), expected, "{database:?}");
    open.end().await;
}

async fn bootstrap_delivers(on: TestStore, database: Where) {
    let alice = on.agent("alice").unwrap();
    let open = OpenWrite::begin(&on, database).await;
    let tasks = several(&on, &alice).await;
    let answer = ok(&on, &alice, "bootstrap", json!({})).await;
    assert_eq!(texts(&answer["attention"]["inbox_receipts"], "task_id"), tasks, "{database:?}");
    assert_eq!(on.count("SELECT count(*) FROM receipts WHERE delivered_at IS NOT NULL").await.unwrap(), 5);
    open.end().await;
}

async fn turn(on: &TestStore, caller: &Caller, input: Json) -> Turn {
    let follow = on.registry.streams().find(|stream| stream.spec().name == "follow_receipts").unwrap();
    follow.turn(&on.store, caller, &input.to_string()).await.unwrap()
}

#[tokio::test]
async fn a_feed_waits_for_a_write_of_its_own_database_alone() {
    for database in [Where::AnotherDatabase, Where::SameDatabase] {
        let on = open_postgres().await;
        let alice = on.agent("alice").unwrap();
        let began = turn(&on, &alice, json!({})).await.position;
        let open = OpenWrite::begin(&on, database).await;
        several(&on, &alice).await;
        let input = json!({ "last_event_id": began, "wait_seconds": 20 });
        let mut waits = pin!(turn(&on, &alice, input));
        if database == Where::SameDatabase {
            assert!(timeout(SETTLED, &mut waits).await.is_err(), "a row above the horizon was given out");
            open.end().await;
            assert_eq!(timeout(FAILED, waits).await.unwrap().events.len(), 5);
        } else {
            assert_eq!(timeout(FAILED, waits).await.unwrap().events.len(), 5);
            open.end().await;
        }
    }
}

#[tokio::test]
async fn a_place_to_go_on_from_does_not_pass_what_is_still_to_come() {
    let on = open_postgres().await;
    let alice = on.agent("alice").unwrap();
    let first = plain_task(&on, &alice).await;
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let create: CreateTask = serde_json::from_value(json!({ "type": "slow" })).unwrap();
    let (store, caller, at_gate) = (on.store.clone(), alice.clone(), Arc::clone(&gate));
    let slow = tokio::spawn(async move { store.run_gated(create, caller, Some(at_gate)).await });
    // The task has been written, and the receipt; the commit stands at the gate.
    for _ in 1..3 {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();
    let quick = plain_task(&on, &alice).await;
    let listed = ok(&on, &alice, "list_receipts", json!({})).await;
    assert_eq!(texts(&listed["receipts"], "task_id"), [first, quick.clone()]);
    let booted = ok(&on, &alice, "bootstrap", json!({})).await;
    gate.open();
    slow.await.unwrap().unwrap();
    for cursor in [&listed["next_cursor"], &booted["cursor"]["latest_receipt_id"]] {
        let input = json!({ "since_receipt_id": cursor });
        let later = ok(&on, &alice, "list_receipts", input).await;
        let tasks = texts(&later["receipts"], "task_id");
        assert_eq!((tasks.len(), &tasks[1]), (2, &quick), "the one that was late, and the one after it");
    }
}
