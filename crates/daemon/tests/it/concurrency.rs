//! Many callers at once.

use std::sync::Arc;

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{Answer, Plan, Running, start};

/// Asks until the daemon has a place for it.
async fn until_taken(daemon: &Running, body: &serde_json::Value) -> Answer {
    loop {
        let answer = daemon.post("/v1/send", body).await;
        if answer.status != 429 {
            return answer;
        }
        assert_eq!(answer.json()["error"], "daemon_busy");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_callers_with_one_id_make_one_row() {
    let daemon = Arc::new(start(Plan::default()).await);
    let mut callers = JoinSet::new();
    for number in 0..100 {
        let daemon = Arc::clone(&daemon);
        callers.spawn(async move {
            let message = if number % 2 == 0 { "even" } else { "odd" };
            let body = json!({ "to": "bob", "message": message, "client_message_id": "one" });
            (message, until_taken(&daemon, &body).await)
        });
    }
    let mut taken = Vec::new();
    while let Some(answered) = callers.join_next().await {
        let (message, answer) = answered.unwrap();
        assert!([202, 409].contains(&answer.status), "{answer:?}");
        if answer.status == 202 {
            taken.push(message);
        }
    }
    assert_eq!(taken.len(), 50, "one of the two messages has the id, and all who sent it are told so");
    assert!(taken.iter().all(|message| *message == taken[0]));
    let health = daemon.get("/v1/health").await.expect(200);
    assert_eq!(health["queue_depth"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_with_ids_of_their_own_all_get_a_row() {
    let daemon = Arc::new(start(Plan::default()).await);
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        let daemon = Arc::clone(&daemon);
        callers.spawn(async move {
            for number in 0..10 {
                let body = json!({ "to": "bob", "message": "m", "client_message_id": format!("{caller}-{number}") });
                until_taken(&daemon, &body).await.expect(202);
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
    assert_eq!(daemon.get("/v1/health").await.expect(200)["queue_depth"], 320);
    let claimed = daemon.handle.outbox().claim(64).await.unwrap();
    assert_eq!(claimed.flights.len(), 1, "one destination, one message in flight");
}
