//! Random histories of the operations against a small model of what they promise, the same histories on both engines.
//!
//! Every answer is predicted whole, ids and times included, and after every step the ledger is compared. A failed
//! history is shrunk to the steps that matter.
//!
//! | concern | file |
//! |---|---|
//! | who calls, and what they may see | `people.rs` |
//! | the model: tasks, receipts, cursors | `reference.rs` |
//! | an operation: its inputs and its prediction | `calls/<name>.rs`, one line each in the table of `calls/mod.rs` |
//! | names for ids and times that only the store knows | `names.rs` |
//! | the real store | `actual.rs` |
//!
//! A new operation is a file in `calls/` and its line in the table.

mod actual;
mod calls;
mod names;
mod people;
mod reference;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use proptest_state_machine::ReferenceStateMachine;
use waybill_kernel::Door;
use waybill_testkit::stores::{self, TestStore};

use actual::Actual;
use calls::{Call, ListTasks};
use people::Who;
use reference::{Answer, Transition, World};

/// Histories per engine, and steps per history. `WAYBILL_MODEL_CASES` asks for more.
const CASES: u32 = 256;
const STEPS_MAX: usize = 40;
const SHRINKS_MAX: u32 = 2_000;
/// `WAYBILL_MODEL_SEED` chooses other histories.
const SEED: u64 = 0x77_6179_6269_6c6c;

/// Operations of the tasks door that the model leaves out, with the reason.
const OUTSIDE: &[(&str, &str)] = &[
    ("lease_next", "leases are not modelled yet"),
    ("renew_lease", "leases are not modelled yet"),
    ("report_progress", "leases are not modelled yet"),
    ("complete", "leases are not modelled yet"),
    ("fail", "leases are not modelled yet"),
    ("list_open_obligations", "receipts are compared row by row after each step"),
    ("list_receipts", "receipts are compared row by row after each step"),
    ("get_receipt", "receipts are compared row by row after each step"),
    ("ack_receipt", "receipts are compared row by row after each step"),
    ("get_config", "it depends on nothing"),
    ("bootstrap", "deprecated"),
];

#[test]
fn sqlite_does_what_the_model_says() {
    compare(stores::open_sqlite());
}

#[test]
fn postgres_does_what_the_model_says() {
    compare(stores::open_postgres());
}

#[test]
fn every_operation_of_the_tasks_door_is_in_the_model() {
    let registry = stores::registry();
    let wanted = registry.entries().map(|entry| entry.spec()).filter(|spec| spec.door == Door::Tasks);
    let outside = OUTSIDE.iter().map(|(name, _)| *name);
    let covered: Vec<&str> = Call::NAMES.iter().copied().chain(outside).collect();
    let gaps = stores::uncovered(wanted.map(|spec| spec.name), &covered);
    assert!(gaps.is_empty(), "{gaps:?}");
}

/// A model that never meets an answer says nothing about it.
#[test]
fn histories_meet_every_kind_of_answer() {
    let met = RefCell::new(BTreeSet::new());
    let mut runner = TestRunner::new_with_rng(config(CASES), rng(SEED));
    let outcome = runner.run(&World::sequential_strategy(1..STEPS_MAX), |(world, steps, _)| {
        steps.iter().fold(world, |world, step| {
            let world = World::apply(world, step);
            met.borrow_mut().extend(kind(step, &world.answer));
            world
        });
        Ok(())
    });
    outcome.unwrap();
    let expected = [
        "cancel_task: done",
        "cancel_task: forbidden",
        "cancel_task: not_found",
        "cancel_task: nothing to do",
        "create_task: done",
        "create_task: invalid_request",
        "create_task: replayed",
        "get_task: done",
        "get_task: forbidden",
        "get_task: not_found",
        "list_tasks: continued",
        "list_tasks: done",
        "list_tasks: forbidden",
        "list_tasks: invalid_cursor",
        "list_tasks: invalid_request",
        "list_tasks: more follows",
    ];
    assert_eq!(met.into_inner().iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

fn kind(step: &Transition, answer: &Answer) -> Option<String> {
    let Transition::Call(_, call) = step else { return None };
    let continued = matches!(call, Call::ListTasks(list) if list.cursor.is_some());
    let kind = match answer {
        Answer::Nothing => return None,
        Answer::Refused(code) => code.to_string(),
        Answer::Given { replay: true, .. } => "replayed".to_owned(),
        Answer::Given { body, .. } if body["ok"] == false => "nothing to do".to_owned(),
        Answer::Given { .. } if continued => "continued".to_owned(),
        Answer::Given { body, .. } if body.get("next_cursor").is_some() => "more follows".to_owned(),
        Answer::Given { .. } => "done".to_owned(),
    };
    Some(format!("{}: {kind}", call.name()))
}

fn config(cases: u32) -> Config {
    Config { cases, max_shrink_iters: SHRINKS_MAX, failure_persistence: None, verbose: 0, ..Config::default() }
}

fn compare(opening: impl Future<Output = anyhow::Result<TestStore>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let on = runtime.block_on(opening).unwrap();
    let (seed, cases) = (from_environment("WAYBILL_MODEL_SEED", SEED), from_environment("WAYBILL_MODEL_CASES", CASES));
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
    let world = World::apply(world, step);
    actual.take(&world, step).await?;
    actual.compare_ledger(&world).await?;
    Ok(world)
}

/// At the end of a history every caller's list is read to its end, by pages so small that there are several.
async fn read_everything(mut world: World, actual: &mut Actual<'_>) -> anyhow::Result<()> {
    for who in Who::ALL {
        let mut list = ListTasks { limit: Some(2), ..ListTasks::default() };
        loop {
            let cursors = world.cursors.len();
            world = play(world, &Transition::Call(who, Call::ListTasks(list.clone())), actual).await?;
            if world.cursors.len() == cursors {
                break;
            }
            list.cursor = Some(cursors);
        }
    }
    Ok(())
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
                let _ = writeln!(text, "  {number}: {step:?}");
            }
            text
        }
    }
}
