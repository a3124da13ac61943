//! What `pre-send` changes, and what it does not: which request it was.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use serde_json::json;
use waybill_daemon::Config;
use waybill_daemon::directory::Member;
use waybill_daemon::identity::Stance;
use waybill_kernel::clock::manual::ManualSource;

use crate::support::{Plan, Running, START_US, config, identity, joined, stance, start_as};

/// Writes another text into the request each time.
const COUNTS: &str = "n=$(cat ../count 2>/dev/null || echo 0); n=$((n+1)); echo $n > ../count\n\
                      sed \"s/\\\"message\\\":\\\"[^\\\"]*\\\"/\\\"message\\\":\\\"number $n\\\"/; s/\\\"lead\\\"/\\\"bob\\\"/\"";

async fn start(script: &str) -> Running {
    let home = Arc::new(tempfile::tempdir().unwrap());
    let folder = joined(home.path(), &Plan::default());
    folder.write("hooks.toml", b"[hooks.pre-send]\nenabled = true\n").unwrap();
    let path = folder.file("hooks").join("pre-send");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    let time = ManualSource::at(START_US);
    let config = Config {
        stance: Stance { hooks: true, ..stance(false) },
        own: env!("CARGO_BIN_EXE_hook-keeper").into(),
        ..config(home.path(), &time, false)
    };
    start_as(home, time, config).await
}

async fn text_of(daemon: &Running, id: &str) -> String {
    let shown = daemon.get(&format!("/v1/admin/outbox/inspect?id={id}")).await.expect(200);
    shown["message"]["payload"]["body"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_the_same_request_whatever_the_hook_makes_of_it() {
    let daemon = start(COUNTS).await;
    // `lead` is a name that the hook alone knows.
    for (endpoint, id, to) in [
        ("/v1/send", "a", json!({ "to": "bob" })),
        ("/v1/send", "b", json!({ "to": "lead" })),
        ("/v1/topic/post", "c", json!({ "topic": "ops" })),
    ] {
        let mut body = to;
        body["message"] = json!("hello");
        body["client_message_id"] = json!(id);
        assert_eq!(daemon.post(endpoint, &body).await.expect(202)["status"], "queued");
        let text = text_of(&daemon, id).await;
        assert!(text.starts_with("number "), "{text}");
        assert_eq!(daemon.post(endpoint, &body).await.expect(202)["status"], "queued", "an honest retry");
        assert_eq!(text_of(&daemon, id).await, text, "nothing has changed");
        body["message"] = json!("another");
        let conflict = daemon.post(endpoint, &body).await.expect(409);
        assert_eq!(conflict["conflict"], "outbox_pending_fingerprint_mismatch");
    }
    let body = json!({ "to": "bob", "message": "hello" }).to_string();
    for _ in 0..2 {
        let answer = daemon.call("POST", "/v1/send", &[("idempotency-key", "d")], &body).await.expect(202);
        assert_eq!(answer["client_message_id"], "d");
    }
    // Without an id each is a message of its own.
    let one = daemon.post("/v1/send", &json!({ "to": "bob", "message": "hello" })).await.expect(202);
    let other = daemon.post("/v1/send", &json!({ "to": "bob", "message": "hello" })).await.expect(202);
    assert_ne!(one["client_message_id"], other["client_message_id"]);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_the_same_request_also_when_its_recipient_has_rotated() {
    let daemon = start(COUNTS).await;
    let body = json!({ "to": "bob", "message": "hello", "client_message_id": "a" });
    daemon.post("/v1/send", &body).await.expect(202);
    let directory = daemon.handle.directory();
    let bob = Member { keys: identity(20).public(), ..directory.resolve("bob").unwrap() };
    directory.learn_members(vec![bob], |_, _| true).await.unwrap();
    assert_eq!(daemon.post("/v1/send", &body).await.expect(202)["status"], "queued");
    let other = json!({ "to": "alice", "message": "hello", "client_message_id": "a" });
    daemon.post("/v1/send", &other).await.expect(409);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_is_answered_from_its_row_also_when_the_hook_would_refuse_it_now() {
    let daemon = start("[ ! -e ../no ] || exit 1").await;
    let body = json!({ "to": "bob", "message": "hello", "client_message_id": "a" });
    daemon.post("/v1/send", &body).await.expect(202);
    std::fs::write(daemon.handle.folder().file("no"), "").unwrap();
    daemon.post("/v1/send", &body).await.expect(202);
    let new = json!({ "to": "bob", "message": "hello", "client_message_id": "b" });
    assert_eq!(daemon.post("/v1/send", &new).await.expect(403)["error"], "hook_refused");
    assert!(daemon.handle.outbox().known("b").await.unwrap().is_none());
    daemon.stop().await;
}
