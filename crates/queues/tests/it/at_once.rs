//! Several receivers at once: as long as there is enough for all of them, each gets what it has asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_store::Reply;
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore};

use crate::fifo::{self, ORDERS, orders};
use crate::held::Held;
use crate::support::{FAILED, JOBS, bodies, jobs, ok, pass, send, up_to, upkeep, url};

both! {
    receivers_of_a_standard_queue_each_get_ten,
    receivers_of_a_standard_queue_each_get_the_one_they_ask_for,
    what_is_visible_again_is_shared_as_well,
    receivers_of_a_fifo_queue_share_its_groups,
    receivers_of_a_partitioned_queue_share_its_partitions,
    senders_keep_no_receiver_of_a_fifo_queue_from_its_messages,
}

/// So many messages, to the queue of standard cases or to groups of the other, in batches: what is measured comes after.
async fn fill(on: &TestStore, queue_url: &str, messages: &[(Option<String>, String)]) {
    for some in messages.chunks(10) {
        let entry = |(number, (group, text)): (usize, &(Option<String>, String))| SendEntry {
            id: number.to_string(),
            message_body: text.clone(),
            message_group_id: group.clone(),
            ..SendEntry::default()
        };
        let entries = some.iter().enumerate().map(entry).collect();
        let batch = SendMessageBatch { queue_url: queue_url.to_owned(), entries, ..SendMessageBatch::default() };
        assert!(ok(on, batch).await.failed.is_empty());
    }
}

fn plain(round: usize, count: usize) -> Vec<(Option<String>, String)> {
    (0..count).map(|number| (None, format!("{round}.{number}"))).collect()
}

fn grouped(round: usize, groups: usize, each: usize) -> Vec<(Option<String>, String)> {
    let of =
        |group: usize| (0..each).map(move |number| (Some(format!("g{group}")), format!("{round}.{group}.{number}")));
    (0..groups).flat_map(of).collect()
}

/// What each of so many receivers got, who all begin at one moment.
async fn received(on: &Arc<TestStore>, receivers: usize, ask: fn() -> ReceiveMessage) -> Vec<Vec<String>> {
    let (mut all, begin) = (JoinSet::new(), Arc::new(Barrier::new(receivers)));
    for _ in 0..receivers {
        let (on, begin) = (Arc::clone(on), Arc::clone(&begin));
        all.spawn(async move {
            begin.wait().await;
            ok(&on, ask()).await.messages.into_iter().map(|message| message.body).collect()
        });
    }
    all.join_all().await
}

/// Each got so many, and no message came twice.
fn is_shared(got: &[Vec<String>], each: usize, what: &str) {
    let counts: Vec<usize> = got.iter().map(Vec::len).collect();
    assert!(counts.iter().all(|count| *count == each), "{what}: {counts:?}");
    let unlike: BTreeSet<&String> = got.iter().flatten().collect();
    assert_eq!(unlike.len(), got.len() * each, "{what}: a message came twice");
}

async fn receivers_of_a_standard_queue_each_get_ten(on: TestStore) {
    const RECEIVERS: usize = 8;
    let on = Arc::new(on);
    jobs(&on, &[]).await;
    for round in 0..10 {
        fill(&on, JOBS, &plain(round, RECEIVERS * 10)).await;
        is_shared(&received(&on, RECEIVERS, || up_to(10)).await, 10, "fresh ones");
    }
}

/// Who asks for one message loses it as soon as anybody else is quicker.
async fn receivers_of_a_standard_queue_each_get_the_one_they_ask_for(on: TestStore) {
    const RECEIVERS: usize = 24;
    let on = Arc::new(on);
    jobs(&on, &[]).await;
    for round in 0..15 {
        fill(&on, JOBS, &plain(round, RECEIVERS)).await;
        is_shared(&received(&on, RECEIVERS, || up_to(1)).await, 1, "fresh ones");
    }
}

async fn what_is_visible_again_is_shared_as_well(on: TestStore) {
    const RECEIVERS: usize = 12;
    let on = Arc::new(on);
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    fill(&on, JOBS, &plain(0, RECEIVERS * 3)).await;
    is_shared(&received(&on, RECEIVERS, || up_to(3)).await, 3, "fresh ones");
    for _ in 0..5 {
        pass(&on, 11);
        is_shared(&received(&on, RECEIVERS, || up_to(3)).await, 3, "those that were received before");
    }
}

async fn receivers_of_a_fifo_queue_share_its_groups(on: TestStore) {
    const RECEIVERS: usize = 6;
    let on = Arc::new(on);
    orders(&on, &[("VisibilityTimeout", "10")]).await;
    // Of ten each, of five, of one, and of a few in a group that is longer than anybody takes.
    for (round, (groups, each)) in [(6, 10), (12, 5), (60, 1), (6, 25), (30, 2)].into_iter().enumerate() {
        fill(&on, &url(ORDERS), &grouped(round, groups, each)).await;
        for _ in 0..3 {
            let got = received(&on, RECEIVERS, || fifo::up_to(10)).await;
            is_shared(&got, 10, &format!("{groups} groups of {each}"));
            pass(&on, 11);
        }
        while !delete_some(&on).await {}
    }
}

/// True when nothing is left.
async fn delete_some(on: &TestStore) -> bool {
    let messages = fifo::receive(on, 10).await;
    for message in &messages {
        fifo::delete(on, message).await;
    }
    messages.is_empty()
}

