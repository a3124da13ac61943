//! What can be received from a known time on ends a wait then, and as many waits as there are messages.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use waybill_queues::Message;
use waybill_queues::ops::change_message_visibility_batch::{ChangeEntry, ChangeMessageVisibilityBatch};
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{self, orders};
use crate::support::{JOBS, jobs, ok, pass, receive, send, up_to, upkeep};
use crate::waits::{LONG_S, SHORT, Waiter, both_ended, ended, waiting, waiting_by};

both! {
    unpolled =>
    what_is_visible_at_the_same_time_ends_as_many_waits,
    what_is_visible_later_ends_another_wait,
    a_delayed_batch_ends_as_many_waits,
    whoever_waits_for_a_short_time_leaves_the_rest_to_others,
    what_stood_behind_a_deleted_message_ends_a_wait,
    what_stood_behind_an_expired_message_ends_a_wait,
    what_a_batch_makes_visible_sooner_wakes_nobody_before,
    what_has_gone_meanwhile_makes_one_of_many_look,
    what_stands_behind_others_makes_one_of_many_look,
}

/// A message that somebody has received, and that is visible again after so many seconds.
async fn held(on: &TestStore, text: &str, seconds: i64) {
    send(on, text).await;
    let receive = ReceiveMessage { visibility_timeout: Some(seconds), ..up_to(1) };
    assert_eq!(ok(on, receive).await.messages[0].body, text);
}

/// Until so many messages have been received for the second time, long before any wait ends by itself.
async fn received_again(on: &TestStore, messages: i64) {
    const AGAIN: &str = "SELECT count(*) FROM flights WHERE receives > 1";
    let again = async {
        while on.count(AGAIN).await.unwrap() < messages {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(Duration::from_secs(10), again).await.is_ok(), "nobody was woken");
}

async fn what_is_visible_at_the_same_time_ends_as_many_waits(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "1")]).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    assert_eq!(receive(&on, 2).await.len(), 2);
    let on = Arc::new(on);
    let (first, second) = (waiting(&on, Some(LONG_S)), waiting(&on, Some(LONG_S)));
    tokio::time::sleep(SHORT).await;
    pass(&on, 2);
    assert_eq!(both_ended(first, second).await, ["a", "b"]);
}

/// Nobody waited when they were received, and those who wait have seen the first of the two times alone.
async fn what_is_visible_later_ends_another_wait(on: TestStore) {
    jobs(&on, &[]).await;
    held(&on, "a", 2).await;
    held(&on, "b", 6).await;
    let on = Arc::new(on);
    let (first, second) = (waiting(&on, Some(LONG_S)), waiting(&on, Some(LONG_S)));
    tokio::time::sleep(SHORT).await;
    pass(&on, 3);
    received_again(&on, 1).await;
    pass(&on, 4);
    assert_eq!(both_ended(first, second).await, ["a", "b"]);
}

async fn a_delayed_batch_ends_as_many_waits(on: TestStore) {
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let (first, second) = (waiting(&on, Some(LONG_S)), waiting(&on, Some(LONG_S)));
    tokio::time::sleep(SHORT).await;
    let entry = |text: &str| SendEntry {
        id: text.to_owned(),
        message_body: text.to_owned(),
        delay_seconds: Some(1),
        ..SendEntry::default()
    };
    let entries = ["a", "b"].map(entry).to_vec();
    let batch = SendMessageBatch { queue_url: JOBS.to_owned(), entries, ..SendMessageBatch::default() };
    assert!(ok(&on, batch).await.failed.is_empty());
    pass(&on, 2);
    assert_eq!(both_ended(first, second).await, ["a", "b"]);
}

