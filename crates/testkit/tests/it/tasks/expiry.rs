use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;
use waybill_tasks::Settings;
use waybill_testkit::stores::TestStore;

use super::{HELD, LONG, about, anomalies, lease, receipts, sweep, sweep_leases, worker};
use crate::support::{ok, plain_task, refusal, task_status};

waybill_testkit::both! {
    a12_2_a_vanished_worker_costs_no_attempt_however_often,
    a_task_whose_lease_ran_out_waits_a_moment_and_is_as_new,
    a12_8_a_lease_that_ran_out_is_worth_nothing_swept_or_not,
    nothing_is_swept_before_the_grace_is_over,
    a12_9_of_complete_cancel_and_sweep_at_once_one_has_the_task,
    a12_9_what_was_answered_is_there_for_whoever_asks_next,
    the_fourth_expiry_of_a_task_is_reported_once,
    a_sweep_works_in_batches_over_all_tenants,
    whoever_waits_for_the_work_of_a_vanished_worker_is_woken,
}

async fn a12_2_a_vanished_worker_costs_no_attempt_however_often(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = plain_task(&on, &alice).await;
    for crash in 1..=5 {
        let leased = lease(&on, &worker(&on, "w")).await;
        assert_eq!(leased["attempt"], 0, "a crash was counted as a failure");
        if crash % 2 == 0 {
            ok(&on, &worker(&on, "w"), "report_progress", about(&leased, json!({ "progress": { "half": 1 } }))).await;
            assert_eq!(task_status(&on, &alice, &task_id).await, "running");
        }
        on.time.pass(LONG);
        assert_eq!(sweep(&on).await, 1);
        assert_eq!(task_status(&on, &alice, &task_id).await, "queued");
        on.time.pass(HELD);
    }
    let leased = lease(&on, &worker(&on, "w")).await;
    let done = about(&leased, json!({ "result": 1, "artifacts": [{ "url": "memory:1" }] }));
    ok(&on, &worker(&on, "w"), "complete", done).await;
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await;
    assert_eq!((&shown["status"], &shown["attempt"]), (&json!("succeeded"), &json!(0)));
    let expired = receipts(&on, "lease.expired").await;
    assert_eq!(expired.len(), 5);
    for body in expired {
        let said = json!({ "task_id": task_id, "previous_worker_id": "w", "attempt": 0, "requeued": true,
            "schema_version": "1" });
        assert_eq!(body, said);
    }
    let open = on.count("SELECT count(*) FROM receipts WHERE open = 1").await.unwrap();
    assert_eq!(open, 0, "the success has ended the obligation, the expiries have not");
}

async fn a_task_whose_lease_ran_out_waits_a_moment_and_is_as_new(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = plain_task(&on, &alice).await;
    let leased = lease(&on, &worker(&on, "w")).await;
    ok(&on, &worker(&on, "w"), "report_progress", about(&leased, json!({ "progress": {} }))).await;
    on.time.pass(LONG);
    let now = on.store.now().micros();
    assert_eq!(sweep(&on).await, 1);
    let row = on
        .rows("SELECT held, next_eligible_at, started_at, lease_id, worker, lease_expires_at, epoch FROM tasks")
        .await
        .unwrap();
    assert_eq!(row[0].int(0).unwrap(), 1);
    let waits = row[0].int(1).unwrap() - now;
    assert!((0..=5_001_000).contains(&waits), "{waits} µs");
    assert!((2..6).all(|column| matches!(row[0].cells()[column], waybill_store::Cell::Null)), "{row:?}");
    let history = on.rows("SELECT end_reason, ended_at, digest FROM leases").await.unwrap();
    assert_eq!(history[0].text(0).unwrap(), "expired");
    assert!(history[0].int(1).unwrap() >= now, "the clock moves with every look at it");
    assert!(history[0].bytes_opt(2).unwrap().is_none());
    let parents = on
        .count(
            "SELECT count(*) FROM receipts e JOIN receipt_parents p ON p.child_id = e.receipt_id JOIN tasks t \
             ON t.assigned_receipt = p.parent_id WHERE e.receipt_type = 'lease.expired' \
             AND e.sender = 'system:asyncgate' AND e.addressee = 'agent:alice'",
        )
        .await
        .unwrap();
    assert_eq!(parents, 1, "told to the owner, as a child of the assignment");
    assert_eq!(sweep(&on).await, 0, "once is enough");
    on.time.pass(HELD);
    assert_eq!(lease(&on, &worker(&on, "other")).await["task_id"], task_id.as_str());
}

