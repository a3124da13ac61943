use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use waybill_kernel::{Code, Error, Mode, Result, Tenant};
use waybill_store::effects::job::{self, Claimed, Failed, Policy};
use waybill_store::effects::{Holder, Jobs, Round, Runner, Worker, reach_once};
use waybill_store::{Ctx, Store, Tx, Value, Work};
use waybill_testkit::stores::TestStore;

use super::{NOTE, notes};
use crate::support::ok;

waybill_testkit::both! {
    a_job_is_claimed_once_and_not_before_its_time,
    of_two_who_hold_a_job_only_the_latter_ends_it,
    a_failed_job_comes_back_later_until_it_is_dead,
    a_job_whose_last_runner_vanished_is_buried,
    those_who_run_the_server_see_how_many_wait_and_for_how_long,
    many_runners_share_the_jobs,
    a_worker_sees_its_jobs_through,
    the_runner_works_jobs_off_until_it_is_stopped,
    a_job_that_takes_long_holds_up_no_other_and_is_given_back_at_the_end,
    what_a_job_leads_to_is_written_with_its_end,
}

/// The clock has run a little ahead by being read, and is drawn back as time passes.
const SECOND: Duration = Duration::from_secs(1);
const KIND: &str = "test";
const POLICY: Policy = Policy {
    attempts_max: 3,
    backoff: Duration::from_secs(8),
    backoff_max: Duration::from_secs(60),
    claim: Duration::from_secs(30),
};

enum Do {
    Enqueue {
        count: usize,
        after: Duration,
    },
    Claim(i64),
    /// With a note, which must not stay when the claim is refused.
    Finish(Claimed),
    Fail(Claimed),
}

#[derive(Debug)]
enum Did {
    Nothing,
    Claimed(Vec<Claimed>),
    Failed(Failed),
}

impl Work for Do {
    type Output = Did;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Did> {
        match self {
            Do::Enqueue { count, after } => {
                for number in 0..*count {
                    let payload = number.to_string();
                    job::enqueue(tx, ctx, Tenant::DEFAULT, KIND, &payload, ctx.now.after(*after)).await?;
                }
                Ok(Did::Nothing)
            }
            Do::Claim(limit) => job::claim(tx, ctx, KIND, &POLICY, *limit).await.map(Did::Claimed),
            Do::Finish(claimed) => {
                tx.execute(NOTE, &[Value::from(claimed.job_id.as_bytes()), Value::from(ctx.now)]).await?;
                job::finish(tx, ctx, claimed).await.map(|()| Did::Nothing)
            }
            Do::Fail(claimed) => job::fail(tx, ctx, claimed, &POLICY, "On purpose.").await.map(Did::Failed),
        }
    }
}

async fn enqueue(on: &TestStore, count: usize) {
    on.store.system().run(Do::Enqueue { count, after: Duration::ZERO }).await.unwrap();
}

async fn claim(store: &Store, limit: i64) -> Vec<Claimed> {
    match store.system().run(Do::Claim(limit)).await.unwrap() {
        Did::Claimed(claimed) => claimed,
        other => panic!("{other:?}"),
    }
}

async fn claim_one(on: &TestStore) -> Claimed {
    claim(&on.store, 1).await.pop().unwrap()
}

async fn state(on: &TestStore) -> (String, i64, Option<String>) {
    let rows = on.rows("SELECT state, attempts, last_error FROM jobs").await.unwrap();
    let error = rows[0].text_opt(2).unwrap().map(str::to_owned);
    (rows[0].text(0).unwrap().to_owned(), rows[0].int(1).unwrap(), error)
}

async fn a_job_is_claimed_once_and_not_before_its_time(on: TestStore) {
    on.store.system().run(Do::Enqueue { count: 1, after: Duration::from_secs(5) }).await.unwrap();
    assert_eq!(claim(&on.store, 10).await, []);
    on.time.pass(Duration::from_secs(6));
    let claimed = claim_one(&on).await;
    assert_eq!((claimed.payload.as_str(), claimed.attempts, claimed.claim), ("0", 1, 1));
    assert_eq!(claim(&on.store, 10).await, []);
    on.store.system().run(Do::Finish(claimed)).await.unwrap();
    assert_eq!(state(&on).await, ("done".to_owned(), 1, None));
    on.time.pass(Duration::from_secs(3600));
    assert_eq!(claim(&on.store, 10).await, [], "a job that is done stays done");
}

