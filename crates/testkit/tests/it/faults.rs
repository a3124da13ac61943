//! PostgreSQL goes away: in the middle of a commit, of a transaction, or for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use tokio::time::timeout;
use waybill_kernel::{Code, Error};
use waybill_store::{Backend, Ctx, Gate, PostgresOptions, Reply, Tx, Work};
use waybill_tasks::ops::create_task::CreateTask;
use waybill_testkit::postgres::{Options, Postgres};
use waybill_testkit::proxy::{Mode, Proxy};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{done, ok, plain_task, refusal, refused};

/// A call that takes longer hangs. A killed server may need most of it to recover on a slow disk.
const FAILED: Duration = Duration::from_secs(90);
/// Longer than a busy machine stands still.
const PATIENT: Duration = Duration::from_secs(10);

/// `retry_for`: for as long a call is tried again.
async fn behind_proxy(retry_for: Duration) -> (TestStore, Proxy) {
    let database = Postgres::shared().await.unwrap().database().await.unwrap();
    let proxy = Proxy::start(database.addr).await.unwrap();
    let url = database.url_via(proxy.addr);
    let adjust = |options: &mut PostgresOptions| {
        options.url = url;
        options.retry_for = retry_for;
        options.connect_timeout = PATIENT;
        options.statement_timeout = PATIENT;
    };
    (stores::open_postgres_in(database, adjust).await.unwrap(), proxy)
}

fn keyed(key: &str) -> Json {
    json!({ "type": "work", "idempotency_key": key })
}

#[tokio::test]
async fn a_lost_answer_to_a_commit_is_503_and_the_retry_finds_the_truth() {
    let (on, proxy) = behind_proxy(PATIENT).await;
    proxy.set(Mode::CutAfterCommit);
    let error = refused(&on, &on.admin, "create_task", keyed("k")).await;
    assert_eq!((error.code(), error.code().entry().http), (Code::Unavailable, 503));
    assert_eq!(proxy.commits_lost(), 1);
    let again = done(on.call(&on.admin, "create_task", keyed("k")).await);
    assert!(again.replay, "the first one had been committed");
    let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
    assert_eq!((on.count("SELECT count(*) FROM tasks").await.unwrap(), receipts), (1, 1));

    proxy.set(Mode::CutAfterCommit);
    let cancel = json!({ "task_id": again.json["task_id"] });
    assert_eq!(refusal(&on, &on.admin, "cancel_task", cancel.clone()).await, Code::Unavailable);
    let again = ok(&on, &on.admin, "cancel_task", cancel).await;
    assert_eq!(again, json!({ "ok": false, "status": "canceled" }));
    assert_eq!(on.count("SELECT count(*) FROM receipts").await.unwrap(), 3);
}

#[tokio::test]
async fn a_link_lost_before_the_commit_is_made_up_for_by_another_run() {
    let (on, proxy) = behind_proxy(PATIENT).await;
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let create: CreateTask = serde_json::from_value(keyed("k")).unwrap();
    let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
    let call = tokio::spawn(async move { store.run_gated(create, caller, Some(at_gate)).await });
    arrivals.recv().await.unwrap();
    gate.step();
    // The task is written and not committed.
    arrivals.recv().await.unwrap();
    proxy.cut();
    gate.open();
    let reply = timeout(FAILED, call).await.unwrap().unwrap().unwrap();
    assert!(matches!(reply, Reply::Done(_)), "the first run left nothing behind");
    let receipts = on.count("SELECT count(*) FROM receipts").await.unwrap();
    assert_eq!((on.count("SELECT count(*) FROM tasks").await.unwrap(), receipts), (1, 1));
}

/// Writes, loses its link if it is told to, and concludes.
struct CutBeforeTheEnd {
    names: [&'static str; 2],
    proxy: Option<Arc<Proxy>>,
    runs: Arc<AtomicUsize>,
}

impl Work for CutBeforeTheEnd {
    type Output = ();

