//! What is older than the queue keeps messages is never delivered, and goes when it is met.

use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{bodies, body, counted, jobs, ok, pass, queue, receive, rows, send, up_to, upkeep, url};

both! {
    a_backlog_that_is_too_old_makes_way,
    a_message_in_flight_grows_too_old,
    a_flight_without_its_message_goes,
    what_nobody_receives_goes_by_itself,
    every_queue_is_visited,
}

async fn a_backlog_that_is_too_old_makes_way(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    for number in 0..300 {
        send(&on, &format!("old {number}")).await;
    }
    pass(&on, 30);
    send(&on, "young").await;
    pass(&on, 31);
    assert_eq!(bodies(&on).await, ["young"]);
    assert_eq!(rows(&on).await, (1, 1));
}

async fn a_message_in_flight_grows_too_old(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    send(&on, "in flight").await;
    ok(&on, SendMessage { delay_seconds: Some(100), ..body("delayed") }).await;
    let quick = ReceiveMessage { visibility_timeout: Some(0), ..up_to(10) };
    assert_eq!(ok(&on, quick).await.messages.len(), 1);
    pass(&on, 101);
    send(&on, "young").await;
    assert_eq!(bodies(&on).await, ["young"]);
    assert_eq!(rows(&on).await, (1, 1));
}

async fn a_flight_without_its_message_goes(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    assert_eq!(receive(&on, 10).await.len(), 2);
    on.write("DELETE FROM messages WHERE body = 'a'").await.unwrap();
    pass(&on, 11);
    assert_eq!(bodies(&on).await, ["b"]);
    assert_eq!(rows(&on).await, (1, 1));
}

async fn what_nobody_receives_goes_by_itself(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60"), ("VisibilityTimeout", "1000")]).await;
    for number in 0..600 {
        send(&on, &format!("old {number}")).await;
    }
    assert_eq!(receive(&on, 10).await.len(), 10);
    pass(&on, 30);
    send(&on, "young").await;
    upkeep(&on).await;
    assert_eq!(rows(&on).await, (601, 10));
    pass(&on, 31);
    for _ in 0..4 {
        upkeep(&on).await;
    }
    assert_eq!(rows(&on).await, (1, 0));
    assert_eq!(counted(&on, "jobs").await, (1, 0, 0));
    assert_eq!(bodies(&on).await, ["young"]);
}

async fn every_queue_is_visited(on: TestStore) {
    for number in 0..150 {
        let name = format!("q{number}");
        ok(&on, queue(&name, &[("MessageRetentionPeriod", "60")])).await;
        ok(&on, SendMessage { queue_url: url(&name), ..body("m") }).await;
    }
    pass(&on, 61);
    upkeep(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
    // The next round begins at the beginning.
    ok(&on, SendMessage { queue_url: url("q0"), ..body("m") }).await;
    pass(&on, 61);
    upkeep(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
}
