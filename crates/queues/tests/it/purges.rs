//! A purge and the end of a queue take effect at once; what is left of the messages goes in the background.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use waybill_kernel::Code;
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::list_queue_tags::ListQueueTags;
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore};

use crate::held::{Held, is_waiting, spawn};
use crate::support::{
    FAILED, JOBS, bodies, body, change, counted, delete, drain, jobs, map, ok, pass, purge, queue, receive, recount,
    refusal, rows, send, up_to, upkeep, url,
};

both! {
    a_purge_takes_effect_at_once,
    a_queue_is_purged_once_a_minute,
    a_queue_that_is_deleted_is_gone,
    a_wait_ends_when_the_queue_does,
    what_is_left_goes_in_the_background,
    the_number_of_a_part_is_used_again,
    purges_and_sends_at_once_lose_nothing,
}

fn delete_queue(name: &str) -> DeleteQueue {
    DeleteQueue { queue_url: url(name) }
}

async fn a_purge_takes_effect_at_once(on: TestStore) {
    let tags = map(&[("team", "a")]);
    ok(&on, CreateQueue { tags, ..queue("jobs", &[("VisibilityTimeout", "10")]) }).await;
    for text in ["in flight", "fresh"] {
        send(&on, text).await;
    }
    ok(&on, SendMessage { delay_seconds: Some(5), ..body("delayed") }).await;
    let message = receive(&on, 1).await.remove(0);
    let (before, after) = ok(&on, purge()).await.generations;
    assert!(before < after);
    assert_eq!(counted(&on, "jobs").await, (0, 0, 0));
    send(&on, "new").await;
    for stale in [refusal(&on, delete(&message)).await, refusal(&on, change(&message, 0)).await] {
        assert_eq!(stale, Code::ReceiptHandleIsInvalid);
    }
    assert_eq!(bodies(&on).await, ["new"]);
    pass(&on, 20);
    assert_eq!(bodies(&on).await, ["new"]);
    // The queue itself is as it was.
    assert_eq!(ok(&on, ListQueueTags { queue_url: JOBS.to_owned() }).await.tags, map(&[("team", "a")]));
    ok(&on, queue("jobs", &[("VisibilityTimeout", "10")])).await;
}

async fn a_queue_is_purged_once_a_minute(on: TestStore) {
    jobs(&on, &[]).await;
    ok(&on, queue("other", &[])).await;
    ok(&on, purge()).await;
    pass(&on, 59);
    assert_eq!(refusal(&on, purge()).await, Code::PurgeQueueInProgress);
    assert_eq!(Code::PurgeQueueInProgress.entry().sqs.http, 403);
    ok(&on, PurgeQueue { queue_url: url("other") }).await;
    pass(&on, 2);
    ok(&on, purge()).await;
    assert_eq!(refusal(&on, PurgeQueue { queue_url: url("nowhere") }).await, Code::QueueDoesNotExist);
}

async fn a_queue_that_is_deleted_is_gone(on: TestStore) {
    jobs(&on, &[]).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    let message = receive(&on, 1).await.remove(0);
    ok(&on, delete_queue("jobs")).await;
    for code in [
        refusal(&on, delete_queue("jobs")).await,
        refusal(&on, body("m")).await,
        refusal(&on, up_to(1)).await,
        refusal(&on, delete(&message)).await,
        refusal(&on, purge()).await,
    ] {
        assert_eq!(code, Code::QueueDoesNotExist);
    }
    // At once there may be another by that name, which knows nothing of the old one.
    jobs(&on, &[("DelaySeconds", "0")]).await;
    assert_eq!(refusal(&on, delete(&message)).await, Code::ReceiptHandleIsInvalid);
    assert!(bodies(&on).await.is_empty());
    send(&on, "new").await;
    assert_eq!(bodies(&on).await, ["new"]);
}

