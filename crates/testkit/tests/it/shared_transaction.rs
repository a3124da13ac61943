//! Neighbours in one transaction of PostgreSQL: they pay for it together, and what one does wrong the others never notice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, OperationSpec, Result, Role, Scope};
use waybill_store::{Ctx, Operation, Reply, Sharing, Stored, Tx, Value};
use waybill_testkit::stores::{self, TestStore};

/// One carrier, so that whatever comes while it is busy is taken together.
const LANES: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Then {
    #[default]
    End,
    /// Before it has written anything.
    Refuse,
    FailAfterWriting,
    Panic,
    /// What it waits for comes after it has written.
    Wait,
}

/// Writes a row, and then what it is told to.
#[derive(Default, Deserialize, JsonSchema)]
struct Note {
    #[serde(skip)]
    #[schemars(skip)]
    what: What,
}

#[derive(Clone, Default)]
struct What {
    name: &'static str,
    about: Option<&'static str>,
    then: Then,
    /// It waits for this.
    hold: Option<Arc<Semaphore>>,
    /// The first id of every run.
    seen: Arc<Mutex<Vec<Uuid>>>,
}

#[derive(Serialize, JsonSchema)]
struct Noted {}

impl Operation for Note {
    const SPEC: OperationSpec = OperationSpec {
        name: "note",
        domain: "test",
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        ..OperationSpec::WRITE
    };
    type Output = Noted;

    fn sharing(&self) -> Option<Sharing<'_>> {
        let What { about, name, .. } = self.what;
        Some(Sharing { about, order: about.map_or("", |_| name) })
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Noted>> {
        const INSERT: &str = "INSERT INTO results (tenant, task_id, outcome, completed_at) VALUES ($1, $2, 'noted', 0)";
        let What { name, then, hold, seen, .. } = &self.what;
        seen.lock().unwrap().push(ctx.ids.next());
        let waits = async || {
            if let Some(hold) = hold {
                drop(hold.acquire().await);
            }
        };
        if *then != Then::Wait {
            waits().await;
        }
        tx.add(Stored::Rows, 10);
        if *then == Then::Refuse {
            tx.query_opt("SELECT 1 FROM results WHERE tenant = $1 LIMIT 1", &[]).await?;
            return Err(Error::invalid("on purpose"));
        }
        tx.execute(INSERT, &[Value::from(name.as_bytes())]).await?;
        match then {
            Then::FailAfterWriting => Err(Error::new(Code::NotFound, "on purpose")),
            Then::Panic => panic!("on purpose"),
            Then::Wait => {
                waits().await;
                Ok(Reply::Done(Noted {}))
            }
            _ => Ok(Reply::Done(Noted {})),
        }
    }
}