async fn of_two_who_hold_a_job_only_the_latter_ends_it(on: TestStore) {
    enqueue(&on, 1).await;
    let vanished = claim_one(&on).await;
    on.time.pass(POLICY.claim + SECOND);
    let latter = claim_one(&on).await;
    assert_eq!((latter.job_id, latter.attempts, latter.claim), (vanished.job_id, 2, 2));
    for late in [Do::Finish(vanished.clone()), Do::Fail(vanished.clone())] {
        assert_eq!(on.store.system().run(late).await.unwrap_err().code(), Code::LeaseInvalidOrExpired);
        assert_eq!(
            (state(&on).await.0.as_str(), notes(&on).await),
            ("running", 0),
            "a stale claim has changed something"
        );
    }
    on.store.system().run(Do::Finish(latter.clone())).await.unwrap();
    for again in [Do::Fail(latter), Do::Fail(vanished)] {
        assert_eq!(on.store.system().run(again).await.unwrap_err().code(), Code::LeaseInvalidOrExpired);
    }
    assert_eq!((state(&on).await.0.as_str(), notes(&on).await), ("done", 1));
}

async fn a_failed_job_comes_back_later_until_it_is_dead(on: TestStore) {
    enqueue(&on, 1).await;
    for longest in [8, 16] {
        let claimed = claim_one(&on).await;
        let Did::Failed(Failed::Again { at }) = on.store.system().run(Do::Fail(claimed)).await.unwrap() else {
            panic!("it has attempts left")
        };
        assert!(at.since(on.store.now()) <= Duration::from_secs(longest));
        assert_eq!(state(&on).await.0, "ready");
        on.time.pass(Duration::from_secs(longest + 1));
    }
    let last = claim_one(&on).await;
    assert!(matches!(on.store.system().run(Do::Fail(last)).await.unwrap(), Did::Failed(Failed::Dead)));
    assert_eq!(state(&on).await, ("dead".to_owned(), 3, Some("On purpose.".to_owned())));
    on.time.pass(Duration::from_secs(3600));
    assert_eq!(claim(&on.store, 10).await, []);
}

async fn a_job_whose_last_runner_vanished_is_buried(on: TestStore) {
    enqueue(&on, 1).await;
    for attempt in 1..=POLICY.attempts_max {
        assert_eq!(claim_one(&on).await.attempts, attempt);
        on.time.pass(POLICY.claim + SECOND);
    }
    assert_eq!(claim(&on.store, 10).await, []);
    let (state, _, error) = state(&on).await;
    assert_eq!(state, "dead");
    assert!(error.is_some());
}

async fn many_runners_share_the_jobs(on: TestStore) {
    const JOBS: usize = 60;
    enqueue(&on, JOBS).await;
    let runners = (0..6).map(|_| {
        let store = on.store.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claimed = claim(&store, 4).await;
                if claimed.is_empty() {
                    return mine;
                }
                for job in claimed {
                    store.system().run(Do::Finish(job.clone())).await.unwrap();
                    mine.push(job.job_id);
                }
            }
        })
    });
    let mut all = Vec::new();
    for runner in runners.collect::<Vec<_>>() {
        all.extend(runner.await.unwrap());
    }
    all.sort();
    all.dedup();
    assert_eq!((all.len(), notes(&on).await), (JOBS, JOBS as i64), "a job was claimed twice or left");
    assert_eq!(on.count("SELECT count(*) FROM jobs WHERE state = 'done' AND claim = 1").await.unwrap(), JOBS as i64);
}

/// Fails every second attempt, and panics at the fourth.
#[derive(Default)]
struct Unreliable(AtomicU32);

impl Worker for Unreliable {
    const KIND: &'static str = KIND;

    fn policy(&self) -> Policy {
        POLICY
    }

    fn at_once(&self) -> usize {
        1
    }

    async fn attempt(&self, _: &Claimed) -> Result<()> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            3 => panic!("on purpose"),
            odd if odd % 2 == 1 => Err(Error::new(Code::Overloaded, "On purpose.").because("a secret")),
            _ => Ok(()),
        }
    }
}

async fn a_worker_sees_its_jobs_through(on: TestStore) {
    enqueue(&on, 2).await;
    let worker = Arc::new(Jobs(Unreliable::default()));
    let one = Round { claimed: 1, ..Round::default() };
    assert_eq!(reach_once(&on.store, &worker).await.unwrap(), Round { done: 1, ..one });
    assert_eq!(reach_once(&on.store, &worker).await.unwrap(), Round { failed: 1, ..one });
    let error = on.rows("SELECT last_error FROM jobs WHERE state = 'ready'").await.unwrap();
    assert_eq!(error[0].text(0).unwrap(), "overloaded: On purpose.", "and not its cause");
    on.time.pass(POLICY.backoff + SECOND);
    enqueue(&on, 1).await;
    assert_eq!(reach_once(&on.store, &worker).await.unwrap(), Round { done: 1, ..one });
    assert_eq!(reach_once(&on.store, &worker).await.unwrap(), Round { failed: 1, ..one }, "a panic is a failure");
    on.time.pass(POLICY.backoff + SECOND);
    assert_eq!(reach_once(&on.store, &worker).await.unwrap(), Round { done: 1, ..one });
    assert_eq!(reach_once(&on.store, &worker).await.unwrap(), Round::default());
}

