//! What operators do: list, inspect, requeue, prune, rotate the token, stop.

use serde_json::{Value, json};

use crate::support::{Plan, Running, delivered, failed, refused, start};

async fn dead(daemon: &Running, id: &str) {
    daemon.post("/v1/send", &json!({ "to": "bob", "message": id, "client_message_id": id })).await.expect(202);
    let row = daemon.claim(id).await;
    daemon.settle(row, refused()).await;
}

async fn inspect(daemon: &Running, id: &str) -> Value {
    daemon.get(&format!("/v1/admin/outbox/inspect?id={id}")).await.expect(200)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_message_gets_a_successor_and_the_chain_is_shown_from_both_ends() {
    let daemon = start(Plan::default()).await;
    dead(&daemon, "one").await;
    let requeue = json!({ "id": "one", "new_client_id": "two" });
    let answer = daemon.post("/v1/admin/outbox/requeue", &requeue).await.expect(200);
    assert_eq!(answer, json!({ "client_message_id": "two", "superseded": "one" }));
    let row = daemon.claim("two").await;
    daemon.settle(row, refused()).await;
    let patch = json!({ "id": "two", "auto": true, "patch": { "message": "patched" }, "operator": "ann" });
    let answer = daemon.post("/v1/admin/outbox/requeue", &patch).await.expect(200);
    let third = answer["client_message_id"].as_str().unwrap().to_owned();
    for id in ["one", "two", &third] {
        let shown = inspect(&daemon, id).await;
        let chain: Vec<&str> =
            shown["chain"].as_array().unwrap().iter().map(|row| row["client_message_id"].as_str().unwrap()).collect();
        assert_eq!(chain, ["one", "two", &third]);
        assert_eq!(shown["message"]["client_message_id"], id);
    }
    let chain = inspect(&daemon, "one").await["chain"].clone();
    assert_eq!(
        (&chain[0]["status"], &chain[1]["status"], &chain[2]["status"]),
        (&json!("aborted"), &json!("aborted"), &json!("pending"))
    );
    assert_eq!((&chain[1]["aborted_by"], &chain[1]["superseded_by"]), (&json!("ann"), &json!(third)));
    assert_eq!((&chain[1]["payload"]["body"], &chain[2]["payload"]["body"]), (&json!("one"), &json!("patched")));
    assert_eq!(chain[0]["request_fingerprint"], chain[1]["request_fingerprint"], "the same payload, the same digest");
    assert_ne!(chain[1]["request_fingerprint"], chain[2]["request_fingerprint"], "a patched payload has its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_requeued() {
    let daemon = start(Plan::default()).await;
    let requeue = |id: &str, new: &str| json!({ "id": id, "new_client_id": new });
    let send = |id: &str, to: &str| json!({ "to": to, "message": "m", "client_message_id": id });
    for (id, to) in [("pending", "bob"), ("inflight", "alice")] {
        daemon.post("/v1/send", &send(id, to)).await.expect(202);
    }
    let row = daemon.claim("inflight").await;
    let refused = daemon.post("/v1/admin/outbox/requeue", &requeue("inflight", "x")).await.expect(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("not_requeueable"), &json!("inflight")));
    daemon.settle(row, delivered()).await;
    daemon.post("/v1/admin/outbox/requeue", &requeue("inflight", "x")).await.expect(409);
    daemon.post("/v1/admin/outbox/prune", &json!({ "confirm": true, "older_than_seconds": 0 })).await.expect(200);
    daemon.post("/v1/admin/outbox/requeue", &requeue("inflight", "x")).await.expect(409);
    // It was claimed along with the other; a failed attempt makes it pending again, and it may have been sent.
    let bob = daemon.handle.outbox().list(Default::default()).await.unwrap().messages;
    assert_eq!((bob[0].client_message_id.as_str(), bob[0].status.as_str()), ("pending", "inflight"));
    daemon.settle(1, failed()).await;
    let taken = daemon.post("/v1/admin/outbox/requeue", &requeue("pending", "inflight")).await.expect(409);
    assert_eq!(taken["error"], "already_exists");
    let answer = daemon.post("/v1/admin/outbox/requeue", &requeue("pending", "new")).await.expect(200);
    assert!(answer["warning"].as_str().unwrap().contains("copy"), "{answer}");
    daemon.post("/v1/admin/outbox/requeue", &requeue("pending", "newer")).await.expect(409);
    daemon.post("/v1/admin/outbox/requeue", &requeue("nothing", "newest")).await.expect(404);
    for wrong in [json!({ "id": "new" }), json!({ "id": "new", "auto": true, "new_client_id": "x" }), json!({})] {
        daemon.post("/v1/admin/outbox/requeue", &wrong).await.expect(400);
    }
    let patch = json!({ "id": "new", "auto": true, "patch": { "nonsense": 1 } });
    daemon.post("/v1/admin/outbox/requeue", &patch).await.expect(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_paged_and_filtered() {
    let daemon = start(Plan::default()).await;
    for number in 0..5 {
        let body = json!({ "to": "bob", "message": "m", "client_message_id": format!("m{number}") });
        daemon.post("/v1/send", &body).await.expect(202);
    }
    let row = daemon.claim("m0").await;
    daemon.settle(row, refused()).await;
    let mut seen = Vec::new();
    let mut target = "/v1/admin/outbox?limit=2".to_owned();
    loop {
        let page = daemon.get(&target).await.expect(200);
        seen.extend(page["messages"].as_array().unwrap().iter().map(|row| row["client_message_id"].clone()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        target = format!("/v1/admin/outbox?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ["m0", "m1", "m2", "m3", "m4"]);
    let failed = daemon.get("/v1/admin/outbox?failed=true").await.expect(200);
    assert_eq!(failed["messages"].as_array().unwrap().len(), 1);
    assert_eq!(failed["messages"][0]["last_error"], "topic_unknown");
    assert_eq!(
        daemon.get("/v1/admin/outbox?status=pending").await.expect(200)["messages"].as_array().unwrap().len(),
        4
    );
    for wrong in ["status=gone", "limit=0", "limit=1001", "cursor=00", "failed=true&status=dead", "x=1"] {
        daemon.get(&format!("/v1/admin/outbox?{wrong}")).await.expect(400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_takes_payloads_and_leaves_ids() {
    let daemon = start(Plan::default()).await;
    let body = json!({ "to": "bob", "message": "m", "client_message_id": "one" });
    daemon.post("/v1/send", &body).await.expect(202);
    let row = daemon.claim("one").await;
    daemon.settle(row, delivered()).await;
    let looked = daemon.post("/v1/admin/outbox/prune", &json!({ "older_than_seconds": 0 })).await.expect(200);
    assert_eq!((&looked["messages"], &looked["confirmed"]), (&json!(1), &json!(false)));
    assert_eq!(
        daemon.post("/v1/admin/outbox/prune", &json!({ "confirm": true })).await.expect(200)["messages"],
        0,
        "too young"
    );
    let pruned = daemon.post("/v1/admin/outbox/prune", &json!({ "confirm": true, "older_than_seconds": 0 })).await;
    assert_eq!(pruned.expect(200)["messages"], 1);
    let shown = inspect(&daemon, "one").await["message"].clone();
    assert_eq!((&shown["payload"], &shown["status"]), (&Value::Null, &json!("done")));
    assert_eq!(daemon.post("/v1/send", &body).await.expect(200)["duplicate"], true);
    let again = daemon.post("/v1/admin/outbox/prune", &json!({ "confirm": true, "older_than_seconds": 0 })).await;
    assert_eq!(again.expect(200)["messages"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_endpoints_are_for_the_socket_and_the_token_can_be_replaced() {
    let daemon = start(Plan { tcp: true, ..Plan::default() }).await;
    let old = format!("Bearer {}", daemon.local_token());
    for (method, path) in
        [("GET", "/v1/admin/outbox"), ("POST", "/v1/admin/shutdown"), ("POST", "/v1/admin/rotate-token")]
    {
        let answer = daemon.tcp(method, path, &[("authorization", &old)], "").await;
        assert_eq!(answer.status, 403, "{path}");
    }
    daemon.post("/v1/admin/rotate-token", &json!({})).await.expect(200);
    let new = format!("Bearer {}", daemon.local_token());
    assert_ne!(old, new);
    for token in [&old, &new] {
        daemon.tcp("GET", "/v1/health", &[("authorization", token)], "").await.expect(200);
    }
    daemon.time.pass(std::time::Duration::from_secs(61));
    daemon.tcp("GET", "/v1/health", &[("authorization", &old)], "").await.expect(401);
    daemon.tcp("GET", "/v1/health", &[("authorization", &new)], "").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_on_the_socket_can_stop_the_daemon() {
    let daemon = start(Plan::default()).await;
    let socket = daemon.socket();
    assert_eq!(daemon.post("/v1/admin/shutdown", &json!({})).await.expect(200)["ok"], true);
    daemon.stop().await;
    assert!(!socket.exists(), "the socket is gone with the daemon");
}
