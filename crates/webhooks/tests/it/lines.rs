//! Each endpoint has a line of its own.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waybill_store::effects::{Follow, Holder, Round, Runner, reach_once};
use waybill_testkit::stores::TestStore;
use waybill_webhooks::{Deliver, FanOut, Lines, Settings};

use crate::receiver::{Do, Receiver};
use crate::support::{SECOND, deliveries, fan_out, reach, reach_with, receipt, settings, shown, webhook, webhook_to};

waybill_testkit::both! {
    a_dead_endpoint_holds_up_no_other,
    the_slow_endpoints_of_a_tenant_hold_up_no_other_tenant,
    a_line_is_worked_off_with_as_many_requests_as_an_endpoint_may_have,
    what_joins_a_line_in_hand_is_not_forgotten,
    an_endpoint_that_does_not_answer_is_asked_for_one_at_a_time,
    one_that_refuses_some_still_gets_the_others,
}

async fn receipts(on: &TestStore, count: usize) {
    for _ in 0..count {
        receipt(on, &on.agent("alice").unwrap()).await;
    }
}

/// Nothing but wakes moves this runner, and there are places for two requests: one of them is for the dead one, for ever.
async fn a_dead_endpoint_holds_up_no_other(on: TestStore) {
    let (dead, live) = (Receiver::start(|_| Do::Ignore).await, Receiver::start(|_| Do::Answer(200)).await);
    let (dead_id, live_id) = (webhook_to(&on, &dead.url).await, webhook_to(&on, &live.url).await);
    let settings = Settings {
        requests_max: 2,
        endpoint_requests_max: 1,
        request_ms: 60_000,
        feed_interval_s: 3_600,
        ..settings()
    };
    let runner = Runner::new(on.store.clone(), Holder::LEASE)
        .with(Follow(FanOut::new(&settings)))
        .with_outward(Deliver::new(Lines::Healthy, &settings))
        .with_outward(Deliver::new(Lines::Ailing, &settings));
    receipts(&on, 1).await;
    dead.has(1).await;
    live.has(1).await;
    for round in 2..=4 {
        receipts(&on, 10).await;
        live.has(10 * (round - 1) + 1).await;
    }
    assert_eq!((dead.requests().len(), live.most()), (1, 1));
    let stopped = tokio::time::timeout(Duration::from_secs(20), runner.stop()).await;
    assert!(stopped.is_ok(), "the request that is ignored is given up");
    let states = async |id: &str, state: &str| {
        deliveries(&on, id).await.iter().filter(|delivery| delivery["status"] == state).count()
    };
    assert_eq!((states(&live_id, "delivered").await, states(&dead_id, "pending").await), (31, 31));
    assert_eq!(
        on.count("SELECT count(*) FROM webhooks WHERE held = 1").await.unwrap(),
        0,
        "what is in hand is given back"
    );
}

/// As many slow endpoints as there are places for requests, and as lines that may be in hand: they answer when they are told.
async fn the_slow_endpoints_of_a_tenant_hold_up_no_other_tenant(on: TestStore) {
    let slow = Receiver::start(|_| Do::Hold(200)).await;
    let live = Receiver::start(|_| Do::Answer(200)).await;
    for _ in 0..8 {
        webhook_to(&on, &slow.url).await;
    }
    let settings = Settings {
        requests_max: 8,
        endpoint_requests_max: 1,
        request_ms: 60_000,
        feed_interval_s: 3_600,
        ..settings()
    };
    let runner = Runner::new(on.store.clone(), Holder::LEASE)
        .with(Follow(FanOut::new(&settings)))
        .with_outward(Deliver::new(Lines::Healthy, &settings));
    receipts(&on, 1).await;
    slow.has(2).await;
    let other = on.tenant("other").await.unwrap();
    webhook(&on, &other, json!({ "url": live.url })).await;
    receipt(&on, &other).await;
    live.has(1).await;
    assert!(slow.requests().len() < 8, "some hands are for others");
    slow.release();
    slow.has(8).await;
    tokio::time::timeout(Duration::from_secs(20), runner.stop()).await.unwrap();
}

