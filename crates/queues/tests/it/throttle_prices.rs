//! What each call takes from its queue's bucket, what is free, and that no call pays twice.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use waybill_kernel::{Code, Error, Mode, OperationSpec, Result, Role, Scope};
use waybill_queues::ops::change_message_visibility::ChangeMessageVisibility;
use waybill_queues::ops::change_message_visibility_batch::{ChangeEntry, ChangeMessageVisibilityBatch};
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::delete_message_batch::{DeleteEntry, DeleteMessageBatch};
use waybill_queues::ops::get_queue_url::GetQueueUrl;
use waybill_queues::ops::list_queue_tags::ListQueueTags;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::ops::tag_queue::TagQueue;
use waybill_queues::ops::untag_queue::UntagQueue;
use waybill_queues::rules::handle::Handle;
use waybill_queues::shards::OnShards;
use waybill_store::{Answered, Ctx, Flow, Operation, Reply, Tx, Value};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{self, ORDERS};
use crate::partitions::{FOUR, GROUPS, send_to_all};
use crate::support::{
    JOBS, attributes_of, body, call, change, delete, jobs, map, ok, purge, refusal, send, text, up_to, url,
};
use crate::throttle::{batch, left_in, look, set};

both! {
    rule_04_each_call_has_its_price,
    rule_04_everything_else_is_free,
    rule_04_a_long_poll_is_one_receive,
    rule_08_what_is_refused_before_the_charge_costs_nothing,
    rule_08_what_is_refused_after_the_charge_costs_its_price,
    rule_08_a_missing_queue_costs_nothing_and_says_so,
    rule_08_a_rerun_pays_once,
    rule_20_partitions_share_the_buckets_of_their_queue,
    rule_20_a_handle_of_no_partition_costs_its_price,
}

const MUCH: [(&str, &str); 4] = [
    ("ThrottleRecvCapacity", "100"),
    ("ThrottleRecvRefillPerSecond", "0.0001"),
    ("ThrottleSendCapacity", "100"),
    ("ThrottleSendRefillPerSecond", "0.0001"),
];

/// Tokens that were taken from both buckets. A bucket that nobody has used is full.
fn taken(on: &TestStore) -> (f64, f64) {
    taken_from(on, "jobs")
}

fn taken_from(on: &TestStore, queue: &str) -> (f64, f64) {
    let taken = |action| 100.0 - left_in(on, queue, action).unwrap_or(100.0);
    (taken("send").round(), taken("receive").round())
}

async fn rule_04_each_call_has_its_price(on: TestStore) {
    jobs(&on, &MUCH).await;
    send(&on, "m").await;
    assert_eq!(taken(&on), (1.0, 0.0), "SendMessage");
    ok(&on, batch(10)).await;
    assert_eq!(taken(&on), (11.0, 0.0), "SendMessageBatch");
    let messages = ok(&on, up_to(10)).await.messages;
    assert_eq!((messages.len(), taken(&on)), (10, (11.0, 1.0)), "ReceiveMessage, whatever it brings");
    ok(&on, change(&messages[0], 60)).await;
    assert_eq!(taken(&on), (11.0, 2.0), "ChangeMessageVisibility");
    let change = |index: usize| ChangeEntry {
        id: index.to_string(),
        receipt_handle: messages[index].receipt_handle.clone(),
        visibility_timeout: Some(60),
    };
    let entries = (0..3).map(change).collect();
    let changes = ChangeMessageVisibilityBatch { queue_url: JOBS.to_owned(), entries, ..Default::default() };
    ok(&on, changes).await;
    assert_eq!(taken(&on), (11.0, 5.0), "ChangeMessageVisibilityBatch");
    ok(&on, delete(&messages[0])).await;
    assert_eq!(taken(&on), (11.0, 6.0), "DeleteMessage");
    let delete =
        |index: usize| DeleteEntry { id: index.to_string(), receipt_handle: messages[index].receipt_handle.clone() };
    let entries = (1..5).map(delete).collect();
    ok(&on, DeleteMessageBatch { queue_url: JOBS.to_owned(), entries, ..Default::default() }).await;
    assert_eq!(taken(&on), (11.0, 10.0), "DeleteMessageBatch");
}

async fn rule_04_everything_else_is_free(on: TestStore) {
    jobs(&on, &MUCH).await;
    send(&on, "m").await;
    attributes_of(&on, "jobs", &["All"]).await;
    ok(&on, set(&[("VisibilityTimeout", "7")])).await;
    ok(&on, GetQueueUrl { queue_name: "jobs".to_owned(), ..Default::default() }).await;
    ok(&on, TagQueue { queue_url: JOBS.to_owned(), tags: map(&[("a", "b")]) }).await;
    ok(&on, ListQueueTags { queue_url: JOBS.to_owned() }).await;
    ok(&on, UntagQueue { queue_url: JOBS.to_owned(), tag_keys: vec!["a".to_owned()] }).await;
    ok(&on, purge()).await;
    jobs(&on, &MUCH).await;
    assert_eq!(taken(&on), (1.0, 0.0));
}

