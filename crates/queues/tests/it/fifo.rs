//! In a FIFO queue a group's messages are received in the order in which they were sent, whatever becomes of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use waybill_kernel::{Code, Result};
use waybill_queues::Message;
use waybill_queues::ops::change_message_visibility::ChangeMessageVisibility;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::delete_message_batch::{DeleteEntry, DeleteMessageBatch};
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::{SendMessage, Sent};
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_store::{Gate, Reply};
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{FAILED, attributes_of, counted, drain, map, ok, pass, queue, refusal, upkeep, url};

both! {
    a_group_keeps_its_order,
    groups_do_not_wait_for_each_other,
    a_group_begins_at_its_front_again,
    what_is_given_back_waits_for_the_others,
    a_delay_does_not_change_the_order,
    the_next_in_line_ends_a_wait,
    a_blocked_group_ends_with_what_blocks_it,
    numbers_rise_also_over_a_purge,
    a_receive_can_be_made_again,
    messages_of_a_group_are_counted,
    nothing_is_left_of_a_queue_that_is_gone,
    many_at_once_keep_the_order,
    senders_to_the_same_groups_all_get_through,
    bad_fifo_requests,
    a_fifo_queue_is_made_as_one,
}

pub const ORDERS: &str = "orders.fifo";
/// Long before it something would be wrong.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Made with content-based deduplication, so that no case needs ids that is not about them.
pub async fn orders(on: &TestStore, attributes: &[(&str, &str)]) {
    let mut all = vec![("FifoQueue", "true"), ("ContentBasedDeduplication", "true")];
    all.extend(attributes);
    ok(on, queue(ORDERS, &all)).await;
}

pub fn message(group: &str, text: &str) -> SendMessage {
    SendMessage {
        queue_url: url(ORDERS),
        message_body: text.to_owned(),
        message_group_id: Some(group.to_owned()),
        ..SendMessage::default()
    }
}

pub async fn send(on: &TestStore, group: &str, text: &str) -> Sent {
    ok(on, message(group, text)).await
}

pub fn up_to(messages: i64) -> ReceiveMessage {
    ReceiveMessage {
        queue_url: url(ORDERS),
        max_number_of_messages: Some(messages),
        message_system_attribute_names: vec!["All".to_owned()],
        ..ReceiveMessage::default()
    }
}

pub async fn receive(on: &TestStore, messages: i64) -> Vec<Message> {
    ok(on, up_to(messages)).await.messages
}

pub fn texts(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body.as_str()).collect()
}

pub async fn delete(on: &TestStore, message: &Message) {
    let receipt_handle = message.receipt_handle.clone();
    ok(on, DeleteMessage { queue_url: url(ORDERS), receipt_handle, ..DeleteMessage::default() }).await;
}

async fn delete_all(on: &TestStore, messages: &[Message]) {
    let entry = |message: &Message| DeleteEntry {
        id: message.message_id.to_string(),
        receipt_handle: message.receipt_handle.clone(),
    };
    let entries = messages.iter().map(entry).collect();
    let batch = DeleteMessageBatch { queue_url: url(ORDERS), entries, ..DeleteMessageBatch::default() };
    assert_eq!(ok(on, batch).await.successful.len(), messages.len());
}

pub fn change(message: &Message, seconds: i64) -> ChangeMessageVisibility {
    ChangeMessageVisibility {
        queue_url: url(ORDERS),
        receipt_handle: message.receipt_handle.clone(),
        visibility_timeout: Some(seconds),
        ..ChangeMessageVisibility::default()
    }
}

async fn a_group_keeps_its_order(on: TestStore) {
    orders(&on, &[]).await;
    let expected: Vec<String> = (0..25).map(|number| format!("m{number}")).collect();
    for text in &expected {
        send(&on, "g", text).await;
    }
    let first = receive(&on, 10).await;
    assert_eq!(texts(&first), expected[..10]);
    // Nobody gets more of the group before all of these are gone.
    assert!(receive(&on, 10).await.is_empty());
    delete_all(&on, &first[..9]).await;
    assert!(receive(&on, 10).await.is_empty());
    delete(&on, &first[9]).await;
    let second = receive(&on, 3).await;
    assert_eq!(texts(&second), expected[10..13]);
    delete_all(&on, &second).await;
    for text in &expected[13..] {
        let one = receive(&on, 1).await;
        assert_eq!(texts(&one), [text.as_str()]);
        delete(&on, &one[0]).await;
    }
    assert_eq!(on.count("SELECT count(*) FROM fifo_groups").await.unwrap(), 0);
}