async fn a12_8_a_lease_that_ran_out_is_worth_nothing_swept_or_not(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    plain_task(&on, &alice).await;
    let (w, leased) = (worker(&on, "w"), lease(&on, &worker(&on, "w")).await);
    on.time.pass(LONG);
    let words = [
        ("renew_lease", json!({})),
        ("report_progress", json!({ "progress": {} })),
        ("complete", json!({ "result": 1 })),
        ("fail", json!({ "error": {}, "retryable": true })),
    ];
    for swept in [false, true] {
        let before = on.rows("SELECT status, updated_at, attempt FROM tasks").await.unwrap();
        for (operation, further) in &words {
            let code = refusal(&on, &w, operation, about(&leased, further.clone())).await;
            assert_eq!(code, Code::LeaseInvalidOrExpired, "{operation}, swept: {swept}");
        }
        let after = on.rows("SELECT status, updated_at, attempt FROM tasks").await.unwrap();
        assert_eq!(format!("{before:?}"), format!("{after:?}"), "a refused call changed something");
        assert_eq!(sweep(&on).await, u64::from(!swept));
    }
    // Nor when another has the task.
    on.time.pass(HELD);
    lease(&on, &worker(&on, "other")).await;
    for (operation, further) in words {
        assert_eq!(refusal(&on, &w, operation, about(&leased, further)).await, Code::LeaseInvalidOrExpired);
    }
}

async fn nothing_is_swept_before_the_grace_is_over(on: TestStore) {
    plain_task(&on, &on.admin).await;
    lease(&on, &worker(&on, "w")).await;
    let patient = Settings { lease_grace_s: 60, ..Settings::default() };
    on.time.pass(Duration::from_secs(359));
    assert_eq!(sweep_leases(&on, &patient).await.rows, 0);
    on.time.pass(Duration::from_secs(2));
    assert_eq!(sweep_leases(&on, &patient).await.rows, 1);
}

async fn the_fourth_expiry_of_a_task_is_reported_once(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = plain_task(&on, &alice).await;
    for (crash, reported) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)] {
        lease(&on, &worker(&on, "w")).await;
        on.time.pass(LONG);
        sweep(&on).await;
        on.time.pass(HELD);
        let seen = anomalies(&on, "excessive_lease_expiries").await;
        assert_eq!(seen.len(), reported, "after {crash} expiries");
    }
    assert_eq!(anomalies(&on, "excessive_lease_expiries").await[0]["details"]["expiries"], 4);
    assert_eq!(task_status(&on, &alice, &task_id).await, "queued", "reported, and nothing else");
}

async fn a_sweep_works_in_batches_over_all_tenants(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    for caller in [&on.admin, &other] {
        for _ in 0..4 {
            plain_task(&on, caller).await;
        }
        ok(&on, caller, "lease_next", json!({ "max_tasks": 4 })).await;
    }
    on.time.pass(LONG);
    let small = Settings { sweep_batch: 3, ..Settings::default() };
    let report = sweep_leases(&on, &small).await;
    // A slow machine halves them.
    assert!(report.rows == 8 && report.batches >= 3, "{report:?}");
    for caller in [&on.admin, &other] {
        let query = "SELECT count(*) FROM receipts r JOIN tasks t ON t.tenant = r.tenant AND t.task_id = r.task_id \
                     WHERE r.receipt_type = 'lease.expired' AND t.status = 'queued' AND r.tenant = ";
        assert_eq!(on.count(&format!("{query}{}", caller.tenant.0)).await.unwrap(), 4);
    }
}

async fn whoever_waits_for_the_work_of_a_vanished_worker_is_woken(on: TestStore) {
    plain_task(&on, &on.admin).await;
    lease(&on, &worker(&on, "w")).await;
    on.time.pass(LONG);
    let at_once = Settings { requeue_delay_s_max: 0, ..Settings::default() };
    let (next, waiting) = (worker(&on, "next"), json!({ "wait_seconds": 20 }));
    let waits = ok(&on, &next, "lease_next", waiting);
    let sweeps = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(sweep_leases(&on, &at_once).await.rows, 1);
    };
    let (answer, ()) = tokio::join!(waits, sweeps);
    assert_eq!(answer["tasks"].as_array().unwrap().len(), 1, "{answer}");
}

async fn a12_9_of_complete_cancel_and_sweep_at_once_one_has_the_task(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    for round in 0..12 {
        let task_id = plain_task(&on, &alice).await;
        let leased = lease(&on, &w).await;
        if round % 3 == 0 {
            on.time.pass(LONG);
        }
        let done = about(&leased, json!({ "result": round, "artifacts": [{ "url": "memory:1" }] }));
        let (completed, canceled, _) = tokio::join!(
            on.call(&w, "complete", done),
            on.call(&alice, "cancel_task", json!({ "task_id": task_id })),
            sweep(&on),
        );
        let canceled = canceled.unwrap().json["ok"] == true;
        let status = task_status(&on, &alice, &task_id).await;
        assert!(canceled != completed.is_ok(), "{status}: both or neither has ended it");
        assert_eq!(status, if canceled { "canceled" } else { "succeeded" });
        let ended =
            "SELECT count(*) FROM receipts WHERE receipt_type IN ('task.completed', 'task.canceled', 'task.failed')";
        assert_eq!(on.count(ended).await.unwrap(), round + 1, "one ending for each task");
    }
}

async fn a12_9_what_was_answered_is_there_for_whoever_asks_next(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let other = if on.database().is_ok() { Some(on.second_node(|_| {}).await.unwrap()) } else { None };
    for _ in 0..50 {
        let task_id = plain_task(&on, &alice).await;
        let asked = on.call_on(other.as_ref().unwrap_or(&on.store), &alice, "get_task", json!({ "task_id": task_id }));
        assert_eq!(asked.await.unwrap().json["task_id"], task_id.as_str());
    }
}
