//! What is sent when: in the order of arrival per destination, one at a time, again after a pause, and not for ever.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;
use waybill_daemon::outbox::{Outcome, Settled, Status};

use crate::support::{Plan, delivered, failed, refused, start, start_in};

#[tokio::test(flavor = "multi_thread")]
async fn each_destination_is_drained_in_the_order_of_arrival() {
    let daemon = start(Plan::default()).await;
    let outbox = daemon.handle.outbox();
    for number in 0..300 {
        let (target, body) = match number % 3 {
            0 => ("/v1/send", json!({ "to": "bob", "message": "m", "client_message_id": format!("{number}") })),
            1 => ("/v1/send", json!({ "to": "alice", "message": "m", "client_message_id": format!("{number}") })),
            _ => {
                ("/v1/topic/post", json!({ "topic": "ops", "message": "m", "client_message_id": format!("{number}") }))
            }
        };
        daemon.post(target, &body).await.expect(202);
    }
    let mut sent: HashMap<String, Vec<u32>> = HashMap::new();
    let mut round = 0;
    loop {
        let claimed = outbox.claim(64).await.unwrap();
        assert!(claimed.flights.len() <= 3, "one per destination");
        if claimed.flights.is_empty() {
            break;
        }
        assert!(outbox.claim(64).await.unwrap().flights.is_empty(), "what is in flight holds its destination");
        for flight in claimed.flights {
            round += 1;
            // Failures in between must not let a later message pass.
            let outcome = if round % 7 == 0 { failed() } else { delivered() };
            if let Settled::Done { .. } = outbox.settle(flight.id, outcome).await.unwrap().unwrap() {
                sent.entry(flight.destination_ref).or_default().push(flight.client_message_id.parse().unwrap());
            }
        }
        daemon.time.pass(Duration::from_secs(61));
    }
    assert_eq!(sent.len(), 3);
    assert!(sent.values().all(|order| order.len() == 100 && order.is_sorted()), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_message_lets_its_successors_pass_and_a_failed_one_holds_them() {
    let daemon = start(Plan::default()).await;
    let outbox = daemon.handle.outbox();
    for id in ["first", "second", "third"] {
        daemon.post("/v1/send", &json!({ "to": "bob", "message": id, "client_message_id": id })).await.expect(202);
    }
    let row = daemon.claim("first").await;
    let Settled::Pending { next_attempt_at, .. } = daemon.settle(row, failed()).await else { panic!() };
    let claimed = outbox.claim(64).await.unwrap();
    if claimed.flights.is_empty() {
        assert_eq!(claimed.next_at, Some(next_attempt_at));
        daemon.time.pass(Duration::from_secs(2));
        assert_eq!(daemon.claim("first").await, row);
    } else {
        assert_eq!(claimed.flights[0].id, row, "the pause was drawn as nothing");
    }
    daemon.settle(row, refused()).await;
    let second = daemon.claim("second").await;
    daemon.settle(second, delivered()).await;
    daemon.claim("third").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_old_is_dead_whether_or_not_there_is_a_broker() {
    let config = "[outbox]\nmax_age_seconds = 100\nsweep_ms = 5\n";
    let daemon = start(Plan { config, ..Plan::default() }).await;
    for id in ["a", "b"] {
        daemon.post("/v1/send", &json!({ "to": "bob", "message": id, "client_message_id": id })).await.expect(202);
    }
    daemon.time.pass(Duration::from_secs(99));
    daemon.post("/v1/send", &json!({ "to": "bob", "message": "c", "client_message_id": "c" })).await.expect(202);
    daemon.time.pass(Duration::from_secs(2));
    let outbox = daemon.handle.outbox();
    while outbox.figures().await.unwrap().of(Status::Dead) < 2 {
        tokio::task::yield_now().await;
    }
    let figures = outbox.figures().await.unwrap();
    assert_eq!((figures.dead, figures.pending), (2, 1));
    let answer = daemon.post("/v1/send", &json!({ "to": "bob", "message": "a", "client_message_id": "a" })).await;
    assert!(answer.expect(409)["reason"].as_str().unwrap().starts_with("outbox_max_age_exceeded"));
    daemon.claim("c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_too_old_before_a_broker_has_said_in_this_run_what_that_is() {
    const DAY: Duration = Duration::from_secs(86_400);
    let daemon = start(Plan { config: "[outbox]\nsweep_ms = 100000\n", ..Plan::default() }).await;
    daemon.post("/v1/send", &json!({ "to": "bob", "message": "m", "client_message_id": "a" })).await.expect(202);
    let outbox = daemon.handle.outbox();
    outbox.set_max_age(32 * DAY);
    daemon.time.pass(31 * DAY);
    assert_eq!(outbox.expire().await.unwrap(), 0);
    let (home, time) = daemon.stop().await;
    let daemon = start_in(home, time, false).await;
    let outbox = daemon.handle.outbox();
    assert_eq!((outbox.expire().await.unwrap(), outbox.figures().await.unwrap().pending), (0, 1));
    outbox.set_max_age(30 * DAY);
    assert_eq!((outbox.expire().await.unwrap(), outbox.figures().await.unwrap().dead), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_after_the_age_is_the_end() {
    let daemon =
        start(Plan { config: "[outbox]\nmax_age_seconds = 100\nsweep_ms = 100000\n", ..Plan::default() }).await;
    daemon.post("/v1/send", &json!({ "to": "bob", "message": "m", "client_message_id": "a" })).await.expect(202);
    let row = daemon.claim("a").await;
    daemon.time.pass(Duration::from_secs(101));
    let Settled::Dead { reason } = daemon.settle(row, failed()).await else { panic!() };
    assert!(reason.contains("503"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_hastens_what_waits_but_not_what_the_broker_has_put_off() {
    let daemon = start(Plan::default()).await;
    let outbox = daemon.handle.outbox();
    for (to, reason) in [("bob", "429 rate_limit_exceeded"), ("alice", "503 unavailable")] {
        daemon.post("/v1/send", &json!({ "to": to, "message": "m", "client_message_id": to })).await.expect(202);
        let row = daemon.claim(to).await;
        let retry_after = Some(Duration::from_secs(120));
        daemon.settle(row, Outcome::Failed { reason: reason.to_owned(), retry_after }).await;
    }
    outbox.reset().await.unwrap();
    daemon.time.pass(Duration::from_secs(2));
    let claimed = outbox.claim(64).await.unwrap();
    let ids: Vec<&str> = claimed.flights.iter().map(|flight| flight.client_message_id.as_str()).collect();
    assert_eq!(ids, ["alice"]);
    daemon.time.pass(Duration::from_secs(120));
    daemon.claim("bob").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_never_sent_gets_another_envelope() {
    let daemon = start(Plan { plaintext: false, ..Plan::default() }).await;
    let outbox = daemon.handle.outbox();
    for id in ["sent", "waiting"] {
        daemon.post("/v1/send", &json!({ "to": "bob", "message": id, "client_message_id": id })).await.expect(202);
    }
    let key = daemon.bob.public_key().to_string();
    let sent = daemon.claim("sent").await;
    daemon.settle(sent, failed()).await;
    let unsent = outbox.unsent("dm", &key, None, 0, 10).await.unwrap();
    assert_eq!(unsent.iter().map(|row| row.client_message_id.as_str()).collect::<Vec<_>>(), ["waiting"]);
    let parcel = waybill_daemon::outbox::Parcel {
        envelope: "{}".to_owned(),
        wire_fingerprint: [9; 32],
        destination_kind: "dm".to_owned(),
        destination_ref: key,
        key_id: None,
        epoch: None,
    };
    assert!(outbox.reseal(unsent[0].id, parcel.clone()).await.unwrap());
    assert!(!outbox.reseal(sent, parcel).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_member_has_sealed_is_dead_and_can_be_requeued() {
    let daemon = start(Plan { plaintext: false, ..Plan::default() }).await;
    let outbox = daemon.handle.outbox();
    daemon.post("/v1/send", &json!({ "to": "bob", "message": "m", "client_message_id": "a" })).await.expect(202);
    assert_eq!(outbox.belongs_to(&crate::support::member(1).to_string()).await.unwrap(), 0, "it is its own");
    assert_eq!(outbox.belongs_to("another").await.unwrap(), 1);
    assert!(outbox.claim(64).await.unwrap().flights.is_empty());
    let answer = daemon.post("/v1/send", &json!({ "to": "bob", "message": "m", "client_message_id": "a" })).await;
    assert_eq!(answer.expect(409)["reason"], "sealed_by_another_member");
    daemon.post("/v1/admin/outbox/requeue", &json!({ "id": "a", "new_client_id": "b" })).await.expect(200);
    daemon.claim("b").await;
}
