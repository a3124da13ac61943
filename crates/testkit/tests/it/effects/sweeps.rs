use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use waybill_access::Settings;
use waybill_access::sweeps::EndedKeys;
use waybill_kernel::{Code, Error, Result};
use waybill_store::effects::{BATCH_PAUSE, Holder, Plan, Progress, Run, Runner, Sweep, sweep_once};
use waybill_store::{Ctx, Tx, Value};
use waybill_testkit::stores::TestStore;

use super::{Notes, notes};
use crate::support::{ok, text};

waybill_testkit::both! {
    a_run_ends_with_the_first_batch_that_is_not_full,
    others_have_their_turn_between_two_batches,
    a_run_whose_time_is_up_leaves_the_rest_for_soon,
    after_a_batch_that_took_long_the_next_is_half_as_large,
    how_long_a_sweep_has_been_behind_is_told_until_it_keeps_up,
    a_sweep_is_not_run_before_it_is_due,
    a_sweep_that_finds_nothing_writes_nothing,
    a_quiet_sweep_that_was_claimed_meanwhile_changes_nothing,
    a_node_takes_over_when_the_lease_ends_and_the_old_one_changes_nothing,
    a_failed_batch_leaves_nothing_but_its_reason,
    the_runner_sweeps_until_it_is_stopped,
    keys_are_kept_for_as_long_as_is_said_and_then_removed,
}

const INTERVAL: Duration = Duration::from_secs(60);

/// Takes notes away.
struct TakeNotes {
    plan: Plan,
    /// How long the writer is held.
    takes: Duration,
    fails: AtomicBool,
}

impl TakeNotes {
    fn by(batch: i64) -> Self {
        // Long enough for a machine that is busy with everything else.
        let slow = Duration::from_secs(60);
        let plan = Plan { batch, batch_time: slow, run_time: slow, ..Plan::every(INTERVAL) };
        Self { plan, takes: Duration::ZERO, fails: AtomicBool::new(false) }
    }
}

impl Sweep for TakeNotes {
    const NAME: &'static str = "test.notes";

    fn plan(&self) -> Plan {
        self.plan
    }

    async fn run_batch(&self, _: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const TAKE: &str =
            "DELETE FROM results WHERE task_id IN (SELECT task_id FROM results ORDER BY task_id LIMIT $1)";
        std::thread::sleep(self.takes);
        let taken = tx.execute(TAKE, &[Value::from(limit)]).await?;
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::new(Code::Overloaded, "On purpose.").because("a secret"));
        }
        Ok(taken)
    }
}

async fn a_run_ends_with_the_first_batch_that_is_not_full(on: TestStore) {
    let (sweep, holder) = (Arc::new(TakeNotes::by(4)), Holder::new(&on.store));
    for (written, batches) in [(10, 3), (0, 1), (8, 3), (3, 1)] {
        on.store.system().run(Notes(written)).await.unwrap();
        let report = sweep_once(&on.store, &sweep, holder).await.unwrap();
        assert_eq!((report.progress, report.rows), (Progress::Ended { more: false }, u64::from(written)));
        assert_eq!(report.batches, batches);
        let wait = report.next.since(on.store.now());
        assert!(wait <= INTERVAL && wait >= INTERVAL.mul_f64(0.79), "{wait:?}");
    }
    let row = on.rows("SELECT last_rows, total_rows, fence, failures, lease_until FROM sweeps").await.unwrap();
    let row: Vec<_> = (0..5).map(|column| row[0].int(column).unwrap()).collect();
    assert_eq!(row, [3, 21, 4, 0, 0], "rows, all rows, claims, failures, and the lease given back");
}

async fn others_have_their_turn_between_two_batches(on: TestStore) {
    on.store.system().run(Notes(9)).await.unwrap();
    let began = Instant::now();
    let report = sweep_once(&on.store, &Arc::new(TakeNotes::by(2)), Holder::new(&on.store)).await.unwrap();
    assert_eq!(report.batches, 5);
    assert!(began.elapsed() >= BATCH_PAUSE * 4, "one batch came right after the other");
}

async fn a_run_whose_time_is_up_leaves_the_rest_for_soon(on: TestStore) {
    let mut sweep = TakeNotes::by(4);
    sweep.plan.run_time = Duration::ZERO;
    on.store.system().run(Notes(10)).await.unwrap();
    let report = sweep_once(&on.store, &Arc::new(sweep), Holder::new(&on.store)).await.unwrap();
    assert_eq!((report.progress, report.rows), (Progress::Ended { more: true }, 4));
    assert!(report.next.since(on.store.now()) <= INTERVAL / 10);
    assert_eq!(notes(&on).await, 6);
}

