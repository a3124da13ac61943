//! How much a tenant may store, at every door.

use serde_json::json;
use waybill_kernel::Code;

use crate::sqs::Client;
use crate::world::{Engine, World, until};

const SETTINGS: &str = "[access]\nstored_bytes_max = 4000\n[background]\nmeasure_interval_s = 1\n";
const REFUSED: &str = "waybill_caps_refused_total";

#[tokio::test]
async fn a_tenant_stores_as_many_bytes_as_it_may_on_sqlite() {
    a_tenant_stores_as_many_bytes_as_it_may(Engine::Sqlite).await;
}

#[tokio::test]
async fn a_tenant_stores_as_many_bytes_as_it_may_on_postgres() {
    a_tenant_stores_as_many_bytes_as_it_may(Engine::Postgres).await;
}

async fn a_tenant_stores_as_many_bytes_as_it_may(engine: Engine) {
    let world = World::with(engine, SETTINGS, &[]).await;
    let sqs = Client::new(&world).await;
    let queue = sqs.queue("jobs").await;
    let send = || sqs.call("SendMessage", json!({ "QueueUrl": queue, "MessageBody": "x".repeat(5_000) }));
    assert_eq!(send().await.status, 200);

    // SQS clients hear it in the words of SQS, the others in those of the catalogue.
    let refused = send().await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(refused.text.contains("OverLimit"), "{}", refused.text);
    let key = world.key(json!({ "principal": "agent:alice" })).await;
    let refused = world.post(&key, "/v1/tasks", &json!({ "type": "echo" })).await;
    refused.must_be(Code::TooManyStoredBytes, "a task");
    let told = refused.json();
    assert_eq!((&told["limit"], &told["kind"]), (&json!(4_000), &json!("rows")), "{told}");
    assert!(told["used"].as_i64().is_some_and(|used| used >= 5_000), "{told}");
    let writer = world.key(json!({ "principal": "agent:writer", "scopes": ["mail:write"] })).await;
    let ask = json!({ "project_key": "/data/projects/backend", "from_agent": "GreenCastle", "to_agent": "BlueLake" });
    let refused = world.post(&writer, "/v1/mail/contacts/request", &ask).await;
    refused.must_be(Code::TooManyStoredBytes, "a request for contact");
    let greet = json!({
        "project_key": "/data/projects/backend", "requester": "GreenCastle", "target": "BlueLake", "auto_accept": true,
        "welcome_subject": "Hello", "welcome_body": "x".repeat(5_000),
    });
    let refused = world.post(&writer, "/v1/mail/contacts/handshake", &greet).await;
    refused.must_be(Code::TooManyStoredBytes, "a first message");
    assert_eq!(world.counter(REFUSED).await, 4);

    // What gives room is done all the same, and then there is room.
    let received = sqs.receive(&queue, 0).await;
    let handle = received[0]["ReceiptHandle"].clone();
    sqs.ok("DeleteMessage", json!({ "QueueUrl": queue, "ReceiptHandle": handle })).await;
    until("there is room again", || async {
        world.post(&key, "/v1/tasks", &json!({ "type": "echo" })).await.status == 201
    })
    .await;
    until("what is stored is shown", || async {
        let figures = world.get(&world.server.admin_key, "/metrics").await.text;
        let is_ours = |line: &str| line.starts_with("waybill_tenant_stored_bytes{") && line.contains("kind=\"rows\"");
        figures.lines().any(is_ours)
    })
    .await;
}

#[tokio::test]
async fn what_is_there_under_a_key_is_found_without_room_on_sqlite() {
    what_is_there_under_a_key_is_found_without_room(Engine::Sqlite).await;
}

#[tokio::test]
async fn what_is_there_under_a_key_is_found_without_room_on_postgres() {
    what_is_there_under_a_key_is_found_without_room(Engine::Postgres).await;
}

async fn what_is_there_under_a_key_is_found_without_room(engine: Engine) {
    const PROJECT: &str = "/data/projects/backend";
    let world = World::with(engine, SETTINGS, &[]).await;
    let scopes = ["tasks:write", "mail:write"];
    let key = world.key(json!({ "principal": "agent:alice", "scopes": scopes })).await;
    let agent = json!({ "project_key": PROJECT, "program": "test", "model": "test", "name": "GreenCastle" });
    assert_eq!(world.post(&key, "/v1/mail/projects", &json!({ "human_key": PROJECT })).await.status, 200);
    assert_eq!(world.post(&key, "/v1/mail/agents", &agent).await.status, 200);
    let task = |name: &str| json!({ "type": "echo", "payload": "x".repeat(1_000), "idempotency_key": name });
    let letter = |name: &str| {
        json!({
            "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["GreenCastle"], "subject": "Note",
            "body_md": "x".repeat(5_000), "idempotency_key": name,
        })
    };
    let made = world.post(&key, "/v1/tasks", &task("one")).await;
    let sent = world.post(&key, "/v1/mail/messages", &letter("one")).await;
    assert_eq!((made.status, sent.status), (201, 200), "{}{}", made.text, sent.text);
    for (path, input, first, field) in [
        ("/v1/tasks", task("one"), made.json(), "task_id"),
        ("/v1/mail/messages", letter("one"), sent.json(), "deliveries"),
    ] {
        let again = world.post(&key, path, &input).await;
        assert_eq!((again.status, again.header("x-idempotent-replay")), (200, Some("true")), "{path}: {}", again.text);
        assert_eq!(again.json()[field], first[field], "{path}");
    }
    for (path, input) in [("/v1/tasks", task("two")), ("/v1/mail/messages", letter("two"))] {
        world.post(&key, path, &input).await.must_be(Code::TooManyStoredBytes, path);
    }
}
