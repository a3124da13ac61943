use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use waybill_kernel::{Code, Error, Mode, OperationSpec, Result};
use waybill_store::effects::{Cursor, Effect, Feed, Follow, Holder, Plan, SETTLE_MAX, sweep_once};
use waybill_store::{Ctx, Gate, Operation, Reply, Row, Store, Tx, Value, Work};
use waybill_tasks::ops::create_task::CreateTask;
use waybill_testkit::postgres::{Options, Postgres};
use waybill_testkit::stores::{self, TestStore};

use super::{NOTE, notes};
use crate::support::{plain_task, spec, sweep_to_end};

waybill_testkit::both! {
    pages_give_every_row_once_and_in_order,
    a_statement_out_of_order_is_refused,
    an_effect_has_each_row_once,
    a_failed_effect_leaves_its_place_and_its_writes_as_they_were,
}

/// A machine that stands still is no failure.
const FAILED: Duration = Duration::from_secs(60);

const RECEIPTS: Feed = Feed {
    sql: "SELECT xact, seq, receipt_id FROM receipts WHERE (xact, seq) > ($1, $2) AND xact < $3 \
          ORDER BY xact, seq LIMIT $4",
};
const BACKWARDS: Feed = Feed {
    sql: "SELECT xact, seq FROM receipts WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact DESC, seq DESC LIMIT $4",
};

struct Read {
    feed: Feed,
    after: Cursor,
    limit: i64,
}

impl Work for Read {
    type Output = (usize, Cursor, bool);

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        let page = self.feed.read(tx, self.after, self.limit, &[]).await?;
        Ok((page.rows.len(), page.next, page.more))
    }
}

async fn read(store: &Store, after: Cursor, limit: i64) -> (usize, Cursor, bool) {
    store.system().run(Read { feed: RECEIPTS, after, limit }).await.unwrap()
}

