//! Whoever brings much to the writer of SQLite, or slow work, waits behind itself and holds nobody else up.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, OperationSpec, Result, Role, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};
use waybill_testkit::stores::{self, TestStore};

/// Longer than a batch goes on taking more.
const SLOW: Duration = Duration::from_millis(15);

#[derive(Default, Deserialize, JsonSchema)]
struct Step {
    #[serde(skip)]
    #[schemars(skip)]
    what: What,
}

#[derive(Clone, Default)]
struct What {
    name: char,
    takes: Duration,
    until: Option<Arc<Mutex<Receiver<()>>>>,
    /// Names, in the order of the runs.
    runs: Arc<Mutex<String>>,
}

#[derive(Serialize, JsonSchema)]
struct Done {}

impl Operation for Step {
    const SPEC: OperationSpec = OperationSpec {
        name: "step",
        domain: "test",
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        ..OperationSpec::WRITE
    };
    type Output = Done;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Done>> {
        const INSERT: &str = "INSERT INTO results (tenant, task_id, outcome, completed_at) VALUES ($1, $2, 'noted', 0)";
        let What { name, takes, until, runs } = &self.what;
        runs.lock().unwrap().push(*name);
        if let Some(until) = until {
            let _ = until.lock().unwrap().recv();
        }
        std::thread::sleep(*takes);
        tx.execute(INSERT, &[Value::from(&ctx.ids.next().as_bytes()[..])]).await?;
        Ok(Reply::Done(Done {}))
    }
}

/// The order in which these are run when they come while the writer is busy. Each is answered.
async fn order(on: &TestStore, steps: &[(char, Duration, Caller)]) -> String {
    let (release, released) = channel();
    let first = What { name: '.', until: Some(Arc::new(Mutex::new(released))), ..What::default() };
    let runs = Arc::clone(&first.runs);
    let (store, admin) = (on.store.clone(), on.admin.clone());
    let busy = tokio::spawn(async move { store.run(Step { what: first }, admin).await.map(drop) });
    while runs.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let calls = steps.iter().map(|(name, takes, caller)| {
        let what = What { name: *name, takes: *takes, until: None, runs: Arc::clone(&runs) };
        on.store.run(Step { what }, caller.clone())
    });
    let let_go = async { release.send(()).unwrap() };
    // All of them are in line with their first poll.
    let (answers, ()) = futures_util::future::join(join_all(calls), let_go).await;
    assert!(answers.iter().all(Result::is_ok));
    busy.await.unwrap().unwrap();
    let order = runs.lock().unwrap().clone();
    order.trim_start_matches('.').to_owned()
}

#[tokio::test]
async fn another_tenant_waits_for_one_slow_call_and_not_for_all() {
    let on = stores::open_sqlite().await.unwrap();
    let other = on.tenant("other").await.unwrap();
    let slow = |name| (name, SLOW, on.admin.clone());
    let steps = [slow('a'), slow('b'), slow('c'), ('x', Duration::ZERO, other.clone()), ('y', Duration::ZERO, other)];
    let order = order(&on, &steps).await;
    let (x, c) = (order.find('x').unwrap(), order.find('c').unwrap());
    assert!(order.len() == 5 && x <= 1 && x < c, "{order}");
    let own: String = order.chars().filter(|name| "abc".contains(*name)).collect();
    assert_eq!(own, "abc");
}

#[tokio::test]
async fn another_caller_of_the_same_tenant_has_its_turn_as_well() {
    let on = stores::open_sqlite().await.unwrap();
    let other = on.agent("other").unwrap();
    let quick = |name: char, caller: &Caller| (name, Duration::ZERO, caller.clone());
    let steps: Vec<_> = "abcdefgh".chars().map(|name| quick(name, &on.admin)).chain([quick('x', &other)]).collect();
    let order = order(&on, &steps).await;
    assert!(order.len() == 9 && order.find('x').unwrap() <= 1, "{order}");
    assert_eq!(order.replace('x', ""), "abcdefgh");
}
