//! Random histories of the operations against a small model of what they promise, the same histories on both engines.
//!
//! Every answer is predicted whole, ids and times included, and after every step the ledger and who holds which task are
//! compared. A failed history is shrunk to the steps that matter.
//!
//! | concern | file |
//! |---|---|
//! | who calls, and what they may see | `people.rs` |
//! | the model: its steps, its time | `reference.rs` |
//! | the states of tasks, leases, the sweep | `tasks.rs` |
//! | receipts and the lists of them | `receipts.rs` |
//! | an operation: its inputs and its prediction | `calls/<name>.rs`, one line each in the table of `calls/mod.rs` |
//! | what a worker says in each of its calls | `calls/held.rs` |
//! | names for ids and times that only the store knows | `names.rs` |
//! | the real store | `actual.rs` |
//!
//! A new operation is a file in `calls/` and its line in the table.

mod actual;
mod calls;
mod names;
mod people;
mod receipts;
mod reference;
mod tasks;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use proptest_state_machine::ReferenceStateMachine;
use serde_json::Value as Json;
use waybill_testkit::stores::{self, TestStore};

use actual::Actual;
use calls::{Call, ListOpenObligations, ListReceipts, ListTasks};
use people::{ALL, ASKERS, Who};
use receipts::Receipt;
use reference::{Answer, Transition, World};

/// Histories, of which PostgreSQL plays fewer because each step costs it more, and steps per history.
/// `WAYBILL_MODEL_CASES` asks for more of both.
const CASES: u32 = 90;
const CASES_POSTGRES: u32 = 30;
const STEPS_MAX: usize = 80;
const SHRINKS_MAX: u32 = 2_000;
/// Receipts per page when all are read at the end of a history.
const READ_LIMIT: usize = 4;
/// `WAYBILL_MODEL_SEED` chooses other histories.
const SEED: u64 = 0x77_6179_6269_6c6c;

/// Operations of the tasks door that the model leaves out, with the reason.
const OUTSIDE: &[(&str, &str)] = &[];

#[test]
fn sqlite_does_what_the_model_says() {
    compare(stores::open_sqlite(), CASES);
}

#[test]
fn postgres_does_what_the_model_says() {
    // The clock is the model's: drawn back to the database's it would pass fewer seconds than it is told.
    compare(stores::open_postgres_with(|options| options.clock_interval = Duration::MAX), CASES_POSTGRES);
}

#[test]
fn every_operation_of_the_tasks_door_is_in_the_model() {
    let registry = waybill_domains::registry();
    let wanted = registry.entries().map(|entry| entry.spec()).filter(|spec| spec.domain == "tasks");
    let outside = OUTSIDE.iter().map(|(name, _)| *name);
    let covered: Vec<&str> = Call::NAMES.iter().copied().chain(outside).collect();
    let gaps = stores::uncovered(wanted.map(|spec| spec.name), &covered);
    assert!(gaps.is_empty(), "{gaps:?}");
}

/// A model that never meets an answer says nothing about it.
#[test]
fn histories_meet_every_kind_of_answer() {
    let met = RefCell::new(BTreeMap::<&str, BTreeSet<String>>::new());
    let meet = |of: &'static str, kind: String| {
        met.borrow_mut().entry(of).or_default().insert(kind);
    };
    let mut runner = TestRunner::new_with_rng(config(CASES), rng(SEED));
    let outcome = runner.run(&World::sequential_strategy(1..STEPS_MAX), |(world, steps, _)| {
        let world = steps.iter().fold(world, |world, step| {
            let world = World::apply(world, step);
            if let Transition::Call(_, call) = step {
                meet(call.name(), kind(call, &world.answer));
            }
            world
        });
        world.receipts.iter().for_each(|receipt| meet("receipts", proof(&world, receipt)));
        Ok(())
    });
    outcome.unwrap();
    let met: Vec<String> = met
        .take()
        .iter()
        .map(|(of, kinds)| format!("{of}: {}", kinds.iter().map(String::as_str).collect::<Vec<_>>().join(" ")))
        .collect();
    assert_eq!(met, KINDS, "met: {met:#?}");
}

const KINDS: [&str; 16] = [
    "ack_receipt: done forbidden not_found replayed",
    "bootstrap: continued done forbidden invalid_cursor invalid_request",
    "cancel_task: done forbidden not_found nothing",
    "complete: INVALID_STATE_TRANSITION LEASE_INVALID_OR_EXPIRED done forbidden invalid_request not_found replayed",
    "create_task: done forbidden invalid_request replayed",
    "fail: INVALID_STATE_TRANSITION LEASE_INVALID_OR_EXPIRED done forbidden not_found replayed requeued",
    "get_config: done",
    "get_receipt: done forbidden not_found",
    "get_task: done forbidden not_found",
    "lease_next: done forbidden invalid_request nothing several",
    "list_open_obligations: continued done forbidden invalid_cursor invalid_request",
    "list_receipts: continued done forbidden invalid_cursor invalid_request more not_found",
    "list_tasks: continued done forbidden invalid_cursor invalid_request more",
    "receipts: lease.expired receipt.acknowledged system.anomaly/locatability_missing task.accepted task.assigned \
     task.canceled task.completed task.completed/repaired task.completed/unlocated task.failed task.progress \
     task.result_ready task.retry_scheduled",
    "renew_lease: LEASE_INVALID_OR_EXPIRED done forbidden invalid_request not_found",
    "report_progress: LEASE_INVALID_OR_EXPIRED done forbidden not_found",
];