async fn a_wait_ends_when_the_queue_does(on: TestStore) {
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let waits = Arc::clone(&on);
    let waiter =
        tokio::spawn(async move { refusal(&waits, ReceiveMessage { wait_time_seconds: Some(20), ..up_to(1) }).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = std::time::Instant::now();
    ok(&on, delete_queue("jobs")).await;
    assert_eq!(timeout(FAILED, waiter).await.unwrap().unwrap(), Code::QueueDoesNotExist);
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
}

/// Flights of messages that there are, and messages without.
async fn fill(on: &TestStore, messages: usize) {
    let many = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {messages}) \
         INSERT INTO messages (mid, tenant, id, body, md5, sent_at, sender) \
         SELECT (p.part << 40) + 1000 + n.i, p.tenant, p.md5, 'm', p.md5, {now}, 's' \
         FROM n, (SELECT x.part, x.tenant, m.md5 FROM parts x, messages m WHERE x.dead_at IS NULL) p",
        now = on.store.now().micros()
    );
    on.write(&many).await.unwrap();
    recount(on).await;
}

async fn what_is_left_goes_in_the_background(on: TestStore) {
    jobs(&on, &[]).await;
    send(&on, "first").await;
    fill(&on, 1_300).await;
    for _ in 0..30 {
        assert_eq!(receive(&on, 10).await.len(), 10);
    }
    ok(&on, purge()).await;
    assert_eq!(rows(&on).await, (1_301, 300));
    send(&on, "new").await;
    for _ in 0..20 {
        drain(&on).await;
        if rows(&on).await == (1, 0) {
            break;
        }
    }
    assert_eq!(rows(&on).await, (1, 0));
    assert_eq!(bodies(&on).await, ["new"]);
    ok(&on, delete_queue("jobs")).await;
    drain(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
}

async fn the_number_of_a_part_is_used_again(on: TestStore) {
    let numbers = async || on.rows("SELECT part FROM parts WHERE dead_at IS NULL AND queue IS NOT NULL").await.unwrap();
    jobs(&on, &[]).await;
    send(&on, "old").await;
    for _ in 0..4 {
        upkeep(&on).await;
    }
    assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 1);
    let message = receive(&on, 1).await.remove(0);
    let first = numbers().await;
    ok(&on, purge()).await;
    drain(&on).await;
    // Somebody may still hold it.
    ok(&on, queue("second", &[])).await;
    pass(&on, 3_500);
    drain(&on).await;
    ok(&on, queue("third", &[])).await;
    assert!(numbers().await.iter().all(|row| !first.contains(row)));
    pass(&on, 200);
    drain(&on).await;
    ok(&on, queue("fourth", &[])).await;
    assert!(numbers().await.contains(&first[0]), "the number is free and was not used");
    assert_eq!(on.count("SELECT count(*) FROM parts").await.unwrap(), 4);

    // What was known of the old part is forgotten, and its handles are no good for the new queue.
    let to = |text: &str| SendMessage { queue_url: url("fourth"), ..body(text) };
    ok(&on, to("new")).await;
    let stale = DeleteMessage { queue_url: url("fourth"), ..delete(&message) };
    assert_eq!(refusal(&on, stale).await, Code::ReceiptHandleIsInvalid);
    assert_eq!(counted(&on, "fourth").await, (1, 0, 0));
    let received = ok(&on, ReceiveMessage { queue_url: url("fourth"), ..up_to(10) }).await.messages;
    assert_eq!(received.len(), 1);
}

