use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Time};
use waybill_store::effects::{Holder, sweep_once};
use waybill_tasks::Settings;
use waybill_tasks::sweeps::Anomalies;
use waybill_testkit::stores::TestStore;

use super::chain::seal;
use super::{about, anomalies, lease, receipts, sweep_anomalies, worker};
use crate::support::{NOBODY, ok, refusal, task, task_status};

waybill_testkit::both! {
    a_queued_task_without_attempts_is_reported_once_and_left_alone,
    a_schedule_is_an_obligation_from_its_creation_to_its_deletion,
    a_schedule_that_is_silent_for_two_intervals_is_reported_once_per_silence,
    a_schedule_that_is_given_the_same_times_again_is_reported_once_and_stops_nobody,
    a_paused_schedule_is_not_expected,
    the_interval_of_cron_is_the_gap_between_its_latest_runs,
    cron_that_is_silent_before_its_second_run_is_reported,
    cron_that_is_silent_after_a_resume_is_reported,
    somebody_elses_schedule_is_neither_paused_nor_deleted_nor_said_to_have_run,
    a_backlog_of_unsealed_receipts_is_reported_once_per_crossing,
    r71_the_third_use_of_an_invalid_lease_is_reported_and_no_other,
}

async fn a_queued_task_without_attempts_is_reported_once_and_left_alone(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = task(&on, &alice, json!({ "type": "work", "max_attempts": 2 })).await;
    task(&on, &alice, json!({ "type": "work", "max_attempts": 9 })).await;
    assert_eq!(sweep_anomalies(&on).await, 0);
    on.write("UPDATE tasks SET attempt = 2").await.unwrap();
    for found in [1, 0, 0] {
        assert_eq!(sweep_anomalies(&on).await, found);
        assert_eq!(anomalies(&on, "attempts_exhausted").await.len(), 1);
    }
    let to = on.rows("SELECT addressee FROM receipts WHERE receipt_type = 'system.anomaly'").await.unwrap();
    assert_eq!(to[0].text(0).unwrap(), "agent:alice");
    assert_eq!(task_status(&on, &alice, &task_id).await, "queued");
}

/// A task for the scheduler, done with the given result.
pub async fn scheduled(on: &TestStore, owner: &Caller, kind: &str, payload: Json, result: Json) {
    task(on, owner, json!({ "type": kind, "payload": payload })).await;
    let leased = lease(on, &worker(on, "scheduler")).await;
    let done = about(&leased, json!({ "result": result, "artifacts": [{ "url": "memory:1" }] }));
    ok(on, &worker(on, "scheduler"), "complete", done).await;
}

fn in_seconds(on: &TestStore, seconds: u64) -> Time {
    let at = on.store.now().after(Duration::from_secs(seconds));
    Time::from_micros(at.micros() / 1_000_000 * 1_000_000)
}

/// As a scheduler fires for alice: the time is in the key, to the second.
async fn fire(on: &TestStore, schedule: &str, at: Time) {
    let key = format!("schedule:{schedule}:{}", at.to_string().replace(".000000", ""));
    let input = json!({ "type": "t", "idempotency_key": key, "created_by": "agent:alice" });
    let fired = task(on, &on.admin, input).await;
    ok(on, &on.admin, "cancel_task", json!({ "task_id": fired })).await;
}

async fn a_schedule_is_an_obligation_from_its_creation_to_its_deletion(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let open = async || {
        let query = "SELECT count(*) FROM receipts WHERE receipt_type = 'schedule.created' AND open = 1 \
                     AND addressee = 'agent:alice' AND schedule_id = 's1'";
        on.count(query).await.unwrap()
    };
    let next = in_seconds(&on, 60);
    let created = json!({ "schedule_id": "s1", "next_run_at": next });
    for _ in 0..2 {
        scheduled(&on, &alice, "schedule.create", json!({ "interval_seconds": 60 }), created.clone()).await;
        assert_eq!((open().await, receipts(&on, "schedule.created").await.len()), (1, 1));
    }
    let said = json!({ "schedule_id": "s1", "next_run_at": next, "schema_version": "1" });
    assert_eq!(receipts(&on, "schedule.created").await, [said]);
    // Neither another kind of task nor a result without a schedule says anything.
    scheduled(&on, &alice, "work", json!({}), json!({ "schedule_id": "s2" })).await;
    scheduled(&on, &alice, "schedule.create", json!({}), json!({ "ok": true })).await;
    scheduled(&on, &alice, "schedule.delete", json!({ "schedule_id": "s3" }), json!({ "ok": true })).await;
    assert_eq!((open().await, receipts(&on, "schedule.created").await.len()), (1, 1));

    scheduled(&on, &alice, "schedule.delete", json!({ "schedule_id": "s1" }), json!({ "ok": true })).await;
    assert_eq!((open().await, receipts(&on, "schedule.deleted").await.len()), (0, 1));
    on.time.pass(Duration::from_secs(1000));
    assert_eq!(sweep_anomalies(&on).await, 0, "nobody waits for a schedule that is gone");
}