/// The one that looks after the first has been taken ends before the second is visible, which the last has not heard of.
async fn whoever_waits_for_a_short_time_leaves_the_rest_to_others(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "1000")]).await;
    held(&on, "a", 2).await;
    held(&on, "b", 12).await;
    let on = Arc::new(on);
    let mut waiters = Vec::new();
    for seconds in [LONG_S, 3, LONG_S] {
        waiters.push(waiting(&on, Some(seconds)));
        tokio::time::sleep(SHORT).await;
    }
    pass(&on, 3);
    received_again(&on, 1).await;
    ended(waiters.swap_remove(1)).await;
    pass(&on, 10);
    received_again(&on, 2).await;
}

async fn what_stood_behind_a_deleted_message_ends_a_wait(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "1000")]).await;
    for text in ["a", "b"] {
        fifo::send(&on, "g", text).await;
    }
    let received = fifo::receive(&on, 2).await;
    ok(&on, fifo::change(&received[1], 3)).await;
    let on = Arc::new(on);
    let waiter = waiting_by(&on, ReceiveMessage { wait_time_seconds: Some(LONG_S), ..fifo::up_to(1) });
    tokio::time::sleep(SHORT).await;
    fifo::delete(&on, &received[0]).await;
    pass(&on, 4);
    assert_eq!(ended(waiter).await, ["b"]);
}

async fn what_stood_behind_an_expired_message_ends_a_wait(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "1000"), ("MessageRetentionPeriod", "60")]).await;
    fifo::send(&on, "g", "a").await;
    pass(&on, 50);
    fifo::send(&on, "g", "b").await;
    let received = fifo::receive(&on, 2).await;
    ok(&on, fifo::change(&received[1], 15)).await;
    pass(&on, 11);
    let on = Arc::new(on);
    let waiter = waiting_by(&on, ReceiveMessage { wait_time_seconds: Some(LONG_S), ..fifo::up_to(1) });
    tokio::time::sleep(SHORT).await;
    upkeep(&on).await;
    pass(&on, 5);
    assert_eq!(ended(waiter).await, ["b"]);
}

/// So many that it shows whether each of them looks.
const WAITERS: u64 = 20;

/// Of the transactions in the store: each look is one.
fn transactions(on: &TestStore) -> u64 {
    on.store.pool().acquires
}

/// When all of them have looked, and found nothing.
async fn many_wait(on: &Arc<TestStore>, receive: &ReceiveMessage) -> Vec<Waiter> {
    let before = transactions(on);
    let wait = || ReceiveMessage { wait_time_seconds: Some(LONG_S), ..receive.clone() };
    let waiters = (0..WAITERS).map(|_| waiting_by(on, wait())).collect();
    until_transactions(on, before + WAITERS).await;
    waiters
}

/// And no more, as far as that can be seen.
async fn until_transactions(on: &TestStore, wanted: u64) {
    let all = async {
        while transactions(on) < wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(Duration::from_secs(10), all).await.is_ok(), "nobody has looked");
    tokio::time::sleep(SHORT).await;
}

fn give_up(waiters: Vec<Waiter>) {
    for waiter in waiters {
        waiter.abort();
    }
}

/// However many wait: each look of theirs would be a transaction.
async fn what_a_batch_makes_visible_sooner_wakes_nobody_before(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "1000")]).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    let received = receive(&on, 2).await;
    let on = Arc::new(on);
    let waiters = many_wait(&on, &up_to(1)).await;
    let before = transactions(&on);
    let entry = |message: &Message| ChangeEntry {
        id: message.message_id.to_string(),
        receipt_handle: message.receipt_handle.clone(),
        visibility_timeout: Some(10),
    };
    let entries = received.iter().map(entry).collect();
    let queue_url = JOBS.to_owned();
    let changed = ChangeMessageVisibilityBatch { queue_url, entries, ..ChangeMessageVisibilityBatch::default() };
    assert_eq!(ok(&on, changed).await.successful.len(), 2);
    tokio::time::sleep(SHORT).await;
    let looks = transactions(&on) - before;
    assert!(looks < 3, "{looks} looks for what nobody could find");
    pass(&on, 11);
    received_again(&on, 2).await;
    give_up(waiters);
}

