//! Short ways to say what a case does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Error};
use waybill_store::effects::{Holder, Sweep, sweep_once};
pub use waybill_testkit::stores::person;
use waybill_testkit::stores::{Answered, TestStore, readable};

/// The project that most cases are about.
pub const HOME: &str = "/data/projects/backend";

pub async fn call(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Answered {
    on.call(caller, name, input.clone())
        .await
        .map_err(readable)
        .unwrap_or_else(|error| panic!("{name} {input}: {error}"))
}

/// The answer of a call that must succeed.
pub async fn ok(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Json {
    call(on, caller, name, input).await.json
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

/// `base` with further fields.
pub fn with(base: Json, further: Json) -> Json {
    let mut all = base;
    for (name, value) in further.as_object().unwrap() {
        all[name] = value.clone();
    }
    all
}

pub async fn project(on: &TestStore, caller: &Caller, path: &str) -> Json {
    ok(on, caller, "ensure_project", json!({ "human_key": path })).await
}

/// An agent of the home project, which is there afterwards.
pub async fn agent(on: &TestStore, caller: &Caller, name: &str) -> Json {
    agent_in(on, caller, HOME, name).await
}

pub async fn agent_in(on: &TestStore, caller: &Caller, path: &str, name: &str) -> Json {
    project(on, caller, path).await;
    let input = json!({ "project_key": path, "program": "claude-code", "model": "opus", "name": name });
    ok(on, caller, "register_agent", input).await
}

/// GreenCastle of alice and BlueLake of bob, who let each other write.
pub async fn two(on: &TestStore) -> (Caller, Caller) {
    let (alice, bob) = (person(on, "alice"), person(on, "bob"));
    for (caller, name) in [(&alice, "GreenCastle"), (&bob, "BlueLake")] {
        agent(on, caller, name).await;
        policy(on, caller, name, "open").await;
    }
    (alice, bob)
}

pub async fn policy(on: &TestStore, caller: &Caller, name: &str, policy: &str) {
    let input = json!({ "project_key": HOME, "agent_name": name, "policy": policy });
    ok(on, caller, "set_contact_policy", input).await;
}

/// From GreenCastle to BlueLake.
pub fn letter(subject: &str) -> Json {
    json!({
        "project_key": HOME, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": subject, "body_md": "Hello.",
    })
}

/// Sends it and answers with its number.
pub async fn send(on: &TestStore, caller: &Caller, input: Json) -> i64 {
    number(&ok(on, caller, "send_message", input).await["deliveries"][0]["payload"], "id")
}

pub fn number(json: &Json, field: &str) -> i64 {
    json[field].as_i64().unwrap_or_else(|| panic!("no number {field} in {json}"))
}

pub fn text(json: &Json, field: &str) -> String {
    json[field].as_str().unwrap_or_else(|| panic!("no text {field} in {json}")).to_owned()
}

pub fn of(name: &str) -> Json {
    json!({ "project_key": HOME, "agent_name": name })
}

pub fn message(name: &str, id: i64) -> Json {
    with(of(name), json!({ "message_id": id }))
}

/// The inbox, newest first.
pub async fn inbox(on: &TestStore, caller: &Caller, name: &str, further: Json) -> Vec<Json> {
    ok(on, caller, "fetch_inbox", with(of(name), further)).await["result"].as_array().unwrap().clone()
}

pub fn subjects(messages: &[Json]) -> Vec<String> {
    messages.iter().map(|message| text(message, "subject")).collect()
}

pub fn pass(on: &TestStore, seconds: u64) {
    on.time.pass(Duration::from_secs(seconds));
}

/// How many rows of the archive there are, and how many changes are noted.
pub async fn archive(on: &TestStore) -> (i64, i64) {
    let rows = on.count("SELECT count(*) FROM mail_archive_rows").await.unwrap();
    let changes = on.count("SELECT CAST(coalesce(sum(changes), 0) AS BIGINT) FROM mail_changes").await.unwrap();
    (rows, changes)
}

/// One whole run of a sweep, due or not.
pub async fn sweep<S: Sweep>(on: &TestStore, sweep: S) -> u64 {
    sweep_once(&on.store, &Arc::new(sweep), Holder::new(&on.store)).await.map_err(readable).unwrap().rows
}

/// As many calls at once as there are inputs, all begun before any ends.
pub async fn together(
    on: &Arc<TestStore>,
    calls: Vec<(Caller, &'static str, Json)>,
) -> Vec<waybill_kernel::Result<Json>> {
    let mut tasks = Vec::new();
    for (caller, name, input) in calls {
        let on = Arc::clone(on);
        tasks.push(tokio::spawn(async move { on.call(&caller, name, input).await.map(|answer| answer.json) }));
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}