/// Until the feed has so many rows: on PostgreSQL they come when everything older has ended.
async fn caught_up(on: &TestStore, rows: usize) {
    let wait = async {
        while read(&on.store, Cursor::START, 1000).await.0 < rows {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(FAILED, wait).await.unwrap();
}

async fn pages_give_every_row_once_and_in_order(on: TestStore) {
    assert_eq!(read(&on.store, Cursor::START, 2).await, (0, Cursor::START, false));
    for _ in 0..5 {
        plain_task(&on, &on.admin).await;
    }
    caught_up(&on, 5).await;
    let (mut at, mut sizes) = (Cursor::START, Vec::new());
    for _ in 0..3 {
        // As a client would carry it over a reconnect.
        let carried = Cursor::from_text(&[b"test"], &at.to_text(&[b"test"])).unwrap();
        let (rows, next, more) = read(&on.store, carried, 2).await;
        assert!(next > at);
        sizes.push((rows, more));
        at = next;
    }
    assert_eq!(sizes, [(2, true), (2, true), (1, false)]);
    assert_eq!(read(&on.store, at, 2).await, (0, at, false), "and stays where it is");
    assert_eq!(read(&on.store, Cursor::START, 0).await.0, 1, "a page has at least one row");
}

async fn a_statement_out_of_order_is_refused(on: TestStore) {
    for _ in 0..2 {
        plain_task(&on, &on.admin).await;
    }
    caught_up(&on, 2).await;
    let error = on.store.system().run(Read { feed: BACKWARDS, after: Cursor::START, limit: 5 }).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
}

/// Writes a note for every receipt.
#[derive(Default)]
struct NoteReceipts {
    fails: Arc<AtomicBool>,
}

impl Effect for NoteReceipts {
    const NAME: &'static str = "test.note_receipts";
    const FEED: Feed = RECEIPTS;

    fn plan(&self) -> Plan {
        Plan { batch: 2, ..Plan::every(Duration::from_secs(1)) }
    }

    async fn apply(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, rows: &[Row]) -> Result<()> {
        for row in rows {
            tx.execute(NOTE, &[Value::from(row.bytes(2)?), Value::from(ctx.now)]).await?;
        }
        if self.fails.load(Ordering::Relaxed) { Err(Error::new(Code::Overloaded, "On purpose.")) } else { Ok(()) }
    }
}

async fn an_effect_has_each_row_once(on: TestStore) {
    let (effect, holder) = (Arc::new(Follow(NoteReceipts::default())), Holder::new(&on.store));
    for total in [5, 6, 9] {
        while on.count("SELECT count(*) FROM receipts").await.unwrap() < total {
            plain_task(&on, &on.admin).await;
        }
        caught_up(&on, total as usize).await;
        // A note has the receipt's id as its key: one written twice would be an error.
        sweep_to_end(&on, &effect, holder).await;
        assert_eq!(notes(&on).await, total);
    }
    assert_eq!(sweep_once(&on.store, &effect, holder).await.unwrap().rows, 0);
    let feeds = crate::support::ok(&on, &on.admin, "list_sweeps", json!({})).await["feeds"].take();
    let last = on.count("SELECT max(seq) FROM receipts").await.unwrap();
    let shown = [&feeds[0]["name"], &feeds[0]["seq"], &feeds[0]["behind_ms"]];
    assert_eq!(shown, [&json!(NoteReceipts::NAME), &json!(last), &json!(0)]);
}

async fn a_failed_effect_leaves_its_place_and_its_writes_as_they_were(on: TestStore) {
    let fails = Arc::new(AtomicBool::new(false));
    let effect = Arc::new(Follow(NoteReceipts { fails: Arc::clone(&fails) }));
    let holder = Holder::new(&on.store);
    for _ in 0..3 {
        plain_task(&on, &on.admin).await;
    }
    caught_up(&on, 3).await;
    let position = async || on.rows("SELECT xact, seq FROM feeds").await.unwrap();
    for begun in [false, true] {
        let before = (notes(&on).await, position().await);
        assert_eq!(before.1.len(), usize::from(begun));
        fails.store(true, Ordering::Relaxed);
        assert_eq!(sweep_once(&on.store, &effect, holder).await.unwrap_err().code(), Code::Overloaded);
        assert_eq!((notes(&on).await, position().await), before, "a failed effect has left something");
        fails.store(false, Ordering::Relaxed);
        sweep_to_end(&on, &effect, holder).await;
        let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
        assert_eq!(notes(&on).await, receipts);
        plain_task(&on, &on.admin).await;
        caught_up(&on, receipts as usize + 1).await;
    }
}

/// Begins to create a task and stops before its transaction commits.
async fn late_committer(on: &TestStore) -> (Arc<Gate>, tokio::task::JoinHandle<Result<()>>) {
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let create: CreateTask = serde_json::from_value(json!({ "type": "work" })).unwrap();
    let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
    let slow = tokio::spawn(async move { store.run_gated(create, caller, Some(at_gate)).await.map(drop) });
    for _ in 1..3 {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();
    (gate, slow)
}

#[tokio::test]
async fn an_effect_never_skips_a_late_committer_and_never_repeats() {
    let on = stores::open_postgres().await.unwrap();
    let (effect, holder) = (Arc::new(Follow(NoteReceipts::default())), Holder::new(&on.store));
    let (gate, slow) = late_committer(&on).await;
    for _ in 0..3 {
        plain_task(&on, &on.admin).await;
    }
    sweep_once(&on.store, &effect, holder).await.unwrap();
    assert_eq!(notes(&on).await, 0, "rows were given out above the horizon");
    gate.open();
    slow.await.unwrap().unwrap();
    caught_up(&on, 4).await;
    sweep_to_end(&on, &effect, holder).await;
    assert_eq!(notes(&on).await, 4);
}

/// A tenant's list by the feed's order: how many receipts there are.
#[derive(Deserialize, JsonSchema)]
struct CountReceipts {}

impl Operation for CountReceipts {
    const SPEC: OperationSpec = spec("count_receipts");
    const SETTLES: bool = true;
    type Output = usize;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<usize>> {
        const OWN: Feed = Feed {
            sql: "SELECT xact, seq FROM receipts WHERE tenant = $1 AND (xact, seq) > ($2, $3) AND xact < $4 \
                  AND addressee <> $6 ORDER BY xact, seq LIMIT $5",
        };
        let page = OWN.read(tx, Cursor::START, 10, &[Value::from("nobody")]).await?;
        Ok(Reply::Done(page.rows.len()))
    }
}

async fn count_receipts(on: &TestStore) -> usize {
    match on.store.run(CountReceipts {}, on.admin.clone()).await.unwrap() {
        Reply::Done(count) => count,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_list_waits_a_moment_until_it_can_show_what_was_written_before_it() {
    // Of its own, so that nothing else is about.
    let cluster = Postgres::start_with(Options { fsync: false }).unwrap();
    let briefly = Duration::from_secs(5);
    let on = stores::open_postgres_in(cluster.database().await.unwrap(), |options| options.settle_max = briefly);
    let on = on.await.unwrap();
    plain_task(&on, &on.admin).await;
    assert_eq!(count_receipts(&on).await, 1);

    let (gate, slow) = late_committer(&on).await;
    plain_task(&on, &on.admin).await;
    let began = Instant::now();
    assert_eq!(count_receipts(&on).await, 1, "a row above the horizon was shown");
    assert!(began.elapsed() >= SETTLE_MAX && began.elapsed() < FAILED);
    let (count, ()) = tokio::join!(count_receipts(&on), async { gate.open() });
    assert_eq!(count, 3);
    slow.await.unwrap().unwrap();
}

/// Its rows are of transactions that are still to come there: they would be given out to nobody.
#[tokio::test]
async fn a_database_from_an_older_cluster_is_refused() {
    let on = stores::open_postgres().await.unwrap();
    plain_task(&on, &on.admin).await;
    on.second_node(|_| ()).await.unwrap();
    on.write("UPDATE receipts SET xact = xact + 1000000000").await.unwrap();
    let error = on.second_node(|_| ()).await.err().unwrap().to_string();
    assert!(error.contains("younger cluster") && error.contains("pg_resetwal"), "{error}");
}