/// The answers of these, which come while another transaction is under way, and how often each was run.
async fn behind_another(
    on: &TestStore,
    first: &'static str,
    notes: &[(&'static str, Then)],
) -> Vec<(Option<Code>, usize)> {
    let first = What { name: first, ..What::default() };
    behind(on, first, notes.iter().map(|&(name, then)| What { name, then, ..What::default() }).collect()).await
}

/// Begins a call that waits, and answers once it has begun.
async fn begin(on: &TestStore, first: What) -> (JoinHandle<Result<()>>, Arc<Semaphore>) {
    let hold = Arc::new(Semaphore::new(0));
    let first = What { hold: Some(Arc::clone(&hold)), ..first };
    let has_begun = Arc::clone(&first.seen);
    let (store, admin) = (on.store.clone(), on.admin.clone());
    let holding = tokio::spawn(async move { store.run(Note { what: first }, admin).await.map(drop) });
    while has_begun.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (holding, hold)
}

async fn behind(on: &TestStore, first: What, all: Vec<What>) -> Vec<(Option<Code>, usize)> {
    let (holding, hold) = begin(on, first).await;
    let calls = all.iter().map(|what| on.store.run(Note { what: what.clone() }, on.admin.clone()));
    let let_go = async { hold.add_permits(1) };
    // All of them are in line with their first poll.
    let (answers, ()) = futures_util::future::join(join_all(calls), let_go).await;
    holding.await.unwrap().unwrap();
    let runs = |what: &What| {
        let seen = what.seen.lock().unwrap();
        assert!(seen.iter().all(|id| *id == seen[0]), "a second run has other ids");
        seen.len()
    };
    answers.iter().zip(&all).map(|(answer, what)| (answer.as_ref().err().map(Error::code), runs(what))).collect()
}

async fn store() -> TestStore {
    stores::open_postgres_with(|options| options.lanes = LANES).await.unwrap()
}

async fn noted(on: &TestStore) -> Vec<String> {
    let rows = on.rows("SELECT task_id FROM results WHERE outcome = 'noted' ORDER BY task_id").await.unwrap();
    rows.iter().map(|row| String::from_utf8_lossy(row.bytes(0).unwrap()).into_owned()).collect()
}

/// Transactions that have written the notes, and the bytes that were counted.
async fn transactions(on: &TestStore) -> [i64; 2] {
    let numbers = "SELECT count(DISTINCT xmin::text) FROM results WHERE outcome = 'noted'";
    let counted = "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM stored_bytes WHERE kind = 'rows'";
    [on.count(numbers).await.unwrap(), on.count(counted).await.unwrap()]
}

#[tokio::test]
async fn what_comes_together_is_one_transaction() {
    let on = store().await;
    let [_, before] = transactions(&on).await;
    let notes = [("a", Then::End), ("b", Then::End), ("refused", Then::Refuse), ("c", Then::End)];
    let answers = behind_another(&on, "first", &notes).await;
    assert_eq!(answers, [(None, 1), (None, 1), (Some(Code::InvalidRequest), 1), (None, 1)]);
    assert_eq!(noted(&on).await, ["a", "b", "c", "first"]);
    let [written_by, counted] = transactions(&on).await;
    assert_eq!((written_by, counted - before), (2, 40), "the first by itself, then all the others");
}

#[tokio::test]
async fn what_one_does_wrong_is_its_own_affair() {
    let on = store().await;
    let [_, before] = transactions(&on).await;
    let notes = [
        ("a", Then::End),
        ("fails", Then::FailAfterWriting),
        ("b", Then::End),
        ("panics", Then::Panic),
        ("refused", Then::Refuse),
        ("c", Then::End),
    ];
    let answers = behind_another(&on, "first", &notes).await;
    let codes: Vec<Option<Code>> = answers.iter().map(|(code, _)| *code).collect();
    let (failed, panicked, refused) = (Some(Code::NotFound), Some(Code::Internal), Some(Code::InvalidRequest));
    assert_eq!(codes, [None, failed, None, panicked, refused, None]);
    assert_eq!(noted(&on).await, ["a", "b", "c", "first"]);
    assert_eq!(transactions(&on).await[1] - before, 40);
    // The carrier is still there.
    assert_eq!(behind_another(&on, "next", &[("d", Then::End)]).await.len(), 1);
}

#[tokio::test]
async fn tenants_do_not_share() {
    let on = store().await;
    let make = |key: &str| on.call(&on.admin, "create_task", json!({ "type": "t", "idempotency_key": key }));
    let elsewhere = on.tenant("elsewhere").await.unwrap();
    let calls = (0..8).map(|n| {
        let caller = if n % 2 == 0 { on.admin.clone() } else { elsewhere.clone() };
        on.store.run(Note { what: What { name: NAMES[n], ..What::default() } }, caller)
    });
    assert!(join_all(calls).await.iter().all(std::result::Result::is_ok));
    let mixed =
        "SELECT count(*) FROM (SELECT xmin::text FROM results GROUP BY 1 HAVING count(DISTINCT tenant) > 1) mixed";
    assert_eq!(on.count(mixed).await.unwrap(), 0);
    // A real operation: the second call with a key is answered as the first was, whether or not they meet.
    let answers = join_all((0..16).map(|n| make(["one", "two"][n % 2]))).await;
    let fresh = answers.iter().filter(|answer| !answer.as_ref().unwrap().replay).count();
    assert_eq!((fresh, on.count("SELECT count(*) FROM tasks").await.unwrap()), (2, 2));
}

#[tokio::test]
async fn calls_about_one_thing_share_in_the_order_they_ask_for() {
    let on = store().await;
    let about = |thing, name| What { name, about: Some(thing), ..What::default() };
    let all = vec![about("x", "c"), about("y", "e"), about("x", "a"), about("y", "d"), about("x", "b")];
    let answers = behind(&on, What { name: "first", ..What::default() }, all).await;
    assert!(answers.iter().all(|answer| *answer == (None, 1)), "{answers:?}");
    assert_eq!(transactions(&on).await[0], 3, "the first, those about x, those about y");
    // As they were written.
    let rows = on.rows("SELECT task_id FROM results WHERE outcome = 'noted' ORDER BY ctid").await.unwrap();
    let names: String = rows.iter().map(|row| String::from_utf8_lossy(row.bytes(0).unwrap()).into_owned()).collect();
    assert_eq!(names, "firstabcde");
}

#[tokio::test]
async fn who_waits_for_a_lock_keeps_no_neighbour_waiting() {
    // Two carriers.
    let on = stores::open_postgres_with(|options| options.lanes = 2 * LANES).await.unwrap();
    // It holds a key that is not there yet: whoever writes the same waits for it.
    let (holding, hold) = begin(&on, What { name: "same", then: Then::Wait, ..What::default() }).await;
    let note = |name| on.store.run(Note { what: What { name, ..What::default() } }, on.admin.clone());
    let mut same = Box::pin(note("same"));
    let others = join_all(["a", "b", "c"].map(note));
    let others = tokio::select! {
        others = others => others,
        _ = &mut same => panic!("the key is held"),
        () = tokio::time::sleep(Duration::from_secs(30)) => panic!("others wait for a lock that they do not want"),
    };
    assert!(others.iter().all(std::result::Result::is_ok));
    hold.add_permits(1);
    holding.await.unwrap().unwrap();
    assert!(same.await.is_err(), "the key was free");
    assert_eq!(noted(&on).await, ["a", "b", "c", "same"]);
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
