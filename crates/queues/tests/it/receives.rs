//! A message that was received is nobody else's until its time is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use waybill_queues::Message;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::get_queue_attributes::GetQueueAttributes;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{self, orders};
use crate::support::{
    FAILED, JOBS, arn, body, call, counted, delete, jobs, ok, pass, queue, receive, rows, send, up_to, url,
};

both! {
    a_message_is_visible_again_after_its_timeout,
    no_timeout_leaves_it_visible,
    an_answer_has_no_more_than_fits_and_leaves_the_rest,
    an_answer_of_a_fifo_queue_keeps_the_order_of_what_it_leaves,
    dead_letters_that_stay_fit_into_answers_as_others_do,
    what_is_left_behind_is_ended_by_the_handle_that_it_had,
    a_large_message_is_not_read_by_the_number_of_another,
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

/// The largest that there are: two of them fill an answer.
fn large(number: usize) -> String {
    format!("{number}{}", "x".repeat((1 << 20) - 1))
}

async fn an_answer_has_no_more_than_fits_and_leaves_the_rest(on: TestStore) {
    jobs(&on, &[]).await;
    for number in 0..5 {
        send(&on, &large(number)).await;
    }
    send(&on, "small").await;
    let all = || ReceiveMessage { message_system_attribute_names: vec!["All".to_owned()], ..up_to(10) };
    let mut got = Vec::new();
    for expected in [2, 2, 2] {
        let messages = ok(&on, all()).await.messages;
        assert_eq!(messages.len(), expected);
        assert!(messages.iter().all(|message| message.body == "small" || message.body.len() == 1 << 20));
        // What was left behind was not received.
        assert!(messages.iter().all(|message| message.attributes["ApproximateReceiveCount"] == "1"));
        got.extend(messages.into_iter().map(|message| message.body.chars().next().unwrap()));
    }
    got.sort_unstable();
    assert_eq!(got, ['0', '1', '2', '3', '4', 's']);
    assert!(receive(&on, 10).await.is_empty());
    assert_eq!(counted(&on, "jobs").await, (0, 6, 0));
}

async fn an_answer_of_a_fifo_queue_keeps_the_order_of_what_it_leaves(on: TestStore) {
    orders(&on, &[]).await;
    for number in 0..5 {
        fifo::send(&on, "g", &large(number)).await;
    }
    fifo::send(&on, "h", "small").await;
    let mut got = Vec::new();
    loop {
        let messages = fifo::receive(&on, 10).await;
        if messages.is_empty() {
            break;
        }
        for message in messages {
            assert_eq!(message.attributes["ApproximateReceiveCount"], "1");
            fifo::delete(&on, &message).await;
            got.push(message.body.chars().next().unwrap());
        }
    }
    assert_eq!(got.iter().filter(|of| **of == 's').count(), 1);
    got.retain(|of| *of != 's');
    assert_eq!(got, ['0', '1', '2', '3', '4']);
}

/// Received too often, and the queue that they would go to is gone.
async fn dead_letters_that_stay_fit_into_answers_as_others_do(on: TestStore) {
    ok(&on, queue("dead", &[])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("dead"));
    jobs(&on, &[("RedrivePolicy", &policy), ("VisibilityTimeout", "10")]).await;
    for number in 0..5 {
        send(&on, &large(number)).await;
    }
    for expected in [2, 2, 1] {
        assert_eq!(receive(&on, 10).await.len(), expected);
    }
    ok(&on, DeleteQueue { queue_url: url("dead") }).await;
    pass(&on, 11);
    for (expected, left) in [(2, 3), (2, 1), (1, 0)] {
        assert_eq!(receive(&on, 10).await.len(), expected);
        assert_eq!(counted(&on, "jobs").await, (left, 5 - left, 0));
    }
}

/// Their time is over, nobody else has received them, and an answer has no room for the third.
async fn what_is_left_behind_is_ended_by_the_handle_that_it_had(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    orders(&on, &[("VisibilityTimeout", "10")]).await;
    for number in 0..3 {
        send(&on, &large(number)).await;
        fifo::send(&on, &format!("g{number}"), &large(number)).await;
    }
    let one_by_one = async |ask: fn() -> ReceiveMessage| {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.extend(ok(&on, ask()).await.messages);
        }
        assert_eq!(all.len(), 3);
        all
    };
    let (plain, ordered) = (one_by_one(|| up_to(1)).await, one_by_one(|| fifo::up_to(1)).await);
    pass(&on, 11);
    let left = |before: &[Message], now: &[Message]| {
        assert_eq!(now.len(), 2);
        let is_left = |message: &&Message| now.iter().all(|other| other.message_id != message.message_id);
        before.iter().find(is_left).cloned().unwrap()
    };
    ok(&on, delete(&left(&plain, &receive(&on, 10).await))).await;
    fifo::delete(&on, &left(&ordered, &fifo::receive(&on, 10).await)).await;
    assert_eq!((counted(&on, "jobs").await, counted(&on, fifo::ORDERS).await), ((0, 2, 0), (0, 2, 0)));
}

/// It is visible again, received by somebody else and deleted before its receive has read what it holds. On SQLite the next
/// message that is sent gets its number.
async fn a_large_message_is_not_read_by_the_number_of_another(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "1")]).await;
    send(&on, &large(1)).await;
    let alice = on.agent("alice").unwrap();
    // Until all turns of reads that agents may have at a time are taken, and the next one is waited for.
    let look = || GetQueueAttributes { queue_url: JOBS.to_owned(), ..GetQueueAttributes::default() };
    let mut turns = Vec::new();
    while let Ok(taken) = timeout(Duration::from_secs(6), on.store.run_in_turn(look(), alice.clone())).await {
        turns.push(taken.unwrap().1);
    }
    let on = Arc::new(on);
    let asks = Arc::clone(&on);
    let late = tokio::spawn(async move { call(&asks, &alice, up_to(1)).await });
    while on.count("SELECT count(*) FROM flights").await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pass(&on, 2);
    let message = receive(&on, 1).await.remove(0);
    ok(&on, delete(&message)).await;
    send(&on, &large(2)).await;
    assert!(!late.is_finished());
    drop(turns);
    let received = timeout(FAILED, late).await.unwrap().unwrap().unwrap();
    assert!(received.messages.is_empty(), "it has what another message holds");
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
