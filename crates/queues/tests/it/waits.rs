//! A receive that waits is woken by what it waits for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::timeout;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{self, orders};
use crate::held::is_waiting;
use crate::refusals::FULL;
use crate::support::{FAILED, body, jobs, ok, pass, receive, send, up_to};

both! {
    a_send_ends_a_wait,
    a_wait_ends_when_a_message_is_visible_again,
    a_wait_ends_when_a_delay_does,
    a_receive_that_names_no_wait_takes_the_queues,
    a_wait_ends_when_a_full_queue_has_room,
}

/// Long enough that only a wake can end it in time, and the time in which a call comes to its wait.
pub const LONG_S: i64 = 20;
pub const SHORT: Duration = Duration::from_millis(200);

/// What it gets, and after how long.
pub type Waiter = JoinHandle<(Vec<String>, Duration)>;

pub fn waiting(on: &Arc<TestStore>, wait_time_seconds: Option<i64>) -> Waiter {
    waiting_by(on, ReceiveMessage { wait_time_seconds, ..up_to(1) })
}

pub fn waiting_by(on: &Arc<TestStore>, receive: ReceiveMessage) -> Waiter {
    let on = Arc::clone(on);
    tokio::spawn(async move {
        let began = Instant::now();
        let received = ok(&on, receive).await;
        (received.messages.into_iter().map(|message| message.body).collect(), began.elapsed())
    })
}

pub async fn ended(waiter: Waiter) -> Vec<String> {
    let (bodies, took) = timeout(FAILED, waiter).await.unwrap().unwrap();
    assert!(took < Duration::from_secs(15), "it took {took:?}");
    bodies
}

/// Whatever they have got, sorted.
pub async fn both_ended(one: Waiter, other: Waiter) -> Vec<String> {
    let mut got = [ended(one).await, ended(other).await].concat();
    got.sort();
    got
}

async fn a_send_ends_a_wait(on: TestStore) {
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let (first, second) = (waiting(&on, Some(LONG_S)), waiting(&on, Some(LONG_S)));
    tokio::time::sleep(SHORT).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    assert_eq!(both_ended(first, second).await, ["a", "b"]);
}

async fn a_wait_ends_when_a_message_is_visible_again(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "1")]).await;
    send(&on, "m").await;
    assert_eq!(receive(&on, 1).await.len(), 1);
    let on = Arc::new(on);
    let waiter = waiting(&on, Some(LONG_S));
    tokio::time::sleep(SHORT).await;
    pass(&on, 2);
    assert_eq!(ended(waiter).await, ["m"]);
}

async fn a_wait_ends_when_a_delay_does(on: TestStore) {
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let waiter = waiting(&on, Some(LONG_S));
    tokio::time::sleep(SHORT).await;
    ok(&on, SendMessage { delay_seconds: Some(1), ..body("m") }).await;
    pass(&on, 2);
    assert_eq!(ended(waiter).await, ["m"]);
}

/// Nobody is woken by the end of one of 120,000 messages.
async fn a_wait_ends_when_a_full_queue_has_room(on: TestStore) {
    orders(&on, &[]).await;
    fifo::send(&on, "g", "m").await;
    on.write(FULL).await.unwrap();
    on.write("UPDATE parts SET crowded = 1").await.unwrap();
    let on = Arc::new(on);
    let waits = Arc::clone(&on);
    let receive = ReceiveMessage { wait_time_seconds: Some(LONG_S), ..fifo::up_to(1) };
    let mut waiter = tokio::spawn(async move { ok(&waits, receive).await.messages });
    assert!(is_waiting(&mut waiter).await);
    on.write("DELETE FROM flights").await.unwrap();
    let got = timeout(Duration::from_secs(15), waiter).await.unwrap().unwrap();
    assert_eq!(fifo::texts(&got), ["m"]);
}

async fn a_receive_that_names_no_wait_takes_the_queues(on: TestStore) {
    jobs(&on, &[("ReceiveMessageWaitTimeSeconds", "20")]).await;
    let began = Instant::now();
    let at_once = ok(&on, ReceiveMessage { wait_time_seconds: Some(0), ..up_to(1) }).await;
    assert!(at_once.messages.is_empty() && began.elapsed() < Duration::from_secs(15));
    let on = Arc::new(on);
    let waiter = waiting(&on, None);
    tokio::time::sleep(SHORT).await;
    assert!(!waiter.is_finished());
    send(&on, "m").await;
    assert_eq!(ended(waiter).await, ["m"]);
}
