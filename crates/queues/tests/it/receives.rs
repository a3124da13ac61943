//! A message that was received is nobody else's until its time is over.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::task::JoinSet;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{bodies, body, delete, jobs, ok, pass, receive, rows, send, up_to};

both! {
    a_message_is_visible_again_after_its_timeout,
    no_timeout_leaves_it_visible,
    receivers_at_once_each_get_what_they_ask_for,
    nothing_is_lost_or_given_twice,
}

async fn a_message_is_visible_again_after_its_timeout(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    send(&on, "m").await;
    let asked = |visibility_timeout| ReceiveMessage {
        visibility_timeout,
        message_system_attribute_names: vec!["All".to_owned()],
        ..up_to(1)
    };
    let first = ok(&on, asked(None)).await.messages.remove(0);
    pass(&on, 9);
    assert!(receive(&on, 1).await.is_empty());
    pass(&on, 2);
    // The request's own timeout takes the place of the queue's.
    let second = ok(&on, asked(Some(100))).await.messages.remove(0);
    assert_ne!(first.receipt_handle, second.receipt_handle);
    assert_eq!(second.attributes["ApproximateReceiveCount"], "2");
    let at = "ApproximateFirstReceiveTimestamp";
    assert_eq!(first.attributes[at], second.attributes[at]);
    pass(&on, 99);
    assert!(receive(&on, 1).await.is_empty());
    pass(&on, 2);
    assert_eq!(receive(&on, 1).await.len(), 1);
}

async fn no_timeout_leaves_it_visible(on: TestStore) {
    jobs(&on, &[]).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    for _ in 0..3 {
        let open = ReceiveMessage { visibility_timeout: Some(0), ..up_to(10) };
        let messages = ok(&on, open).await.messages;
        let texts: BTreeSet<_> = messages.iter().map(|message| message.body.as_str()).collect();
        assert_eq!((messages.len(), texts), (2, BTreeSet::from(["a", "b"])));
    }
}

async fn receivers_at_once_each_get_what_they_ask_for(on: TestStore) {
    const RECEIVERS: usize = 4;
    let on = Arc::new(on);
    jobs(&on, &[]).await;
    for round in 0..5 {
        for number in 0..RECEIVERS * 10 {
            send(&on, &format!("{round}.{number}")).await;
        }
        let mut receivers = JoinSet::new();
        for _ in 0..RECEIVERS {
            let on = Arc::clone(&on);
            receivers.spawn(async move { bodies(&on).await });
        }
        let got = receivers.join_all().await;
        assert!(got.iter().all(|bodies| bodies.len() == 10), "{got:?}");
        assert_eq!(got.iter().flatten().collect::<BTreeSet<_>>().len(), RECEIVERS * 10);
    }
}

async fn nothing_is_lost_or_given_twice(on: TestStore) {
    const SENDERS: usize = 4;
    const EACH: usize = 60;
    let on = Arc::new(on);
    jobs(&on, &[]).await;
    let mut senders = JoinSet::new();
    for sender in 0..SENDERS {
        let on = Arc::clone(&on);
        senders.spawn(async move {
            for number in 0..EACH {
                ok(&on, body(&format!("{sender}.{number}"))).await;
            }
        });
    }
    let mut receivers = JoinSet::new();
    for _ in 0..4 {
        let on = Arc::clone(&on);
        receivers.spawn(async move {
            let mut got = Vec::new();
            loop {
                let wait = ReceiveMessage { wait_time_seconds: Some(2), ..up_to(10) };
                let messages = ok(&on, wait).await.messages;
                if messages.is_empty() {
                    return got;
                }
                for message in messages {
                    ok(&on, delete(&message)).await;
                    got.push(message.body);
                }
            }
        });
    }
    senders.join_all().await;
    let got: Vec<String> = receivers.join_all().await.into_iter().flatten().collect();
    assert_eq!((got.len(), got.iter().collect::<BTreeSet<_>>().len()), (SENDERS * EACH, SENDERS * EACH));
    assert_eq!(rows(&on).await, (0, 0));
}
