//! What is sent, how it is signed, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use waybill_store::effects::{Follow, Round, reach_once};
use waybill_tasks::sweeps::{Archive, Seal};
use waybill_testkit::stores::TestStore;
use waybill_webhooks::{Deliver, Lines, Settings};

use crate::receiver::{Do, Receiver, Request};
use crate::support::{
    CLAIM, SECOND, deliveries, fan_out, ok, only_delivery, reach, reach_with, receipt, settings, shown, sweep, text,
    webhook, webhook_to,
};

waybill_testkit::both! {
    a_receipt_is_posted_and_its_signature_can_be_checked,
    what_failed_comes_again_with_the_same_id,
    a_node_that_is_killed_before_it_records_sends_again_with_the_same_id,
    of_two_who_hold_a_line_only_the_latter_records,
    an_inner_address_is_not_reached_unless_that_is_allowed,
    a_receipt_that_was_archived_is_delivered,
    a_secret_that_does_not_open_sends_nothing,
    what_is_sent_again_has_the_same_id,
}

async fn one(on: &TestStore) {
    receipt(on, &on.agent("alice").unwrap()).await;
    fan_out(on).await;
}

/// By the definition of HMAC and of Standard Webhooks, and by nothing of ours.
fn signature(secret: &str, request: &Request) -> String {
    let key = decode(secret.strip_prefix("whsec_").unwrap());
    let signed = format!("{}.{}.{}", request.id(), request.headers["webhook-timestamp"], request.body);
    let pad = |with: u8| (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ with).collect::<Vec<u8>>();
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(signed).finalize();
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    format!("v1,{}", encode(&outer))
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn decode(text: &str) -> Vec<u8> {
    let mut bits = (0_u32, 0);
    let mut bytes = Vec::new();
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = LETTERS.iter().position(|other| *other == letter).unwrap() as u32;
        bits = (bits.0 << 6 | value, bits.1 + 6);
        if bits.1 >= 8 {
            bits.1 -= 8;
            bytes.push((bits.0 >> bits.1) as u8);
            bits.0 &= (1 << bits.1) - 1;
        }
    }
    bytes
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for digit in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * digit)) as usize & 63];
            text.push(if digit <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

async fn a_receipt_is_posted_and_its_signature_can_be_checked(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(204)).await;
    let (id, secret) = webhook(&on, &on.admin, json!({ "url": receiver.url })).await;
    let before = on.store.now().micros() / 1_000_000;
    one(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await, Round { claimed: 1, done: 1, ..Round::default() });
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert_eq!(request.line, "POST /hook HTTP/1.1");
    assert_eq!(request.headers["content-type"], "application/json");
    let sent_at: i64 = request.headers["webhook-timestamp"].parse().unwrap();
    assert!((before..=before + 60).contains(&sent_at), "{sent_at}");
    assert_eq!(request.headers["webhook-signature"], signature(&secret, request));
    let mut altered = request.clone();
    altered.body = altered.body.replacen('a', "b", 1);
    assert_ne!(request.headers["webhook-signature"], signature(&secret, &altered));

    let delivery = only_delivery(&on, &id).await;
    assert_eq!(request.id(), text(&delivery, "delivery_id"));
    let body = request.json();
    let receipt =
        ok(&on, &on.agent("alice").unwrap(), "get_receipt", json!({ "receipt_id": delivery["receipt_id"] })).await;
    assert_eq!(body, json!({ "type": "receipt.task.assigned", "timestamp": receipt["created_at"], "data": receipt }));
    assert_eq!(
        (&delivery["status"], &delivery["attempts"], &delivery["last_status"]),
        (&json!("delivered"), &json!(1), &json!(204))
    );
    assert!(delivery.get("last_error").is_none() && delivery.get("next_attempt_at").is_none());
    assert!(shown(&on, &id).await["last_delivered_at"].is_string());
    on.time.pass(3600 * SECOND);
    assert_eq!(reach(&on, Lines::Healthy).await, Round::default(), "once is enough");
}

async fn what_failed_comes_again_with_the_same_id(on: TestStore) {
    let receiver = Receiver::start(|number| Do::Answer(if number == 0 { 503 } else { 200 })).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await, Round { claimed: 1, failed: 1, ..Round::default() });
    let delivery = only_delivery(&on, &id).await;
    assert_eq!((&delivery["status"], &delivery["last_status"]), (&json!("pending"), &json!(503)));
    assert_eq!((&delivery["last_error"], &delivery["attempts"]), (&json!("It answered 503."), &json!(1)));
    assert!(shown(&on, &id).await["failing_since"].is_string());
    for lines in [Lines::Healthy, Lines::Ailing] {
        assert_eq!(reach(&on, lines).await, Round::default(), "not yet");
    }
    on.time.pass(7 * SECOND);
    assert_eq!(reach(&on, Lines::Healthy).await, Round::default(), "it is not among the healthy ones");
    assert_eq!(reach(&on, Lines::Ailing).await, Round { claimed: 1, done: 1, ..Round::default() });
    let requests = receiver.requests();
    assert_eq!((requests.len(), requests[0].id()), (2, requests[1].id()));
    assert_eq!(requests[0].body, requests[1].body);
    assert_ne!(requests[0].headers["webhook-timestamp"], requests[1].headers["webhook-timestamp"]);
    let delivery = only_delivery(&on, &id).await;
    assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("delivered"), &json!(2)));
    assert!(shown(&on, &id).await.get("failing_since").is_none());
    one(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1, "it is well again");
}