async fn how_long_a_sweep_has_been_behind_is_told_until_it_keeps_up(on: TestStore) {
    let mut sweep = TakeNotes::by(4);
    sweep.plan.run_time = Duration::ZERO;
    let (sweep, holder) = (Arc::new(sweep), Holder::new(&on.store));
    on.store.system().run(Notes(10)).await.unwrap();
    // Two runs that leave something, a minute apart, and one that does not.
    for behind_s in [60, 120, 0] {
        sweep_once(&on.store, &sweep, holder).await.unwrap();
        on.time.pass(Duration::from_secs(60));
        let shown = ok(&on, &on.admin, "list_sweeps", json!({})).await["sweeps"][0]["behind_ms"].as_i64().unwrap();
        // The clock has run a little ahead by being read, and is drawn back as time passes.
        assert!((behind_s * 1000 - shown).abs() < 1000, "{shown} and not {behind_s}");
    }
}

async fn after_a_batch_that_took_long_the_next_is_half_as_large(on: TestStore) {
    let mut sweep = TakeNotes::by(4);
    (sweep.takes, sweep.plan.batch_time) = (Duration::from_millis(3), Duration::from_millis(1));
    on.store.system().run(Notes(9)).await.unwrap();
    let sweep = Arc::new(sweep);
    let mut run = Run::new(&on.store, &sweep, Holder::new(&on.store));
    for left in [5, 3, 2, 1] {
        assert_eq!(run.step().await.unwrap(), Progress::Going);
        assert_eq!(notes(&on).await, left);
    }
}

/// The clock runs ahead of its source by as much as it was asked in one moment.
const PAST: Duration = INTERVAL.saturating_add(Duration::from_millis(1));

async fn a_sweep_is_not_run_before_it_is_due(on: TestStore) {
    let (sweep, holder) = (Arc::new(TakeNotes::by(4)), Holder::new(&on.store));
    let first = Run::new(&on.store, &sweep, holder).to_end(&Default::default()).await.unwrap();
    assert_eq!(first.progress, Progress::Ended { more: false });
    on.store.system().run(Notes(1)).await.unwrap();
    // Neither for the same node nor for another.
    for holder in [holder, Holder::new(&on.store)] {
        let Progress::NotNow { until } = Run::new(&on.store, &sweep, holder).step().await.unwrap() else {
            panic!("it was run")
        };
        assert!(until >= first.next && until <= on.store.now().after(INTERVAL), "{until} and {}", first.next);
    }
    assert_eq!(notes(&on).await, 1);
    on.time.pass(PAST);
    let due = Run::new(&on.store, &sweep, Holder::new(&on.store)).to_end(&Default::default()).await.unwrap();
    assert_eq!((due.progress, due.rows), (Progress::Ended { more: false }, 1));
}

async fn a_sweep_that_finds_nothing_writes_nothing(on: TestStore) {
    let (sweep, holder) = (Arc::new(TakeNotes::by(4)), Holder::new(&on.store));
    let run = async || Run::new(&on.store, &sweep, holder).to_end(&Default::default()).await.unwrap();
    let claims = async || on.count("SELECT fence FROM sweeps").await.unwrap();
    // On PostgreSQL the sequence stays as it is, whatever is committed.
    let commits = async || on.count("SELECT commit_seq FROM meta").await.unwrap();
    run().await;
    let before = (claims().await, commits().await);
    for _ in 0..4 {
        on.time.pass(PAST);
        let report = run().await;
        assert_eq!((report.progress, report.rows, report.batches), (Progress::Ended { more: false }, 0, 1));
        assert_eq!((claims().await, commits().await), before);
    }
    on.time.pass(INTERVAL + Duration::from_secs(1));
    run().await;
    assert_eq!(claims().await, before.0 + 1, "somebody who looks at the row must see that it is looked after");

    on.time.pass(PAST);
    on.store.system().run(Notes(9)).await.unwrap();
    let report = run().await;
    assert_eq!((report.rows, report.batches, notes(&on).await), (9, 3, 0), "it is not found later than in an interval");
    assert_eq!(claims().await, before.0 + 2);
    let soon = on.count("SELECT next_at - last_finished FROM sweeps").await.unwrap();
    assert!(Duration::from_micros(soon.unsigned_abs()) <= INTERVAL, "it is quiet although it has found something");
}

/// Takes notes away, and has the sweep's row claimed by another node before it is done.
struct Overtaken(TakeNotes);

impl Sweep for Overtaken {
    const NAME: &'static str = "test.notes";

    fn plan(&self) -> Plan {
        self.0.plan
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        let taken = self.0.run_batch(ctx, tx, limit).await?;
        tx.execute("UPDATE sweeps SET fence = fence + 1 WHERE name = 'test.notes'", &[]).await?;
        Ok(taken)
    }
}

async fn a_quiet_sweep_that_was_claimed_meanwhile_changes_nothing(on: TestStore) {
    let holder = Holder::new(&on.store);
    sweep_once(&on.store, &Arc::new(TakeNotes::by(4)), holder).await.unwrap();
    on.time.pass(PAST);
    on.store.system().run(Notes(3)).await.unwrap();
    let overtaken = Arc::new(Overtaken(TakeNotes::by(4)));
    let progress = Run::new(&on.store, &overtaken, holder).step().await.unwrap();
    assert_eq!((progress, notes(&on).await), (Progress::Superseded, 3));
    assert_eq!(on.count("SELECT failures FROM sweeps").await.unwrap(), 0, "it is no failure");
}

