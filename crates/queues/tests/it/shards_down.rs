//! One of the stores is away: what is there cannot be had, and everything else goes on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waybill_kernel::{Code, Mode, Result};
use waybill_queues::Figures;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::shards::tend_once;
use waybill_store::{Ctx, Tx, Work};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{ORDERS, delete, message, orders, receive, send, texts, up_to};
use crate::figures::Gauges;
use crate::partitions::{FOUR, GROUPS, send_to_all};
use crate::support::{arn, body, counted, map, ok, pass, queue, refused, url};
use crate::throttle::SENDS;

both! {
    crate::shards::placed(), shards crate::shards_rules::SHARDS =>
    messages_of_other_stores_are_sent_received_and_deleted,
    a_batch_says_which_entries_could_not_be_sent,
    a_batch_is_charged_once,
    a_wait_goes_on_in_the_other_stores,
    a_purge_and_a_deletion_are_not_begun,
    dead_letters_for_other_stores_are_carried,
    changes_of_other_stores_are_finished,
    the_depth_of_other_queues_is_shown,
    all_queues_are_listed,
}

/// The store that has the second partition, and so the group `g1`.
fn take_away(on: &TestStore) {
    on.stores.find("b").unwrap().close();
}

fn is_away(code: Code) -> bool {
    code.entry().http == 503
}

async fn messages_of_other_stores_are_sent_received_and_deleted(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "1").await;
    take_away(&on);
    assert!(is_away(refused(&on, message("g1", "2")).await.code()));
    for group in ["user-1", "g0", "g3"] {
        send(&on, group, &format!("{group} 2")).await;
    }
    let mut got = Vec::new();
    for _ in 0..3 {
        got.extend(receive(&on, 10).await);
    }
    assert_eq!(got.len(), 6, "{:?}", texts(&got));
    for message in &got {
        delete(&on, message).await;
    }
    // The rest cannot be counted, and no figure is made up.
    let names = vec!["All".to_owned()];
    let counts = waybill_queues::ops::GetQueueAttributes { queue_url: url(ORDERS), attribute_names: names };
    assert!(is_away(refused(&on, counts).await.code()));
    let names = vec!["PartitionCount".to_owned()];
    let other = waybill_queues::ops::GetQueueAttributes { queue_url: url(ORDERS), attribute_names: names };
    assert_eq!(ok(&on, other).await.attributes["PartitionCount"], "4");
}

async fn a_batch_says_which_entries_could_not_be_sent(on: TestStore) {
    orders(&on, FOUR).await;
    take_away(&on);
    let entry = |group: &&str| SendEntry {
        id: (*group).to_owned(),
        message_body: "m".to_owned(),
        message_group_id: Some((*group).to_owned()),
        ..SendEntry::default()
    };
    let entries = GROUPS.iter().map(entry).collect();
    let batch = ok(&on, SendMessageBatch { queue_url: url(ORDERS), entries, ..Default::default() }).await;
    let sent: Vec<&str> = batch.successful.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(sent, ["user-1", "g0", "g3"]);
    assert_eq!((batch.failed.len(), batch.failed[0].id.as_str(), batch.failed[0].sender_fault), (1, "g1", false));
    assert_eq!(receive(&on, 10).await.len(), 3);
}

/// Also where the store that would be asked first is away, and this server knows nothing of the throttle yet.
async fn a_batch_is_charged_once(on: TestStore) {
    orders(&on, &[FOUR, &SENDS[..]].concat()).await;
    on.stores.find("a").unwrap().close();
    let entry = |number: usize| SendEntry {
        id: number.to_string(),
        message_body: format!("m{number}"),
        message_group_id: Some(["user-1", "g0", "g1"][number % 3].to_owned()),
        ..SendEntry::default()
    };
    let entries = (0..10).map(entry).collect();
    let batch = ok(&on, SendMessageBatch { queue_url: url(ORDERS), entries, ..Default::default() }).await;
    assert_eq!((batch.successful.len(), batch.failed.len()), (6, 4));
    assert_eq!(refused(&on, message("g0", "more")).await.code(), Code::Throttling, "all tokens are gone");
}

async fn a_wait_goes_on_in_the_other_stores(on: TestStore) {
    orders(&on, FOUR).await;
    take_away(&on);
    let on = std::sync::Arc::new(on);
    let waits = std::sync::Arc::clone(&on);
    let wait = ReceiveMessage { wait_time_seconds: Some(20), ..up_to(10) };
    let waiter = tokio::spawn(async move { ok(&waits, wait).await.messages });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    send(&on, "g3", "m").await;
    assert_eq!(texts(&waiter.await.unwrap()), ["m"]);
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    // An empty answer comes in its time.
    let began = Instant::now();
    let wait = ReceiveMessage { wait_time_seconds: Some(1), ..up_to(10) };
    assert!(ok(&on, wait).await.messages.is_empty());
    assert!(began.elapsed() < Duration::from_secs(8), "it took {:?}", began.elapsed());
}

