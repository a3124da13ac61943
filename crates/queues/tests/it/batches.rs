//! A batch is one transaction: what can be done is done, what cannot is told for each entry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waybill_kernel::Code;
use waybill_queues::Message;
use waybill_queues::ops::change_message_visibility_batch::{ChangeEntry, ChangeMessageVisibilityBatch};
use waybill_queues::ops::delete_message_batch::{DeleteEntry, DeleteMessageBatch};
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_queues::rules::batch::{Done, Failure};
use waybill_store::Operation;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{JOBS, bodies, delete, jobs, ok, pass, receive, refusal, rows, send, text, up_to, url};

both! {
    all_messages_of_a_batch_arrive_in_their_order,
    what_is_wrong_with_one_does_not_stop_the_others,
    each_message_of_a_batch_has_its_own_delay,
    a_batch_wakes_as_many_as_it_has_messages,
    a_batch_reads_and_writes_as_sdks_do,
    batches_have_a_shape,
    messages_are_deleted_together,
    visibility_is_changed_together,
    of_two_changes_of_one_message_the_later_counts,
}

fn entry(id: &str, body: &str) -> SendEntry {
    SendEntry { id: id.to_owned(), message_body: body.to_owned(), ..SendEntry::default() }
}

fn batch(entries: Vec<SendEntry>) -> SendMessageBatch {
    SendMessageBatch { queue_url: JOBS.to_owned(), entries, ..SendMessageBatch::default() }
}

fn deletes(entries: &[(&str, &str)]) -> DeleteMessageBatch {
    let entry =
        |(id, handle): &(&str, &str)| DeleteEntry { id: (*id).to_owned(), receipt_handle: (*handle).to_owned() };
    let entries = entries.iter().map(entry).collect();
    DeleteMessageBatch { queue_url: JOBS.to_owned(), entries, ..DeleteMessageBatch::default() }
}

fn changes(entries: &[(&str, &str, Option<i64>)]) -> ChangeMessageVisibilityBatch {
    let entry = |(id, handle, visibility_timeout): &(&str, &str, Option<i64>)| ChangeEntry {
        id: (*id).to_owned(),
        receipt_handle: (*handle).to_owned(),
        visibility_timeout: *visibility_timeout,
    };
    let entries = entries.iter().map(entry).collect();
    ChangeMessageVisibilityBatch { queue_url: JOBS.to_owned(), entries, ..ChangeMessageVisibilityBatch::default() }
}

fn done(entries: &[Done]) -> Vec<&str> {
    entries.iter().map(|done| done.id.as_str()).collect()
}

fn failed(entries: &[Failure]) -> Vec<(&str, &str)> {
    entries.iter().map(|failure| (failure.id.as_str(), failure.code.as_str())).collect()
}

async fn all_messages_of_a_batch_arrive_in_their_order(on: TestStore) {
    jobs(&on, &[]).await;
    send(&on, "before").await;
    for round in 0..3 {
        let entries = (0..10).map(|number| entry(&format!("e{number}"), &format!("{round}.{number}"))).collect();
        let sent = ok(&on, batch(entries)).await;
        assert_eq!((sent.successful.len(), sent.failed.len()), (10, 0));
    }
    let few = ok(&on, batch(vec![entry("a", "few 1"), entry("b", "few 2")])).await;
    assert_eq!(few.successful[1].sent.md5_of_message_body.len(), 32);
    let mut expected = vec!["before".to_owned()];
    expected.extend((0..30).map(|number| format!("{}.{}", number / 10, number % 10)));
    expected.extend(["few 1".to_owned(), "few 2".to_owned()]);
    let mut got = Vec::new();
    for _ in 0..4 {
        got.extend(bodies(&on).await);
    }
    assert_eq!(got, expected);
}

