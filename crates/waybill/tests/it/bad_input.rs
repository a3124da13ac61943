//! Requests that are none: whatever comes over the wire, the answer is an error of the catalogue and nothing is done.

use std::io::{Read, Write};
use std::net::TcpStream;

use reqwest::Method;
use serde_json::json;
use waybill_kernel::Code;

use crate::world::{Engine, Reply, World, raw, read_to_end, status_of};

const BODY_BYTES_MAX: usize = 4096;

/// A body that never ends is given up after this long, so that the test need not wait for the usual half minute.
const SETTINGS: &str = "[doors]\nbody_bytes_max = 4096\nbody_read_ms = 1000\n";

#[tokio::test]
async fn a_body_that_is_not_one_good_json_object_is_refused() {
    let world = World::start().await;
    let deep =
        [b"{\"type\":\"echo\",\"payload\":".as_slice(), &b"[".repeat(70_000), &b"]".repeat(70_000), b"}"].concat();
    let bodies: [(&str, &[u8]); 17] = [
        ("empty", b""),
        ("only spaces", b"   "),
        ("not JSON", b"type=echo"),
        ("cut short", b"{\"type\":\"echo\""),
        ("followed by more", b"{\"type\":\"echo\"} {}"),
        ("an array", b"[{\"type\":\"echo\"}]"),
        ("a text", b"\"echo\""),
        ("null", b"null"),
        ("a name twice", b"{\"type\":\"echo\",\"type\":\"echo\"}"),
        ("a name twice, spelled differently", b"{\"type\":\"echo\",\"t\\u0079pe\":\"echo\"}"),
        ("a name twice, deep inside", b"{\"type\":\"echo\",\"payload\":{\"a\":[{\"b\":1,\"b\":2}]}}"),
        ("broken UTF-8", b"{\"type\":\"e\xffcho\"}"),
        ("broken UTF-8 that could be Latin-1", b"{\"type\":\"\xe9cho\"}"),
        ("half a character", b"{\"type\":\"\\ud83d\"}"),
        ("a byte order mark", b"\xef\xbb\xbf{\"type\":\"echo\"}"),
        ("a number without bounds", b"{\"type\":\"echo\",\"payload\":1e999}"),
        ("bottomless", &deep),
    ];
    for (what, body) in bodies {
        let request = world.http.post(world.url("/v1/tasks")).bearer_auth(&world.server.admin_key);
        let request = request.header("Content-Type", "application/json").body(body.to_vec());
        Reply::of(request).await.must_be(Code::InvalidRequest, what);
    }
    // On MCP the same texts as arguments: the message is not one, and the reason is the same object.
    for (what, body) in bodies.iter().filter(|(_, body)| body.starts_with(b"{")) {
        let opening = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":\
                        {\"name\":\"asyncgate.create_task\",\"arguments\":";
        let request = world.mcp_request("/mcp", "", &json!({})).bearer_auth(&world.server.admin_key);
        let reply = Reply::of(request.body([opening.as_slice(), body, b"}}"].concat())).await;
        assert_eq!(reply.status, 400, "{what}: {}", reply.text);
        assert_eq!(reply.json()["error"]["data"]["error"], "invalid_request", "{what}: {}", reply.text);
    }
    let listed = world.get(&world.server.admin_key, "/v1/tasks").await.json();
    assert_eq!(listed["tasks"], json!([]), "a refused request has made a task");
}

