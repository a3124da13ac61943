//! Neighbours in one group commit of SQLite: what one does wrong the others never notice.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join_all};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, Mode, Result, Tenant};
use waybill_store::{Ctx, Stored, Tx, Value, Work};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{ok, plain_task, refusal};

/// Room for some small rows beside the schema, which grows with every domain.
const PAGES_FREE: u32 = 24;
const TOO_LARGE: usize = 1 << 20;

/// Keeps the writer busy until it is told to go on.
struct Hold {
    started: Mutex<Option<oneshot::Sender<()>>>,
    released: Mutex<Receiver<()>>,
}

impl Work for Hold {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, _: &mut Tx<'_>) -> Result<()> {
        // A short hold may be part of the batch that is voided, and run again with it.
        let Some(started) = self.started.lock().unwrap().take() else { return Ok(()) };
        started.send(()).unwrap();
        self.released.lock().unwrap().recv().map_err(Error::internal)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    End,
    Panic,
    AwaitNothing,
    Sleep,
}

/// Writes a row of some size, and then does what an operation must not do.
struct Note {
    name: &'static str,
    bytes: usize,
    then: Then,
    /// The first id of every run.
    seen: Arc<Mutex<Vec<Uuid>>>,
}

impl Note {
    fn new(name: &'static str, bytes: usize, then: Then) -> Self {
        Self { name, bytes, then, seen: Arc::default() }
    }
}

impl Work for Note {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const INSERT: &str =
            "INSERT INTO results (tenant, task_id, outcome, error, completed_at) VALUES (7, $1, 'noted', $2, 0)";
        self.seen.lock().unwrap().push(ctx.ids.next());
        let text = "x".repeat(self.bytes);
        // Counted first: what is not kept must not count either.
        tx.as_tenant(Tenant(7)).add(Stored::Rows, self.bytes);
        tx.execute(INSERT, &[Value::from(self.name.as_bytes()), Value::from(&text)]).await?;
        match self.then {
            Then::End => {}
            Then::Panic => panic!("on purpose"),
            Then::AwaitNothing => std::future::pending().await,
            Then::Sleep => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        Ok(())
    }
}

/// Submits while the writer is busy, in order, so that all of it is one batch.
async fn while_busy<T>(on: &TestStore, submitted: impl Future<Output = T>) -> T {
    // The first poll is what submits, so the writer may go on after one.
    while_busy_until(on, submitted, std::future::ready(())).await
}

async fn while_busy_until<T>(
    on: &TestStore,
    submitted: impl Future<Output = T>,
    all_submitted: impl Future<Output = ()>,
) -> T {
    let (started, has_started) = oneshot::channel();
    let (release, released) = channel();
    let hold = Hold { started: Mutex::new(Some(started)), released: Mutex::new(released) };
    let store = on.store.clone();
    let holding = tokio::spawn(async move { store.system().run(hold).await });
    has_started.await.unwrap();
    let go_on = async {
        all_submitted.await;
        release.send(()).unwrap();
    };
    // Polls the left one first.
    let (answers, ()) = join(submitted, go_on).await;
    holding.await.unwrap().unwrap();
    answers
}

/// The answers of one batch, and for each note the ids its runs began with.
async fn batch(on: &TestStore, notes: Vec<Note>) -> Vec<(Result<()>, Vec<Uuid>)> {
    let seen: Vec<_> = notes.iter().map(|note| Arc::clone(&note.seen)).collect();
    let calls = notes.into_iter().map(|note| async { on.store.system().run(note).await });
    let answers = while_busy(on, join_all(calls)).await;
    answers.into_iter().zip(seen).map(|(answer, seen)| (answer, seen.lock().unwrap().clone())).collect()
}

async fn noted(on: &TestStore) -> Vec<String> {
    let rows = on.rows("SELECT task_id FROM results WHERE tenant = 7 ORDER BY task_id").await.unwrap();
    rows.iter().map(|row| String::from_utf8_lossy(row.bytes(0).unwrap()).into_owned()).collect()
}

/// Bytes of the notes that were kept, and bytes that were counted.
async fn counted(on: &TestStore) -> [i64; 2] {
    let kept = "SELECT coalesce(sum(length(error)), 0) FROM results WHERE tenant = 7";
    let counted = "SELECT coalesce(sum(bytes), 0) FROM stored_bytes WHERE tenant = 7";
    [on.count(kept).await.unwrap(), on.count(counted).await.unwrap()]
}