/// Whom the time at which it would have been visible again has woken finds nothing, and so would all others.
async fn what_has_gone_meanwhile_makes_one_of_many_look(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "2")]).await;
    let on = Arc::new(on);
    let waiters = many_wait(&on, &up_to(1)).await;
    let before = transactions(&on);
    send(&on, "m").await;
    until_transactions(&on, before + 2).await;
    on.write("DELETE FROM flights").await.unwrap();
    on.write("DELETE FROM messages").await.unwrap();
    let before = transactions(&on);
    pass(&on, 3);
    until_transactions(&on, before + 1).await;
    let looks = transactions(&on) - before;
    assert!(looks < WAITERS / 2, "{looks} looks for what nobody could find");
    send(&on, "n").await;
    until_transactions(&on, before + looks + 2).await;
    assert_eq!(on.count("SELECT count(*) FROM flights").await.unwrap(), 1, "nobody was woken");
    give_up(waiters);
}

/// Who sends to a group that waits for what is in flight wakes one, and not one after another.
async fn what_stands_behind_others_makes_one_of_many_look(on: TestStore) {
    orders(&on, &[("VisibilityTimeout", "1000")]).await;
    fifo::send(&on, "g", "a").await;
    let first = fifo::receive(&on, 1).await.remove(0);
    let on = Arc::new(on);
    let waiters = many_wait(&on, &fifo::up_to(1)).await;
    let before = transactions(&on);
    fifo::send(&on, "g", "b").await;
    until_transactions(&on, before + 2).await;
    let looks = transactions(&on) - before - 1;
    assert!(looks < WAITERS / 2, "{looks} looks for what nobody could find");
    fifo::delete(&on, &first).await;
    until_transactions(&on, before + looks + 3).await;
    assert_eq!(on.count("SELECT count(*) FROM flights").await.unwrap(), 1, "nobody was woken");
    give_up(waiters);
}

/// Messages that go to another store.
pub mod shards {
    use std::sync::Arc;

    use waybill_queues::ops::receive_message::ReceiveMessage;
    use waybill_queues::ops::send_message::SendMessage;
    use waybill_testkit::both;
    use waybill_testkit::stores::TestStore;

    use crate::fifo::{self, texts};
    use crate::support::{arn, ok, pass, queue, tend, url};
    use crate::waits::{LONG_S, SHORT, ended, waiting_by};

    both! {
        crate::shards::placed(), shards crate::shards_rules::SHARDS =>
        what_stood_behind_a_dead_letter_ends_a_wait,
    }

    fn from_other(messages: i64) -> ReceiveMessage {
        ReceiveMessage { queue_url: url("other.fifo"), ..fifo::up_to(messages) }
    }

    async fn what_stood_behind_a_dead_letter_ends_a_wait(on: TestStore) {
        ok(&on, queue("single.fifo", &[("FifoQueue", "true")])).await;
        let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":2}}"#, arn("single.fifo"));
        let source = [
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", "true"),
            ("RedrivePolicy", policy.as_str()),
            ("VisibilityTimeout", "1"),
        ];
        ok(&on, queue("other.fifo", &source)).await;
        for text in ["a", "b"] {
            ok(&on, SendMessage { queue_url: url("other.fifo"), ..fifo::message("g", text) }).await;
        }
        for _ in 0..2 {
            assert_eq!(texts(&ok(&on, from_other(1)).await.messages), ["a"]);
            pass(&on, 2);
        }
        // The first is on its way to another store, and until it has arrived there its group waits.
        assert!(ok(&on, from_other(2)).await.messages.is_empty());
        let on = Arc::new(on);
        let waiter = waiting_by(&on, ReceiveMessage { wait_time_seconds: Some(LONG_S), ..from_other(1) });
        tokio::time::sleep(SHORT).await;
        tend(&on).await;
        assert_eq!(ended(waiter).await, ["b"]);
    }
}
