//! A recipient has other keys: what was asked for before is the same request, and what waits for it goes first.

use serde_json::{Value, json};
use waybill_daemon::directory::Member;

use crate::support::{Plan, Running, delivered, identity, refused, start};

/// Bob has these keys from now on, signed for by those before. Returns the new address.
async fn rotated(daemon: &Running, seed: u64) -> String {
    let directory = daemon.handle.directory();
    let bob = Member { keys: identity(seed).public(), ..directory.resolve("bob").unwrap() };
    let key = bob.keys.ed25519.to_string();
    directory.learn_members(vec![bob], |_, _| true).await.unwrap();
    key
}

fn hello(to: &str, id: &str) -> Value {
    json!({ "to": to, "message": "hello", "client_message_id": id })
}

async fn send(daemon: &Running, id: &str) {
    daemon.post("/v1/send", &hello("bob", id)).await.expect(202);
}

/// Everything that may be sent now: id and address of each.
async fn claimed(daemon: &Running) -> Vec<(i64, String, String)> {
    let flights = daemon.handle.outbox().claim(64).await.unwrap().flights;
    flights.into_iter().map(|flight| (flight.id, flight.client_message_id, flight.destination_ref)).collect()
}

/// This one alone may be sent now, to this address. Returns its row.
async fn next(daemon: &Running, id: &str, address: &str) -> i64 {
    let claimed = claimed(daemon).await;
    let shown: Vec<_> = claimed.iter().map(|(_, id, address)| (id.as_str(), address.as_str())).collect();
    assert_eq!(shown, [(id, address)]);
    claimed[0].0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_the_same_one_after_its_recipient_has_rotated() {
    for plaintext in [true, false] {
        let daemon = start(Plan { plaintext, ..Plan::default() }).await;
        for (id, outcome) in [("done", delivered()), ("dead", refused())] {
            send(&daemon, id).await;
            let row = daemon.claim(id).await;
            daemon.settle(row, outcome).await;
        }
        send(&daemon, "inflight").await;
        daemon.claim("inflight").await;
        send(&daemon, "pending").await;
        let mut keys = vec![daemon.bob.public_key().to_string()];
        for seed in [20, 21] {
            keys.push(rotated(&daemon, seed).await);
            for to in keys.iter().map(String::as_str).chain(["bob"]) {
                let asked = async |id| daemon.post("/v1/send", &hello(to, id)).await;
                assert_eq!(asked("done").await.expect(200)["duplicate"], true, "{to}");
                assert_eq!(asked("dead").await.expect(409)["conflict"], "outbox_dead_fingerprint_match", "{to}");
                assert_eq!(asked("inflight").await.expect(202)["status"], "inflight", "{to}");
                assert_eq!(asked("pending").await.expect(202)["status"], "queued", "{to}");
            }
        }
        let mut other = hello("bob", "done");
        other["message"] = json!("other");
        for another in [other, hello("alice", "done")] {
            let conflict = daemon.post("/v1/send", &another).await.expect(409);
            assert_eq!(conflict["conflict"], "outbox_done_fingerprint_mismatch");
        }
        daemon.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_after_a_rotation_does_not_overtake_what_was_sent_before_it() {
    let daemon = start(Plan { plaintext: false, ..Plan::default() }).await;
    let old = daemon.bob.public_key().to_string();
    send(&daemon, "lost").await;
    let row = next(&daemon, "lost", &old).await;
    daemon.settle(row, refused()).await;
    send(&daemon, "first").await;
    send(&daemon, "second").await;
    let mut row = next(&daemon, "first", &old).await;
    let new = rotated(&daemon, 20).await;
    send(&daemon, "third").await;
    for id in ["second", "third"] {
        assert!(claimed(&daemon).await.is_empty(), "one message for bob is on its way");
        daemon.settle(row, delivered()).await;
        row = next(&daemon, id, &old).await;
    }
    let shown = daemon.get("/v1/admin/outbox/inspect?id=third").await.expect(200);
    assert_eq!(shown["message"]["key_id"], identity(20).public().key_id().to_string(), "it is sealed for the new key");
    daemon.settle(row, delivered()).await;
    // Nothing waits any more under the old one.
    send(&daemon, "fourth").await;
    let row = next(&daemon, "fourth", &new).await;
    let again = json!({ "id": "lost", "new_client_id": "again" });
    daemon.post("/v1/admin/outbox/requeue", &again).await.expect(200);
    assert!(claimed(&daemon).await.is_empty(), "nor does one that is sent again overtake");
    daemon.settle(row, delivered()).await;
    next(&daemon, "again", &new).await;
    daemon.stop().await;
}
