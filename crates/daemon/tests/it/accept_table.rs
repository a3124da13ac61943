//! Every cell of the accept table, over the socket: a row is driven into each state, then the same and another request come.

use serde_json::{Value, json};
use waybill_daemon::outbox::Status;

use crate::support::{Plan, Running, delivered, refused, start};

const ID: &str = "id-1";

fn same() -> Value {
    json!({ "to": "bob", "message": "hello", "client_message_id": ID })
}

fn other() -> Value {
    json!({ "to": "bob", "message": "other", "client_message_id": ID })
}

/// A row under `ID`, driven there by the ways that the daemon itself has.
async fn driven(to: Status) -> Running {
    let daemon = start(Plan::default()).await;
    assert_eq!(daemon.post("/v1/send", &same()).await.expect(202)["status"], "queued");
    match to {
        Status::Pending => {}
        Status::Inflight => drop(daemon.claim(ID).await),
        Status::Done => {
            let row = daemon.claim(ID).await;
            daemon.settle(row, delivered()).await;
        }
        Status::Dead => {
            let row = daemon.claim(ID).await;
            daemon.settle(row, refused()).await;
        }
        Status::Aborted => {
            let body = json!({ "id": ID, "new_client_id": "id-2" });
            daemon.post("/v1/admin/outbox/requeue", &body).await.expect(200);
        }
    }
    let shown = daemon.get(&format!("/v1/admin/outbox/inspect?id={ID}")).await.expect(200);
    assert_eq!(shown["message"]["status"], to.as_str());
    daemon
}

/// What the row looks like, to be compared before and after.
async fn row(daemon: &Running) -> Value {
    daemon.get(&format!("/v1/admin/outbox/inspect?id={ID}")).await.expect(200)["message"].clone()
}

#[track_caller]
fn conflict(answer: &Value, name: &str) {
    assert_eq!(answer["error"], "idempotency_key_reused", "{answer}");
    assert_eq!(answer["conflict"], name, "{answer}");
    let prefix = answer["request_fingerprint"].as_str().unwrap();
    assert!(prefix.len() == 16 && prefix.bytes().all(|byte| byte.is_ascii_hexdigit()), "{answer}");
    assert_eq!(answer["client_message_id"], ID);
}

/// Both requests, twice each: an answer must not change what the next one is.
async fn asked(daemon: &Running, body: &Value, status: u16) -> Value {
    let before = row(daemon).await;
    let first = daemon.post("/v1/send", body).await.expect(status);
    let again = daemon.post("/v1/send", body).await.expect(status);
    assert_eq!(first, again);
    assert_eq!(row(daemon).await, before, "asking has changed the row");
    first
}