#[tokio::test]
async fn what_cannot_be_read_is_named_with_its_field() {
    let world = World::start().await;
    let key = world.server.admin_key.clone();
    let task = world.task(&key).await;
    let lease = json!({ "task_id": "no", "lease_id": task });
    let needs = json!({ "type": "t", "requirements": { "tags": ["x", 7] } });
    for (reply, field) in [
        (world.get(&key, "/v1/tasks/not-an-id").await, "task_id: "),
        (world.get(&key, "/v1/receipts/not-an-id").await, "receipt_id: "),
        (world.get(&key, "/v1/receipts?since_receipt_id=x").await, "since_receipt_id: "),
        (world.get(&key, "/v1/tasks?created_by=x").await, "created_by: "),
        (world.get(&key, "/v1/tasks?limit=many").await, "limit: "),
        (world.post(&key, "/v1/leases/renew", &lease).await, "task_id: "),
        (world.post(&key, &format!("/v1/tasks/{task}/complete"), &json!({ "lease_id": "no" })).await, "lease_id: "),
        (world.post(&key, "/v1/tasks", &needs).await, "requirements.tags[1]: "),
        // These name it themselves.
        (world.post(&key, "/v1/tasks", &json!({})).await, "Missing field `type`"),
        (world.post(&key, "/v1/tasks", &json!({ "type": "t", "x": 1 })).await, "Unknown field `x`"),
    ] {
        reply.must_be(Code::InvalidRequest, field);
        let message = reply.json()["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(field), "{field}: {message}");
    }
    // The same through the other door.
    let call = json!({ "name": "asyncgate.get_task", "arguments": { "task_id": "no" } });
    let reply = world.mcp(&key, "/mcp", "tools/call", &call).await;
    assert!(reply.text.contains("task_id: "), "{}", reply.text);
}

#[tokio::test]
async fn a_request_for_something_else_is_told_what_is_wrong() {
    let world = World::start().await;
    let key = world.server.admin_key.clone();
    let task = world.task(&key).await;
    let cancel = format!("/v1/tasks/{task}/cancel");
    let rows = [
        ("a name in query and body", Method::POST, "/v1/tasks?type=echo", Code::InvalidRequest),
        ("a name in path and query", Method::GET, &format!("/v1/tasks/{task}?task_id={task}"), Code::InvalidRequest),
        ("a name twice in the query", Method::GET, "/v1/tasks?limit=1&limit=1", Code::InvalidRequest),
        ("broken UTF-8 in the query", Method::GET, "/v1/tasks?type=%ff", Code::InvalidRequest),
        ("broken UTF-8 in a name of the query", Method::GET, "/v1/tasks?%c3=1", Code::InvalidRequest),
        ("broken UTF-8 in the path", Method::GET, "/v1/tasks/%ff", Code::InvalidRequest),
        ("NUL in the query", Method::GET, "/v1/tasks?type=%00", Code::InvalidRequest),
        ("no id", Method::GET, "/v1/tasks/not-an-id", Code::InvalidRequest),
        ("an unknown path", Method::GET, "/v1/nothing", Code::NotFound),
        ("an unknown path of a known one", Method::POST, &format!("/v1/tasks/{task}/uncancel"), Code::NotFound),
        ("another method", Method::PUT, "/v1/tasks", Code::MethodNotAllowed),
        ("a method of another path", Method::GET, &cancel, Code::MethodNotAllowed),
        ("a method nobody has", Method::from_bytes(b"BREW").unwrap(), "/v1/tasks", Code::MethodNotAllowed),
    ];
    for (what, method, path, code) in rows {
        let has_body = method == Method::POST;
        let mut request = world.http.request(method, world.url(path)).bearer_auth(&key);
        if has_body {
            request = request.json(&json!({ "type": "echo" }));
        }
        let cure = match code {
            Code::NotFound => "Check the spelling of the path: /docs and /openapi.json have every one there is.",
            code => code.entry().cure,
        };
        Reply::of(request).await.must_be_cured(code, cure, what);
    }
    for media in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let request = world.http.post(world.url("/v1/tasks")).bearer_auth(&key).body("{\"type\":\"echo\"}");
        let request = if media.is_empty() { request } else { request.header("Content-Type", media) };
        Reply::of(request).await.must_be(Code::UnsupportedMediaType, media);
    }
    let request = world.http.post(world.url("/v1/tasks")).bearer_auth(&key).body("{\"type\":\"echo\"}");
    let reply = Reply::of(request.header("Content-Type", "Application/JSON; charset=utf-8")).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
}

