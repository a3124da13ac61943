//! A FIFO queue keeps a message that was sent twice once, and dead letters keep their groups.

use std::sync::Arc;

use tokio::task::JoinSet;
use waybill_kernel::Code;
use waybill_queues::Settings;
use waybill_queues::ops::list_message_move_tasks::ListMessageMoveTasks;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::ops::start_message_move_task::StartMessageMoveTask;
use waybill_queues::sweeps::Moves;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{ORDERS, delete, message, orders, receive, send, texts, up_to};
use crate::support::{arn, counted, drain, map, ok, pass, queue, refusal, rows, sweep, url};

both! {
    a_message_is_kept_once,
    contents_tell_duplicates,
    a_scope_is_the_queue_or_the_group,
    a_batch_may_hold_duplicates,
    of_many_at_once_one_is_kept,
    a_dead_letter_makes_way_for_those_behind_it,
    dead_letters_go_back_in_their_order,
    kinds_are_not_mixed,
}

fn with_id(group: &str, text: &str, id: &str) -> SendMessage {
    SendMessage { message_deduplication_id: Some(id.to_owned()), ..message(group, text) }
}

async fn a_message_is_kept_once(on: TestStore) {
    orders(&on, &[]).await;
    let first = ok(&on, with_id("g", "one", "id")).await;
    let second = ok(&on, with_id("g", "another", "id")).await;
    assert_eq!((second.message_id, &second.sequence_number), (first.message_id, &first.sequence_number));
    assert_ne!(second.md5_of_message_body, first.md5_of_message_body, "of what was sent this time");
    assert_eq!(counted(&on, ORDERS).await, (1, 0, 0));
    let received = receive(&on, 10).await;
    assert_eq!(texts(&received), ["one"]);
    assert_eq!(received[0].attributes["MessageDeduplicationId"], "id");
    // Also when it is gone.
    delete(&on, &received[0]).await;
    assert_eq!(ok(&on, with_id("g", "one", "id")).await.message_id, first.message_id);
    pass(&on, 290);
    assert_eq!(ok(&on, with_id("g", "one", "id")).await.message_id, first.message_id);
    assert!(receive(&on, 10).await.is_empty());
    assert_eq!(on.count("SELECT count(*) FROM fifo_groups").await.unwrap(), 0, "a group without messages");
    // Five minutes from the first, and not from the latest.
    pass(&on, 11);
    assert_ne!(ok(&on, with_id("g", "one", "id")).await.message_id, first.message_id);
    assert_eq!(texts(&receive(&on, 10).await), ["one"]);
    pass(&on, 301);
    drain(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM fifo_duplicates").await.unwrap(), 0);
}

async fn contents_tell_duplicates(on: TestStore) {
    orders(&on, &[]).await;
    let first = send(&on, "g", "hello").await;
    assert_eq!(send(&on, "g", "hello").await.message_id, first.message_id);
    let received = receive(&on, 10).await;
    let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!((received.len(), received[0].attributes["MessageDeduplicationId"].as_str()), (1, sha256));
    delete(&on, &received[0]).await;
    // An id that is given comes before the contents.
    ok(&on, with_id("g", "hello", "id")).await;
    assert_eq!(texts(&receive(&on, 10).await), ["hello"]);
    let attributes = map(&[("ContentBasedDeduplication", "false")]);
    ok(&on, SetQueueAttributes { queue_url: url(ORDERS), attributes }).await;
    assert_eq!(refusal(&on, message("g", "no id")).await, Code::InvalidRequest);
}

async fn a_scope_is_the_queue_or_the_group(on: TestStore) {
    for (scope, kept) in [("queue", 1), ("messageGroup", 2)] {
        let name = format!("{scope}.fifo");
        ok(&on, queue(&name, &[("FifoQueue", "true"), ("DeduplicationScope", scope)])).await;
        for group in ["a", "b", "a"] {
            ok(&on, SendMessage { queue_url: url(&name), ..with_id(group, group, "id") }).await;
        }
        assert_eq!(counted(&on, &name).await, (kept, 0, 0), "{scope}");
    }
}

async fn a_batch_may_hold_duplicates(on: TestStore) {
    orders(&on, &[]).await;
    let entry = |id: &str, group: Option<&str>, text: &str| SendEntry {
        id: id.to_owned(),
        message_body: text.to_owned(),
        message_group_id: group.map(str::to_owned),
        ..SendEntry::default()
    };
    let before = send(&on, "g", "before").await;
    let batch = SendMessageBatch {
        queue_url: url(ORDERS),
        entries: vec![
            entry("one", Some("g"), "one"),
            entry("again", Some("g"), "one"),
            entry("nowhere", None, "two"),
            entry("before", Some("g"), "before"),
            entry("three", Some("h"), "three"),
            entry("four", Some("g"), "four"),
        ],
        ..SendMessageBatch::default()
    };
    let sent = ok(&on, batch).await;
    assert_eq!(sent.failed.iter().map(|failure| failure.id.as_str()).collect::<Vec<_>>(), ["nowhere"]);
    let id =
        |number: usize| (sent.successful[number].sent.message_id, sent.successful[number].sent.sequence_number.clone());
    assert_eq!(id(0), id(1));
    assert_eq!(id(2), (before.message_id, before.sequence_number));
    assert!(id(0).1 < id(3).1 && id(3).1 < id(4).1);
    assert_eq!(texts(&receive(&on, 10).await), ["before", "one", "four", "three"]);
    assert_eq!(rows(&on).await, (4, 4));
}

async fn of_many_at_once_one_is_kept(on: TestStore) {
    orders(&on, &[]).await;
    let on = Arc::new(on);
    for round in 0..5 {
        let mut senders = JoinSet::new();
        for sender in 0..6 {
            let on = Arc::clone(&on);
            senders.spawn(async move {
                let group = format!("g{}", sender % 3);
                ok(&on, with_id(&group, &format!("from {sender}"), &format!("id {round}").replace(' ', "-")))
                    .await
                    .message_id
            });
        }
        let mut ids = senders.join_all().await;
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!(on.count("SELECT count(*) FROM messages").await.unwrap(), round + 1);
    }
    assert_eq!(on.count("SELECT count(*) FROM fifo_groups WHERE head IS NULL").await.unwrap(), 0);
}

/// `orders.fifo`, whose dead letters go to `dead.fifo` after one receive.
async fn with_dead_letters(on: &TestStore) {
    ok(on, queue("dead.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("dead.fifo"));
    orders(on, &[("RedrivePolicy", &policy), ("VisibilityTimeout", "1")]).await;
}

async fn a_dead_letter_makes_way_for_those_behind_it(on: TestStore) {
    with_dead_letters(&on).await;
    let poison = send(&on, "g", "poison").await;
    for text in ["a", "b"] {
        send(&on, "g", text).await;
    }
    send(&on, "h", "c").await;
    let first = receive(&on, 1).await;
    assert_eq!(texts(&first), ["poison"]);
    pass(&on, 2);
    assert_eq!(texts(&receive(&on, 10).await), ["c", "a", "b"]);
    let dead = ok(&on, ReceiveMessage { queue_url: url("dead.fifo"), ..up_to(10) }).await.messages;
    assert_eq!(texts(&dead), ["poison"]);
    assert_eq!(dead[0].message_id, poison.message_id);
    let shown = |name: &str| dead[0].attributes[name].clone();
    assert_eq!((shown("MessageGroupId"), shown("DeadLetterQueueSourceArn")), ("g".to_owned(), arn(ORDERS)));
    assert_eq!(shown("MessageDeduplicationId"), poison.message_id.to_string());
    assert_ne!(Some(shown("SequenceNumber")), poison.sequence_number);
    assert_eq!(rows(&on).await, (4, 4));
}

async fn dead_letters_go_back_in_their_order(on: TestStore) {
    with_dead_letters(&on).await;
    for number in 0..24 {
        send(&on, &format!("g{}", number % 2), &format!("{}.{}", number % 2, number / 2)).await;
    }
    while counted(&on, ORDERS).await != (0, 0, 0) {
        receive(&on, 10).await;
        pass(&on, 2);
    }
    assert_eq!(counted(&on, "dead.fifo").await, (24, 0, 0));
    ok(&on, StartMessageMoveTask { source_arn: arn("dead.fifo"), ..StartMessageMoveTask::default() }).await;
    sweep(&on, Moves::new(&Settings::default())).await;
    let list = ListMessageMoveTasks { source_arn: arn("dead.fifo"), max_results: None };
    let task = ok(&on, list).await.results.remove(0);
    assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("COMPLETED", 24));
    assert_eq!((counted(&on, ORDERS).await, counted(&on, "dead.fifo").await), ((24, 0, 0), (0, 0, 0)));
    let mut got = [Vec::new(), Vec::new()];
    loop {
        let messages = receive(&on, 10).await;
        if messages.is_empty() {
            break;
        }
        for message in &messages {
            got[usize::from(message.body.starts_with('1'))].push(message.body.clone());
            delete(&on, message).await;
        }
    }
    for (group, got) in got.iter().enumerate() {
        assert_eq!(*got, (0..12).map(|number| format!("{group}.{number}")).collect::<Vec<_>>());
    }
    assert_eq!(on.count("SELECT count(*) FROM fifo_groups").await.unwrap(), 0);
}

async fn kinds_are_not_mixed(on: TestStore) {
    with_dead_letters(&on).await;
    ok(&on, queue("plain", &[])).await;
    let policy = |target: &str| format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn(target));
    let set = |name: &str, target: &str| SetQueueAttributes {
        queue_url: url(name),
        attributes: map(&[("RedrivePolicy", &policy(target))]),
    };
    assert_eq!(refusal(&on, set(ORDERS, "plain")).await, Code::InvalidAttributeValue);
    assert_eq!(refusal(&on, set("plain", ORDERS)).await, Code::InvalidAttributeValue);
    let elsewhere = StartMessageMoveTask {
        source_arn: arn("dead.fifo"),
        destination_arn: Some(arn("plain")),
        ..StartMessageMoveTask::default()
    };
    assert_eq!(refusal(&on, elsewhere).await, Code::InvalidRequest);
}
