//! Whoever received a message last may put off when it is visible again, or give it back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use waybill_kernel::Code;
use waybill_queues::ops::change_message_visibility::ChangeMessageVisibility;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{FAILED, bodies, change, delete, jobs, ok, pass, queue, receive, refusal, send, up_to, url};

both! {
    a_message_stays_invisible_from_now_on,
    nothing_makes_it_visible_at_once,
    a_message_that_is_given_back_ends_a_wait,
    a_handle_that_is_not_the_latest_changes_nothing,
    what_is_visible_is_not_in_flight,
    twelve_hours_from_the_receive_are_the_end,
    bad_changes,
}

async fn a_message_stays_invisible_from_now_on(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    pass(&on, 9);
    ok(&on, change(&message, 100)).await;
    pass(&on, 99);
    assert!(bodies(&on).await.is_empty());
    // Shorter than before works as well, and the handle is still good.
    ok(&on, change(&message, 0)).await;
    assert_eq!(bodies(&on).await, ["m"]);
}

async fn nothing_makes_it_visible_at_once(on: TestStore) {
    jobs(&on, &[]).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    ok(&on, change(&message, 0)).await;
    let again = receive(&on, 1).await.remove(0);
    assert_eq!(again.body, "m");
    assert_ne!(again.receipt_handle, message.receipt_handle);
    ok(&on, delete(&again)).await;
}

async fn a_message_that_is_given_back_ends_a_wait(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "1000")]).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    let on = Arc::new(on);
    let (waits, began) = (Arc::clone(&on), Instant::now());
    let waiter = tokio::spawn(async move {
        ok(&waits, ReceiveMessage { wait_time_seconds: Some(20), ..up_to(1) }).await.messages.remove(0).body
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    ok(&on, change(&message, 0)).await;
    assert_eq!(timeout(FAILED, waiter).await.unwrap().unwrap(), "m");
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
}

async fn a_handle_that_is_not_the_latest_changes_nothing(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    ok(&on, queue("other", &[])).await;
    send(&on, "m").await;
    let first = receive(&on, 1).await.remove(0);
    pass(&on, 11);
    let second = receive(&on, 1).await.remove(0);
    assert_eq!(refusal(&on, change(&first, 0)).await, Code::ReceiptHandleIsInvalid);
    let elsewhere = ChangeMessageVisibility { queue_url: url("other"), ..change(&second, 0) };
    assert_eq!(refusal(&on, elsewhere).await, Code::ReceiptHandleIsInvalid);
    assert!(bodies(&on).await.is_empty());
    ok(&on, delete(&second)).await;
    assert_eq!(refusal(&on, change(&second, 0)).await, Code::ReceiptHandleIsInvalid);
}

async fn what_is_visible_is_not_in_flight(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    pass(&on, 11);
    assert_eq!(refusal(&on, change(&message, 100)).await, Code::MessageNotInflight);
    assert_eq!(bodies(&on).await, ["m"]);
}

async fn twelve_hours_from_the_receive_are_the_end(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "30000")]).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    pass(&on, 20_000);
    assert_eq!(refusal(&on, change(&message, 23_300)).await, Code::InvalidRequest);
    ok(&on, change(&message, 23_100)).await;
    pass(&on, 23_101);
    // A new receive has twelve hours of its own.
    let message = receive(&on, 1).await.remove(0);
    ok(&on, change(&message, 43_000)).await;
}

async fn bad_changes(on: TestStore) {
    jobs(&on, &[]).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    let good = || change(&message, 0);
    for (change, code) in [
        (ChangeMessageVisibility { visibility_timeout: None, ..good() }, Code::MissingParameter),
        (ChangeMessageVisibility { visibility_timeout: Some(-1), ..good() }, Code::InvalidRequest),
        (ChangeMessageVisibility { visibility_timeout: Some(43_201), ..good() }, Code::InvalidRequest),
        (ChangeMessageVisibility { receipt_handle: String::new(), ..good() }, Code::MissingParameter),
        (ChangeMessageVisibility { receipt_handle: "AQ".to_owned(), ..good() }, Code::ReceiptHandleIsInvalid),
        (ChangeMessageVisibility { queue_url: url("nowhere"), ..good() }, Code::QueueDoesNotExist),
        (ChangeMessageVisibility { queue_url: String::new(), ..good() }, Code::MissingParameter),
    ] {
        let shown = format!("{change:?}");
        assert_eq!(refusal(&on, change).await, code, "{shown}");
    }
    assert!(bodies(&on).await.is_empty());
}
