//! The rules by which a database is found whole: nothing that the program writes breaks one, and everything else does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waybill_store::effects::Holder;
use waybill_tasks::Settings;
use waybill_tasks::audit::RULES;
use waybill_tasks::sweeps::Archive;
use waybill_testkit::stores::{self, TestStore};

use super::anomalies::scheduled;
use super::chain::seal;
use super::{about, lease, worker};
use crate::support::{ok, plain_task, sweep_to_end};

waybill_testkit::both! {
    no_rule_finds_anything_in_what_the_program_writes,
    each_row_that_contradicts_another_is_found,
    an_obligation_whose_end_is_archived_is_judged_by_what_is_left,
}

const DAY: Duration = Duration::from_secs(86_400);

const OPEN: &str = "obligations that are open although they have ended";
const CLOSED: &str = "obligations that are not open although nothing has ended them";
const UNLINKED: &str = "receipts without the link to their parent";
const RESULT: &str = "ended tasks without their result";
const RECEIPT: &str = "ended tasks without the receipt of their end";
const PARENT: &str = "links whose parent is nowhere";
const CHILD: &str = "links whose child is nowhere";

/// How many rows each rule finds, but for those that find none.
pub async fn found(on: &TestStore) -> Vec<(&'static str, usize)> {
    let mut found = Vec::new();
    for rule in RULES {
        let rows = on.rows(rule.sql).await.unwrap().len();
        if rows > 0 {
            found.push((rule.what, rows));
        }
    }
    found
}

async fn archive(on: &TestStore) {
    sweep_to_end(on, &Arc::new(Archive::new(&Settings::default())), Holder::new(&on.store)).await;
}

async fn canceled(on: &TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = plain_task(on, &alice).await;
    ok(on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
}

/// A task of every outcome, a schedule that is and one that was, and a task that nobody has taken.
async fn history(on: &TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(on, "w"));
    canceled(on).await;
    let located = json!({ "result": 1, "artifacts": { "url": "x" } });
    for (how, input) in [
        ("complete", located.clone()),
        ("complete", json!({ "result": 1 })),
        ("fail", json!({ "error": 1 })),
        ("fail", json!({ "error": 1, "retryable": true })),
    ] {
        plain_task(on, &alice).await;
        let leased = lease(on, &w).await;
        ok(on, &w, "report_progress", about(&leased, json!({ "progress": 1 }))).await;
        ok(on, &w, how, about(&leased, input)).await;
    }
    plain_task(on, &alice).await;
    let leased = lease(on, &w).await;
    for input in [json!({ "result": 1 }), located] {
        ok(on, &w, "complete", about(&leased, input)).await;
    }
    for id in ["is", "was"] {
        let made = json!({ "schedule_id": id });
        scheduled(on, &alice, "schedule.create", json!({ "interval_seconds": 60 }), made).await;
    }
    scheduled(on, &alice, "schedule.delete", json!({ "schedule_id": "was" }), json!({ "ok": true })).await;
    plain_task(on, &alice).await;
}

async fn no_rule_finds_anything_in_what_the_program_writes(on: TestStore) {
    history(&on).await;
    assert_eq!(found(&on).await, []);
    seal(&on).await;
    for days in [8_u32, 23, 100] {
        on.time.pass(days * DAY);
        archive(&on).await;
        assert_eq!(found(&on).await, [], "{days} days later");
    }
    assert!(on.count("SELECT count(*) FROM archived_receipts").await.unwrap() > 0);
}