async fn a_purge_and_a_deletion_are_not_begun(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    take_away(&on);
    assert!(is_away(refused(&on, PurgeQueue { queue_url: url(ORDERS) }).await.code()));
    assert!(is_away(refused(&on, DeleteQueue { queue_url: url(ORDERS) }).await.code()));
    assert_eq!(receive(&on, 10).await.len(), 3, "what can be reached is there");
}

/// A queue in the store `a`, whose messages die after one receive.
async fn source(on: &TestStore, name: &str, dead: &str) {
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn(dead));
    let mut attributes = vec![("FifoQueue", "true"), ("ContentBasedDeduplication", "true")];
    attributes.extend([("RedrivePolicy", policy.as_str()), ("VisibilityTimeout", "1")]);
    ok(on, queue(name, &attributes)).await;
}

async fn dead_letters_for_other_stores_are_carried(on: TestStore) {
    for dead in ["single.fifo", "dead.fifo"] {
        ok(&on, queue(dead, &[("FifoQueue", "true")])).await;
    }
    // Its dead letters come first, and go to the store that will be away; those of the other go to home.
    source(&on, ORDERS, "single.fifo").await;
    source(&on, "other.fifo", "dead.fifo").await;
    let from = |name: &str| ReceiveMessage { queue_url: url(name), ..up_to(1) };
    for name in [ORDERS, "other.fifo"] {
        for text in ["1", "2"] {
            ok(&on, SendMessage { queue_url: url(name), ..message("user-1", text) }).await;
        }
        assert_eq!(ok(&on, from(name)).await.messages.len(), 1);
    }
    pass(&on, 2);
    for name in [ORDERS, "other.fifo"] {
        assert!(ok(&on, from(name)).await.messages.is_empty(), "it is on its way");
    }
    take_away(&on);
    assert!(is_away(tend_once(&on.stores).await.unwrap_err().code()));
    assert_eq!(counted(&on, "dead.fifo").await, (1, 0, 0));
    assert_eq!(texts(&ok(&on, from("other.fifo")).await.messages), ["2"], "its group goes on");
    assert!(ok(&on, from(ORDERS)).await.messages.is_empty(), "this one waits");
}

async fn changes_of_other_stores_are_finished(on: TestStore) {
    orders(&on, FOUR).await;
    ok(&on, queue("other.fifo", &[("FifoQueue", "true")])).await;
    ok(&on, queue("single.fifo", &[("FifoQueue", "true")])).await;
    let set = |name: &str| SetQueueAttributes { queue_url: url(name), attributes: map(&[("DelaySeconds", "9")]) };
    for name in [ORDERS, "other.fifo", "single.fifo"] {
        // The program has ended before the others have followed.
        on.store.run(set(name), on.admin.clone()).await.unwrap();
    }
    take_away(&on);
    assert!(is_away(tend_once(&on.stores).await.unwrap_err().code()));
    let left = on.store.system().run(Left).await.unwrap();
    assert_eq!(left, [(ORDERS.to_owned(), "b".to_owned()), ("single.fifo".to_owned(), "b".to_owned())]);
}

/// Queues and the stores that have not followed them.
struct Left;

impl Work for Left {
    type Output = Vec<(String, String)>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        let rows = tx.query("SELECT queue, shard FROM shard_changes ORDER BY queue, shard", &[]).await?;
        rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).collect()
    }
}

/// Also of those that come behind one that cannot be counted.
async fn the_depth_of_other_queues_is_shown(on: TestStore) {
    let gauges = Gauges::default();
    let _guard = metrics::set_default_local_recorder(&gauges);
    let visible = |queue: &str| gauges.of("000000000000", queue, "visible");
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    ok(&on, queue("zebra", &[])).await;
    let mut figures = Figures::default();
    figures.measure(&on.stores).await.unwrap();
    assert_eq!((visible(ORDERS), visible("zebra")), (Some(4.0), Some(0.0)));
    take_away(&on);
    send(&on, "g0", "more").await;
    ok(&on, SendMessage { queue_url: url("zebra"), ..body("m") }).await;
    for _ in 0..2 {
        assert!(is_away(figures.measure(&on.stores).await.unwrap_err().code()));
        assert_eq!((visible(ORDERS), visible("zebra")), (Some(4.0), Some(1.0)), "what is not known stays");
    }
}

async fn all_queues_are_listed(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    for name in ["other.fifo", "single.fifo"] {
        ok(&on, queue(name, &[("FifoQueue", "true")])).await;
    }
    ok(&on, queue("zebra", &[])).await;
    let listed = async || {
        let page = on.call(&on.admin, "list_queues", json!({})).await.unwrap().json;
        let visible = |queue: &Value| (queue["queue"].clone(), queue["messages"]["visible"].as_i64());
        page["queues"].as_array().unwrap().iter().map(visible).collect::<Vec<_>>()
    };
    let of = |orders, single| {
        let all = [(ORDERS, orders), ("other.fifo", Some(0)), ("single.fifo", single), ("zebra", Some(0))];
        all.map(|(name, visible)| (json!(name), visible))
    };
    assert_eq!(listed().await, of(Some(4), Some(0)));
    take_away(&on);
    assert_eq!(listed().await, of(None, None), "what is not known is not said");
}