async fn a_schedule_that_is_silent_for_two_intervals_is_reported_once_per_silence(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let next = in_seconds(&on, 60);
    let created = json!({ "schedule_id": "s:1", "next_run_at": next });
    scheduled(&on, &alice, "schedule.create", json!({ "interval_seconds": 60 }), created).await;
    on.time.pass(Duration::from_secs(179));
    assert_eq!(sweep_anomalies(&on).await, 0);
    on.time.pass(Duration::from_secs(2));
    for found in [1, 0] {
        assert_eq!(sweep_anomalies(&on).await, found);
    }
    let seen = anomalies(&on, "schedule_overdue").await;
    assert_eq!((seen.len(), &seen[0]["details"]["schedule_id"]), (1, &json!("s:1")));
    assert_eq!(seen[0]["details"]["next_run_at"], json!(next));

    let run = in_seconds(&on, 0);
    fire(&on, "s:1", run).await;
    on.time.pass(Duration::from_secs(178));
    // An older key is no news.
    fire(&on, "s:1", next).await;
    assert_eq!(sweep_anomalies(&on).await, 0);
    on.time.pass(Duration::from_secs(5));
    assert_eq!(sweep_anomalies(&on).await, 1, "the next silence is another one");
    assert_eq!(anomalies(&on, "schedule_overdue").await.len(), 2);
}

/// By a scheduler that resumes with the time it was at, or that is told twice.
async fn a_schedule_that_is_given_the_same_times_again_is_reported_once_and_stops_nobody(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let created = json!({ "schedule_id": "s", "next_run_at": in_seconds(&on, 60) });
    let create = json!({ "interval_seconds": 60 });
    scheduled(&on, &alice, "schedule.create", create.clone(), created.clone()).await;
    on.time.pass(Duration::from_secs(1000));
    assert_eq!(sweep_anomalies(&on).await, 1);
    scheduled(&on, &alice, "schedule.create", create, created).await;
    let other = json!({ "schedule_id": "t", "next_run_at": in_seconds(&on, 0) });
    scheduled(&on, &alice, "schedule.create", json!({ "interval_seconds": 1 }), other).await;
    on.time.pass(Duration::from_secs(10));
    assert_eq!(sweep_anomalies(&on).await, 2);
    let seen = anomalies(&on, "schedule_overdue").await;
    let ids: Vec<_> = seen.iter().map(|anomaly| anomaly["details"]["schedule_id"].clone()).collect();
    assert_eq!(ids, [json!("s"), json!("t")]);
}

async fn a_paused_schedule_is_not_expected(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let created = json!({ "schedule_id": "s", "next_run_at": in_seconds(&on, 60) });
    scheduled(&on, &alice, "schedule.create", json!({ "interval_seconds": 60 }), created).await;
    scheduled(&on, &alice, "schedule.pause", json!({ "schedule_id": "s" }), json!({ "ok": true })).await;
    fire(&on, "s", in_seconds(&on, 0)).await;
    on.time.pass(Duration::from_secs(1000));
    assert_eq!(sweep_anomalies(&on).await, 0);
    let resumed = json!({ "ok": true, "next_run_at": in_seconds(&on, 60) });
    scheduled(&on, &alice, "schedule.resume", json!({ "schedule_id": "s" }), resumed).await;
    on.time.pass(Duration::from_secs(170));
    assert_eq!(sweep_anomalies(&on).await, 0);
    on.time.pass(Duration::from_secs(20));
    assert_eq!(sweep_anomalies(&on).await, 1);
}

