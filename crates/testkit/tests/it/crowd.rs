//! A crowd that waits for few things: announced for later, they cost a few runs and not one for each who waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, OperationSpec, Result, Role, Scope, Tenant, Time};
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Until, Wait};
use waybill_testkit::stores::{self, TestStore};

const CROWD: usize = 3_000;
/// There from the same time on.
const FEW: i64 = 5;
/// At the announcement and when the time has come, together.
const RUNS_MAX: usize = 10;
const PATIENCE: Duration = Duration::from_secs(15);

/// Things that are there to be taken from a time on, and how often somebody has looked for them.
#[derive(Debug, Default)]
struct Things {
    from: AtomicI64,
    left: AtomicI64,
    looks: AtomicUsize,
}

impl Things {
    fn due(&self) -> Option<Time> {
        (self.left.load(Ordering::Acquire) > 0).then(|| Time::from_micros(self.from.load(Ordering::Relaxed)))
    }

    /// False when somebody was quicker.
    fn take(&self) -> bool {
        self.left.fetch_sub(1, Ordering::Relaxed) > 0
    }

    fn put(&self, things: i64, from: Time) {
        self.from.store(from.micros(), Ordering::Relaxed);
        self.left.store(things, Ordering::Release);
    }
}

fn topic() -> Topic {
    Topic::new("crowd", Tenant::DEFAULT, b"things")
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
    things: Arc<Things>,
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
        self.things.looks.fetch_add(1, Ordering::Relaxed);
        if self.things.due().is_some_and(|due| due <= ctx.now) && self.things.take() {
            return Ok(Reply::Done(Taken(true)));
        }
        let until = Until { due: self.things.due(), ..Until::default() };
        Ok(Reply::Empty { answer: Taken(false), until })
    }
}

/// Puts so many things there for a second later.
#[derive(Deserialize, JsonSchema)]
struct Put {
    count: i64,
    #[serde(skip)]
    #[schemars(skip)]
    things: Arc<Things>,
}

impl Operation for Put {
    const SPEC: OperationSpec = SPEC;
    type Output = Taken;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Taken>> {
        let from = ctx.now.after(Duration::from_secs(1));
        self.things.put(self.count, from);
        tx.wake_at(topic(), ctx.now, from);
        Ok(Reply::Done(Taken(false)))
    }
}

async fn as_many_of_a_crowd_are_woken(on: TestStore, count: i64) {
    let things = Arc::<Things>::default();
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        let (store, admin, things) = (on.store.clone(), on.admin.clone(), Arc::clone(&things));
        crowd.spawn(async move { store.run(Take { things }, admin).await });
    }
    while things.looks.load(Ordering::Relaxed) < CROWD {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    things.looks.store(0, Ordering::Relaxed);
    on.store.run(Put { count, things: Arc::clone(&things) }, on.admin.clone()).await.unwrap();
    on.time.pass(Duration::from_secs(2));
    for _ in 0..count {
        let next = tokio::time::timeout(PATIENCE, crowd.join_next()).await.unwrap();
        assert!(matches!(next, Some(Ok(Ok(Reply::Done(Taken(true)))))));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let looks = things.looks.load(Ordering::Relaxed);
    assert!(looks <= RUNS_MAX, "{looks} runs for {count} things");
    on.store.stop_waiting();
    while crowd.join_next().await.is_some() {}
}

#[tokio::test]
async fn on_sqlite() {
    for count in [1, FEW] {
        as_many_of_a_crowd_are_woken(stores::open_sqlite().await.unwrap(), count).await;
    }
}

#[tokio::test]
async fn on_postgres() {
    for count in [1, FEW] {
        // The poll that stands behind every wait would be counted with the rest.
        as_many_of_a_crowd_are_woken(stores::open_postgres_unpolled().await.unwrap(), count).await;
    }
}