async fn rule_04_a_long_poll_is_one_receive(on: TestStore) {
    jobs(&on, &MUCH).await;
    ok(&on, look()).await;
    let on = Arc::new(on);
    let waits = Arc::clone(&on);
    let waiting = tokio::spawn(async move {
        let wait = ReceiveMessage { wait_time_seconds: Some(20), ..look() };
        ok(&waits, wait).await.messages.len()
    });
    // Its first pass has been paid for when the figures say so.
    while taken(&on) != (0.0, 2.0) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    send(&on, "m").await;
    assert_eq!(waiting.await.unwrap(), 1);
    assert_eq!(taken(&on), (1.0, 2.0));
}

/// What a call costs that is refused by `code`, on a queue that is remembered.
async fn costs<O: OnShards>(on: &TestStore, operation: O, code: Code) -> (f64, f64) {
    let before = taken(on);
    assert_eq!(refusal(on, operation).await, code);
    let after = taken(on);
    (after.0 - before.0, after.1 - before.1)
}

/// A queue that has been used both ways, and takes messages of a kilobyte.
async fn used(on: &TestStore) {
    jobs(on, &[&MUCH[..], &[("MaximumMessageSize", "1024")]].concat()).await;
    send(on, "m").await;
    ok(on, look()).await;
}

async fn rule_08_what_is_refused_before_the_charge_costs_nothing(on: TestStore) {
    used(&on).await;
    const FREE: (f64, f64) = (0.0, 0.0);
    assert_eq!(costs(&on, body(""), Code::MissingParameter).await, FREE);
    assert_eq!(costs(&on, body(&"x".repeat(1_025)), Code::InvalidRequest).await, FREE, "larger than the queue takes");
    assert_eq!(costs(&on, batch(0), Code::EmptyBatchRequest).await, FREE);
    assert_eq!(costs(&on, batch(11), Code::TooManyEntriesInBatchRequest).await, FREE);
    let bad = || DeleteMessage { queue_url: JOBS.to_owned(), receipt_handle: "x".to_owned(), ..Default::default() };
    assert_eq!(costs(&on, bad(), Code::ReceiptHandleIsInvalid).await, FREE);
    let none = DeleteMessageBatch { queue_url: JOBS.to_owned(), ..Default::default() };
    assert_eq!(costs(&on, none, Code::EmptyBatchRequest).await, FREE);
    send(&on, "m").await;
    let message = ok(&on, look()).await.messages.remove(0);
    assert_eq!(costs(&on, change(&message, -1), Code::InvalidRequest).await, FREE);
    assert_eq!(costs(&on, change(&message, 43_201), Code::InvalidRequest).await, FREE);
    let bad = ChangeMessageVisibility { receipt_handle: "x".to_owned(), ..change(&message, 1) };
    assert_eq!(costs(&on, bad, Code::ReceiptHandleIsInvalid).await, FREE);
    let none = ChangeMessageVisibilityBatch { queue_url: JOBS.to_owned(), ..Default::default() };
    assert_eq!(costs(&on, none, Code::EmptyBatchRequest).await, FREE);
    // A larger message is let in again when the queue takes it, and is charged.
    ok(&on, set(&[("MaximumMessageSize", "2048")])).await;
    let before = taken(&on);
    send(&on, &"x".repeat(1_025)).await;
    assert_eq!(taken(&on).0 - before.0, 1.0);
}

async fn rule_08_what_is_refused_after_the_charge_costs_its_price(on: TestStore) {
    used(&on).await;
    const SEND: (f64, f64) = (1.0, 0.0);
    const RECEIVE: (f64, f64) = (0.0, 1.0);
    let attribute = SendMessage { message_attributes: [("a b".to_owned(), text("String", "v"))].into(), ..body("m") };
    assert_eq!(costs(&on, attribute, Code::InvalidRequest).await, SEND);
    assert_eq!(costs(&on, body("\u{1}"), Code::InvalidMessageContents).await, SEND);
    let delay = SendMessage { delay_seconds: Some(901), ..body("m") };
    assert_eq!(costs(&on, delay, Code::InvalidRequest).await, SEND);
    let fifo = SendMessage { message_deduplication_id: Some("d".to_owned()), ..body("m") };
    assert_eq!(costs(&on, fifo, Code::InvalidRequest).await, SEND);
    assert_eq!(costs(&on, up_to(11), Code::InvalidRequest).await, RECEIVE);
    let wait = ReceiveMessage { wait_time_seconds: Some(21), ..look() };
    assert_eq!(costs(&on, wait, Code::InvalidRequest).await, RECEIVE);
}