async fn a_node_takes_over_when_the_lease_ends_and_the_old_one_changes_nothing(on: TestStore) {
    let sweep = Arc::new(TakeNotes::by(2));
    let (old, new) = (Holder::new(&on.store), Holder::new(&on.store));
    on.store.system().run(Notes(9)).await.unwrap();
    let mut paused = Run::new(&on.store, &sweep, old);
    assert_eq!(paused.step().await.unwrap(), Progress::Going);

    let mut other = Run::new(&on.store, &sweep, new);
    let Progress::NotNow { until } = other.step().await.unwrap() else { panic!("two nodes have the same sweep") };
    assert!(until > on.store.now());
    on.time.pass(Holder::LEASE + Duration::from_secs(1));
    assert_eq!(other.step().await.unwrap(), Progress::Going);
    assert_eq!(notes(&on).await, 5);

    assert_eq!(paused.step().await.unwrap(), Progress::Superseded);
    assert_eq!(notes(&on).await, 5, "the node that slept through its lease has changed something");
    let end = other.to_end(&Default::default()).await.unwrap();
    assert_eq!((end.progress, end.rows, notes(&on).await), (Progress::Ended { more: false }, 7, 0));
    let row = on.rows("SELECT last_rows, total_rows, holder FROM sweeps").await.unwrap();
    assert_eq!((row[0].int(0).unwrap(), row[0].int(1).unwrap()), (7, 9));
    assert_eq!(row[0].bytes(2).unwrap(), new.id.as_bytes());
}

async fn a_failed_batch_leaves_nothing_but_its_reason(on: TestStore) {
    let (sweep, holder) = (Arc::new(TakeNotes::by(4)), Holder::new(&on.store));
    on.store.system().run(Notes(3)).await.unwrap();
    sweep.fails.store(true, Ordering::Relaxed);
    for failures in 1..=2 {
        let error = sweep_once(&on.store, &sweep, holder).await.unwrap_err();
        assert_eq!((error.code(), notes(&on).await), (Code::Overloaded, 3));
        let shown = ok(&on, &on.admin, "list_sweeps", json!({})).await["sweeps"][0].take();
        assert_eq!((&shown["failures"], &shown["total_rows"]), (&json!(failures), &json!(0)));
        assert_eq!(text(&shown, "last_error"), "overloaded: On purpose.", "and not its cause");
    }
    assert!(matches!(Run::new(&on.store, &sweep, holder).step().await.unwrap(), Progress::NotNow { .. }));
    sweep.fails.store(false, Ordering::Relaxed);
    sweep_once(&on.store, &sweep, holder).await.unwrap();
    let shown = ok(&on, &on.admin, "list_sweeps", json!({})).await["sweeps"][0].take();
    assert_eq!((&shown["failures"], shown.get("last_error")), (&json!(2), None));
}

async fn the_runner_sweeps_until_it_is_stopped(on: TestStore) {
    on.store.system().run(Notes(9)).await.unwrap();
    let runner = Runner::new(on.store.clone(), Holder::LEASE).with(TakeNotes::by(2));
    let gone = async {
        while notes(&on).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), runner.stop()).await.unwrap();
    let lease = on.count("SELECT lease_until FROM sweeps").await.unwrap();
    assert_eq!(lease, 0, "another node could go on at once");
}

async fn keys_are_kept_for_as_long_as_is_said_and_then_removed(on: TestStore) {
    let day = Duration::from_secs(24 * 3600);
    let make = async |input| text(&ok(&on, &on.admin, "create_key", input).await, "key_id");
    let (live, revoked) =
        (make(json!({ "principal": "agent:live" })).await, make(json!({ "principal": "agent:r" })).await);
    make(json!({ "principal": "agent:e", "expires_in_seconds": 60 })).await;
    let both = make(json!({ "principal": "agent:b", "expires_in_seconds": 60 })).await;
    for key_id in [&revoked, &both] {
        ok(&on, &on.admin, "revoke_key", json!({ "key_id": key_id })).await;
    }
    let sweep = Arc::new(EndedKeys::new(&Settings { ended_keys_retention: 10 * day, ..Settings::default() }));
    let holder = Holder::new(&on.store);
    on.time.pass(9 * day);
    assert_eq!(sweep_once(&on.store, &sweep, holder).await.unwrap().rows, 0);
    on.time.pass(2 * day);
    assert_eq!(sweep_once(&on.store, &sweep, holder).await.unwrap().rows, 3);
    let rows = on.rows("SELECT key_id FROM api_keys WHERE principal LIKE 'agent:%'").await.unwrap();
    assert_eq!(rows.iter().map(|row| row.text(0).unwrap()).collect::<Vec<_>>(), [live.as_str()]);
    assert_eq!(sweep_once(&on.store, &sweep, holder).await.unwrap().rows, 0);
}