async fn is_sound(on: &TestStore) {
    let check = on.rows("PRAGMA integrity_check").await.unwrap();
    assert_eq!(check.len(), 1);
    assert_eq!(check[0].text(0).unwrap(), "ok");
    on.store.system().run(Note::new("afterwards", 1, Then::End)).await.unwrap();
    assert!(on.store.system().probe().await.writable);
}

async fn nearly_full() -> TestStore {
    let empty = stores::open_sqlite().await.unwrap();
    let taken = empty.rows("PRAGMA page_count").await.unwrap()[0].int(0).unwrap();
    let pages = u32::try_from(taken).unwrap() + PAGES_FREE;
    stores::open_sqlite_with(|options| options.pages_max = Some(pages)).await.unwrap()
}

#[tokio::test]
async fn a_write_that_does_not_fit_is_told_so_and_its_neighbours_are_kept() {
    let on = nearly_full().await;
    let answers = batch(
        &on,
        vec![
            Note::new("before", 10, Then::End),
            Note::new("culprit", TOO_LARGE, Then::End),
            Note::new("between", 10, Then::End),
            Note::new("second culprit", TOO_LARGE, Then::End),
            Note::new("behind", 10, Then::End),
        ],
    )
    .await;
    let codes: Vec<_> = answers.iter().map(|(answer, _)| answer.as_ref().err().map(Error::code)).collect();
    assert_eq!(codes, [None, Some(Code::StorageFull), None, Some(Code::StorageFull), None]);
    assert_eq!(noted(&on).await, ["before", "behind", "between"]);
    assert_eq!(counted(&on).await, [30, 30]);
    is_sound(&on).await;
}

#[tokio::test]
async fn what_failed_is_not_counted_among_what_is_stored() {
    let on = stores::open_sqlite().await.unwrap();
    let notes = vec![
        Note::new("before", 10, Then::End),
        Note::new("panics", 100, Then::Panic),
        Note::new("between", 10, Then::End),
        Note::new("waits", 100, Then::AwaitNothing),
        Note::new("behind", 10, Then::End),
    ];
    let answers = batch(&on, notes).await;
    assert_eq!(answers.iter().filter(|(answer, _)| answer.is_ok()).count(), 3);
    assert_eq!(counted(&on).await, [30, 30]);
    assert_eq!(on.store.stored_bytes(Tenant(7), Stored::Rows), 30);
    is_sound(&on).await;
    assert_eq!(counted(&on).await, [31, 31]);
}

#[tokio::test]
async fn a_voided_batch_runs_again_with_the_same_ids() {
    // A writer that is kept from running for some milliseconds commits the first alone: then they have not met.
    for _ in 0..20 {
        let on = nearly_full().await;
        let notes = vec![Note::new("innocent", 10, Then::End), Note::new("culprit", TOO_LARGE, Then::End)];
        let runs: Vec<_> = batch(&on, notes).await.into_iter().map(|(_, seen)| seen).collect();
        assert!(runs.iter().all(|seen| seen.iter().all(|id| *id == seen[0])), "{runs:?}");
        if runs.iter().all(|seen| seen.len() > 1) {
            return;
        }
    }
    panic!("SQLite did not end the transaction, so nothing was voided");
}

#[tokio::test]
async fn real_operations_share_the_same_fate() {
    let on = nearly_full().await;
    let small = |key: &str| on.call(&on.admin, "create_task", json!({ "type": "t", "idempotency_key": key }));
    let large = json!({ "type": "t", "payload": "x".repeat(TOO_LARGE - 2), "idempotency_key": "large" });
    let calls = [small("a"), on.call(&on.admin, "create_task", large.clone()), small("b"), small("a")];
    let answers = while_busy(&on, join_all(calls.map(Box::pin))).await;
    let told: Vec<_> = answers.iter().map(|a| a.as_ref().map(|a| a.replay).map_err(Error::code)).collect();
    assert_eq!(told, [Ok(false), Err(Code::StorageFull), Ok(false), Ok(true)]);
    let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
    assert_eq!((on.count("SELECT count(*) FROM tasks").await.unwrap(), receipts), (2, 2));
    // The key of the refused one is still free.
    assert_eq!(refusal(&on, &on.admin, "create_task", large).await, Code::StorageFull);
    ok(&on, &on.admin, "create_task", json!({ "type": "t", "idempotency_key": "large" })).await;
    is_sound(&on).await;
}