async fn a_line_is_worked_off_with_as_many_requests_as_an_endpoint_may_have(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(200)).await;
    let id = webhook_to(&on, &receiver.url).await;
    receipts(&on, 100).await;
    fan_out(&on).await;
    let settings = Settings { endpoint_requests_max: 3, ..settings() };
    let mut turns = 0;
    while reach_with(&on, Lines::Healthy, &settings).await.claimed > 0 {
        turns += 1;
    }
    assert_eq!((turns, receiver.most()), (2, 3), "of 64 deliveries at most");
    let mut ids: Vec<_> = receiver.requests().iter().map(|request| request.id().to_owned()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), receiver.requests().len()), (100, 100));
    assert!(deliveries(&on, &id).await.iter().all(|delivery| delivery["status"] == "delivered"));
}

async fn what_joins_a_line_in_hand_is_not_forgotten(on: TestStore) {
    let receiver = Receiver::start(|number| if number == 0 { Do::Hold(200) } else { Do::Answer(200) }).await;
    webhook_to(&on, &receiver.url).await;
    receipts(&on, 1).await;
    fan_out(&on).await;
    let deliver = Arc::new(Deliver::new(Lines::Healthy, &settings()));
    let store = on.store.clone();
    let first = tokio::spawn(async move { reach_once(&store, &deliver).await.unwrap() });
    receiver.has(1).await;
    receipts(&on, 1).await;
    fan_out(&on).await;
    assert_eq!(reach(&on, Lines::Healthy).await, Round::default(), "the line is in hand");
    receiver.release();
    assert_eq!(first.await.unwrap().done, 1);
    assert_eq!((reach(&on, Lines::Healthy).await.done, receiver.requests().len()), (1, 2));
}

async fn an_endpoint_that_does_not_answer_is_asked_for_one_at_a_time(on: TestStore) {
    let receiver = Receiver::start(|number| Do::Answer(if number < 12 { 500 } else { 200 })).await;
    let id = webhook_to(&on, &receiver.url).await;
    receipts(&on, 20).await;
    fan_out(&on).await;
    reach(&on, Lines::Healthy).await;
    let first = receiver.requests().len();
    assert!((1..=8).contains(&first), "{first} requests, and no more after the first that failed");
    for turn in 1..=3 {
        on.time.pass(5 * SECOND);
        assert_eq!(reach(&on, Lines::Ailing).await.failed, 1);
        assert_eq!(receiver.requests().len(), first + turn);
        assert_eq!(reach(&on, Lines::Ailing).await, Round::default(), "it rests, whatever is due");
    }
    // Until somebody is there again: then the line is as long as before, and all of it is delivered.
    let mut passed = 0;
    while deliveries(&on, &id).await.iter().any(|delivery| delivery["status"] != "delivered") {
        on.time.pass(60 * SECOND);
        for lines in [Lines::Ailing, Lines::Healthy] {
            reach(&on, lines).await;
        }
        passed += 1;
        assert!(passed < 60, "an hour later it is still not delivered");
    }
    assert!(shown(&on, &id).await.get("failing_since").is_none());
}

async fn one_that_refuses_some_still_gets_the_others(on: TestStore) {
    let receiver = Receiver::start(|number| Do::Answer(if number == 0 { 400 } else { 200 })).await;
    let id = webhook_to(&on, &receiver.url).await;
    receipts(&on, 10).await;
    fan_out(&on).await;
    let settings = Settings { endpoint_requests_max: 1, ..settings() };
    assert_eq!(reach_with(&on, Lines::Healthy, &settings).await.failed, 1);
    assert_eq!(receiver.requests().len(), 10);
    let refused: Vec<_> =
        deliveries(&on, &id).await.into_iter().filter(|delivery| delivery["status"] == "pending").collect();
    assert_eq!((refused.len(), &refused[0]["last_error"]), (1, &json!("It answered 400.")));
}
