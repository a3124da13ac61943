//! Short ways to say what a case does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use waybill_kernel::{Caller, Code, Error, Result};
use waybill_queues::Settings;
use waybill_queues::ops::change_message_visibility::ChangeMessageVisibility;
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::get_queue_attributes::GetQueueAttributes;
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::shards::{OnShards, tend_once};
use waybill_queues::sweeps::{Drain, Upkeep};
use waybill_queues::{Message, MessageAttribute};
use waybill_store::effects::{Holder, Sweep, sweep_once};
use waybill_store::{Flow, Operation, Reply};
use waybill_testkit::stores::{TestStore, readable};

pub const JOBS: &str = "http://localhost:9324/000000000000/jobs";
/// A machine that stands still is no failure.
pub const FAILED: Duration = Duration::from_secs(60);

/// As a door calls it: in the stores that the queue is in.
pub async fn call<O: OnShards>(on: &TestStore, caller: &Caller, operation: O) -> Result<<O as Operation>::Output> {
    match operation.dispatch(&Flow::new(caller, &on.stores)).await?.0 {
        Reply::Done(answer) | Reply::Replay(answer) | Reply::Empty { answer, .. } => Ok(answer),
    }
}

/// The answer of a call of the default tenant's admin that must succeed.
pub async fn ok<O: OnShards>(on: &TestStore, operation: O) -> <O as Operation>::Output {
    call(on, &on.admin, operation).await.map_err(readable).unwrap()
}

pub async fn refused<O: OnShards>(on: &TestStore, operation: O) -> Error {
    match call(on, &on.admin, operation).await {
        Ok(_) => panic!("{} was allowed", <O as Operation>::SPEC.name),
        Err(error) => error,
    }
}

pub async fn refusal<O: OnShards>(on: &TestStore, operation: O) -> Code {
    refused(on, operation).await.code()
}

pub fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub fn queue(name: &str, attributes: &[(&str, &str)]) -> CreateQueue {
    CreateQueue { queue_name: name.to_owned(), attributes: map(attributes), ..CreateQueue::default() }
}

/// The queue that most cases use.
pub async fn jobs(on: &TestStore, attributes: &[(&str, &str)]) {
    ok(on, queue("jobs", attributes)).await;
}

pub fn body(text: &str) -> SendMessage {
    SendMessage { queue_url: JOBS.to_owned(), message_body: text.to_owned(), ..SendMessage::default() }
}

pub fn up_to(messages: i64) -> ReceiveMessage {
    ReceiveMessage { queue_url: JOBS.to_owned(), max_number_of_messages: Some(messages), ..ReceiveMessage::default() }
}

pub fn delete(message: &Message) -> DeleteMessage {
    let receipt_handle = message.receipt_handle.clone();
    DeleteMessage { queue_url: JOBS.to_owned(), receipt_handle, ..DeleteMessage::default() }
}

pub fn change(message: &Message, visibility_timeout: i64) -> ChangeMessageVisibility {
    ChangeMessageVisibility {
        queue_url: JOBS.to_owned(),
        receipt_handle: message.receipt_handle.clone(),
        visibility_timeout: Some(visibility_timeout),
        ..ChangeMessageVisibility::default()
    }
}

/// Any queue of the default tenant.
pub fn url(name: &str) -> String {
    format!("http://localhost:9324/000000000000/{name}")
}

pub fn arn(name: &str) -> String {
    format!("arn:aws:sqs:us-east-1:000000000000:{name}")
}

pub fn purge() -> PurgeQueue {
    PurgeQueue { queue_url: JOBS.to_owned() }
}

pub async fn attributes_of(on: &TestStore, name: &str, names: &[&str]) -> BTreeMap<String, String> {
    let attribute_names = names.iter().map(|name| (*name).to_owned()).collect();
    ok(on, GetQueueAttributes { queue_url: url(name), attribute_names }).await.attributes
}

/// Visible, not visible, delayed.
pub async fn counted(on: &TestStore, name: &str) -> (i64, i64, i64) {
    let all = attributes_of(on, name, &["All"]).await;
    let number = |suffix: &str| all[&format!("ApproximateNumberOfMessages{suffix}")].parse::<i64>().unwrap();
    (number(""), number("NotVisible"), number("Delayed"))
}

/// After messages that a test has written past the counter.
pub async fn recount(on: &TestStore) {
    const ANEW: &str = "INSERT INTO stored_bytes (tenant, kind, slot, bytes) SELECT tenant, 'rows', 0, \
                        CAST(sum(octet_length(body) + coalesce(octet_length(attributes), 0)) AS BIGINT) FROM messages GROUP BY tenant";
    on.write("DELETE FROM stored_bytes WHERE kind = 'rows'").await.unwrap();
    on.write(ANEW).await.unwrap();
}

/// One whole run of a sweep, due or not.
pub async fn sweep<S: Sweep>(on: &TestStore, sweep: S) -> u64 {
    let (sweep, mut rows) = (Arc::new(sweep), 0);
    for store in on.stores.all() {
        rows += sweep_once(store, &sweep, Holder::new(store)).await.map_err(readable).unwrap().rows;
    }
    on.check_stored_bytes().await;
    rows
}

/// What is on its way from one store to another arrives.
pub async fn tend(on: &TestStore) {
    while tend_once(&on.stores).await.map_err(readable).unwrap() > 0 {}
}

pub async fn drain(on: &TestStore) {
    sweep(on, Drain::new(&Settings::default())).await;
}

/// Until the walk over all parts is back at its beginning: on a busy machine one run is over before.
pub async fn upkeep(on: &TestStore) {
    const RUNS_MAX: usize = 100;
    const UNDER_WAY: &str = "SELECT count(*) FROM feeds WHERE name = 'queues.upkeep' AND seq > 0";
    for _ in 0..RUNS_MAX {
        sweep(on, Upkeep::new(&Settings::default())).await;
        if on.count(UNDER_WAY).await.unwrap() == 0 {
            return;
        }
    }
    panic!("the walk over all parts does not end");
}

pub async fn send(on: &TestStore, text: &str) {
    ok(on, body(text)).await;
}

pub async fn receive(on: &TestStore, messages: i64) -> Vec<Message> {
    ok(on, up_to(messages)).await.messages
}

/// The bodies of up to ten messages, in order.
pub async fn bodies(on: &TestStore) -> Vec<String> {
    receive(on, 10).await.into_iter().map(|message| message.body).collect()
}

pub fn text(data_type: &str, value: &str) -> MessageAttribute {
    MessageAttribute { data_type: data_type.to_owned(), string_value: Some(value.to_owned()), binary_value: None }
}

/// How many messages and flights there are.
pub async fn rows(on: &TestStore) -> (i64, i64) {
    on.check_stored_bytes().await;
    let messages = on.count("SELECT count(*) FROM messages").await.unwrap();
    (messages, on.count("SELECT count(*) FROM flights").await.unwrap())
}

pub fn pass(on: &TestStore, seconds: u64) {
    on.time.pass(Duration::from_secs(seconds));
}