#[tokio::test]
async fn a_database_that_is_filled_up_refuses_creates_and_still_reads() {
    let on = nearly_full().await;
    let mut made = 0;
    loop {
        let input = json!({ "type": "t", "payload": "x".repeat(2_000) });
        match on.call(&on.admin, "create_task", input).await {
            Ok(_) => made += 1,
            Err(error) => break assert_eq!(error.code(), Code::StorageFull),
        }
        assert!(made < 10_000, "it never fills up");
    }
    let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
    assert_eq!((on.count("SELECT count(*) FROM tasks").await.unwrap(), receipts), (made, made));
    assert_eq!(on.rows("PRAGMA integrity_check").await.unwrap()[0].text(0).unwrap(), "ok");
    on.write("DELETE FROM tasks").await.unwrap();
    on.write("DELETE FROM receipts").await.unwrap();
    plain_task(&on, &on.admin).await;
}

#[tokio::test]
async fn a_panic_and_a_foreign_await_are_their_callers_alone() {
    let on = stores::open_sqlite().await.unwrap();
    let answers = batch(
        &on,
        vec![
            Note::new("one", 10, Then::End),
            Note::new("panics", 10, Then::Panic),
            Note::new("two", 10, Then::End),
            Note::new("awaits", 10, Then::AwaitNothing),
            Note::new("sleeps", 10, Then::Sleep),
            Note::new("three", 10, Then::End),
        ],
    )
    .await;
    let codes: Vec<_> = answers.iter().map(|(answer, _)| answer.as_ref().err().map(Error::code)).collect();
    let internal = Some(Code::Internal);
    assert_eq!(codes, [None, internal, None, internal, internal, None]);
    let cause = |at: usize| answers[at].0.as_ref().unwrap_err().cause().unwrap().to_owned();
    assert_eq!(cause(1), "an operation panicked: on purpose");
    assert_eq!(cause(3), "an operation awaited something other than its transaction");
    for (_, seen) in &answers {
        assert!(seen.iter().all(|id| *id == seen[0]), "{seen:?}");
    }
    assert_eq!(noted(&on).await, ["one", "three", "two"]);
    is_sound(&on).await;
}

#[tokio::test]
async fn a_panic_on_postgres_is_its_callers_alone() {
    let on = stores::open_postgres_with(|options| options.lanes = 1).await.unwrap();
    let error = on.store.system().run(Note::new("panics", 10, Then::Panic)).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    on.store.system().run(Note::new("fine", 10, Then::End)).await.unwrap();
    assert_eq!(noted(&on).await, ["fine"]);
}

#[tokio::test]
async fn one_more_than_the_queue_holds_is_refused_at_once() {
    let on = stores::open_sqlite_with(|options| options.write_queue_max = 2).await.unwrap();
    let notes = ["one", "two", "three"].map(|name| Note::new(name, 10, Then::End));
    let answers = batch(&on, notes.into()).await;
    let codes: Vec<_> = answers.iter().map(|(answer, _)| answer.as_ref().err().map(Error::code)).collect();
    assert_eq!(codes, [None, None, Some(Code::Overloaded)]);
    assert_eq!(noted(&on).await, ["one", "two"]);
    is_sound(&on).await;
}

#[tokio::test]
async fn a_caller_that_has_gone_is_passed_over_in_a_voided_batch_too() {
    for bytes in [10, TOO_LARGE] {
        let on = nearly_full().await;
        let gone = Note::new("gone", 10, Then::End);
        let seen = Arc::clone(&gone.seen);
        let (left, has_left) = oneshot::channel();
        let submitted = async {
            let answered = timeout(Duration::ZERO, on.store.system().run(gone)).await;
            assert!(answered.is_err(), "it was answered before its caller could leave");
            left.send(()).unwrap();
            on.store.system().run(Note::new("stays", bytes, Then::End)).await
        };
        let stays = while_busy_until(&on, submitted, async { has_left.await.unwrap() }).await;
        assert_eq!(stays.is_ok(), bytes == 10);
        assert!(seen.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_queue_that_is_refused_costs_its_neighbours_nothing() {
    let on = stores::open_sqlite().await.unwrap();
    let policy =
        json!({ "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:nowhere.fifo", "maxReceiveCount": 1 });
    let attributes = json!({ "FifoQueue": "true", "PartitionCount": "2", "RedrivePolicy": policy.to_string() });
    let input = json!({ "queue": "orders.fifo", "attributes": attributes });
    let note = Note::new("neighbour", 10, Then::End);
    let seen = Arc::clone(&note.seen);
    let calls = join(async { on.store.system().run(note).await }, on.call(&on.admin, "create_queue", input));
    let (noted, refused) = while_busy(&on, calls).await;
    noted.unwrap();
    assert_eq!(refused.unwrap_err().code(), Code::InvalidAttributeValue);
    assert_eq!(seen.lock().unwrap().len(), 1, "the batch was void");
}
