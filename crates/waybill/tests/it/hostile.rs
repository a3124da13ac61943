//! Clients that mean harm, with the least key or none: nobody else notices them, and the server lives.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;

use crate::world::{Engine, Reply, World, raw, status_of, until};

const PATIENCE: Duration = Duration::from_secs(60);

/// JSON in a text in JSON in a text, under the name by which serde_json knows its raw values.
fn nested_raw_values(levels: usize) -> String {
    (0..levels).fold("1".to_owned(), |inner, _| {
        // Escaping doubles every backslash, so that real nesting of texts grows too fast: each level is written out anew.
        format!("{{\"$serde_json::private::RawValue\":{inner}}}")
    })
}

fn head(world: &World, key: &str, path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n",
        world.address()
    )
}

#[tokio::test]
async fn no_depth_and_no_reserved_name_reaches_a_parser() {
    let world = World::start().await;
    let key = world.key(json!({ "principal": "agent:mallory" })).await;
    let text = serde_json::to_string(&nested_raw_values(3)).unwrap();
    let payloads = [
        nested_raw_values(500),
        format!("{{\"$serde_json::private::RawValue\":{text}}}"),
        format!("{{\"\\u0024serde_json::private::RawValue\":{text}}}"),
        format!("{{\"$serde_json::private::Number\":{text}}}"),
        "[".repeat(100_000) + &"]".repeat(100_000),
        "{\"a\":".repeat(60_000) + "1" + &"}".repeat(60_000),
        "[".repeat(1_000_000),
    ];
    for payload in payloads {
        let begin = &payload[..payload.len().min(60)];
        let rest = format!("{{\"type\":\"t\",\"payload\":{payload}}}");
        let request = world.http.post(world.url("/v1/tasks")).bearer_auth(&key);
        let reply = Reply::of(request.header("Content-Type", "application/json").body(rest.clone())).await;
        reply.must_be(Code::InvalidRequest, begin);
        let frames = [
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"asyncgate.create_task","arguments":{rest}}}}}"#
            ),
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","_meta":{payload}}}}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":{payload},"method":"ping"}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{payload}}}"#),
            payload.clone(),
        ];
        for frame in frames {
            let request = world.mcp_request("/mcp", "", &json!({})).bearer_auth(&key).body(frame);
            let reply = Reply::of(request).await;
            assert_eq!(reply.status, 400, "{begin}: {}", reply.text);
        }
    }
    assert_eq!(world.get(&key, "/v1/tasks").await.json()["tasks"], json!([]));
}

#[tokio::test]
async fn a_payload_comes_back_as_the_text_it_was_through_both_doors() {
    let world = World::start().await;
    let key = world.server.admin_key.clone();
    let payload = r#"{"big":123456789012345678901234567890,"next":9007199254740993,"e":1.0e2,"n":null}"#;
    let body = format!(r#"{{"type":"t","payload":{payload}}}"#);
    let request = world.http.post(world.url("/v1/tasks")).bearer_auth(&key).header("Content-Type", "application/json");
    let rest = Reply::of(request.body(body.clone())).await.json()["task_id"].as_str().unwrap().to_owned();
    let frame = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"asyncgate.create_task","arguments":{body}}}}}"#
    );
    let reply = Reply::of(world.mcp_request("/mcp", "", &json!({})).bearer_auth(&key).body(frame)).await.json();
    let tool = reply["result"]["structuredContent"]["task_id"].as_str().unwrap().to_owned();
    for task in [rest, tool] {
        let reply = world.get(&key, &format!("/v1/tasks/{task}")).await;
        assert!(reply.text.contains(payload), "{}", reply.text);
        let params = json!({ "name": "asyncgate.get_task", "arguments": { "task_id": task } });
        let reply = world.mcp(&key, "/mcp", "tools/call", &params).await;
        assert!(reply.text.contains(payload), "{}", reply.text);
    }
}

