//! What recurs about tasks, on both engines: leases that run out, instances that fall silent, anomalies, the chain,
//! the archive.

mod anomalies;
pub mod archive;
mod audit;
pub mod chain;
mod expiry;
mod instances;
mod races;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Role};
use waybill_store::effects::{Holder, Report, sweep_once};
use waybill_tasks::Settings;
use waybill_tasks::sweeps::{Anomalies, ExpiredLeases};
use waybill_testkit::stores::{TestStore, caller};

use crate::support::{ok, sweep_to_end};

/// Longer than the usual lease.
pub const LONG: Duration = Duration::from_secs(301);
/// Longer than a task is held back after its lease ran out.
pub const HELD: Duration = Duration::from_secs(6);

pub fn worker(on: &TestStore, id: &str) -> Caller {
    caller(&on.admin, &format!("worker:{id}"), &[Role::Worker]).unwrap()
}

/// The one task that is there to be taken, with its lease.
pub async fn lease(on: &TestStore, worker: &Caller) -> Json {
    let answer = ok(on, worker, "lease_next", json!({})).await;
    assert_eq!(answer["tasks"].as_array().unwrap().len(), 1, "{answer}");
    answer["tasks"][0].clone()
}

/// What a worker says about a task it was given.
pub fn about(leased: &Json, further: Json) -> Json {
    let mut input = json!({ "task_id": leased["task_id"], "lease_id": leased["lease_id"] });
    if let (Some(input), Json::Object(further)) = (input.as_object_mut(), further) {
        input.extend(further);
    }
    input
}

pub async fn sweep_leases(on: &TestStore, settings: &Settings) -> Report {
    sweep_to_end(on, &Arc::new(ExpiredLeases::new(settings)), Holder::new(&on.store)).await
}

/// The sweep as the store's own settings have it.
pub async fn sweep(on: &TestStore) -> u64 {
    sweep_leases(on, &Settings::default()).await.rows
}

pub async fn sweep_anomalies(on: &TestStore) -> u64 {
    let sweep = Arc::new(Anomalies::new(&Settings::default()));
    sweep_once(&on.store, &sweep, Holder::new(&on.store)).await.unwrap().rows
}

/// The bodies of all receipts of a type, oldest first.
pub async fn receipts(on: &TestStore, kind: &str) -> Vec<Json> {
    let rows = on.rows_with("SELECT body FROM receipts WHERE receipt_type = $1 ORDER BY seq", &[kind]).await.unwrap();
    rows.iter().map(|row| serde_json::from_str(row.text(0).unwrap()).unwrap()).collect()
}

/// The bodies of the anomalies of a kind.
pub async fn anomalies(on: &TestStore, kind: &str) -> Vec<Json> {
    receipts(on, "system.anomaly").await.into_iter().filter(|body| body["kind"] == kind).collect()
}
