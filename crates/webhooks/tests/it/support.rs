//! Short ways to say what a case does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::Caller;
use waybill_store::effects::{Follow, Holder, Progress, Round, Sweep, reach_once, sweep_once};
use waybill_testkit::stores::{TestStore, readable};
use waybill_webhooks::{Deliver, FanOut, Lines, Settings};

pub const SECOND: Duration = Duration::from_secs(1);
/// Longer than a claim of a line holds.
pub const CLAIM: Duration = Duration::from_secs(80);

/// What reaches the receivers of tests, which are on this machine.
pub fn settings() -> Settings {
    Settings { allow_private: true, ..Settings::default() }
}

pub async fn ok(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Json {
    on.call(caller, name, input).await.map_err(readable).unwrap().json
}

/// A new webhook of the caller's tenant: its id and its secret.
pub async fn webhook(on: &TestStore, caller: &Caller, input: Json) -> (String, String) {
    let made = ok(on, caller, "create_webhook", input).await;
    // What is written in the same microsecond would be before it on a clock that stands still.
    on.time.pass(Duration::from_millis(1));
    (text(&made, "webhook_id"), text(&made, "secret"))
}

pub async fn webhook_to(on: &TestStore, url: &str) -> String {
    webhook(on, &on.admin, json!({ "url": url })).await.0
}

/// One receipt, `task.assigned`.
pub async fn receipt(on: &TestStore, caller: &Caller) -> String {
    text(&ok(on, caller, "create_task", json!({ "type": "work" })).await, "task_id")
}

pub async fn sweep<S: Sweep>(on: &TestStore, sweep: S) -> u64 {
    let sweep = Arc::new(sweep);
    let mut rows = 0;
    loop {
        let report = sweep_once(&on.store, &sweep, Holder::new(&on.store)).await.unwrap();
        rows += report.rows;
        if report.progress != (Progress::Ended { more: true }) {
            return rows;
        }
    }
}

pub async fn fan_out(on: &TestStore) {
    sweep(on, Follow(FanOut::new(&settings()))).await;
}

pub async fn reach(on: &TestStore, lines: Lines) -> Round {
    reach_with(on, lines, &settings()).await
}

pub async fn reach_with(on: &TestStore, lines: Lines, settings: &Settings) -> Round {
    reach_once(&on.store, &Arc::new(Deliver::new(lines, settings))).await.unwrap()
}

/// Newest first.
pub async fn deliveries(on: &TestStore, webhook_id: &str) -> Vec<Json> {
    let input = json!({ "webhook_id": webhook_id, "limit": 200 });
    ok(on, &on.admin, "list_webhook_deliveries", input).await["deliveries"].as_array().unwrap().clone()
}

pub async fn only_delivery(on: &TestStore, webhook_id: &str) -> Json {
    let mut all = deliveries(on, webhook_id).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

pub async fn shown(on: &TestStore, webhook_id: &str) -> Json {
    let listed = ok(on, &on.admin, "list_webhooks", json!({ "limit": 200 })).await;
    let all = listed["webhooks"].as_array().unwrap();
    all.iter().find(|webhook| webhook["webhook_id"] == webhook_id).unwrap().clone()
}

pub fn text(json: &Json, field: &str) -> String {
    json[field].as_str().unwrap_or_else(|| panic!("no text {field} in {json}")).to_owned()
}
