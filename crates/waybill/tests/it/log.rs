//! What the log keeps: who was refused what and why a call failed, under the id that the answer carries.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::world::{Engine, Reply, World};

const REQUEST_ID: &str = "x-request-id";

/// The lines of the log that hold all of these.
fn lines(world: &World, parts: &[&str]) -> Vec<String> {
    let log = world.server.log();
    log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned).collect()
}

/// A call of a tool under an id of the caller's own.
async fn call(world: &World, key: &str, id: &str, tool: &str, input: &Json) -> Json {
    let params = json!({ "name": format!("asyncgate.{tool}"), "arguments": input });
    let request = world.mcp_request("/mcp", "tools/call", &params).bearer_auth(key).header(REQUEST_ID, id);
    let reply = Reply::of(request).await;
    assert_eq!((reply.status, reply.header(REQUEST_ID)), (200, Some(id)), "{}", reply.text);
    reply.json()["result"]["structuredContent"].clone()
}

/// One line says it, with these fields in either format.
fn must_say(world: &World, id: &str, what: &str, fields: &[(&str, &str)]) {
    let found = lines(world, &[id, what]);
    assert_eq!(found.len(), 1, "{what} of {id}: {found:#?}");
    for (name, value) in fields {
        let forms = [format!("{name}={value}"), format!("{name}={value:?}"), format!("{name:?}:{value:?}")];
        assert!(forms.iter().any(|form| found[0].contains(form)), "no {name} {value}: {}", found[0]);
    }
}

async fn refusals_are_kept(format: &str) {
    let world = World::with(Engine::Sqlite, "", &["--log-format", format]).await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let reader = world.key(json!({ "principal": "agent:reader", "scopes": ["tasks:read"] })).await;
    let bob = world.key(json!({ "principal": "agent:bob" })).await;
    let task = world.task(&alice).await;

    let secret = json!({ "type": "echo", "payload": "confidential" });
    let refused = call(&world, &reader, "ticket-a", "create_task", &secret).await;
    assert_eq!(refused["error"], "forbidden", "{refused}");
    let foreign = call(&world, &bob, "ticket-b", "cancel_task", &json!({ "task_id": task })).await;
    assert_eq!(foreign["error"], "forbidden", "{foreign}");
    let made = call(&world, &alice, "ticket-c", "create_task", &secret).await;
    assert!(made["task_id"].is_string(), "{made}");
    let create = world.http.post(world.url("/v1/tasks")).bearer_auth(&reader).header(REQUEST_ID, "ticket-d");
    Reply::of(create.json(&secret)).await.must_be(Code::Forbidden, "a reader's task");
    let follow = world.url("/v1/events?principal_kind=agent&principal_id=alice");
    let follow = world.http.get(follow).bearer_auth(&bob).header(REQUEST_ID, "ticket-e");
    Reply::of(follow).await.must_be(Code::Forbidden, "another's events");

    for (id, operation, principal) in [
        ("ticket-a", "create_task", "agent:reader"),
        ("ticket-b", "cancel_task", "agent:bob"),
        ("ticket-d", "create_task", "agent:reader"),
        ("ticket-e", "follow_receipts", "agent:bob"),
    ] {
        let fields = [("operation", operation), ("principal", principal), ("code", "forbidden")];
        must_say(&world, id, "refused", &fields);
    }
    for (id, operation) in [("ticket-a", "create_task"), ("ticket-b", "cancel_task"), ("ticket-c", "create_task")] {
        must_say(&world, id, "answered", &[("operation", operation)]);
    }
    assert_eq!(lines(&world, &["ticket-c", "refused"]), [""; 0]);
    let key_secret = |key: &str| key[16..48].to_owned();
    for secret in ["confidential".to_owned(), key_secret(&alice), key_secret(&reader), key_secret(&bob), task] {
        assert_eq!(lines(&world, &[&secret, "refused"]), [""; 0]);
    }
    for secret in ["confidential".to_owned(), key_secret(&alice), key_secret(&reader), key_secret(&bob)] {
        assert_eq!(lines(&world, &[&secret]), [""; 0]);
    }
}

#[tokio::test]
async fn a_refusal_is_kept_with_its_operation_its_principal_and_the_id_of_its_answer() {
    refusals_are_kept("text").await;
    refusals_are_kept("json").await;
}

/// At a level at which requests have no lines of their own.
#[tokio::test(flavor = "multi_thread")]
async fn the_cause_of_a_failure_is_found_by_the_id_of_its_answer() {
    let world = World::with(Engine::Postgres, "", &["--log", "warn"]).await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let client = world.database.as_ref().unwrap().connect().await.unwrap();
    client.batch_execute("ALTER TABLE relationships RENAME TO mislaid").await.unwrap();

    let rest = world.get(&alice, "/v1/bootstrap").await;
    rest.must_be(Code::Internal, "a table that is not there");
    let failed = call(&world, &alice, "ticket-f", "bootstrap", &json!({})).await;
    assert_eq!(failed["error"], "internal", "{failed}");
    for (id, answer) in [(rest.header(REQUEST_ID).unwrap(), rest.text.clone()), ("ticket-f", failed.to_string())] {
        let cause = "does not exist";
        assert!(!answer.contains(cause), "{answer}");
        must_say(&world, id, cause, &[("code", "internal")]);
    }
}