async fn those_who_run_the_server_see_how_many_wait_and_for_how_long(on: TestStore) {
    let shown = async || ok(&on, &on.admin, "list_sweeps", json!({})).await["jobs"].take();
    enqueue(&on, 3).await;
    let Did::Claimed(mut claimed) = on.store.system().run(Do::Claim(2)).await.unwrap() else { panic!() };
    on.time.pass(10 * SECOND);
    let mut view = shown().await;
    let lag_ms = view[0]["lag_ms"].take().as_i64().unwrap();
    assert!((9_000..=10_000).contains(&lag_ms), "{lag_ms}");
    assert_eq!(view, json!([{ "kind": KIND, "ready": 1, "running": 2, "dead": 0, "lag_ms": null }]));

    on.store.system().run(Do::Finish(claimed.pop().unwrap())).await.unwrap();
    let job = Claimed { attempts: POLICY.attempts_max, ..claimed.pop().unwrap() };
    on.store.system().run(Do::Fail(job)).await.unwrap();
    let view = shown().await;
    let counts = [&view[0]["ready"], &view[0]["running"], &view[0]["dead"]];
    assert_eq!(counts, [&json!(1), &json!(0), &json!(1)], "what is done is not shown");
}

async fn the_runner_works_jobs_off_until_it_is_stopped(on: TestStore) {
    enqueue(&on, 2).await;
    let runner = Runner::new(on.store.clone(), Holder::LEASE).with_outward(Jobs(Unreliable::default()));
    let done = async {
        while on.count("SELECT count(*) FROM jobs WHERE state = 'running' OR attempts = 0").await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), runner.stop()).await.unwrap();
    assert_eq!(on.count("SELECT count(*) FROM jobs WHERE state = 'done'").await.unwrap(), 1);
}

/// Leaves a note with the end of each job; where it `hangs`, its first attempt never ends.
#[derive(Default)]
struct Noting {
    hangs: bool,
    attempts: AtomicU32,
}

impl Worker for Noting {
    const KIND: &'static str = KIND;

    fn at_once(&self) -> usize {
        2
    }

    async fn attempt(&self, _: &Claimed) -> Result<()> {
        if self.attempts.fetch_add(1, Ordering::Relaxed) == 0 && self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn finish(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, job: &Claimed) -> Result<()> {
        tx.execute(NOTE, &[Value::from(job.job_id.as_bytes()), Value::from(ctx.now)]).await.map(drop)
    }
}

async fn until(on: &TestStore, sql: &str, count: i64) {
    let done = async {
        while on.count(sql).await.unwrap() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Shorter than a runner that nobody wakes sleeps.
    tokio::time::timeout(Duration::from_secs(20), done).await.unwrap();
}

async fn a_job_that_takes_long_holds_up_no_other_and_is_given_back_at_the_end(on: TestStore) {
    let worker = Noting { hangs: true, ..Noting::default() };
    let runner = Runner::new(on.store.clone(), Holder::LEASE).with_outward(Jobs(worker));
    // It has looked and found nothing; from here on it must be woken.
    tokio::time::sleep(Duration::from_millis(300)).await;
    enqueue(&on, 1).await;
    until(&on, "SELECT count(*) FROM jobs WHERE state = 'running'", 1).await;
    for done in 1..=3 {
        enqueue(&on, 2).await;
        until(&on, "SELECT count(*) FROM jobs WHERE state = 'done'", 2 * done).await;
    }
    tokio::time::timeout(Duration::from_secs(60), runner.stop()).await.unwrap();
    let rows = on.rows("SELECT state, attempts FROM jobs WHERE state <> 'done'").await.unwrap();
    let left: Vec<_> = rows.iter().map(|row| (row.text(0).unwrap(), row.int(1).unwrap())).collect();
    assert_eq!((left, notes(&on).await), (vec![("ready", 0)], 6), "its attempt is as if it had not been made");
}

async fn what_a_job_leads_to_is_written_with_its_end(on: TestStore) {
    enqueue(&on, 2).await;
    let worker = Arc::new(Jobs(Noting::default()));
    let taken = claim_one(&on).await;
    let round = reach_once(&on.store, &worker).await.unwrap();
    assert_eq!((round, notes(&on).await), (Round { claimed: 1, done: 1, ..Round::default() }, 1));
    on.time.pass(POLICY.claim + SECOND);
    assert_eq!(reach_once(&on.store, &worker).await.unwrap().done, 1);
    assert_eq!(on.store.system().run(Do::Fail(taken)).await.unwrap_err().code(), Code::LeaseInvalidOrExpired);
    assert_eq!((notes(&on).await, worker.0.attempts.load(Ordering::Relaxed)), (2, 2));
}
