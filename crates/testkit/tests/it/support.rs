//! Short ways to say what a case does.

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Door, Error, Method, Mode, OperationSpec, Result, Role, Scope};
use waybill_testkit::stores::{Answered, TestStore};

/// An id that nothing has.
pub const NOBODY: &str = "0198c0de-0000-7000-8000-000000000000";

/// For an operation that only a test has. It writes.
pub const fn spec(name: &'static str) -> OperationSpec {
    OperationSpec {
        name,
        door: Door::Tasks,
        method: Method::Post,
        path: "/only/in/tests",
        tool: false,
        mode: Mode::Write,
        repeatable: false,
        destructive: false,
        relieves: false,
        roles: &[Role::Agent],
        scopes: &[Scope::TasksWrite],
        status: 200,
        title: "",
        description: "",
    }
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
