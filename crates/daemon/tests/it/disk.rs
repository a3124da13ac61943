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
    let refused = loop {
        let answer = daemon.post("/v1/send", &body(number)).await;
        if answer.status != 202 {
            break answer;
        }
        number += 1;
        assert!(number < 100, "the budget is never felt");
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

    // What drains and is pruned makes room again.
    for id in 0..number {
        let row = daemon.claim(&format!("m{id}")).await;
        daemon.settle(row, delivered()).await;
    }
    daemon.post("/v1/admin/outbox/prune", &json!({ "confirm": true, "older_than_seconds": 0 })).await.expect(200);
    daemon.post("/v1/send", &body(number)).await.expect(202);
    assert_eq!(daemon.post("/v1/send", &body(0)).await.expect(200)["duplicate"], true);
}