async fn groups_do_not_wait_for_each_other(on: TestStore) {
    orders(&on, &[]).await;
    for number in 0..3 {
        for group in ["a", "b", "c"] {
            send(&on, group, &format!("{group}{number}")).await;
        }
    }
    let a = receive(&on, 2).await;
    assert_eq!(texts(&a), ["a0", "a1"]);
    // The other two fill a receive together, each in its order.
    assert_eq!(texts(&receive(&on, 10).await), ["b0", "b1", "b2", "c0", "c1", "c2"]);
    send(&on, "d", "d0").await;
    assert_eq!(texts(&receive(&on, 10).await), ["d0"]);
    delete_all(&on, &a).await;
    assert_eq!(texts(&receive(&on, 10).await), ["a2"]);
}

async fn a_group_begins_at_its_front_again(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "10")]).await;
    for number in 0..6 {
        send(&on, "g", &format!("m{number}")).await;
    }
    let first = receive(&on, 3).await;
    delete(&on, &first[1]).await;
    pass(&on, 11);
    let again = receive(&on, 3).await;
    assert_eq!(texts(&again), ["m0", "m2", "m3"]);
    let receives: Vec<_> = again.iter().map(|message| message.attributes["ApproximateReceiveCount"].as_str()).collect();
    assert_eq!(receives, ["2", "2", "1"]);
    // A handle of before means nothing.
    delete(&on, &first[0]).await;
    pass(&on, 11);
    assert_eq!(texts(&receive(&on, 10).await), ["m0", "m2", "m3", "m4", "m5"]);
    // No time between changes nothing either.
    pass(&on, 11);
    for _ in 0..2 {
        let open = ReceiveMessage { visibility_timeout: Some(0), ..up_to(2) };
        assert_eq!(texts(&ok(&on, open).await.messages), ["m0", "m2"]);
    }
}

async fn what_is_given_back_waits_for_the_others(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "100")]).await;
    for number in 0..4 {
        send(&on, "g", &format!("m{number}")).await;
    }
    let held = receive(&on, 3).await;
    ok(&on, change(&held[0], 0)).await;
    assert!(receive(&on, 10).await.is_empty(), "others of the group are in flight");
    ok(&on, change(&held[2], 50)).await;
    delete(&on, &held[1]).await;
    pass(&on, 51);
    assert_eq!(texts(&receive(&on, 10).await), ["m0", "m2", "m3"]);
    pass(&on, 101);
    let held = receive(&on, 1).await;
    ok(&on, change(&held[0], 0)).await;
    assert_eq!(texts(&receive(&on, 1).await), ["m0"]);
    assert_eq!(refusal(&on, change(&held[0], 0)).await, Code::ReceiptHandleIsInvalid);
}

async fn a_delay_does_not_change_the_order(on: TestStore) {
    orders(&on, &[("DelaySeconds", "10")]).await;
    send(&on, "g", "first").await;
    let attributes = map(&[("DelaySeconds", "0")]);
    ok(&on, SetQueueAttributes { queue_url: url(ORDERS), attributes }).await;
    send(&on, "g", "second").await;
    send(&on, "other", "other").await;
    assert_eq!(counted(&on, ORDERS).await, (2, 0, 1));
    assert_eq!(texts(&receive(&on, 10).await), ["other"]);
    pass(&on, 11);
    assert_eq!(texts(&receive(&on, 10).await), ["first", "second"]);
}

async fn the_next_in_line_ends_a_wait(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "1000")]).await;
    for text in ["first", "second"] {
        send(&on, "g", text).await;
    }
    let first = receive(&on, 1).await;
    let on = Arc::new(on);
    for (round, expected) in ["second", "third"].into_iter().enumerate() {
        let waits = Arc::clone(&on);
        let waiter = tokio::spawn(async move {
            let wait = ReceiveMessage { wait_time_seconds: Some(20), ..up_to(1) };
            ok(&waits, wait).await.messages
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        let began = std::time::Instant::now();
        match round {
            0 => delete(&on, &first[0]).await,
            _ => drop(send(&on, "another", "third").await),
        }
        let messages = timeout(FAILED, waiter).await.unwrap().unwrap();
        assert_eq!(texts(&messages), [expected]);
        assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    }
}

async fn a_blocked_group_ends_with_what_blocks_it(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "1000"), ("MessageRetentionPeriod", "60")]).await;
    for text in ["old 1", "old 2"] {
        send(&on, "g", text).await;
    }
    assert_eq!(receive(&on, 2).await.len(), 2);
    pass(&on, 30);
    send(&on, "g", "young").await;
    pass(&on, 31);
    assert!(receive(&on, 10).await.is_empty());
    upkeep(&on).await;
    assert_eq!(texts(&receive(&on, 10).await), ["young"]);
    // One that nobody has received goes when it is met.
    pass(&on, 61);
    upkeep(&on).await;
    send(&on, "h", "old 3").await;
    pass(&on, 30);
    send(&on, "h", "young 2").await;
    pass(&on, 31);
    assert_eq!(texts(&receive(&on, 10).await), ["young 2"]);
    assert_eq!(on.count("SELECT count(*) FROM fifo_lines").await.unwrap(), 1);
    assert_eq!(counted(&on, ORDERS).await, (0, 1, 0));
}

