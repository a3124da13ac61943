//! What is older than the queue keeps messages is never delivered, and goes when it is met.

use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{bodies, body, jobs, ok, pass, receive, rows, send, up_to};

both! {
    a_backlog_that_is_too_old_makes_way,
    a_message_in_flight_grows_too_old,
    a_flight_without_its_message_goes,
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
