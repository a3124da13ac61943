//! What callers get wrong, and what attackers try: the right answer, and nothing written.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::support::{Plan, Running, exchange, read_head, start};

async fn depth(daemon: &Running) -> Value {
    let health = daemon.get("/v1/health").await.expect(200);
    health["queue_depth"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_sent_writes_nothing_and_uses_up_no_id() {
    let daemon = start(Plan::default()).await;
    let id = "id";
    for (body, status, error) in [
        (json!({ "to": "carol", "message": "m", "client_message_id": id }), 404, "member_unknown"),
        (json!({ "to": "f".repeat(64), "message": "m", "client_message_id": id }), 404, "member_unknown"),
        (json!({ "to": "", "message": "m", "client_message_id": id }), 404, "member_unknown"),
        (json!({ "to": "bob", "message": 5, "client_message_id": id }), 400, "invalid_request"),
        (json!({ "to": "bob", "client_message_id": id }), 400, "invalid_request"),
        (json!({ "message": "m", "client_message_id": id }), 400, "invalid_request"),
        (json!({ "to": "bob", "message": "m", "priority": "soon", "client_message_id": id }), 400, "invalid_request"),
        (json!({ "to": "bob", "message": "m", "unknown": 1, "client_message_id": id }), 400, "invalid_request"),
        (json!({ "to": "bob", "message": "m", "mentions": [], "client_message_id": id }), 400, "invalid_request"),
        (json!({ "to": "bob", "message": "m", "client_message_id": "" }), 400, "invalid_request"),
        (json!({ "to": "bob", "message": "m", "client_message_id": "x".repeat(256) }), 400, "invalid_request"),
        (json!({ "to": "bob", "message": "m", "client_message_id": "a\u{0}b" }), 400, "invalid_request"),
        (json!({ "to": "bob", "message": "m".repeat(65_537), "client_message_id": id }), 413, "payload_too_large"),
        (json!([]), 400, "invalid_request"),
    ] {
        let answer = daemon.post("/v1/send", &body).await;
        let shown = body.to_string().chars().take(200).collect::<String>();
        assert_eq!((answer.status, &answer.json()["error"]), (status, &json!(error)), "{shown}");
    }
    for (body, status, error) in [
        (json!({ "topic": "nowhere", "message": "m", "client_message_id": id }), 404, "topic_unknown"),
        (json!({ "topic": "../ops", "message": "m", "client_message_id": id }), 400, "invalid_request"),
        (
            json!({ "topic": "ops", "message": "m", "mentions": ["bob"], "client_message_id": id }),
            400,
            "invalid_request",
        ),
        (json!({ "topic": "ops", "message": "m", "to": "bob", "client_message_id": id }), 400, "invalid_request"),
    ] {
        let answer = daemon.post("/v1/topic/post", &body).await;
        assert_eq!((answer.status, &answer.json()["error"]), (status, &json!(error)), "{body}");
    }
    for body in [
        "",
        "{",
        "null",
        "\u{feff}{}",
        "{\"to\":\"bob\",\"message\":\"m\"} x",
        &format!("{{\"meta\":{}", "[".repeat(5_000)),
    ] {
        assert_eq!(daemon.call("POST", "/v1/send", &[], body).await.status, 400, "{}", body.len());
    }
    let deep = format!("{{\"to\":\"bob\",\"message\":\"m\",\"meta\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    assert_eq!(daemon.call("POST", "/v1/send", &[], &deep).await.status, 400);
    for key in ["", &"x".repeat(256)] {
        let body = json!({ "to": "bob", "message": "m" }).to_string();
        assert_eq!(daemon.call("POST", "/v1/send", &[("idempotency-key", key)], &body).await.status, 400);
    }
    assert_eq!(depth(&daemon).await, 0);
    daemon.post("/v1/send", &json!({ "to": "bob", "message": "m", "client_message_id": id })).await.expect(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_mesh_refuses_topics_whose_key_it_does_not_hold() {
    let daemon = start(Plan { plaintext: false, ..Plan::default() }).await;
    let body = json!({ "topic": "ops", "message": "m", "client_message_id": "x" });
    assert_eq!(daemon.post("/v1/topic/post", &body).await.expect(404)["error"], "topic_unknown");
    assert_eq!(depth(&daemon).await, 0);
    let body = json!({ "to": "bob", "message": "secret words", "client_message_id": "x" });
    daemon.post("/v1/send", &body).await.expect(202);
    let claimed = daemon.handle.outbox().claim(1).await.unwrap();
    assert!(!claimed.flights[0].envelope.contains("secret words"));
    assert!(claimed.flights[0].envelope.contains("key_id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_methods() {
    let daemon = start(Plan::default()).await;
    for (method, target, status) in [
        ("GET", "/v1/send", 405),
        ("POST", "/v1/inbox", 405),
        ("DELETE", "/v1/send", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/inbox?limit=0", 400),
        ("GET", "/v1/inbox?limit=x", 400),
        ("GET", "/v1/inbox?unknown=1", 400),
        ("GET", "/v1/inbox?since=1&since=2", 400),
        ("GET", "/v1/inbox?cursor=zz", 400),
        ("GET", "/v1/inbox/search", 400),
        ("GET", "/v1/inbox/search?q=", 400),
        ("GET", "/v1/file/get?id=x", 400),
        ("GET", "/v1/admin/outbox/inspect", 400),
        ("GET", "/v1/admin/outbox/inspect?id=nothing", 404),
    ] {
        assert_eq!(daemon.call(method, target, &[], "").await.status, status, "{method} {target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused_by_its_head_and_by_its_bytes() {
    let daemon = start(Plan { config: "[ipc]\nbody_bytes_max = 1000\n", ..Plan::default() }).await;
    let long = "x".repeat(1_001);
    let answer = daemon.call("POST", "/v1/send", &[], &long).await;
    assert_eq!(answer.expect(413)["limit_bytes"], 1_000);
    let mut stream = UnixStream::connect(daemon.socket()).await.unwrap();
    let chunked =
        format!("POST /v1/send HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n{long}\r\n0\r\n\r\n");
    stream.write_all(chunked.as_bytes()).await.unwrap();
    assert_eq!(read_head(&mut stream).await.0, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_wants_the_token_on_every_endpoint_and_no_other_credential() {
    let daemon = start(Plan { tcp: true, ..Plan::default() }).await;
    let token = format!("Bearer {}", daemon.local_token());
    for path in [
        "/v1/health",
        "/v1/metrics",
        "/v1/version",
        "/v1/compat",
        "/v1/heartbeat",
        "/v1/inbox",
        "/v1/peers",
        "/v1/events",
    ] {
        for headers in [&[][..], &[("authorization", "Bearer wbl_wrong")], &[("authorization", "Basic eDp5")]] {
            let answer = daemon.tcp("GET", path, headers, "").await;
            assert_eq!(answer.expect(401)["error"], "unauthorized", "{path}");
        }
        if path != "/v1/events" {
            let answer = daemon.tcp("GET", path, &[("authorization", &token)], "").await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
    }
    assert_eq!(daemon.tcp("GET", "/v1/nothing", &[], "").await.status, 401, "strangers learn nothing of paths");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_alone_can_be_opened_to_all() {
    let daemon = start(Plan { tcp: true, config: "[ipc]\npublic_health_check = true\n", ..Plan::default() }).await;
    daemon.tcp("GET", "/v1/health", &[], "").await.expect(200);
    daemon.tcp("GET", "/v1/health", &[("authorization", "Bearer wrong")], "").await.expect(401);
    daemon.tcp("GET", "/v1/version", &[], "").await.expect(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_and_tokens_in_addresses_are_refused_and_told() {
    let config = "[ipc]\norigins = [\"https://known.example\"]\n";
    let daemon = start(Plan { tcp: true, config, ..Plan::default() }).await;
    let mut events = daemon.handle.events().subscribe(None);
    let token = format!("Bearer {}", daemon.local_token());
    let port = daemon.handle.tcp_address().unwrap().port();
    let auth = ("authorization", token.as_str());
    let own = format!("127.0.0.1:{port}");
    for (headers, target, status, kind) in [
        (vec![auth, ("host", "evil.example")], "/v1/health", 403, Some("foreign_host")),
        (vec![auth, ("origin", "https://evil.example")], "/v1/health", 403, Some("foreign_origin")),
        (vec![auth, ("origin", "null")], "/v1/health", 403, Some("foreign_origin")),
        (vec![auth], "/v1/health?token=x", 400, Some("token_in_query")),
        (vec![], "/v1/events?access_token=x", 400, Some("token_in_query")),
        (vec![auth, ("host", own.as_str())], "/v1/health", 200, None),
        (vec![auth, ("host", "localhost"), ("origin", "https://known.example")], "/v1/health", 200, None),
        (vec![auth, ("host", "")], "/v1/health", 200, None),
    ] {
        let answer = daemon.tcp("GET", target, &headers, "").await;
        assert_eq!(answer.status, status, "{headers:?} {target}: {answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
        if let Some(kind) = kind {
            let told = events.next().await.unwrap();
            assert_eq!((told.event.kind.name(), &told.event.data["kind"]), ("security", &json!(kind)));
        }
    }
    for origin in ["https://known.example", "https://evil.example"] {
        let preflight = [("origin", origin), ("access-control-request-method", "POST")];
        let answer = daemon.tcp("OPTIONS", "/v1/send", &preflight, "").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_has_a_rate_and_the_socket_has_none() {
    let daemon = start(Plan { tcp: true, config: "[ipc]\nrate_per_s = 1\nrate_burst = 5\n", ..Plan::default() }).await;
    let token = format!("Bearer {}", daemon.local_token());
    let auth = [("authorization", token.as_str())];
    let heartbeat = || daemon.tcp("GET", "/v1/heartbeat", &auth, "");
    for _ in 0..5 {
        heartbeat().await.expect(200);
    }
    let answer = heartbeat().await;
    assert_eq!(answer.expect(429)["error"], "rate_limit_exceeded");
    assert!(answer.header("retry-after").is_some());
    for _ in 0..20 {
        daemon.get("/v1/heartbeat").await.expect(200);
    }
    daemon.time.pass(std::time::Duration::from_millis(1_500));
    heartbeat().await.expect(200);
    heartbeat().await.expect(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_goes_on_after_a_refusal_and_a_slow_head_ends_it() {
    let daemon = start(Plan { config: "[ipc]\nheader_read_ms = 3000\n", ..Plan::default() }).await;
    let mut stream = UnixStream::connect(daemon.socket()).await.unwrap();
    exchange(&mut stream, "POST", "/v1/send", &[], "{}").await.expect(400);
    exchange(&mut stream, "GET", "/v1/heartbeat", &[], "").await.expect(200);
    stream.write_all(b"GET /v1/heartbeat HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let mut rest = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await.unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
}