async fn receivers_of_a_partitioned_queue_share_its_partitions(on: TestStore) {
    const RECEIVERS: usize = 6;
    let on = Arc::new(on);
    orders(&on, &[("VisibilityTimeout", "10"), ("PartitionCount", "4")]).await;
    fill(&on, &url(ORDERS), &grouped(0, 60, 1)).await;
    for _ in 0..5 {
        is_shared(&received(&on, RECEIVERS, || fifo::up_to(10)).await, 10, "60 groups in 4 partitions");
        pass(&on, 11);
    }
}

/// A sender holds its group for as long as it sends.
async fn senders_keep_no_receiver_of_a_fifo_queue_from_its_messages(on: TestStore) {
    const GROUPS: usize = 12;
    let on = Arc::new(on);
    orders(&on, &[]).await;
    fill(&on, &url(ORDERS), &grouped(0, GROUPS, 12)).await;
    let mut senders = JoinSet::new();
    for sender in 0..4 {
        let on = Arc::clone(&on);
        senders.spawn(async move {
            for number in 0..60 {
                let group = format!("g{}", (sender * 3 + number) % GROUPS);
                fifo::send(&on, &group, &format!("{sender} {number}")).await;
            }
        });
    }
    // Each of the twelve blocks one group that has at least as many as it asks for.
    for _ in 0..3 {
        is_shared(&received(&on, 4, || fifo::up_to(10)).await, 10, "while others send");
    }
    senders.join_all().await;
}

/// A receiver that stands still holds the groups that it takes from and no others.
#[tokio::test]
async fn a_slow_receiver_of_a_fifo_queue_holds_what_it_takes_and_no_more() {
    let on = stores::open_postgres().await.unwrap();
    orders(&on, &[]).await;
    fill(&on, &url(ORDERS), &grouped(0, 8, 5)).await;
    // It has found the queue, its groups, their fronts and their messages, and has taken those.
    let slow = Held::after(&on, fifo::up_to(10), 5).await;
    for _ in 0..3 {
        // Who waits for what another holds is told after some seconds that it took too long.
        assert_eq!(fifo::receive(&on, 10).await.len(), 10, "it gets less because of groups that nobody takes from");
    }
    let Reply::Done(received) = slow.end().await.unwrap() else { panic!("nothing") };
    assert_eq!(received.messages.len(), 10);
}

/// Of several groups in the hands of another the small ones behind a large one are found as well.
#[tokio::test]
async fn a_large_group_that_another_holds_hides_no_small_ones() {
    let on = stores::open_postgres().await.unwrap();
    orders(&on, &[]).await;
    fill(&on, &url(ORDERS), &grouped(0, 1, 10)).await;
    for group in 1..=10 {
        fifo::send(&on, &format!("g{group}"), &format!("small {group}")).await;
    }
    let slow = Held::after(&on, fifo::up_to(10), 5).await;
    let received = fifo::receive(&on, 10).await;
    assert_eq!(received.len(), 10, "{:?}", fifo::texts(&received));
    slow.end().await.unwrap();
}

/// A receiver that has found nothing but what is too old holds its groups, and waits for no other: a sender to both would
/// wait for it.
#[tokio::test]
async fn a_receiver_that_holds_groups_waits_for_nobody() {
    let on = stores::open_postgres().await.unwrap();
    orders(&on, &[("MessageRetentionPeriod", "60")]).await;
    fifo::send(&on, "h", "old").await;
    pass(&on, 61);
    fifo::send(&on, "g", "first").await;
    // It holds the group of the first.
    let slow = Held::after(&on, fifo::message("g", "second"), 2).await;
    let received = timeout(FAILED, ok(&on, fifo::up_to(10))).await.unwrap().messages;
    assert!(received.is_empty(), "{:?}", fifo::texts(&received));
    slow.end().await.unwrap();
    assert_eq!(fifo::texts(&fifo::receive(&on, 10).await), ["first", "second"]);
}

/// What sweeps hold groups of many pages, and wait for none of them.
#[tokio::test]
async fn a_sweep_leaves_a_group_that_another_holds_to_the_next() {
    let on = stores::open_postgres().await.unwrap();
    orders(&on, &[("MessageRetentionPeriod", "60")]).await;
    fill(&on, &url(ORDERS), &grouped(0, 30, 1)).await;
    pass(&on, 61);
    let slow = Held::after(&on, fifo::message("g15", "young"), 2).await;
    let messages = async || on.count("SELECT count(*) FROM messages").await.unwrap();
    timeout(FAILED, upkeep(&on)).await.unwrap();
    assert_eq!(messages().await, 1, "the one that is in the hands of the sender");
    slow.end().await.unwrap();
    upkeep(&on).await;
    assert_eq!((messages().await, fifo::texts(&fifo::receive(&on, 10).await)), (1, vec!["young"]));
}

/// A receiver that deletes what is too old holds none of what is not.
#[tokio::test]
async fn a_slow_receiver_that_makes_way_for_itself_hides_nothing() {
    let on = stores::open_postgres().await.unwrap();
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    fill(&on, JOBS, &plain(0, 15)).await;
    pass(&on, 61);
    for number in 0..5 {
        send(&on, &format!("young {number}")).await;
    }
    // It has found the queue and an old message, has deleted that one, and then all the others that are old.
    let slow = Held::after(&on, up_to(1), 7).await;
    assert_eq!(bodies(&on).await.len(), 5, "what is visible is hidden by one who does not take it");
    slow.end().await.unwrap();
    assert_eq!(on.count("SELECT count(*) FROM messages").await.unwrap(), 5, "what is old is gone");
}