#[tokio::test]
async fn a_body_beyond_the_bounds_of_size_and_time_is_cut_off() {
    let world = World::with(Engine::Sqlite, SETTINGS, &[]).await;
    let key = &world.server.admin_key;

    let large = json!({ "type": "echo", "payload": "x".repeat(BODY_BYTES_MAX) });
    world.post(key, "/v1/tasks", &large).await.must_be(Code::PayloadTooLarge, "too large a body");
    let params = json!({ "name": "asyncgate.create_task", "arguments": large });
    let reply = world.mcp(key, "/mcp", "tools/call", &params).await;
    reply.must_be(Code::PayloadTooLarge, "too large a body, on MCP");

    let head = format!(
        "POST /v1/tasks HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n",
        world.address()
    );
    // No last chunk ever comes; the answer does not wait for it.
    let chunk = "x".repeat(BODY_BYTES_MAX + 1);
    let endless = format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{chunk}\r\n", chunk.len());
    let answer = raw(world.address(), endless.as_bytes());
    assert_eq!(status_of(&answer), Code::PayloadTooLarge.entry().http, "{answer}");
    assert!(answer.contains("payload_too_large") && answer.contains("x-request-id"), "{answer}");

    let slow = format!("{head}Content-Length: 100\r\n\r\n{{\"type\":");
    let answer = raw(world.address(), slow.as_bytes());
    assert_eq!(status_of(&answer), Code::RequestTimeout.entry().http, "{answer}");
    assert!(answer.contains("request_timeout") && answer.contains("x-request-id"), "{answer}");

    // Half a body and then the end of the connection: nobody is there to answer, and nothing is done.
    let mut gone = TcpStream::connect(world.address()).unwrap();
    gone.write_all(format!("{head}Content-Length: 100\r\n\r\n{{\"type\":\"echo\"}}").as_bytes()).unwrap();
    gone.shutdown(std::net::Shutdown::Write).unwrap();
    read_to_end(&mut gone);
    let listed = world.get(key, "/v1/tasks").await.json();
    assert_eq!(listed["tasks"], json!([]));
}

#[tokio::test]
async fn headers_beyond_number_and_size_are_refused() {
    let world = World::start().await;
    let request = |headers: &str| format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n");
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    // More than twice the bound: what is read at once is only counted afterwards.
    let large = format!("x-large: {}\r\n", "x".repeat(200_000));
    for (what, headers) in [("too many", many), ("too large", large)] {
        let answer = raw(world.address(), request(&headers).as_bytes());
        assert_eq!(status_of(&answer), Code::HeadersTooLarge.entry().http, "{what}: {answer}");
    }
    for (what, head) in [
        ("no HTTP", "hello\r\n\r\n".to_owned()),
        ("a length that is none", request("Content-Length: +5\r\n")),
        ("two lengths", request("Content-Length: 5\r\nContent-Length: 6\r\n")),
        ("a space in a name", request("x y: 1\r\n")),
    ] {
        let answer = raw(world.address(), head.as_bytes());
        assert_eq!(status_of(&answer), 400, "{what}: {answer}");
    }
    let reply = Reply::of(world.http.get(world.url("/healthz"))).await;
    assert_eq!(reply.status, 200, "the server has survived it all");
}

#[tokio::test]
async fn a_harmless_request_id_comes_back_and_another_is_replaced() {
    let world = World::start().await;
    let longest = "xxxxxxx-".repeat(8);
    for id in ["abc-1.2_Z", &longest] {
        let reply = Reply::of(world.http.get(world.url("/v1/tasks")).header("x-request-id", id)).await;
        assert_eq!(reply.header("x-request-id"), Some(id));
    }
    let too_long = "x".repeat(65);
    for id in ["", "a b", "a\"b", "<script>", "a;b", "a/b", "{}", &too_long] {
        let reply = Reply::of(world.http.get(world.url("/healthz")).header("x-request-id", id)).await;
        let given = reply.header("x-request-id").unwrap();
        assert!(given != id && !given.is_empty(), "{id:?} came back as {given:?}");
        assert!(given.chars().all(|char| char.is_ascii_alphanumeric() || char == '-'), "{given}");
    }
    let ids = [world.get("", "/v1/tasks").await, world.get("", "/nowhere").await];
    assert_ne!(ids[0].header("x-request-id"), ids[1].header("x-request-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_connects_and_asks_nothing_is_sent_away() {
    let world = World::with(Engine::Sqlite, "[doors]\nheader_read_ms = 300\n", &[]).await;
    let greetings = ["", "P", "PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /healthz HT"];
    for greeting in greetings {
        let mut stream = TcpStream::connect(world.address()).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        stream.write_all(greeting.as_bytes()).unwrap();
        let ended = loop {
            match stream.read(&mut [0; 1024]) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) => break error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        };
        assert!(ended, "{greeting:?} kept its place");
    }
    let key = world.server.admin_key.clone();
    assert_eq!(world.get(&key, "/v1/tasks").await.status, 200);
}