    fn mode(&self) -> waybill_kernel::Mode {
        waybill_kernel::Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> waybill_kernel::Result<()> {
        const ADD: &str = "INSERT INTO feeds (name, xact, seq, updated_at) VALUES ($1, 0, 0, 0)";
        tx.execute(ADD, &[self.names[0].into()]).await?;
        if let (0, Some(proxy)) = (self.runs.fetch_add(1, Ordering::SeqCst), &self.proxy) {
            proxy.cut();
            // For this end to notice.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tx.conclude(&[(ADD, vec![self.names[1].into()])], &[], || Error::internal("nothing was demanded")).await
    }
}

#[tokio::test]
async fn a_link_known_to_be_lost_before_the_last_writes_are_sent_is_no_mystery() {
    let (on, proxy) = behind_proxy(PATIENT).await;
    let (proxy, runs) = (Arc::new(proxy), Arc::new(AtomicUsize::new(0)));
    let warm = CutBeforeTheEnd { names: ["a", "b"], proxy: None, runs: Arc::default() };
    on.store.system().run(warm).await.unwrap();
    let cut = CutBeforeTheEnd { names: ["c", "d"], proxy: Some(Arc::clone(&proxy)), runs: Arc::clone(&runs) };
    on.store.system().run(cut).await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 2, "the call was made up for by another run");
    let names = on.count("SELECT count(*) FROM feeds WHERE name IN ('a', 'b', 'c', 'd')").await.unwrap();
    assert_eq!(names, 4);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_said_to_be_so_until_it_can() {
    let (on, proxy) = behind_proxy(Duration::from_secs(1)).await;
    let task_id = plain_task(&on, &on.admin).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    for (name, input) in
        [("create_task", keyed("k")), ("get_task", json!({ "task_id": task_id })), ("list_tenants", json!({}))]
    {
        let error = timeout(FAILED, refused(&on, &on.admin, name, input)).await.unwrap();
        assert_eq!((error.code(), error.code().entry().http), (Code::StoreUnavailable, 503), "{name}");
    }
    assert!(!on.store.system().probe().await.writable);
    let options = PostgresOptions::at(on.database().unwrap().url_via(proxy.addr));
    let opened = timeout(FAILED, stores::open(Backend::Postgres(options), &on.time)).await.unwrap();
    assert_eq!(opened.err().map(|error| error.code()), Some(Code::StoreUnavailable));

    proxy.set(Mode::Pass);
    let began = Instant::now();
    let made = loop {
        match on.call(&on.admin, "create_task", keyed("k")).await {
            // A busy machine may need longer for a connection than this call is tried again.
            Err(error) if error.code() == Code::StoreUnavailable && began.elapsed() < FAILED => {}
            answer => break done(answer),
        }
    };
    assert!(!made.replay, "nothing was done before");
    assert!(on.store.system().probe().await.writable);
}

#[tokio::test]
async fn a_link_that_goes_silent_keeps_nobody_for_ever() {
    let (on, proxy) = behind_proxy(PATIENT).await;
    plain_task(&on, &on.admin).await;
    proxy.set(Mode::Stall);
    let error = timeout(FAILED, refused(&on, &on.admin, "create_task", keyed("k"))).await.unwrap();
    assert_eq!(error.code(), Code::StoreUnavailable);

    proxy.set(Mode::Pass);
    proxy.cut();
    assert!(!done(on.call(&on.admin, "create_task", keyed("k")).await).replay, "nothing was done before");
}

#[tokio::test]
async fn a_killed_server_loses_nothing_it_acknowledged_and_doubles_nothing() {
    const CALLS: usize = 300;
    let cluster = Postgres::start_with(Options { fsync: true }).unwrap();
    let database = cluster.database().await.unwrap();
    let on = stores::open_postgres_in(database, |options| options.retry_for = PATIENT).await.unwrap();

    let answered = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&answered);
    let killer = tokio::task::spawn_blocking(move || {
        while counter.load(Ordering::Relaxed) < CALLS / 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        cluster.kill9().unwrap();
        cluster.restart().unwrap();
        cluster
    });
    let keys: Vec<_> = (0..CALLS).map(|number| format!("k{number}")).collect();
    let create = async |key: &String| {
        let answer = on.call(&on.admin, "create_task", keyed(key)).await;
        answered.fetch_add(1, Ordering::Relaxed);
        answer
    };
    let first = timeout(FAILED, join_all(keys.iter().map(create))).await.unwrap();
    let _cluster = timeout(FAILED, killer).await.unwrap().unwrap();
    let failed: Vec<_> = first.iter().filter_map(|answer| answer.as_ref().err()).map(Error::code).collect();
    println!("{} of {CALLS} calls failed", failed.len());
    // On a slow machine the restart takes longer than a call waits for its turn.
    let honest = [Code::Unavailable, Code::StoreUnavailable, Code::Overloaded];
    assert!(failed.iter().all(|code| honest.contains(code)), "{failed:?}");

    for (key, first) in keys.iter().zip(&first) {
        let again = done(on.call(&on.admin, "create_task", keyed(key)).await);
        if let Ok(first) = first {
            assert_eq!((&again.json["task_id"], again.replay), (&first.json["task_id"], true), "{key} was lost");
        }
    }
    let (tasks, receipts) =
        (on.count("SELECT count(*) FROM tasks").await, on.count("SELECT count(*) FROM receipts").await);
    assert_eq!((tasks.unwrap(), receipts.unwrap()), (CALLS as i64, CALLS as i64));
}

#[tokio::test]
async fn a_node_begins_no_earlier_than_any_node_before_it() {
    let on = stores::open_postgres_with(|options| options.clock_interval = Duration::from_millis(5)).await.unwrap();
    let written = async || on.rows("SELECT clock_us FROM meta").await.unwrap()[0].int(0).unwrap();
    let began = Instant::now();
    while written().await == 0 {
        assert!(began.elapsed() < FAILED, "nobody writes the time down");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // As if the database's clock had been a day ahead, and was set right while nobody ran.
    let ahead = on.store.now().after(Duration::from_secs(86_400));
    on.write(&format!("UPDATE meta SET clock_us = {}", ahead.micros())).await.unwrap();
    let later = on.second_node(|_| {}).await.unwrap();
    assert!(later.now() >= ahead, "{} is before {ahead}", later.now());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(written().await >= ahead.micros(), "a node that is behind has turned it back");
}
