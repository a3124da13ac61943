use std::time::Duration;

use serde_json::json;
use waybill_tasks::Settings;
use waybill_testkit::stores::TestStore;

use super::{LONG, lease, sweep_leases, worker};
use crate::support::{ok, plain_task};

waybill_testkit::both! {
    an_instance_sweeps_its_own_tasks_and_those_of_the_silent,
    an_instance_that_is_heard_of_keeps_its_tasks,
    an_instance_that_was_silent_for_a_day_is_forgotten,
}

/// The instance that made the tasks, whose name the store's settings have, and another one beside it.
fn other() -> Settings {
    Settings { instance_id: "other".to_owned(), ..Settings::default() }
}

async fn instances(on: &TestStore) -> Vec<String> {
    let rows = on.rows("SELECT DISTINCT instance FROM tasks ORDER BY instance").await.unwrap();
    rows.iter().map(|row| row.text(0).unwrap().to_owned()).collect()
}

async fn an_instance_sweeps_its_own_tasks_and_those_of_the_silent(on: TestStore) {
    for _ in 0..5 {
        plain_task(&on, &on.admin).await;
    }
    ok(&on, &worker(&on, "w"), "lease_next", json!({ "max_tasks": 4, "lease_ttl_seconds": 5 })).await;
    sweep_leases(&on, &Settings::default()).await;
    on.time.pass(Duration::from_secs(29));
    assert_eq!(sweep_leases(&on, &other()).await.rows, 0, "it was heard of 29 seconds ago");
    on.time.pass(Duration::from_secs(2));
    let report = sweep_leases(&on, &Settings { sweep_batch: 3, ..other() }).await;
    assert!(report.batches >= 2, "adopted in batches");
    assert_eq!(on.count("SELECT count(*) FROM tasks WHERE status = 'queued'").await.unwrap(), 5);
    assert_eq!(on.count("SELECT count(*) FROM tasks WHERE instance = 'other'").await.unwrap(), 4);
    assert_eq!(instances(&on).await, ["", "other"], "what was never leased needs no sweep");
}

async fn an_instance_that_is_heard_of_keeps_its_tasks(on: TestStore) {
    plain_task(&on, &on.admin).await;
    lease(&on, &worker(&on, "w")).await;
    let own = Settings { lease_grace_s: 10_000, ..Settings::default() };
    for _ in 0..20 {
        on.time.pass(Duration::from_secs(20));
        sweep_leases(&on, &own).await;
        assert_eq!(sweep_leases(&on, &other()).await.rows, 0);
    }
    assert_eq!(instances(&on).await, [""]);
    // It is silent from here on.
    on.time.pass(LONG);
    assert_eq!(sweep_leases(&on, &other()).await.rows, 1);
    assert_eq!(instances(&on).await, ["other"]);
    // When it comes back, what was taken stays where it is.
    sweep_leases(&on, &own).await;
    assert_eq!(instances(&on).await, ["other"]);
}

async fn an_instance_that_was_silent_for_a_day_is_forgotten(on: TestStore) {
    let known = async |table: &str| on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap();
    sweep_leases(&on, &Settings::default()).await;
    sweep_leases(&on, &other()).await;
    assert_eq!((known("instances").await, known("sweeps").await), (2, 2), "each has a row of its own");
    on.time.pass(Duration::from_secs(23 * 3600));
    sweep_leases(&on, &other()).await;
    assert_eq!((known("instances").await, known("sweeps").await), (2, 2));
    on.time.pass(Duration::from_secs(2 * 3600));
    sweep_leases(&on, &other()).await;
    assert_eq!((known("instances").await, known("sweeps").await), (1, 1));
}