async fn purges_and_sends_at_once_lose_nothing(on: TestStore) {
    const SENDERS: usize = 4;
    const EACH: usize = 40;
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let senders: Vec<JoinHandle<Vec<(String, bool)>>> = (0..SENDERS)
        .map(|sender| {
            let on = Arc::clone(&on);
            tokio::spawn(async move {
                let mut sent = Vec::new();
                for number in 0..EACH {
                    let text = format!("{sender}.{number}");
                    // True when no purge had begun before the message was acknowledged.
                    let before = on.count("SELECT count(*) FROM parts").await.unwrap() == 1;
                    send(&on, &text).await;
                    sent.push((text, before));
                }
                sent
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(30)).await;
    ok(&on, purge()).await;
    let mut sent = Vec::new();
    for sender in senders {
        sent.extend(sender.await.unwrap());
    }
    let mut received = BTreeSet::new();
    loop {
        let some = bodies(&on).await;
        if some.is_empty() {
            break;
        }
        received.extend(some);
    }
    // What was sent after the purge was seen must be there.
    for (text, before) in &sent {
        assert!(*before || received.contains(text), "{text} was acknowledged after the purge and is lost");
    }
    // All that the queue holds can be received, and nothing of the dead part.
    let live = "SELECT count(*) FROM messages m JOIN parts p ON m.mid >= (p.part << 40) AND m.mid < ((p.part + 1) << 40) \
                WHERE p.dead_at IS NULL";
    assert_eq!(on.count(live).await.unwrap(), received.len() as i64);
}

#[tokio::test]
async fn a_send_that_is_committed_after_a_purge_is_not_stranded() {
    let on = stores::open_postgres().await.unwrap();
    jobs(&on, &[]).await;
    // It knows the part and has written nothing yet.
    let late = Held::after(&on, body("late"), 1).await;
    let mut purging = spawn(&on, purge());
    let was_first = !is_waiting(&mut purging).await;
    late.end().await.unwrap();
    if was_first {
        assert_eq!(bodies(&on).await, ["late"], "acknowledged after the purge, and lost");
    }
    assert!(!was_first, "a purge waits for those who send");
    timeout(FAILED, purging).await.unwrap().unwrap().unwrap();
    assert!(bodies(&on).await.is_empty());
    drain(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
}

#[tokio::test]
async fn a_send_that_meets_a_purge_goes_to_the_new_part() {
    let on = stores::open_postgres().await.unwrap();
    jobs(&on, &[]).await;
    send(&on, "old").await;
    let purging = Held::after(&on, purge(), 1).await;
    let mut sending = spawn(&on, body("new"));
    assert!(is_waiting(&mut sending).await, "a send waits for a purge that is under way");
    purging.end().await.unwrap();
    timeout(FAILED, sending).await.unwrap().unwrap().unwrap();
    assert_eq!(bodies(&on).await, ["new"]);
}

#[tokio::test]
async fn a_send_never_outlives_its_queue() {
    let on = stores::open_postgres().await.unwrap();
    jobs(&on, &[]).await;
    let late = Held::after(&on, body("late"), 1).await;
    let mut deleting = spawn(&on, delete_queue("jobs"));
    assert!(is_waiting(&mut deleting).await, "the end of a queue waits for those who send");
    late.end().await.unwrap();
    timeout(FAILED, deleting).await.unwrap().unwrap().unwrap();
    drain(&on).await;
    assert_eq!(rows(&on).await, (0, 0));

    jobs(&on, &[]).await;
    let deleting = Held::after(&on, delete_queue("jobs"), 1).await;
    let mut sending = spawn(&on, body("new"));
    assert!(is_waiting(&mut sending).await);
    deleting.end().await.unwrap();
    let refused = timeout(FAILED, sending).await.unwrap().unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::QueueDoesNotExist);
}

#[tokio::test]
async fn a_dead_letter_is_not_stranded_either() {
    let on = stores::open_postgres().await.unwrap();
    ok(&on, queue("dead", &[])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, crate::support::arn("dead"));
    jobs(&on, &[("RedrivePolicy", &policy), ("VisibilityTimeout", "1")]).await;
    send(&on, "poison").await;
    assert_eq!(bodies(&on).await, ["poison"]);
    pass(&on, 2);
    // It has found the queue, its flight, its message, and where the message is to go.
    let burying = Held::after(&on, up_to(1), 4).await;
    let mut purging = spawn(&on, PurgeQueue { queue_url: url("dead") });
    assert!(is_waiting(&mut purging).await, "a purge waits for those who bring dead letters");
    burying.end().await.unwrap();
    timeout(FAILED, purging).await.unwrap().unwrap().unwrap();
    drain(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
}