async fn what_is_wrong_with_one_does_not_stop_the_others(on: TestStore) {
    jobs(&on, &[("MaximumMessageSize", "1024")]).await;
    let sent = ok(
        &on,
        batch(vec![
            entry("good", "a"),
            entry("empty", ""),
            entry("large", &"x".repeat(1_025)),
            entry("strange", "\u{B}"),
            SendEntry { delay_seconds: Some(901), ..entry("late", "d") },
            SendEntry { message_deduplication_id: Some("d".to_owned()), ..entry("fifo", "d") },
            SendEntry {
                message_system_attributes: BTreeMap::from([(
                    "AWSTraceHeader".to_owned(),
                    text("String", &"x".repeat(501)),
                )]),
                ..entry("traced", "d")
            },
            SendEntry {
                message_attributes: BTreeMap::from([("n".to_owned(), text("String", "v"))]),
                ..entry("also-good", "b")
            },
        ]),
    )
    .await;
    let good: Vec<_> = sent.successful.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(good, ["good", "also-good"]);
    assert!(sent.successful[1].sent.md5_of_message_attributes.is_some());
    assert!(sent.failed.iter().all(|failure| failure.sender_fault));
    assert_eq!(
        failed(&sent.failed),
        [
            ("empty", "MissingParameter"),
            ("large", "InvalidParameterValue"),
            ("strange", "InvalidMessageContents"),
            ("late", "InvalidParameterValue"),
            ("fifo", "InvalidParameterValue"),
            ("traced", "InvalidParameterValue"),
        ]
    );
    let received = receive(&on, 10).await;
    let ids: Vec<_> = received.iter().map(|message| message.message_id).collect();
    assert_eq!(ids, sent.successful.iter().map(|entry| entry.sent.message_id).collect::<Vec<_>>());
    // Nothing good in it is no error either.
    let none = ok(&on, batch(vec![entry("empty", "")])).await;
    assert_eq!((none.successful.len(), none.failed.len()), (0, 1));
    assert_eq!(rows(&on).await, (2, 2));
}

async fn each_message_of_a_batch_has_its_own_delay(on: TestStore) {
    jobs(&on, &[("DelaySeconds", "10")]).await;
    let delayed = |id: &str, delay_seconds| SendEntry { delay_seconds, ..entry(id, id) };
    ok(&on, batch(vec![delayed("queue", None), delayed("now", Some(0)), delayed("later", Some(20))])).await;
    assert_eq!(bodies(&on).await, ["now"]);
    pass(&on, 11);
    assert_eq!(bodies(&on).await, ["queue"]);
    pass(&on, 10);
    assert_eq!(bodies(&on).await, ["later"]);
}

async fn a_batch_wakes_as_many_as_it_has_messages(on: TestStore) {
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let on = Arc::clone(&on);
            tokio::spawn(async move {
                ok(&on, ReceiveMessage { wait_time_seconds: Some(20), ..up_to(1) }).await.messages.len()
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = std::time::Instant::now();
    ok(&on, batch(vec![entry("a", "a"), entry("b", "b"), entry("c", "c")])).await;
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), 1);
    }
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
}