#[tokio::test]
async fn null_is_a_field_that_is_left_out() {
    let world = World::start().await;
    let key = world.server.admin_key.clone();
    let nulls = json!({
        "type": "t", "payload": null, "requirements": { "capabilities": null }, "priority": null, "idempotency_key": null,
        "max_attempts": null, "retry_backoff_seconds": null, "delay_seconds": null, "created_by": null,
    });
    let made = world.post(&key, "/v1/tasks", &nulls).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let params = json!({ "name": "asyncgate.create_task", "arguments": nulls });
    let made = world.mcp(&key, "/mcp", "tools/call", &params).await.json();
    assert_eq!(made["result"]["isError"], false, "{made}");
    world.post(&key, "/v1/tasks", &json!({ "type": null })).await.must_be(Code::InvalidRequest, "a type of null");
    let unknown = world.post(&key, "/v1/tasks", &json!({ "type": "t", "tpye": null })).await;
    unknown.must_be(Code::InvalidRequest, "an unknown field of null");
}

#[tokio::test]
async fn a_body_that_says_it_is_too_large_is_not_asked_for() {
    let world = World::start().await;
    let key = world.server.admin_key.clone();
    let large = "Content-Length: 100000000\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
    let answer = raw(world.address(), format!("{}{large}", head(&world, &key, "/v1/tasks")).as_bytes());
    assert_eq!(status_of(&answer), Code::PayloadTooLarge.entry().http, "{answer}");
    let answer = raw(world.address(), format!("{}{large}", head(&world, &key, "/mcp")).as_bytes());
    assert_eq!(status_of(&answer), Code::PayloadTooLarge.entry().http, "{answer}");
    let answer = raw(world.address(), format!("{}{large}", head(&world, "aga_no", "/v1/tasks")).as_bytes());
    assert_eq!(status_of(&answer), Code::Unauthorized.entry().http, "{answer}");
}

#[tokio::test]
async fn a_request_that_names_two_servers_is_refused() {
    let world = World::start().await;
    let request = |hosts: &str| format!("GET /healthz HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
    for (hosts, status) in
        [("Host: a\r\n", 200), ("Host: a\r\nHost: b\r\n", 400), ("Host: a\r\nHost: a\r\n", 400), ("", 400)]
    {
        let answer = raw(world.address(), request(hosts).as_bytes());
        assert_eq!(status_of(&answer), status, "{hosts:?}: {answer}");
    }
}

/// Connected and asked once; whether it was closed shows when it is read.
fn connect(world: &World) -> TcpStream {
    let mut stream = TcpStream::connect(world.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", world.address());
    stream.write_all(request.as_bytes()).unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"}") {
        let mut some = [0; 512];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "closed before the answer");
        seen.extend_from_slice(&some[..count]);
    }
    stream
}

fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_many_idle_connections_loses_them_and_others_get_in() {
    let world = World::with(Engine::Sqlite, "[doors]\nconnections_per_address_max = 5\n", &[]).await;
    let mut first = connect(&world);
    let _held: Vec<_> = (0..5).map(|_| connect(&world)).collect();
    assert!(is_closed(&mut first), "the longest idle one makes room");
    let closed = world.counter("waybill_http_connections_closed_total").await;
    assert!(closed >= 1, "{closed}");

    let world = World::with(Engine::Sqlite, "[doors]\nidle_ms = 300\n", &[]).await;
    let mut idle = connect(&world);
    assert!(is_closed(&mut idle), "nobody may be idle for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_its_answers_loses_its_connection_and_its_places() {
    let world = World::with(Engine::Sqlite, "[doors]\nwrite_ms = 2000\n", &[]).await;
    let key = world.key(json!({ "principal": "agent:mallory" })).await;
    let large = world.post(&key, "/v1/tasks", &json!({ "type": "t", "payload": "x".repeat(1_000_000) })).await;
    let path = format!("/v1/tasks/{}", large.json()["task_id"].as_str().unwrap());
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\n\r\n", world.address());
    // More than the kernel takes on their behalf: the rest waits in the server.
    let mut streams: Vec<_> = (0..10).map(|_| TcpStream::connect(world.address()).unwrap()).collect();
    for stream in &mut streams {
        stream.write_all(request.repeat(20).as_bytes()).unwrap();
    }
    // The look at the figures is one of them.
    until("unread answers hold places", || async { world.counter("waybill_http_requests_open").await > 4 }).await;
    assert_eq!(world.get(&key, &path).await.status, 200);
    until("all are given back", || async { world.counter("waybill_http_requests_open").await == 1 }).await;
    assert!(world.counter("waybill_http_connections_closed_total").await >= 10);
    drop(streams);
}

async fn waiting(world: &World, key: &str, task: &str) -> tokio::task::JoinHandle<Reply> {
    let (http, url, bearer) =
        (world.http.clone(), world.url(&format!("/v1/tasks/{task}?wait_seconds=20")), key.to_owned());
    tokio::spawn(async move { Reply::of(http.get(url).bearer_auth(bearer)).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waiting_calls_of_one_key_leave_room_for_others_and_end_with_the_key() {
    let world = World::with(Engine::Sqlite, "[doors]\nrequests_max = 16\nstreams_max = 8\n", &[]).await;
    let made = world.admin_post("/admin/keys", &json!({ "principal": "agent:mallory" })).await;
    let key = made["key"].as_str().unwrap().to_owned();
    let other = world.key(json!({ "principal": "agent:bob" })).await;
    let task = world.task(&key).await;
    // A place is given back a moment after its answer was read, and all of this key's are needed.
    until("nothing is under way", || async { world.counter("waybill_http_requests_open").await == 1 }).await;
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(waiting(&world, &key, &task).await);
    }
    // With the look itself, which is an admin's.
    until("the key has its share", || async { world.counter("waybill_http_requests_open").await == 5 }).await;
    world.get(&key, "/v1/tasks").await.must_be(Code::Overloaded, "one more of the same key");
    assert_eq!(world.get(&other, "/v1/tasks").await.status, 200, "another key of the tenant");

    let revoke = format!("/admin/keys/{}/revoke", made["key_id"].as_str().unwrap());
    world.admin_post(&revoke, &json!({})).await;
    for waiter in waiters {
        let reply = tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("it waits on").unwrap();
        reply.must_be(Code::Unauthorized, "a call whose key was revoked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_shared_and_end_with_their_key() {
    let world = World::with(Engine::Sqlite, "[doors]\nstreams_max = 8\n", &[]).await;
    let made = world.admin_post("/admin/keys", &json!({ "principal": "agent:mallory" })).await;
    let key = made["key"].as_str().unwrap().to_owned();
    let open = || world.http.get(world.url("/v1/events")).bearer_auth(&key).send();
    let (one, two) = (open().await.unwrap(), open().await.unwrap());
    assert_eq!((one.status().as_u16(), two.status().as_u16()), (200, 200));
    world.get(&key, "/v1/events").await.must_be(Code::Overloaded, "a third stream of eight");
    let revoke = format!("/admin/keys/{}/revoke", made["key_id"].as_str().unwrap());
    world.admin_post(&revoke, &json!({})).await;
    for stream in [one, two] {
        // Well before the next heartbeat, after which it would have ended anyway.
        let text = tokio::time::timeout(Duration::from_secs(10), stream.text()).await.expect("it goes on").unwrap();
        assert!(text.contains("unauthorized"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_who_asked_and_never_shows_a_key() {
    let world = World::start().await;
    let made = world.admin_post("/admin/keys", &json!({ "principal": "agent:alice" })).await;
    let (key, key_id) = (made["key"].as_str().unwrap(), made["key_id"].as_str().unwrap());
    let escaped = key.replace('_', "%5F");
    for path in [format!("/v1/tasks/{key}"), format!("/v1/tasks/{escaped}"), format!("/nowhere/{}", &key[4..])] {
        let request = world.http.get(world.url(&path)).bearer_auth(key).header("x-request-id", key);
        let reply = Reply::of(request).await;
        assert_ne!(reply.header("x-request-id"), Some(key));
    }
    let reply =
        Reply::of(world.http.get(world.url("/v1/tasks")).bearer_auth(key).header("x-request-id", "mark-1")).await;
    assert_eq!(reply.status, 200);
    let log = world.server.log();
    let line = log.lines().find(|line| line.contains("mark-1")).unwrap();
    for part in
        [format!("key_id={key_id}"), "peer=127.0.0.1".to_owned(), "tenant=".to_owned(), "agent:alice".to_owned()]
    {
        assert!(line.contains(&part), "{part} is not in {line}");
    }
    let secret = &key[16..48];
    assert!(!log.contains(secret), "the log shows a key");
}