async fn numbers_rise_also_over_a_purge(on: TestStore) {
    orders(&on, &[]).await;
    let mut last = String::new();
    for round in 0..3 {
        for number in 0..5 {
            let sent = send(&on, "g", &format!("{round}.{number}")).await.sequence_number.unwrap();
            assert!(sent.len() == 20 && sent > last, "{sent} after {last}");
            let received = receive(&on, 1).await;
            assert_eq!(received[0].attributes["SequenceNumber"], sent);
            assert_eq!(received[0].attributes["MessageGroupId"], "g");
            delete(&on, &received[0]).await;
            last = sent;
        }
        upkeep(&on).await;
        pass(&on, 61);
        ok(&on, PurgeQueue { queue_url: url(ORDERS) }).await;
    }
}

async fn a_receive_can_be_made_again(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "100")]).await;
    for text in ["a", "b", "c"] {
        send(&on, "g", text).await;
    }
    let attempt = |id: &str| ReceiveMessage { receive_request_attempt_id: Some(id.to_owned()), ..up_to(2) };
    let first = ok(&on, attempt("one")).await.messages;
    assert_eq!(texts(&first), ["a", "b"]);
    assert_eq!(ok(&on, attempt("one")).await.messages, first);
    assert!(ok(&on, attempt("two")).await.messages.is_empty());
    // It is over with the first change of any of them.
    delete(&on, &first[0]).await;
    assert!(ok(&on, attempt("one")).await.messages.is_empty());
    delete(&on, &first[1]).await;
    let next = ok(&on, attempt("one")).await.messages;
    assert_eq!(texts(&next), ["c"]);
    ok(&on, change(&next[0], 90)).await;
    assert!(ok(&on, attempt("one")).await.messages.is_empty());
    pass(&on, 91);
    let again = ok(&on, attempt("one")).await.messages;
    assert_eq!(texts(&again), ["c"]);
    assert_ne!(again[0].receipt_handle, next[0].receipt_handle);
    let bad = ReceiveMessage { receive_request_attempt_id: Some(String::new()), ..up_to(1) };
    assert_eq!(refusal(&on, bad).await, Code::InvalidRequest);
    pass(&on, 301);
    drain(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM fifo_attempts").await.unwrap(), 0);
}

async fn messages_of_a_group_are_counted(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "10")]).await;
    for number in 0..6 {
        send(&on, "g", &format!("m{number}")).await;
    }
    let held = receive(&on, 2).await;
    for _ in 0..4 {
        assert_eq!(counted(&on, ORDERS).await, (4, 2, 0));
        upkeep(&on).await;
    }
    assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 6);
    delete_all(&on, &held).await;
    assert_eq!(counted(&on, ORDERS).await, (4, 0, 0));
    let last = receive(&on, 10).await;
    delete_all(&on, &last).await;
    send(&on, "g", "one more").await;
    assert_eq!(counted(&on, ORDERS).await, (1, 0, 0));
}

async fn nothing_is_left_of_a_queue_that_is_gone(on: TestStore) {
    orders(&on, &[]).await;
    for number in 0..30 {
        send(&on, &format!("g{}", number % 7), &format!("m{number}")).await;
    }
    let attempt = ReceiveMessage { receive_request_attempt_id: Some("a".to_owned()), ..up_to(10) };
    assert_eq!(ok(&on, attempt).await.messages.len(), 10);
    ok(&on, PurgeQueue { queue_url: url(ORDERS) }).await;
    assert!(receive(&on, 10).await.is_empty());
    // What was known of before is forgotten as well: this is no duplicate.
    send(&on, "g0", "m0").await;
    assert_eq!(texts(&receive(&on, 10).await), ["m0"]);
    ok(&on, DeleteQueue { queue_url: url(ORDERS) }).await;
    drain(&on).await;
    for table in ["messages", "flights", "fifo_groups", "fifo_lines", "fifo_duplicates", "fifo_attempts"] {
        assert_eq!(on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap(), 0, "{table}");
    }
}