async fn the_interval_of_cron_is_the_gap_between_its_latest_runs(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let created = json!({ "schedule_id": "s", "next_run_at": in_seconds(&on, 100) });
    scheduled(&on, &alice, "schedule.create", json!({ "cron_expr": "* * * * *" }), created).await;
    fire(&on, "s", in_seconds(&on, 0)).await;
    on.time.pass(Duration::from_secs(100));
    fire(&on, "s", in_seconds(&on, 0)).await;
    on.time.pass(Duration::from_secs(290));
    assert_eq!(sweep_anomalies(&on).await, 0);
    on.time.pass(Duration::from_secs(20));
    assert_eq!(sweep_anomalies(&on).await, 1);
}

/// Silence from now on is reported after this long, once, and not before.
async fn is_reported_after(on: &TestStore, seconds: u64, what: &str) {
    on.time.pass(Duration::from_secs(seconds - 2));
    assert_eq!(sweep_anomalies(on).await, 0, "{what}: too soon");
    on.time.pass(Duration::from_secs(4));
    for found in [1, 0] {
        assert_eq!(sweep_anomalies(on).await, found, "{what}");
    }
}

async fn cron_that_is_silent_before_its_second_run_is_reported(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let day = 86_400;
    // Two gaps after the first run that was announced, three after one that there was.
    for (id, payload, next, gap) in [
        ("minute", json!({ "cron_expr": "* * * * *" }), 60, 60),
        ("daily", json!({ "cron_expr": "30 2 * * *", "timezone": "Europe/Berlin" }), 100, day),
        ("weekdays", json!({ "cron_expr": "0 9 * * 1-5" }), 100, 3 * day),
    ] {
        let next_run_at = in_seconds(&on, next);
        let created = json!({ "schedule_id": id, "next_run_at": next_run_at });
        scheduled(&on, &alice, "schedule.create", payload, created).await;
        is_reported_after(&on, next + 2 * gap, id).await;
        let seen = anomalies(&on, "schedule_overdue").await;
        let said = &seen.last().unwrap()["details"];
        assert_eq!((&said["schedule_id"], &said["next_run_at"]), (&json!(id), &json!(next_run_at)));
        fire(&on, id, in_seconds(&on, 0)).await;
        is_reported_after(&on, 3 * gap, id).await;
    }
    // Nobody knows its rhythm; what was announced and did not come is late all the same, once.
    let created = json!({ "schedule_id": "odd", "next_run_at": in_seconds(&on, 60) });
    scheduled(&on, &alice, "schedule.create", json!({ "cron_expr": "whenever" }), created).await;
    is_reported_after(&on, 60 + 2 * day, "unknown").await;
    fire(&on, "odd", in_seconds(&on, 0)).await;
    on.time.pass(Duration::from_secs(1000 * day));
    assert_eq!(sweep_anomalies(&on).await, 0, "when it should have run again is anybody's guess");
}

async fn cron_that_is_silent_after_a_resume_is_reported(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let created = json!({ "schedule_id": "s", "next_run_at": in_seconds(&on, 60) });
    scheduled(&on, &alice, "schedule.create", json!({ "cron_expr": "* * * * *" }), created).await;
    for _ in 0..2 {
        on.time.pass(Duration::from_secs(60));
        fire(&on, "s", in_seconds(&on, 0)).await;
    }
    let named = json!({ "schedule_id": "s" });
    for before in ["its first run", "its second run"] {
        scheduled(&on, &alice, "schedule.pause", named.clone(), json!({ "ok": true })).await;
        on.time.pass(Duration::from_secs(1_000_000));
        assert_eq!(sweep_anomalies(&on).await, 0);
        let resumed = json!({ "ok": true, "next_run_at": in_seconds(&on, 60) });
        scheduled(&on, &alice, "schedule.resume", named.clone(), resumed).await;
        if before == "its second run" {
            on.time.pass(Duration::from_secs(60));
            // The pause is no gap.
            fire(&on, "s", in_seconds(&on, 0)).await;
        }
        is_reported_after(&on, 180, before).await;
    }
}