async fn rule_08_a_missing_queue_costs_nothing_and_says_so(on: TestStore) {
    used(&on).await;
    let nowhere = SendMessage { queue_url: url("nowhere"), ..body("m") };
    assert_eq!(costs(&on, nowhere, Code::QueueDoesNotExist).await, (0.0, 0.0));
    let nowhere = ReceiveMessage { queue_url: url("nowhere"), ..look() };
    assert_eq!(costs(&on, nowhere, Code::QueueDoesNotExist).await, (0.0, 0.0));
    // Another tenant's queue of the same name is not this one.
    let other = on.tenant("other").await.unwrap();
    assert_eq!(call(&on, &other, body("m")).await.map(drop).unwrap_err().code(), Code::QueueDoesNotExist);
    assert_eq!(taken(&on), (1.0, 1.0));
}

/// Writes and then fails: on SQLite the whole batch that it is in is run again.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
struct Spoil {}

#[derive(Serialize, schemars::JsonSchema)]
struct Spoilt {}

impl OnShards for Spoil {
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<Spoilt> {
        flow.home().run_in_turn(self, flow.caller.clone()).await
    }
}

impl Operation for Spoil {
    const SPEC: OperationSpec = OperationSpec {
        name: "spoil",
        domain: "queues",
        mode: Mode::Write,
        roles: &[Role::Admin],
        scopes: &[Scope::QueuesManage],
        ..OperationSpec::WRITE
    };
    type Output = Spoilt;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Spoilt>> {
        const WRITE: &str = "UPDATE queues SET modified_at = $2 WHERE tenant = $1";
        tx.execute(WRITE, &[Value::from(ctx.now)]).await?;
        Err(Error::invalid("spoilt"))
    }
}

async fn rule_08_a_rerun_pays_once(on: TestStore) {
    jobs(&on, &MUCH).await;
    let on = Arc::new(on);
    let mut calls = JoinSet::new();
    for index in 0..150 {
        let on = Arc::clone(&on);
        calls.spawn(async move {
            if index % 3 == 2 {
                assert_eq!(refusal(&on, Spoil {}).await, Code::InvalidRequest);
                return 0;
            }
            usize::from(call(&on, &on.admin, body("m")).await.is_ok())
        });
    }
    let sent: usize = calls.join_all().await.into_iter().sum();
    assert_eq!((sent, taken(&on)), (100, (100.0, 0.0)), "each once, in however many batches it was run");
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
}

async fn rule_20_partitions_share_the_buckets_of_their_queue(on: TestStore) {
    let of_send = [("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", "0.0001")];
    fifo::orders(&on, &[&of_send[..], &MUCH[..2], FOUR].concat()).await;
    for text in ["1", "2"] {
        send_to_all(&on, text).await;
    }
    // Two tokens are left, whichever partitions they are for.
    for group in &GROUPS[..2] {
        fifo::send(&on, group, "3").await;
    }
    for group in GROUPS {
        assert_eq!(refusal(&on, fifo::message(group, "4")).await, Code::Throttling, "{group}");
    }
    let taken = || taken_from(&on, ORDERS).1;
    let all = fifo::receive(&on, 10).await;
    assert_eq!((all.len(), taken()), (10, 1.0), "one receive, however many partitions it looks into");
    for message in &all[..4] {
        fifo::delete(&on, message).await;
    }
    assert_eq!(taken(), 5.0);
}

async fn rule_20_a_handle_of_no_partition_costs_its_price(on: TestStore) {
    fifo::orders(&on, &[&MUCH[..], FOUR].concat()).await;
    send_to_all(&on, "m").await;
    let held = Handle::decode(&fifo::receive(&on, 1).await[0].receipt_handle).unwrap();
    let receipt_handle = Handle { partition: Some(4), ..held }.encode();
    // Also by the first call after the buckets were forgotten, which nothing was remembered for.
    let more = map(&[("ThrottleRecvCapacity", "100"), ("ThrottleRecvRefillPerSecond", "0.0002")]);
    ok(&on, SetQueueAttributes { queue_url: url(ORDERS), attributes: more }).await;
    assert_eq!(taken_from(&on, ORDERS).1, 0.0);
    let delete =
        DeleteMessage { queue_url: url(ORDERS), receipt_handle: receipt_handle.clone(), ..DeleteMessage::default() };
    assert_eq!(refusal(&on, delete).await, Code::ReceiptHandleIsInvalid);
    assert_eq!(taken_from(&on, ORDERS).1, 1.0);
    let change = ChangeMessageVisibility {
        queue_url: url(ORDERS),
        receipt_handle,
        visibility_timeout: Some(0),
        ..ChangeMessageVisibility::default()
    };
    assert_eq!(refusal(&on, change).await, Code::ReceiptHandleIsInvalid);
    assert_eq!(taken_from(&on, ORDERS).1, 2.0);
}
