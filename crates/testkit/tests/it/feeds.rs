//! A feed over PostgreSQL's receipts: a sequence's order is not the order of commits, so neither the number of a row nor the
//! number of its transaction can be a cursor by itself.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;
use waybill_kernel::{Mode, Result};
use waybill_store::safety::{OpenWrite, PostgresInspection};
use waybill_store::{Ctx, Gate, Tx, Value, Work};
use waybill_tasks::ops::create_task::CreateTask;
use waybill_testkit::postgres::{Options, Postgres};
use waybill_testkit::stores::{self, TestStore};

use crate::support::plain_task;

/// A machine that stands still is no failure.
const FAILED: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Sequence,
    Transaction,
    BelowHorizon,
}

struct Read {
    order: Order,
    after: (i64, i64),
}

impl Work for Read {
    /// (xact, seq) of each row.
    type Output = Vec<(i64, i64)>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        let horizon = if self.order == Order::BelowHorizon { tx.horizon().await? } else { i64::MAX };
        let sql = match self.order {
            Order::Sequence => "SELECT xact, seq FROM receipts WHERE xact < $1 AND seq > $3 AND $2 = $2 ORDER BY seq",
            Order::Transaction | Order::BelowHorizon => {
                "SELECT xact, seq FROM receipts WHERE xact < $1 AND (xact, seq) > ($2, $3) ORDER BY xact, seq"
            }
        };
        let params = [Value::from(horizon), Value::from(self.after.0), Value::from(self.after.1)];
        tx.query(sql, &params).await?.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect()
    }
}

/// A reader with its cursor.
struct Reader<'a> {
    on: &'a TestStore,
    order: Order,
    seen: Vec<(i64, i64)>,
}

impl Reader<'_> {
    async fn read(&mut self) -> usize {
        let after = self.seen.last().copied().unwrap_or((0, 0));
        let rows = self.on.store.system().run(Read { order: self.order, after }).await.unwrap();
        self.seen.extend(&rows);
        rows.len()
    }
}

/// One task is created while another's transaction, begun before, stands at its statement number `held` (from 1 on).
/// Answers how many of the two receipts each reader gets, if it reads before and after the first commits.
async fn received(held: usize) -> [(Order, usize); 3] {
    let on = stores::open_postgres().await.unwrap();
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let create: CreateTask = serde_json::from_value(json!({ "type": "slow" })).unwrap();
    let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
    let slow = tokio::spawn(async move { store.run_gated(create, caller, Some(at_gate)).await });
    for _ in 1..held {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();
    plain_task(&on, &on.admin).await;

    let orders = [Order::Sequence, Order::Transaction, Order::BelowHorizon];
    let mut readers = orders.map(|order| Reader { on: &on, order, seen: Vec::new() });
    for reader in &mut readers {
        let first = reader.read().await;
        assert_eq!(first, usize::from(reader.order != Order::BelowHorizon), "{:?}", reader.order);
    }
    gate.open();
    slow.await.unwrap().unwrap();
    let catch_up = async {
        while on.store.system().run(Read { order: Order::BelowHorizon, after: (0, 0) }).await.unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(FAILED, catch_up).await.unwrap();
    for reader in &mut readers {
        reader.read().await;
    }
    readers.map(|reader| (reader.order, reader.seen.len()))
}

#[tokio::test]
async fn a_row_that_commits_late_is_lost_by_every_number_but_below_the_horizon() {
    // Its receipt has been written: number 1 of the older transaction, seen after number 2 of the younger one.
    let got = received(3).await;
    assert_eq!(got, [(Order::Sequence, 1), (Order::Transaction, 1), (Order::BelowHorizon, 2)]);
}

#[tokio::test]
async fn a_row_written_late_is_lost_by_its_transaction_but_not_below_the_horizon() {
    // Its task has been written, its receipt not yet: number 2 of the older transaction.
    let got = received(2).await;
    assert_eq!(got, [(Order::Sequence, 2), (Order::Transaction, 1), (Order::BelowHorizon, 2)]);
}

#[tokio::test]
async fn on_sqlite_everything_committed_is_below_the_horizon() {
    let on = stores::open_sqlite().await.unwrap();
    let mut reader = Reader { on: &on, order: Order::BelowHorizon, seen: Vec::new() };
    for _ in 0..3 {
        plain_task(&on, &on.admin).await;
        assert_eq!(reader.read().await, 1);
    }
}

/// The oldest write of the database, as soon as it is that of this process: those of the server itself end.
async fn oldest_write_of(url: &str, pid: i64) -> OpenWrite {
    let look = PostgresInspection::open(&stores::postgres_options(url)).await.unwrap();
    let found = async {
        loop {
            match look.oldest_write().await.unwrap() {
                Some(write) if write.pid == Some(pid) => return write,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    timeout(FAILED, found).await.unwrap()
}

#[tokio::test]
async fn whoever_holds_a_feed_back_can_be_named_and_its_age_by_those_who_may_see_it() {
    // A cluster of its own, because roles belong to the whole of it.
    let cluster = Postgres::start_with(Options::default()).unwrap();
    // One that is older, but nobody's concern.
    let another = cluster.database().await.unwrap();
    let elsewhere = another.connect().await.unwrap();
    elsewhere.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let on = stores::open_postgres_in(cluster.database().await.unwrap(), |_| {}).await.unwrap();
    let database = on.database().unwrap();
    let (holder, owner) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    owner.batch_execute("CREATE ROLE stranger LOGIN").await.unwrap();
    let pid = i64::from(holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0));
    holder.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let shown = oldest_write_of(&database.url, pid).await;
    assert_eq!(shown.database, database.name);
    assert!(shown.age.is_some_and(|age| age <= FAILED), "{shown:?}");
    let hidden = oldest_write_of(&database.url_as("stranger"), pid).await;
    assert_eq!(hidden, OpenWrite { age: None, ..shown });
    holder.batch_execute("ROLLBACK").await.unwrap();
    elsewhere.batch_execute("ROLLBACK").await.unwrap();
}