#[tokio::test(flavor = "multi_thread")]
async fn none_is_written_as_pending() {
    let daemon = start(Plan::default()).await;
    let answer = daemon.post("/v1/send", &same()).await.expect(202);
    assert_eq!(answer, json!({ "client_message_id": ID, "status": "queued", "duplicate": false }));
    let row = row(&daemon).await;
    assert_eq!(
        (&row["status"], &row["attempts"], &row["destination_kind"]),
        (&json!("pending"), &json!(0), &json!("dm"))
    );
    assert_eq!(row["payload"]["body"], "hello");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_and_the_same_request_is_queued() {
    let daemon = driven(Status::Pending).await;
    let answer = asked(&daemon, &same(), 202).await;
    assert_eq!(answer, json!({ "client_message_id": ID, "status": "queued", "duplicate": false }));
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_and_another_request_conflicts() {
    let daemon = driven(Status::Pending).await;
    conflict(&asked(&daemon, &other(), 409).await, "outbox_pending_fingerprint_mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn inflight_and_the_same_request_is_inflight() {
    let daemon = driven(Status::Inflight).await;
    assert_eq!(asked(&daemon, &same(), 202).await["status"], "inflight");
}

#[tokio::test(flavor = "multi_thread")]
async fn inflight_and_another_request_conflicts() {
    let daemon = driven(Status::Inflight).await;
    conflict(&asked(&daemon, &other(), 409).await, "outbox_inflight_fingerprint_mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn done_and_the_same_request_is_a_duplicate_with_the_brokers_ids() {
    let daemon = driven(Status::Done).await;
    let answer = asked(&daemon, &same(), 200).await;
    assert_eq!((&answer["duplicate"], &answer["broker_message_id"]), (&json!(true), &json!("m-1")));
    assert_eq!(answer["history_id"], "h-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn done_and_another_request_conflicts_and_names_the_brokers_id() {
    let daemon = driven(Status::Done).await;
    let answer = asked(&daemon, &other(), 409).await;
    conflict(&answer, "outbox_done_fingerprint_mismatch");
    assert_eq!(answer["broker_message_id"], "m-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_and_the_same_request_conflicts_and_says_why() {
    let daemon = driven(Status::Dead).await;
    let answer = asked(&daemon, &same(), 409).await;
    conflict(&answer, "outbox_dead_fingerprint_match");
    assert_eq!(answer["reason"], "topic_unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_and_another_request_conflicts() {
    let daemon = driven(Status::Dead).await;
    let answer = asked(&daemon, &other(), 409).await;
    conflict(&answer, "outbox_dead_fingerprint_mismatch");
    assert_eq!(answer.get("reason"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_and_the_same_request_conflicts() {
    let daemon = driven(Status::Aborted).await;
    conflict(&asked(&daemon, &same(), 409).await, "outbox_aborted_fingerprint_match");
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_and_another_request_conflicts() {
    let daemon = driven(Status::Aborted).await;
    conflict(&asked(&daemon, &other(), 409).await, "outbox_aborted_fingerprint_mismatch");
}

/// Each part of the fingerprint makes another request; the spelling of `meta` and the mentions do not.
#[tokio::test(flavor = "multi_thread")]
async fn what_makes_another_request() {
    let daemon = start(Plan::default()).await;
    let first = json!({ "to": "bob", "message": "m", "meta": {"a": 1, "b": 2}, "client_message_id": "x" });
    daemon.post("/v1/send", &first).await.expect(202);
    let key = daemon.bob.public_key().to_string();
    for (same, field, value) in [
        (true, "to", json!(key)),
        (true, "meta", json!({"b": 2, "a": 1.0})),
        (true, "priority", json!("next")),
        (false, "to", json!("alice")),
        (false, "message", json!("M")),
        (false, "meta", json!({"a": 1})),
        (false, "meta", Value::Null),
        (false, "priority", json!("now")),
        (false, "replyToId", json!("earlier")),
    ] {
        let mut request = first.clone();
        request[field] = value;
        let answer = daemon.post("/v1/send", &request).await;
        assert_eq!(answer.status, if same { 202 } else { 409 }, "{request}: {answer:?}");
    }
    let post =
        |mentions: Value| json!({ "topic": "ops", "message": "m", "mentions": mentions, "client_message_id": "y" });
    daemon.post("/v1/topic/post", &post(json!([]))).await.expect(202);
    daemon.post("/v1/topic/post", &post(json!([key]))).await.expect(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_names_the_id_before_the_body_and_one_is_minted_without_both() {
    let daemon = start(Plan::default()).await;
    let body = json!({ "to": "bob", "message": "m", "client_message_id": "in-body" }).to_string();
    let answer = daemon.call("POST", "/v1/send", &[("idempotency-key", "in-header é")], &body).await.expect(202);
    assert_eq!(answer["client_message_id"], "in-header é");
    let minted = daemon.post("/v1/send", &json!({ "to": "bob", "message": "m" })).await.expect(202);
    let id = minted["client_message_id"].as_str().unwrap();
    assert!(id.len() == 26 && id.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()), "{id}");
    assert_eq!(daemon.get("/v1/health").await.expect(200)["queue_depth"], 2);
}

/// An answer means that the row outlives the process, and a restart changes no cell but that of what was in flight.
#[tokio::test(flavor = "multi_thread")]
async fn rows_outlive_the_daemon() {
    let daemon = driven(Status::Inflight).await;
    daemon.post("/v1/send", &json!({ "to": "alice", "message": "m", "client_message_id": "id-2" })).await.expect(202);
    let (home, time) = daemon.stop().await;
    let daemon = crate::support::start_in(home, time, false).await;
    let row = row(&daemon).await;
    assert_eq!((&row["status"], &row["attempts"]), (&json!("pending"), &json!(1)));
    assert_eq!(daemon.post("/v1/send", &same()).await.expect(202)["status"], "queued");
    let second = json!({ "to": "alice", "message": "n", "client_message_id": "id-2" });
    conflict_of(&daemon.post("/v1/send", &second).await.expect(409));
}

/// On a mesh in plain text a queue is a destination as any other; whether it may be used only the server knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_a_destination_on_a_plaintext_mesh_alone() {
    let daemon = start(Plan::default()).await;
    let to = |queue: &str| json!({ "queue": queue, "message": "hello", "client_message_id": ID });
    for _ in 0..2 {
        assert_eq!(daemon.post("/v1/send", &to("jobs")).await.expect(202)["status"], "queued");
    }
    let row = row(&daemon).await;
    assert_eq!((&row["destination_kind"], &row["destination_ref"]), (&json!("queue"), &json!("jobs")));
    conflict_of(&daemon.post("/v1/send", &to("other")).await.expect(409));
    conflict_of(&daemon.post("/v1/send", &same()).await.expect(409));
    let both = json!({ "to": "bob", "queue": "jobs", "message": "hello" });
    assert_eq!(daemon.post("/v1/send", &both).await.expect(400)["error"], "invalid_request");
    let encrypted = start(Plan { plaintext: false, ..Plan::default() }).await;
    assert_eq!(encrypted.post("/v1/send", &to("jobs")).await.expect(400)["error"], "queue_needs_plaintext");
}

fn conflict_of(answer: &Value) {
    assert_eq!(answer["conflict"], "outbox_pending_fingerprint_mismatch");
}