async fn a_node_that_is_killed_before_it_records_sends_again_with_the_same_id(on: TestStore) {
    let receiver = Receiver::start(|number| if number == 0 { Do::Hold(200) } else { Do::Answer(200) }).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    let deliver = Arc::new(Deliver::new(Lines::Healthy, &settings()));
    let store = on.store.clone();
    let node = tokio::spawn(async move { reach_once(&store, &deliver).await });
    receiver.has(1).await;
    node.abort();
    assert!(node.await.unwrap_err().is_cancelled());
    receiver.release();
    assert_eq!(reach(&on, Lines::Healthy).await, Round::default(), "its claim holds");
    on.time.pass(CLAIM);
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1);
    let requests = receiver.requests();
    assert_eq!((requests.len(), requests[0].id(), &requests[0].body), (2, requests[1].id(), &requests[1].body));
    assert_eq!(only_delivery(&on, &id).await["status"], "delivered");
}

async fn of_two_who_hold_a_line_only_the_latter_records(on: TestStore) {
    let receiver = Receiver::start(|number| if number == 0 { Do::Hold(410) } else { Do::Answer(200) }).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    let deliver = Arc::new(Deliver::new(Lines::Healthy, &settings()));
    let store = on.store.clone();
    let slow = tokio::spawn(async move { reach_once(&store, &deliver).await.unwrap() });
    receiver.has(1).await;
    on.time.pass(CLAIM);
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1);
    receiver.release();
    assert_eq!(slow.await.unwrap(), Round { claimed: 1, superseded: 1, ..Round::default() });
    let delivery = only_delivery(&on, &id).await;
    assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("delivered"), &json!(1)));
    assert!(shown(&on, &id).await.get("disabled_at").is_none());
}

async fn an_inner_address_is_not_reached_unless_that_is_allowed(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(200)).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    assert_eq!(reach_with(&on, Lines::Healthy, &Settings::default()).await.failed, 1);
    let error = text(&only_delivery(&on, &id).await, "last_error");
    assert!(error.contains("is no address of the public internet"), "{error}");
    on.time.pass(7 * SECOND);
    assert_eq!((reach(&on, Lines::Ailing).await.done, receiver.requests().len()), (1, 1));
}

async fn a_receipt_that_was_archived_is_delivered(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(200)).await;
    let (alice, id) = (on.agent("alice").unwrap(), webhook_to(&on, &receiver.url).await);
    let task_id = receipt(&on, &alice).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
    // The newest one stays in the ledger.
    receipt(&on, &alice).await;
    fan_out(&on).await;
    let tasks =
        waybill_tasks::Settings { archive_after_s: 0, archive_after_s_max: 0, ..waybill_tasks::Settings::default() };
    sweep(&on, Follow(Seal::new(&tasks))).await;
    on.time.pass(SECOND);
    sweep(&on, Archive::new(&tasks)).await;
    assert!(on.count("SELECT count(*) FROM archived_receipts").await.unwrap() > 0);
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1);
    let ids = |requests: Vec<Request>| {
        let mut ids: Vec<Json> = requests.iter().map(|request| request.json()["data"]["receipt_id"].take()).collect();
        ids.sort_by_key(Json::to_string);
        ids
    };
    let mut listed: Vec<Json> =
        deliveries(&on, &id).await.iter().map(|delivery| delivery["receipt_id"].clone()).collect();
    listed.sort_by_key(Json::to_string);
    assert_eq!((listed.len() > 1, ids(receiver.requests())), (true, listed));
}

async fn a_secret_that_does_not_open_sends_nothing(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(200)).await;
    let first = webhook_to(&on, &receiver.url).await;
    let second = webhook_to(&on, &receiver.url).await;
    // The box of another row, put there by somebody who can write to the database.
    let other = "(SELECT o.secret FROM webhooks o WHERE o.webhook_id <> webhooks.webhook_id)";
    let newer = "created_at = (SELECT max(n.created_at) FROM webhooks n)";
    on.write(&format!("UPDATE webhooks SET secret = {other} WHERE {newer}")).await.unwrap();
    one(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await, Round { claimed: 2, done: 1, failed: 1, ..Round::default() });
    assert_eq!(only_delivery(&on, &first).await["status"], "delivered");
    let error = text(&only_delivery(&on, &second).await, "last_error");
    assert_eq!(error, "The secret could not be opened. The server's log says why.");
    assert_eq!(receiver.requests().len(), 1);
}

async fn what_is_sent_again_has_the_same_id(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(200)).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1);
    on.time.pass(Duration::from_secs(60));
    let delivery_id = text(&only_delivery(&on, &id).await, "delivery_id");
    ok(&on, &on.admin, "redeliver_webhook", json!({ "webhook_id": id, "delivery_id": delivery_id })).await;
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1);
    let requests = receiver.requests();
    assert_eq!((requests.len(), requests[0].id(), requests[1].id()), (2, delivery_id.as_str(), delivery_id.as_str()));
}