/// What a call was answered with.
fn kind(call: &Call, answer: &Answer) -> String {
    let (body, kind) = match answer {
        Answer::Nothing => (&Json::Null, "nothing"),
        Answer::Refused(code) => return code.to_string(),
        Answer::Given { body, replay: true } => (body, "replayed"),
        Answer::Given { body, .. } => (body, "done"),
    };
    let continued = ["cursor", "since_receipt_id"].iter().any(|field| call.input().get(field).is_some());
    let claimed = body["tasks"].as_array().filter(|_| matches!(call, Call::LeaseNext(_))).map(Vec::len);
    let kind = match claimed {
        Some(0) => "nothing",
        Some(2..) => "several",
        _ if body["ok"] == false => "nothing",
        _ if body["requeued"] == true && kind == "done" => "requeued",
        _ if continued => "continued",
        _ if body.get("next_cursor").is_some() => "more",
        _ => kind,
    };
    kind.to_owned()
}

/// What a receipt is of.
fn proof(world: &World, receipt: &Receipt) -> String {
    let unlocated =
        |other: &Receipt| other.kind == "task.completed" && other.task == receipt.task && other.parent.is_none();
    match (receipt.kind, receipt.parent) {
        ("task.completed", None) => "task.completed/unlocated".to_owned(),
        ("task.completed", Some(_)) if world.receipts.iter().any(unlocated) => "task.completed/repaired".to_owned(),
        ("system.anomaly", _) => format!("system.anomaly/{}", receipt.body["kind"].as_str().unwrap()),
        (kind, _) => kind.to_owned(),
    }
}

fn config(cases: u32) -> Config {
    Config { cases, max_shrink_iters: SHRINKS_MAX, failure_persistence: None, verbose: 0, ..Config::default() }
}

fn compare(opening: impl Future<Output = anyhow::Result<TestStore>>, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let on = runtime.block_on(opening).unwrap();
    let (seed, cases) = (from_environment("WAYBILL_MODEL_SEED", SEED), from_environment("WAYBILL_MODEL_CASES", cases));
    let mut runner = TestRunner::new_with_rng(config(cases), rng(seed));
    let played = Cell::new(0);
    let outcome = runner.run(&World::sequential_strategy(1..STEPS_MAX), |(world, steps, seen)| {
        let number = played.replace(played.get() + 1);
        let history = async {
            let mut actual = Actual::new(&on, number).await?;
            let mut world = world;
            for step in steps {
                if let Some(seen) = &seen {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                world = play(world, &step, &mut actual).await?;
            }
            read_everything(world, &mut actual).await
        };
        runtime.block_on(history).map_err(|error: anyhow::Error| TestCaseError::fail(format!("{error:#}")))
    });
    // What the store runs in the background belongs to the runtime: it goes first.
    runtime.block_on(async { drop(on) });
    if let Err(error) = outcome {
        panic!("{}", told(&error, seed));
    }
}

/// One step in the model and in the store; both must end up the same.
async fn play(world: World, step: &Transition, actual: &mut Actual<'_>) -> anyhow::Result<World> {
    let mut world = World::apply(world, step);
    actual.take(&world, step).await?;
    actual.compare(&mut world, step).await?;
    Ok(world)
}

/// At the end of a history every caller's lists are read to their ends, by pages so small that there are several.
async fn read_everything(mut world: World, actual: &mut Actual<'_>) -> anyhow::Result<()> {
    for who in ASKERS {
        let mut list = ListTasks { limit: Some(2), ..ListTasks::default() };
        loop {
            let cursors = world.cursors.len();
            world = look(world, who, Call::ListTasks(list.clone()), actual).await?;
            if world.cursors.len() == cursors {
                break;
            }
            list.cursor = Some(cursors);
        }
    }
    for who in ALL {
        let (tenant, own) = (who.tenant(), who.principal());
        let addressed = |number: &usize| world.receipt_of(tenant, *number).is_some_and(|receipt| receipt.to == own);
        let inbox: Vec<usize> = (0..world.receipts.len()).filter(addressed).collect();
        for since in pages(&inbox) {
            let list = ListReceipts { since, limit: Some(READ_LIMIT), ..ListReceipts::default() };
            world = look(world, who, Call::ListReceipts(list), actual).await?;
        }
        let open: Vec<usize> = inbox.into_iter().filter(|number| world.receipts[*number].open).collect();
        for since in pages(&open) {
            let list = ListOpenObligations { since, limit: Some(READ_LIMIT), of: None };
            world = look(world, who, Call::ListOpenObligations(list), actual).await?;
        }
    }
    actual.compare(&mut world, &Transition::Pass(0)).await
}

/// Where the pages of a list begin, and its end.
fn pages(list: &[usize]) -> Vec<Option<usize>> {
    let ends = list.chunks(READ_LIMIT).filter_map(|page| page.last().copied());
    [None].into_iter().chain(ends.map(Some)).collect()
}

/// A step of which the store is not looked through afterwards.
async fn look(world: World, who: Who, call: Call, actual: &mut Actual<'_>) -> anyhow::Result<World> {
    let step = Transition::Call(who, call);
    let world = World::apply(world, &step);
    actual.take(&world, &step).await?;
    Ok(world)
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

fn from_environment<T: std::str::FromStr>(name: &str, usual: T) -> T {
    let Ok(text) = std::env::var(name) else { return usual };
    text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number"))
}

/// The shortest history found, one step a line.
type History = (World, Vec<Transition>, Option<Arc<AtomicUsize>>);

fn told(error: &TestError<History>, seed: u64) -> String {
    match error {
        TestError::Abort(why) => format!("gave up: {why}"),
        TestError::Fail(why, (_, steps, _)) => {
            let mut text = format!("{why}\nafter {} steps (WAYBILL_MODEL_SEED={seed}):\n", steps.len());
            for (number, step) in steps.iter().enumerate() {
                let _ = writeln!(text, "  {number}: {step}");
            }
            text
        }
    }
}