/// One writer for each group, and receivers that take whatever they get.
async fn many_at_once_keep_the_order(on: TestStore) {
    const GROUPS: usize = 5;
    const EACH: usize = 24;
    orders(&on, &[]).await;
    let on = Arc::new(on);
    let mut work = JoinSet::new();
    for group in 0..GROUPS {
        let on = Arc::clone(&on);
        work.spawn(async move {
            for number in 0..EACH {
                send(&on, &format!("g{group}"), &format!("{group}.{number}")).await;
            }
            Vec::new()
        });
    }
    for _ in 0..4 {
        let on = Arc::clone(&on);
        work.spawn(async move {
            let mut got = Vec::new();
            loop {
                let wait = ReceiveMessage { wait_time_seconds: Some(2), ..up_to(7) };
                let messages = ok(&on, wait).await.messages;
                if messages.is_empty() {
                    return got;
                }
                for message in messages {
                    // Noted while it is held: whoever gets the next one of its group comes later.
                    let at = on.store.now();
                    got.push((at, message.attributes["SequenceNumber"].clone(), message.body.clone()));
                    delete(&on, &message).await;
                }
            }
        });
    }
    let mut got: Vec<_> = work.join_all().await.into_iter().flatten().collect();
    got.sort();
    let mut groups: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (_, sequence, text) in got {
        let group = text.split('.').next().unwrap().to_owned();
        groups.entry(group).or_default().push((sequence, text));
    }
    for (group, received) in groups {
        let expected: Vec<String> = (0..EACH).map(|number| format!("{group}.{number}")).collect();
        assert_eq!(received.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>(), expected);
        assert!(received.is_sorted_by(|one, other| one.0 < other.0), "{received:?}");
    }
    assert_eq!(on.count("SELECT count(*) FROM fifo_groups").await.unwrap(), 0);
    assert_eq!(on.count("SELECT count(*) FROM messages").await.unwrap(), 0);
}

/// One by one and in batches, the groups in every order, some of the ids the same: nobody waits for somebody who waits for it.
async fn senders_to_the_same_groups_all_get_through(on: TestStore) {
    const SENDERS: usize = 16;
    const GROUPS: usize = 6;
    orders(&on, &[("PartitionCount", "4"), ("DeduplicationScope", "messageGroup")]).await;
    let on = Arc::new(on);
    let mut work = JoinSet::new();
    for sender in 0..SENDERS {
        let on = Arc::clone(&on);
        work.spawn(async move {
            let groups = (0..GROUPS).map(|nth| (nth + sender) % GROUPS);
            let groups: Vec<usize> = if sender % 2 == 0 { groups.collect() } else { groups.rev().collect() };
            // One text that all of them send, which is stored once for each group, and one of its own.
            for text in ["all".to_owned(), format!("of {sender}")] {
                if sender % 4 == 3 {
                    let entry = |group: &usize| SendEntry {
                        id: group.to_string(),
                        message_body: text.clone(),
                        message_group_id: Some(format!("g{group}")),
                        ..SendEntry::default()
                    };
                    let entries = groups.iter().map(entry).collect();
                    let batch = SendMessageBatch { queue_url: url(ORDERS), entries, ..SendMessageBatch::default() };
                    assert!(ok(&on, batch).await.failed.is_empty());
                    continue;
                }
                let sends = groups.iter().map(|group| message(&format!("g{group}"), &text));
                for sent in join_all(sends.map(|send| ok(&on, send))).await {
                    assert!(sent.sequence_number.is_some());
                }
            }
        });
    }
    timeout(WAIT_MAX, work.join_all()).await.unwrap();
    let stored = "SELECT count(*) FROM messages";
    assert_eq!(on.count(stored).await.unwrap(), (GROUPS * (SENDERS + 1)) as i64);
    let lines = "SELECT count(*) FROM fifo_lines";
    assert_eq!(on.count(lines).await.unwrap(), (GROUPS * (SENDERS + 1)) as i64);
}

async fn bad_fifo_requests(on: TestStore) {
    orders(&on, &[]).await;
    let good = || message("g", "m");
    let long = "d".repeat(129);
    for (send, code) in [
        (SendMessage { message_group_id: None, ..good() }, Code::MissingParameter),
        (SendMessage { message_group_id: Some("a b".to_owned()), ..good() }, Code::InvalidRequest),
        (SendMessage { delay_seconds: Some(1), ..good() }, Code::InvalidRequest),
        (SendMessage { message_deduplication_id: Some(String::new()), ..good() }, Code::InvalidRequest),
        (SendMessage { message_deduplication_id: Some(long), ..good() }, Code::InvalidRequest),
    ] {
        let shown = format!("{send:?}");
        assert_eq!(refusal(&on, send).await, code, "{shown}");
    }
    // Some clients write out every field.
    ok(&on, SendMessage { delay_seconds: Some(0), ..good() }).await;
    assert_eq!(texts(&receive(&on, 1).await), ["m"]);
}

