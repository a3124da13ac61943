//! The outbox's room: told at 80 percent, refused at 95, and an id that has a row is answered all the same.

use serde_json::json;

use crate::support::{Plan, delivered, start};

#[tokio::test(flavor = "multi_thread")]
async fn new_ids_are_refused_when_room_ends_and_known_ones_are_answered() {
    let config = "[outbox]\nbytes_max = 1000000\nsweep_ms = 5\n";
    let daemon = start(Plan { config, ..Plan::default() }).await;
    let mut events = daemon.handle.events().subscribe(None);
    let body = |number: usize| json!({ "to": "bob", "message": "m".repeat(20_000), "client_message_id": format!("m{number}") });
    let mut number = 0;
    let outbox = daemon.handle.outbox();
    let refused = loop {
        let answer = daemon.post("/v1/send", &body(number)).await;
        if answer.status == 202 {
            number += 1;
            assert!(number < 100, "the budget is never felt");
            continue;
        }
        // Between two looks at the file a row may count twice, which refuses early. After a look the refusal is that of the file.
        outbox.measure().await.unwrap();
        if outbox.used_percent() >= 95 {
            break answer;
        }
    };
    assert_eq!(refused.expect(507)["error"], "insufficient_storage");
    let told = events.next().await.unwrap();
    assert_eq!(told.event.kind.name(), "outbox_pressure_high");
    assert!(number > 10, "{number} messages of 40 kB are less than the budget");
    assert_eq!(daemon.post("/v1/send", &body(0)).await.expect(202)["status"], "queued");
    let other = json!({ "to": "bob", "message": "x", "client_message_id": "m0" });
    daemon.post("/v1/send", &other).await.expect(409);
    daemon.get(&format!("/v1/admin/outbox/inspect?id=m{number}")).await.expect(404);
    assert!(daemon.get("/v1/health").await.expect(200)["outbox_pct"].as_u64().unwrap() >= 95);

    // What is delivered keeps its room, and its payload, until it is pruned.
    for id in 0..number {
        let row = daemon.claim(&format!("m{id}")).await;
        daemon.settle(row, delivered()).await;
    }
    outbox.measure().await.unwrap();
    assert_eq!(daemon.post("/v1/send", &body(number)).await.expect(507)["error"], "insufficient_storage");
    daemon.post("/v1/admin/outbox/prune", &json!({ "confirm": true, "older_than_seconds": 0 })).await.expect(200);
    daemon.post("/v1/send", &body(number)).await.expect(202);
    assert_eq!(daemon.post("/v1/send", &body(0)).await.expect(200)["duplicate"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn looks_at_the_same_time_do_not_lose_count() {
    let daemon = start(Plan { config: "[outbox]\nsweep_ms = 1000000\n", ..Plan::default() }).await;
    let outbox = daemon.handle.outbox();
    for number in 0..8 {
        let before = outbox.used_bytes();
        let body = json!({ "to": "bob", "message": "m".repeat(20_000), "client_message_id": format!("m{number}") });
        daemon.post("/v1/send", &body).await.expect(202);
        assert!(outbox.used_bytes() >= before + 40_000, "what was accepted since the last look is not counted");
        let (first, second) = tokio::join!(outbox.measure(), outbox.measure());
        assert_eq!((first.unwrap(), second.unwrap()), (outbox.used_bytes(), outbox.used_bytes()));
    }
}
