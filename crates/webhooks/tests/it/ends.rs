//! How deliveries and webhooks end when nobody accepts anything.

use std::time::Duration;

use serde_json::json;
use waybill_store::effects::Round;
use waybill_testkit::stores::TestStore;
use waybill_webhooks::{Lines, Over, Settings};

use crate::receiver::{Do, Receiver};
use crate::support::{
    SECOND, deliveries, fan_out, only_delivery, reach, reach_with, receipt, settings, shown, sweep, webhook_to,
};

waybill_testkit::both! {
    gone_ends_the_webhook_at_once,
    a_webhook_that_fails_for_long_is_disabled,
    what_is_never_accepted_has_failed_and_goes_in_the_end,
    attempts_come_later_and_later_and_end,
    an_endpoint_that_asks_for_time_is_left_alone,
    one_that_is_enabled_again_gets_what_was_waiting,
}

const HOUR: Duration = Duration::from_secs(3600);

async fn one(on: &TestStore) {
    receipt(on, &on.agent("alice").unwrap()).await;
    fan_out(on).await;
}

async fn gone_ends_the_webhook_at_once(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(410)).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await.failed, 1);
    let webhook = shown(&on, &id).await;
    assert_eq!(webhook["disabled_reason"], "It answered 410: it wants nothing more.");
    assert!(webhook["disabled_at"].is_string());
    assert_eq!(only_delivery(&on, &id).await["status"], "failed");
    one(&on).await;
    on.time.pass(HOUR);
    for lines in [Lines::Healthy, Lines::Ailing] {
        assert_eq!(reach(&on, lines).await, Round::default());
    }
    assert_eq!((deliveries(&on, &id).await.len(), receiver.requests().len()), (1, 1));
}

async fn a_webhook_that_fails_for_long_is_disabled(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(500)).await;
    let id = webhook_to(&on, &receiver.url).await;
    let settings = Settings { disable_after_s: 3_600, ..settings() };
    one(&on).await;
    assert_eq!(reach_with(&on, Lines::Healthy, &settings).await.failed, 1);
    on.time.pass(HOUR - 10 * SECOND);
    assert_eq!(reach_with(&on, Lines::Ailing, &settings).await.failed, 1);
    assert!(shown(&on, &id).await.get("disabled_at").is_none());
    on.time.pass(HOUR);
    assert_eq!(reach_with(&on, Lines::Ailing, &settings).await.failed, 1);
    assert_eq!(shown(&on, &id).await["disabled_reason"], "It has failed for too long without a success.");
}

async fn what_is_never_accepted_has_failed_and_goes_in_the_end(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(500)).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    reach(&on, Lines::Healthy).await;
    one(&on).await;
    let over = || Over::new(&settings());
    assert_eq!(sweep(&on, over()).await, 0);
    on.time.pass(72 * HOUR + SECOND);
    assert_eq!(sweep(&on, over()).await, 2);
    let ended = deliveries(&on, &id).await;
    assert!(ended.iter().all(|delivery| delivery["status"] == "failed" && delivery["ended_at"].is_string()));
    assert_eq!(ended[0]["last_error"], "It was not accepted in time, or the webhook was disabled.");
    assert_eq!(ended[1]["last_error"], "It answered 500.", "why it failed stays");
    for lines in [Lines::Healthy, Lines::Ailing] {
        assert!(reach(&on, lines).await.done <= 1, "the line finds nothing to do");
    }
    assert_eq!(receiver.requests().len(), 1);
    on.time.pass(7 * 24 * HOUR + SECOND);
    assert_eq!(sweep(&on, over()).await, 2);
    assert_eq!(deliveries(&on, &id).await, Vec::<serde_json::Value>::new());
}

async fn attempts_come_later_and_later_and_end(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(404)).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    let mut waited = Duration::ZERO;
    while only_delivery(&on, &id).await["status"] == "pending" {
        reach(&on, Lines::Healthy).await;
        on.time.pass(HOUR);
        waited += HOUR;
        assert!(waited <= 80 * HOUR, "it does not end");
    }
    let delivery = only_delivery(&on, &id).await;
    assert_eq!((&delivery["status"], &delivery["last_error"]), (&json!("failed"), &json!("It answered 404.")));
    let attempts = delivery["attempts"].as_u64().unwrap();
    assert!((9..=14).contains(&attempts), "{attempts}");
    assert_eq!(attempts, receiver.requests().len() as u64);
}

async fn an_endpoint_that_asks_for_time_is_left_alone(on: TestStore) {
    let receiver = Receiver::start(|number| if number == 0 { Do::AskForTime(429, 600) } else { Do::Answer(204) }).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await.failed, 1);
    on.time.pass(590 * SECOND);
    // Another receipt is no reason to come earlier.
    one(&on).await;
    assert_eq!((reach(&on, Lines::Ailing).await, receiver.requests().len()), (Round::default(), 1));
    on.time.pass(11 * SECOND);
    assert_eq!(reach(&on, Lines::Ailing).await.done, 1);
    reach(&on, Lines::Healthy).await;
    assert!(deliveries(&on, &id).await.iter().all(|delivery| delivery["status"] == "delivered"));
}

async fn one_that_is_enabled_again_gets_what_was_waiting(on: TestStore) {
    let receiver = Receiver::start(|number| Do::Answer(if number == 0 { 500 } else { 204 })).await;
    let id = webhook_to(&on, &receiver.url).await;
    one(&on).await;
    let strict = Settings { disable_after_s: 0, ..settings() };
    assert_eq!(reach_with(&on, Lines::Healthy, &strict).await.failed, 1);
    assert!(shown(&on, &id).await["disabled_at"].is_string());
    let enabled = on.call(&on.admin, "enable_webhook", json!({ "webhook_id": id })).await.unwrap();
    assert_eq!(enabled.json, json!({ "ok": true }));
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1);
    assert_eq!(only_delivery(&on, &id).await["status"], "delivered");
}