async fn each_row_that_contradicts_another_is_found(on: TestStore) {
    history(&on).await;
    let of_canceled = "receipt_id IN (SELECT parent_id FROM receipt_parents WHERE child_type = 'task.canceled')";
    let queued = "receipt_type = 'task.assigned' AND task_id IN (SELECT task_id FROM tasks WHERE status = 'queued')";
    let unlocated = "receipt_type = 'task.assigned' AND task_id IN (SELECT task_id FROM results WHERE located = 0)";
    let (is, was) = (
        "receipt_type = 'schedule.created' AND schedule_id = 'is'",
        "receipt_type = 'schedule.created' AND schedule_id = 'was'",
    );
    let by_link = "child_type = 'task.canceled'";
    let by_type = "receipt_type = 'task.canceled'";
    let by_outcome = "outcome = 'canceled'";
    let (opened, closed, away, home) = ("open = 1", "open = 0", "tenant = 99", "tenant = 1");
    let rows = [
        ("receipts", of_canceled, opened, closed, vec![(OPEN, 1)]),
        ("receipts", was, opened, closed, vec![(OPEN, 1)]),
        ("receipts", queued, closed, opened, vec![(CLOSED, 2)]),
        ("receipts", unlocated, closed, opened, vec![(CLOSED, 1)]),
        ("receipts", is, closed, opened, vec![(CLOSED, 1)]),
        ("receipt_parents", by_link, away, home, vec![(UNLINKED, 1), (PARENT, 1), (CHILD, 1)]),
        ("results", by_outcome, away, home, vec![(RESULT, 1), (RECEIPT, 1)]),
        ("receipts", by_type, away, home, vec![(UNLINKED, 1), (RECEIPT, 1), (PARENT, 1), (CHILD, 1)]),
    ];
    for (table, which, harm, cure, expected) in rows {
        on.write(&format!("UPDATE {table} SET {harm} WHERE {which}")).await.unwrap();
        assert_eq!(found(&on).await, expected, "{table}: {harm} where {which}");
        on.write(&format!("UPDATE {table} SET {cure} WHERE {which}")).await.unwrap();
        assert_eq!(found(&on).await, [], "{table}: {cure} where {which}");
    }
}

/// As a walk leaves it that was between the two when the task ended: the end goes first, with the link to it.
async fn an_obligation_whose_end_is_archived_is_judged_by_what_is_left(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    canceled(&on).await;
    scheduled(&on, &alice, "schedule.create", json!({ "interval_seconds": 60 }), json!({ "schedule_id": "s" })).await;
    scheduled(&on, &alice, "schedule.delete", json!({ "schedule_id": "s" }), json!({ "ok": true })).await;
    plain_task(&on, &alice).await;
    let ended = "receipt_type IN ('task.assigned', 'schedule.created') \
                 AND task_id IN (SELECT task_id FROM tasks WHERE status <> 'queued')";
    on.write(&format!("UPDATE receipts SET open = 1 WHERE {ended}")).await.unwrap();
    assert_eq!(found(&on).await, [(OPEN, 4)]);
    seal(&on).await;
    on.time.pass(31 * DAY);
    archive(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM receipt_parents").await.unwrap(), 0);
    assert_eq!(on.count("SELECT count(*) FROM receipts").await.unwrap(), 5, "the obligations");
    assert_eq!(found(&on).await, [(OPEN, 4)]);
    on.write(&format!("UPDATE receipts SET open = 0 WHERE {ended}")).await.unwrap();
    assert_eq!(found(&on).await, []);
    archive(&on).await;
    assert_eq!((on.count("SELECT count(*) FROM receipts").await.unwrap(), found(&on).await), (1, Vec::new()));
}

#[tokio::test]
async fn each_rule_reads_one_table_from_end_to_end_and_finds_the_rest_by_keys() {
    let on = stores::open_sqlite().await.unwrap();
    for rule in RULES {
        let rows = on.rows(&format!("EXPLAIN QUERY PLAN {}", rule.sql)).await.unwrap();
        let steps: Vec<String> = rows.iter().map(|row| row.text(3).unwrap().to_owned()).collect();
        let scans = steps.iter().filter(|step| step.starts_with("SCAN ")).count();
        // A tenant from its first row on is a scan by another name.
        let walks = steps.iter().any(|step| step.ends_with("(tenant=?)"));
        assert!(scans == 1 && !walks, "{}: {steps:#?}", rule.what);
    }
}
