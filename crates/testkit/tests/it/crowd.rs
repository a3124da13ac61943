//! A crowd that waits for one thing: announced for later, it costs a few runs and not one for each who waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, OperationSpec, Result, Role, Scope, Tenant, Time};
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Until, Wait};
use waybill_testkit::stores::{self, TestStore};

const CROWD: usize = 3_000;
/// At the announcement and when the time has come, together.
const RUNS_MAX: usize = 10;
const PATIENCE: Duration = Duration::from_secs(15);

/// One thing, there to be taken from a time on, and how often somebody has looked for it.
#[derive(Debug, Default)]
struct Thing {
    from: AtomicI64,
    looks: AtomicUsize,
}

fn topic() -> Topic {
    Topic::new("crowd", Tenant::DEFAULT, b"thing")
}

const SPEC: OperationSpec = OperationSpec {
    name: "crowd",
    domain: "test",
    roles: &[Role::Admin],
    scopes: &[Scope::AdminWrite],
    ..OperationSpec::WRITE
};

#[derive(Deserialize, JsonSchema)]
struct Take {
    #[serde(skip)]
    #[schemars(skip)]
    thing: Arc<Thing>,
}

#[derive(Serialize, JsonSchema)]
struct Taken(bool);

impl Operation for Take {
    const SPEC: OperationSpec = SPEC;
    type Output = Taken;

    fn wait(&self, _: &Caller) -> Option<Wait> {
        Wait::up_to(20, topic())
    }

    async fn run(&self, ctx: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Taken>> {
        self.thing.looks.fetch_add(1, Ordering::Relaxed);
        let from = self.thing.from.load(Ordering::Relaxed);
        let due = (from > 0).then(|| Time::from_micros(from));
        if due.is_some_and(|due| due <= ctx.now) && self.thing.from.swap(0, Ordering::Relaxed) > 0 {
            return Ok(Reply::Done(Taken(true)));
        }
        Ok(Reply::Empty { answer: Taken(false), until: Until { due, ..Until::default() } })
    }
}

/// Puts the thing there for a second later.
#[derive(Deserialize, JsonSchema)]
struct Put {
    #[serde(skip)]
    #[schemars(skip)]
    thing: Arc<Thing>,
}

impl Operation for Put {
    const SPEC: OperationSpec = SPEC;
    type Output = Taken;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Taken>> {
        let from = ctx.now.after(Duration::from_secs(1));
        self.thing.from.store(from.micros(), Ordering::Relaxed);
        tx.wake_at(topic(), ctx.now, from);
        Ok(Reply::Done(Taken(false)))
    }
}

async fn one_of_a_crowd_is_woken(on: TestStore) {
    let thing = Arc::<Thing>::default();
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        let (store, admin, thing) = (on.store.clone(), on.admin.clone(), Arc::clone(&thing));
        crowd.spawn(async move { store.run(Take { thing }, admin).await });
    }
    while thing.looks.load(Ordering::Relaxed) < CROWD {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    thing.looks.store(0, Ordering::Relaxed);
    on.store.run(Put { thing: Arc::clone(&thing) }, on.admin.clone()).await.unwrap();
    on.time.pass(Duration::from_secs(2));
    let first = tokio::time::timeout(PATIENCE, crowd.join_next()).await.unwrap();
    assert!(matches!(first, Some(Ok(Ok(Reply::Done(Taken(true)))))));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let looks = thing.looks.load(Ordering::Relaxed);
    assert!(looks <= RUNS_MAX, "{looks} runs for one thing");
    on.store.stop_waiting();
    while crowd.join_next().await.is_some() {}
}

#[tokio::test]
async fn on_sqlite() {
    one_of_a_crowd_is_woken(stores::open_sqlite().await.unwrap()).await;
}

#[tokio::test]
async fn on_postgres() {
    // The poll that stands behind every wait would be counted with the rest.
    let patient = |options: &mut waybill_store::PostgresOptions| options.wait_poll = Duration::from_secs(60);
    one_of_a_crowd_is_woken(stores::open_postgres_with(patient).await.unwrap()).await;
}