async fn r71_the_third_use_of_an_invalid_lease_is_reported_and_no_other(on: TestStore) {
    let (alice, slow, other) = (on.agent("alice").unwrap(), worker(&on, "slow"), worker(&on, "other"));
    let task_id = task(&on, &alice, json!({ "type": "work" })).await;
    let stale = lease(&on, &slow).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
    let reported = async || {
        on.process.flush(&on.store).await.unwrap();
        anomalies(&on, "invalid_lease_uses").await.len()
    };
    let use_it = async |who: &Caller, name: &str| {
        let input = about(&stale, if name == "fail" { json!({ "error": 1 }) } else { json!({}) });
        let input = if name == "report_progress" { about(&stale, json!({ "progress": 1 })) } else { input };
        assert_eq!(refusal(&on, who, name, input).await, Code::LeaseInvalidOrExpired);
    };
    // Whatever it is used for, and whether the counts are written one by one or together.
    use_it(&slow, "renew_lease").await;
    assert_eq!(reported().await, 0);
    use_it(&slow, "complete").await;
    use_it(&other, "renew_lease").await;
    use_it(&other, "renew_lease").await;
    assert_eq!(reported().await, 0, "two of each worker");
    use_it(&slow, "fail").await;
    assert_eq!(reported().await, 1);
    for name in ["report_progress", "renew_lease", "complete", "fail"] {
        use_it(&slow, name).await;
        assert_eq!(reported().await, 1, "once");
    }
    for _ in 0..5 {
        use_it(&other, "renew_lease").await;
    }
    assert_eq!(reported().await, 2, "another worker is another matter");
    let unknown = json!({ "task_id": NOBODY, "lease_id": stale["lease_id"] });
    for _ in 0..3 {
        assert_eq!(refusal(&on, &slow, "renew_lease", unknown.clone()).await, Code::NotFound);
    }
    assert_eq!(reported().await, 2);
    let said = &anomalies(&on, "invalid_lease_uses").await[0]["details"];
    assert_eq!((&said["worker"], &said["uses"]), (&json!("worker:slow"), &json!(3)));
    let listed = ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    let kinds =
        listed["receipts"].as_array().unwrap().iter().filter(|receipt| receipt["receipt_type"] == "system.anomaly");
    assert_eq!(kinds.count(), 2, "its owner is told: {listed}");
}

async fn somebody_elses_schedule_is_neither_paused_nor_deleted_nor_said_to_have_run(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let created = json!({ "schedule_id": "s1", "next_run_at": in_seconds(&on, 60) });
    scheduled(&on, &alice, "schedule.create", json!({ "interval_seconds": 60 }), created).await;
    let watched = async || {
        let rows = on.rows("SELECT enabled, overdue_at, last_run_at FROM schedule_watch").await.unwrap();
        rows.iter()
            .map(|row| (row.int(0).unwrap(), row.int_opt(1).unwrap(), row.int_opt(2).unwrap()))
            .collect::<Vec<_>>()
    };
    let before = watched().await;
    for kind in ["schedule.pause", "schedule.resume", "schedule.delete"] {
        scheduled(&on, &bob, kind, json!({ "schedule_id": "s1" }), json!({ "ok": true })).await;
        assert_eq!(watched().await, before, "{kind}");
    }
    let key = format!("schedule:s1:{}", in_seconds(&on, 1_000_000).to_string().replace(".000000", ""));
    let fired = task(&on, &bob, json!({ "type": "t", "idempotency_key": key })).await;
    ok(&on, &bob, "cancel_task", json!({ "task_id": fired })).await;
    assert_eq!(watched().await, before);
    assert_eq!(receipts(&on, "schedule.deleted").await.len(), 0);
}

async fn a_backlog_of_unsealed_receipts_is_reported_once_per_crossing(on: TestStore) {
    let settings = Settings { receipt_backlog: 10, ..Settings::default() };
    let look = async || {
        let sweep = Arc::new(Anomalies::new(&settings));
        sweep_once(&on.store, &sweep, Holder::new(&on.store)).await.unwrap();
        anomalies(&on, "receipt_backlog").await.len()
    };
    let alice = on.agent("alice").unwrap();
    for reported in [1, 2] {
        for _ in 0..8 {
            assert_eq!(look().await, reported - 1, "four fifths are not passed yet");
            task(&on, &alice, json!({ "type": "work" })).await;
        }
        task(&on, &alice, json!({ "type": "work" })).await;
        assert_eq!(look().await, reported);
        task(&on, &alice, json!({ "type": "work" })).await;
        assert_eq!(look().await, reported, "once per crossing");
        seal(&on).await;
        assert_eq!(look().await, reported);
    }
    let to = "SELECT addressee FROM receipts WHERE receipt_type = 'system.anomaly'";
    assert!(on.rows(to).await.unwrap().iter().all(|row| row.text(0).unwrap() == "system:asyncgate"));
}