async fn a_batch_reads_and_writes_as_sdks_do(on: TestStore) {
    jobs(&on, &[]).await;
    let request = json!({
        "QueueUrl": "http://h/000000000000/jobs", "Unknown": 1,
        "Entries": [{ "Id": "a", "MessageBody": "hello", "DelaySeconds": 0, "MessageAttributes": {} },
                    { "Id": "b", "MessageBody": "" }],
    });
    let sent = ok(&on, serde_json::from_value::<SendMessageBatch>(request).unwrap()).await;
    let id = sent.successful[0].sent.message_id.to_string();
    assert_eq!(
        serde_json::to_value(sent).unwrap(),
        json!({
            "Successful": [{ "Id": "a", "MessageId": id, "MD5OfMessageBody": "5d41402abc4b2a76b9719d911017c592" }],
            "Failed": [{ "Id": "b", "Code": "MissingParameter", "SenderFault": true,
                         "Message": "The request must contain the parameter MessageBody." }],
        })
    );
    let handle = receive(&on, 1).await.remove(0).receipt_handle;
    let change =
        json!({ "QueueUrl": JOBS, "Entries": [{ "Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 9 }] });
    let changed = ok(&on, serde_json::from_value::<ChangeMessageVisibilityBatch>(change).unwrap()).await;
    assert_eq!(serde_json::to_value(changed).unwrap(), json!({ "Successful": [{ "Id": "a" }], "Failed": [] }));
    let delete = json!({ "QueueUrl": JOBS, "Entries": [{ "Id": "a", "ReceiptHandle": handle }] });
    let deleted = ok(&on, serde_json::from_value::<DeleteMessageBatch>(delete).unwrap()).await;
    assert_eq!(serde_json::to_value(deleted).unwrap(), json!({ "Successful": [{ "Id": "a" }], "Failed": [] }));
}

async fn batches_have_a_shape(on: TestStore) {
    jobs(&on, &[]).await;
    let many = |count: usize| (0..count).map(|number| entry(&format!("e{number}"), "m")).collect::<Vec<_>>();
    let half = "x".repeat(524_288);
    let large = |last: &str| vec![entry("a", &half), entry("b", &half[1..]), entry("c", last)];
    for (entries, code) in [
        (vec![], Code::EmptyBatchRequest),
        (many(11), Code::TooManyEntriesInBatchRequest),
        (vec![entry("a b", "m")], Code::InvalidBatchEntryId),
        (vec![entry("", "m")], Code::InvalidBatchEntryId),
        (vec![entry("a", "m"), entry("a", "n")], Code::BatchEntryIdsNotDistinct),
        (large("xx"), Code::BatchRequestTooLong),
    ] {
        assert_eq!(refusal(&on, batch(entries)).await, code);
    }
    assert_eq!(rows(&on).await, (0, 0));
    ok(&on, batch(large("x"))).await;

    assert_eq!(refusal(&on, deletes(&[])).await, Code::EmptyBatchRequest);
    assert_eq!(refusal(&on, deletes(&[("a", "h"), ("a", "h")])).await, Code::BatchEntryIdsNotDistinct);
    assert_eq!(refusal(&on, changes(&[])).await, Code::EmptyBatchRequest);
    assert_eq!(refusal(&on, changes(&[("ä", "h", Some(1))])).await, Code::InvalidBatchEntryId);
    // There is no queue to fail one by one against.
    let nowhere = SendMessageBatch { queue_url: url("nowhere"), ..batch(many(1)) };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
    let nowhere = DeleteMessageBatch { queue_url: url("nowhere"), ..deletes(&[("a", "h")]) };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
    for spec in [SendMessageBatch::SPEC, DeleteMessageBatch::SPEC, ChangeMessageVisibilityBatch::SPEC] {
        assert!(spec.allows(&on.admin), "{}", spec.name);
    }
}

async fn received(on: &TestStore, count: usize) -> Vec<Message> {
    for number in 0..count {
        send(on, &format!("m{number}")).await;
    }
    let messages = receive(on, 10).await;
    assert_eq!(messages.len(), count);
    messages
}

async fn messages_are_deleted_together(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    let stale = received(&on, 3).await;
    pass(&on, 11);
    let fresh = receive(&on, 10).await;
    let handle = |messages: &[Message], number: usize| messages[number].receipt_handle.clone();
    let (one, two, old) = (handle(&fresh, 0), handle(&fresh, 1), handle(&stale, 2));
    let deleted = ok(
        &on,
        deletes(&[("one", &one), ("again", &one), ("two", &two), ("old", &old), ("bad", "nonsense"), ("none", "")]),
    )
    .await;
    // An old handle is a success that deletes nothing, as it is alone.
    assert_eq!(done(&deleted.successful), ["one", "again", "two", "old"]);
    assert_eq!(failed(&deleted.failed), [("bad", "ReceiptHandleIsInvalid"), ("none", "MissingParameter")]);
    assert_eq!(rows(&on).await, (1, 1));
    ok(&on, delete(&fresh[2])).await;
    assert_eq!(rows(&on).await, (0, 0));
}

async fn visibility_is_changed_together(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    let messages = received(&on, 4).await;
    let handle = |number: usize| messages[number].receipt_handle.as_str();
    let changed = ok(
        &on,
        changes(&[
            ("back", handle(0), Some(0)),
            ("put-off", handle(1), Some(100)),
            ("without", handle(2), None),
            ("too-long", handle(2), Some(43_201)),
            ("bad", "AQ", Some(1)),
        ]),
    )
    .await;
    assert_eq!(done(&changed.successful), ["back", "put-off"]);
    assert_eq!(
        failed(&changed.failed),
        [("without", "MissingParameter"), ("too-long", "InvalidParameterValue"), ("bad", "ReceiptHandleIsInvalid")]
    );
    assert_eq!(bodies(&on).await, ["m0"]);
    pass(&on, 11);
    let visible =
        changes(&[("late", handle(2), Some(1)), ("stale", handle(0), Some(1)), ("good", handle(1), Some(200))]);
    let changed = ok(&on, visible).await;
    assert_eq!(done(&changed.successful), ["good"]);
    let codes = [("late", "AWS.SimpleQueueService.MessageNotInflight"), ("stale", "ReceiptHandleIsInvalid")];
    assert_eq!(failed(&changed.failed), codes);
    assert_eq!(bodies(&on).await.len(), 3);
}

async fn of_two_changes_of_one_message_the_later_counts(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    let message = received(&on, 1).await.remove(0);
    let handle = message.receipt_handle.as_str();
    let changed = ok(&on, changes(&[("first", handle, Some(500)), ("second", handle, Some(20))])).await;
    assert_eq!(done(&changed.successful), ["first", "second"]);
    pass(&on, 21);
    assert_eq!(bodies(&on).await, ["m0"]);
}
