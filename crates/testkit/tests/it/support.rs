//! Short ways to say what a case does.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Error, OperationSpec, Result, Role, Scope};
use waybill_store::effects::{Holder, Progress, Report, Sweep, sweep_once};
use waybill_testkit::stores::{self, Answered, TestStore};

/// An id that nothing has.
pub const NOBODY: &str = "0198c0de-0000-7000-8000-000000000000";

/// For an operation that only a test has. It writes.
pub const fn spec(name: &'static str) -> OperationSpec {
    OperationSpec { name, roles: &[Role::Agent], scopes: &[Scope::TasksWrite], ..OperationSpec::WRITE }
}

/// The answer of a call that must succeed.
pub async fn ok(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Json {
    done(on.call(caller, name, input).await).json
}

/// The error of a call that must not.
pub async fn refused(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Error {
    match on.call(caller, name, input.clone()).await {
        Ok(answer) => panic!("{name} {input} was allowed: {answer:?}"),
        Err(error) => error,
    }
}

pub async fn refusal(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Code {
    refused(on, caller, name, input).await.code()
}

pub fn done(result: Result<Answered>) -> Answered {
    result.unwrap_or_else(|error| panic!("{error} ({:?})", error.cause()))
}

/// Creates a task and answers with its id.
pub async fn task(on: &TestStore, caller: &Caller, input: Json) -> String {
    text(&ok(on, caller, "create_task", input).await, "task_id")
}

pub async fn plain_task(on: &TestStore, caller: &Caller) -> String {
    task(on, caller, json!({ "type": "work" })).await
}

pub async fn task_status(on: &TestStore, caller: &Caller, task_id: &str) -> String {
    text(&ok(on, caller, "get_task", json!({ "task_id": task_id })).await, "status")
}

pub fn text(json: &Json, field: &str) -> String {
    json[field].as_str().unwrap_or_else(|| panic!("no text {field} in {json}")).to_owned()
}

pub fn texts(list: &Json, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| text(item, field)).collect()
}

/// All pages of a list, each as the values of one field.
pub async fn pages(
    on: &TestStore,
    caller: &Caller,
    name: &str,
    input: Json,
    items: &str,
    field: &str,
) -> Vec<Vec<String>> {
    let mut input = input;
    let mut pages = Vec::new();
    loop {
        let page = ok(on, caller, name, input.clone()).await;
        pages.push(texts(&page[items], field));
        assert!(pages.len() < 100, "the list does not end");
        match page.get("next_cursor") {
            Some(cursor) => input["cursor"] = cursor.clone(),
            None => return pages,
        }
    }
}

/// A worker of the default tenant.
pub fn worker(on: &TestStore, id: &str) -> Caller {
    stores::caller(&on.admin, &format!("worker:{id}"), &[Role::Worker]).unwrap()
}

/// What one claim gives the worker.
pub async fn claim(on: &TestStore, worker: &Caller, input: Json) -> Vec<Json> {
    ok(on, worker, "lease_next", input).await["tasks"].as_array().unwrap().clone()
}

/// A task of `alice` that the worker holds: task id and lease id, as the worker's calls name them.
pub async fn held(on: &TestStore, worker: &Caller, input: Json) -> Json {
    let task_id = task(on, &on.agent("alice").unwrap(), input).await;
    let tasks = claim(on, worker, json!({})).await;
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    assert_eq!(tasks[0]["task_id"], json!(task_id));
    json!({ "task_id": task_id, "lease_id": tasks[0]["lease_id"] })
}

/// A sweep with all its work: a run that a slow machine has cut short leaves the rest to the next.
pub async fn sweep_to_end<S: Sweep>(on: &TestStore, sweep: &Arc<S>, holder: Holder) -> Report {
    let mut all = sweep_once(&on.store, sweep, holder).await.unwrap();
    while all.progress == (Progress::Ended { more: true }) {
        let next = sweep_once(&on.store, sweep, holder).await.unwrap();
        all = Report { rows: all.rows + next.rows, batches: all.batches + next.batches, ..next };
    }
    all
}

/// `base` with further fields.
pub fn with(base: &Json, further: Json) -> Json {
    let mut all = base.clone();
    for (name, value) in further.as_object().unwrap() {
        all[name] = value.clone();
    }
    all
}

/// Everything that worker calls change, as text: equal when nothing was changed.
pub async fn footprint(on: &TestStore) -> String {
    let mut all = Vec::new();
    for sql in [
        "SELECT task_id, status, attempt, updated_at, lease_id, worker, lease_expires_at, renewals, epoch FROM tasks ORDER BY task_id",
        "SELECT task_id, epoch, ended_at, end_reason FROM leases ORDER BY task_id, epoch",
        "SELECT task_id, outcome, result, error, artifacts, located FROM results ORDER BY task_id",
        "SELECT receipt_id, receipt_type, open FROM receipts ORDER BY seq",
        "SELECT task_id, progress FROM task_progress ORDER BY task_id",
    ] {
        all.push(format!("{:?}", on.rows(sql).await.unwrap()));
    }
    all.join("\n")
}

/// Type, sender, addressee, open, and the types of the parents, of every receipt in order.
pub async fn ledger(on: &TestStore) -> Vec<String> {
    let rows = on
        .rows(
            "SELECT r.receipt_type, r.sender, r.addressee, r.open, p.receipt_type
             FROM receipts r LEFT JOIN receipt_parents l ON l.tenant = r.tenant AND l.child_id = r.receipt_id
             LEFT JOIN receipts p ON p.tenant = r.tenant AND p.receipt_id = l.parent_id ORDER BY r.seq",
        )
        .await
        .unwrap();
    let line = |row: &waybill_store::Row| {
        let open = if row.bool(3).unwrap() { " open" } else { "" };
        let parent = row.text_opt(4).unwrap().map_or_else(String::new, |parent| format!(" <- {parent}"));
        format!("{} {} > {}{open}{parent}", row.text(0).unwrap(), row.text(1).unwrap(), row.text(2).unwrap())
    };
    rows.iter().map(line).collect()
}
