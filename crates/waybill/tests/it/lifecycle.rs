//! From start to stop and back: nothing accepted is lost, and the next start finds everything.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::{Clock, Time};

use crate::world::{Engine, Reply, World, until};

/// Longer than the drain: whoever is answered and not cut off was answered before its time.
const WAIT_SECONDS: u64 = 20;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_those_who_wait_and_ends_in_order_on_sqlite() {
    stop_in_order(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_those_who_wait_and_ends_in_order_on_postgresql() {
    stop_in_order(Engine::Postgres).await;
}

async fn stop_in_order(engine: Engine) {
    let mut world = World::with(engine, "", &[]).await;
    let key = world.server.admin_key.clone();
    let task = world.task(&key).await;
    let rest = world.http.get(world.url(&format!("/v1/tasks/{task}?wait_seconds={WAIT_SECONDS}"))).bearer_auth(&key);
    let arguments = json!({ "task_id": task, "wait_seconds": WAIT_SECONDS });
    let params = json!({ "name": "asyncgate.get_task", "arguments": arguments });
    let mcp = world.mcp_request("/mcp", "tools/call", &params).bearer_auth(&key);
    let waiters = [tokio::spawn(Reply::of(rest)), tokio::spawn(Reply::of(mcp))];
    // The two, and whoever asks for the figure.
    until("both wait", || async { world.counter("waybill_http_requests_open").await == 3 }).await;

    assert_eq!(world.server.term().unwrap().code(), Some(0), "{}", world.server.log());
    let [rest, mcp] = waiters;
    let (rest, mcp) = (rest.await.unwrap(), mcp.await.unwrap());
    assert_eq!((rest.status, rest.json()["status"].as_str()), (200, Some("queued")), "{}", rest.text);
    assert_eq!(mcp.json()["result"]["structuredContent"]["status"], "queued", "{}", mcp.text);
    assert!(!world.server.data_dir.join("server.json").exists(), "it still says that a server runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_ever_for_a_body_that_never_comes() {
    // The body may take an hour, the drain may not.
    let mut world = World::with(Engine::Sqlite, "[doors]\nbody_read_ms = 3600000\ndrain_ms = 100\n", &[]).await;
    let mut slow = TcpStream::connect(world.address()).unwrap();
    let (address, key) = (world.address(), &world.server.admin_key);
    let half = format!(
        "POST /v1/tasks HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"type\":"
    );
    slow.write_all(half.as_bytes()).unwrap();
    until("its body is awaited", || async { world.counter("waybill_http_requests_open").await == 2 }).await;
    assert_eq!(world.server.term().unwrap().code(), Some(0), "{}", world.server.log());
    world.server.restart().unwrap();
    let listed = world.get(&world.server.admin_key, "/v1/tasks").await.json();
    assert_eq!(listed["tasks"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_keeps_the_tasks_the_key_and_the_time() {
    let mut world = World::start().await;
    let key = world.server.admin_key.clone();
    let first = world.task(&key).await;
    let created = |task: Json| serde_json::from_value::<Time>(task["created_at"].clone()).unwrap();
    let before = created(world.get(&key, &format!("/v1/tasks/{first}")).await.json());

    world.server.kill9().unwrap();
    world.server.restart().unwrap();
    assert_eq!(world.server.admin_key, key, "a second start has made another admin key");
    assert_eq!(world.get(&key, &format!("/v1/tasks/{first}")).await.status, 200, "lost by kill -9");

    // A run whose wall clock is an hour ahead of the next one's.
    assert!(world.server.term().unwrap().success());
    let ahead = ManualSource::at(before.after(HOUR).micros());
    let store = world.open_store(Clock::new(ahead)).await;
    assert!(store.system().probe().await.writable);
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    world.server.restart().unwrap();
    let second = world.task(&key).await;
    let after = created(world.get(&key, &format!("/v1/tasks/{second}")).await.json());
    assert!(after.since(before) >= HOUR, "time ran back: {before} then {after}");
    let listed = world.get(&key, "/v1/tasks").await.json();
    let ids: Vec<_> =
        listed["tasks"].as_array().unwrap().iter().map(|task| task["task_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [second, first], "newest first, over both starts");
}

/// Everything that may hold a secret is looked through for the secrets of all keys: the log at its most talkative, the
/// figures, the answers to whoever errs, and every file but the one that is there to hold one.
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_anywhere_but_in_its_own_file() {
    let mut world = World::with(Engine::Sqlite, "", &["--log", "trace", "--log-format", "json"]).await;
    let admin = world.server.admin_key.clone();
    let made = world.admin_post("/admin/keys", &json!({ "principal": "agent:alice" })).await;
    let key = made["key"].as_str().unwrap();
    let rotated = world.admin_post(&format!("/admin/keys/{}/rotate", &key[4..16]), &json!({})).await;
    let successor = rotated["key"].as_str().unwrap();

    let mut answers = Vec::new();
    world.task(key).await;
    world.task(successor).await;
    // As people err: a key with a slip, in the address, in a field, as an id, as a tool's argument.
    let slipped = format!("{}x", &key[..53]);
    answers.push(world.get(&slipped, "/v1/tasks").await);
    answers.push(world.get(&admin, &format!("/v1/tasks?cursor={key}")).await);
    answers.push(world.get(&admin, &format!("/v1/tasks/{key}")).await);
    answers.push(world.post(&admin, &format!("/admin/keys/{key}/revoke"), &json!({})).await);
    answers.push(world.post(&admin, "/admin/keys", &json!({ "principal": key })).await);
    answers.push(Reply::of(world.http.get(world.url(&format!("/v1/tasks?access_token={key}")))).await);
    let params = json!({ "name": "asyncgate.cancel_task", "arguments": { "task_id": key } });
    answers.push(world.mcp(&admin, "/mcp", "tools/call", &params).await);
    let figures = world.get(&admin, "/metrics").await;
    assert_eq!(figures.status, 200);
    assert!(world.server.term().unwrap().success());

    let secret = |key: &str| key[16..48].to_owned();
    for (whose, secret) in [("admin", secret(&admin)), ("alice", secret(key)), ("successor", secret(successor))] {
        let lines: Vec<_> =
            world.server.log().lines().filter(|line| line.contains(&secret)).map(str::to_owned).collect();
        assert!(lines.is_empty(), "the log tells the secret of {whose}: {lines:#?}");
        assert!(!figures.text.contains(&secret), "the figures tell the secret of {whose}");
        for file in std::fs::read_dir(&world.server.data_dir).unwrap() {
            let path = file.unwrap().path();
            let holds = std::fs::read(&path).unwrap().windows(secret.len()).any(|part| part == secret.as_bytes());
            let may = whose == "admin" && path.ends_with("admin.key");
            assert_eq!(holds, may, "the secret of {whose} in {}", path.display());
        }
    }
    for answer in &answers {
        assert!(answer.status < 500, "a slip of the caller's is no fault of ours: {}", answer.text);
    }
    let mode = |path: &str| world.server.data_dir.join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("admin.key"), mode("")), (0o600, 0o700));
}

/// Two seconds after its last answer, the server keeps of a connection only its socket. The client may not notice: neither one
/// that asks again, nor one whose next request comes in pieces around that moment.
#[tokio::test]
async fn a_connection_that_has_rested_is_served_as_before() {
    let world = World::start().await;
    let key = world.server.admin_key.clone();
    let body = r#"{"type":"t","payload":{"n":1}}"#;
    let request = format!(
        "POST /v1/tasks HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        world.address(),
        body.len()
    );
    let mut whole = TcpStream::connect(world.address()).unwrap();
    let mut pieces = TcpStream::connect(world.address()).unwrap();
    let (first, second) = request.split_at(40);
    for round in 0..3 {
        whole.write_all(request.as_bytes()).unwrap();
        assert!(answer(&mut whole).starts_with("HTTP/1.1 201"), "whole, {round}");
        pieces.write_all(first.as_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(3_000)).await;
        pieces.write_all(second.as_bytes()).unwrap();
        assert!(answer(&mut pieces).starts_with("HTTP/1.1 201"), "in pieces, {round}");
    }
    let tasks = world.get(&key, "/v1/tasks").await.json();
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), 6);
}

/// One answer with a body of a known length.
fn answer(stream: &mut TcpStream) -> String {
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    let head = String::from_utf8(read).unwrap();
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap()];
    stream.read_exact(&mut body).unwrap();
    head
}