async fn a_fifo_queue_is_made_as_one(on: TestStore) {
    for (name, attributes, code) in [
        (ORDERS, &[][..], Code::InvalidRequest),
        (ORDERS, &[("FifoQueue", "false")], Code::InvalidRequest),
        ("orders", &[("FifoQueue", "true")], Code::InvalidRequest),
        ("orders", &[("ContentBasedDeduplication", "true")], Code::InvalidAttributeValue),
        (ORDERS, &[("FifoQueue", "true"), ("DeduplicationScope", "world")], Code::InvalidAttributeValue),
        (ORDERS, &[("FifoQueue", "true"), ("PartitionCount", "3")], Code::InvalidAttributeValue),
    ] {
        assert_eq!(refusal(&on, queue(name, attributes)).await, code, "{name} {attributes:?}");
    }
    let high = [("DeduplicationScope", "messageGroup"), ("FifoThroughputLimit", "perMessageGroupId")];
    orders(&on, &high).await;
    orders(&on, &high).await;
    let names = ["FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"];
    let shown: Vec<String> = attributes_of(&on, ORDERS, &names).await.into_values().collect();
    assert_eq!(shown, ["true", "messageGroup", "true", "perMessageGroupId"]);
    let set =
        |name: &str, value: &str| SetQueueAttributes { queue_url: url(ORDERS), attributes: map(&[(name, value)]) };
    assert_eq!(refusal(&on, set("DeduplicationScope", "queue")).await, Code::InvalidAttributeValue);
    assert_eq!(refusal(&on, set("FifoQueue", "false")).await, Code::InvalidRequest);
    ok(&on, set("DeduplicationScope", "messageGroup")).await;
    ok(&on, set("ContentBasedDeduplication", "false")).await;
    ok(&on, queue("plain", &[])).await;
    assert!(attributes_of(&on, "plain", &["FifoQueue", "ContentBasedDeduplication"]).await.is_empty());
}

/// A sender that holds its group and has its number.
async fn slow_sender(on: &TestStore) -> (Arc<Gate>, JoinHandle<Result<Reply<Sent>>>) {
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
    let slow = tokio::spawn(async move { store.run_gated(message("g", "slow"), caller, Some(at_gate)).await });
    for _ in 0..2 {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();
    (gate, slow)
}

#[tokio::test]
async fn a_sender_waits_for_another_of_its_group_and_for_no_other() {
    let on = stores::open_postgres().await.unwrap();
    orders(&on, &[]).await;
    send(&on, "g", "first").await;
    let (gate, slow) = slow_sender(&on).await;
    let (store, caller) = (on.store.clone(), on.admin.clone());
    let mut quick = tokio::spawn(async move { store.run(message("g", "quick"), caller).await });
    assert!(timeout(Duration::from_millis(500), &mut quick).await.is_err(), "it has overtaken the other");
    send(&on, "h", "other").await;
    assert_eq!(texts(&receive(&on, 10).await), ["other"]);
    gate.open();
    slow.await.unwrap().unwrap();
    timeout(FAILED, quick).await.unwrap().unwrap().unwrap();
    assert_eq!(texts(&receive(&on, 10).await), ["first", "slow", "quick"]);
}

/// Into a group that somebody is always sending to nobody would come who passes over what is locked.
#[tokio::test]
async fn a_receive_waits_for_a_group_that_is_busy_when_there_is_no_other() {
    let on = stores::open_postgres().await.unwrap();
    orders(&on, &[]).await;
    send(&on, "g", "first").await;
    let (gate, slow) = slow_sender(&on).await;
    let (store, caller) = (on.store.clone(), on.admin.clone());
    let mut receiving = tokio::spawn(async move { store.run(up_to(10), caller).await });
    assert!(timeout(Duration::from_millis(500), &mut receiving).await.is_err(), "it went away with nothing");
    gate.open();
    slow.await.unwrap().unwrap();
    let Reply::Done(received) = timeout(FAILED, receiving).await.unwrap().unwrap().unwrap() else { panic!("nothing") };
    assert_eq!(texts(&received.messages), ["first", "slow"]);
}
