//! Partitioned FIFO queues, rule by rule: handles, purges, counters, what a server must be able to do, dead letters, moves
//! and backups.

use std::collections::BTreeSet;
use std::sync::Arc;

use waybill_kernel::{Code, Error};
use waybill_queues::ops::change_message_visibility::ChangeMessageVisibility;
use waybill_queues::ops::change_message_visibility_batch::{ChangeEntry, ChangeMessageVisibilityBatch};
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::delete_message_batch::{DeleteEntry, DeleteMessageBatch};
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::start_message_move_task::StartMessageMoveTask;
use waybill_queues::rules::handle::{self, Handle};
use waybill_queues::rules::partitions::route;
use waybill_queues::sweeps::{Drain, Moves};
use waybill_queues::{Capabilities, HTFIFO, Message, Settings, Tally, check_capabilities};
use waybill_store::Store;
use waybill_store::effects::{Holder, sweep_once};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{ORDERS, delete, message, orders, receive, send, texts, up_to};
use crate::partitions::{FOUR, GROUPS, another, send_to_all};
use crate::support::{arn, counted, drain, map, ok, pass, queue, refusal, refused, rows, sweep, tend, upkeep, url};

both! {
    rule_11_a_handle_leads_to_its_partition,
    rule_11_a_handle_of_another_kind_is_none,
    rule_11_batches_of_handles_reach_their_partitions,
    rule_12_a_purge_is_one_step_for_all_partitions,
    rule_12_a_deleted_queue_leaves_nothing,
    rule_12_each_dead_partition_is_drained_by_its_own_share,
    counters_are_those_of_all_partitions,
    rule_14_a_server_that_cannot_serve_makes_no_partitioned_queue,
    rule_15_what_is_advertised_is_there,
    rule_16_a_server_that_lacks_something_refuses_to_begin,
    rule_17_what_is_needed_is_noted_with_the_first_queue_that_needs_it,
    rule_18_only_partitioned_queues_are_counted_by_partition,
    rule_19_dead_letters_go_where_their_queue_has_their_group,
    rule_20_moves_keep_to_partitions,
    rule_20_a_partition_without_a_place_is_an_error,
    groups_of_all_partitions_keep_their_order_under_load,
}

pub async fn rule_11_a_handle_leads_to_its_partition(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    let all = receive(&on, 10).await;
    for message in &all {
        let handle = Handle::decode(&message.receipt_handle).unwrap();
        let expected = u32::try_from(route(&message.attributes["MessageGroupId"], 3)).unwrap();
        assert_eq!((handle.partition, message.partition), (Some(expected), Some(expected)));
    }
    ok(&on, change(&all[1], 0)).await;
    assert_eq!(texts(&receive(&on, 10).await), [all[1].body.as_str()]);
    for (left, message) in [(3, &all[0]), (2, &all[2]), (1, &all[3])] {
        delete(&on, message).await;
        assert_eq!(rows(&on).await, (left, left));
    }
    // One that is gone, or whose handle is not the latest any more, is a success that deletes nothing.
    delete(&on, &all[0]).await;
    delete(&on, &all[1]).await;
    assert_eq!(rows(&on).await, (1, 1));
}

fn change(message: &Message, seconds: i64) -> ChangeMessageVisibility {
    ChangeMessageVisibility {
        queue_url: url(ORDERS),
        receipt_handle: message.receipt_handle.clone(),
        visibility_timeout: Some(seconds),
        ..Default::default()
    }
}

pub async fn rule_11_a_handle_of_another_kind_is_none(on: TestStore) {
    orders(&on, FOUR).await;
    let plain = [("FifoQueue", "true"), ("ContentBasedDeduplication", "true")];
    ok(&on, queue("plain.fifo", &plain)).await;
    for name in [ORDERS, "plain.fifo"] {
        ok(&on, SendMessage { queue_url: url(name), ..message("g0", "m") }).await;
    }
    let split = Handle::decode(&receive(&on, 1).await[0].receipt_handle).unwrap();
    let from_plain = ReceiveMessage { queue_url: url("plain.fifo"), ..up_to(1) };
    let whole = Handle::decode(&ok(&on, from_plain).await.messages[0].receipt_handle).unwrap();
    assert_eq!((split.partition, whole.partition), (Some(2), None));
    let bad = [
        (ORDERS, Handle { partition: None, ..split }),
        (ORDERS, Handle { partition: Some(1), ..split }),
        (ORDERS, Handle { partition: Some(4), ..split }),
        (ORDERS, Handle { partition: Some(u32::MAX), ..split }),
        (ORDERS, Handle { generation: split.generation + 1, ..split }),
        (ORDERS, whole),
        ("plain.fifo", split),
        ("plain.fifo", Handle { partition: Some(0), ..whole }),
    ];
    for (name, handle) in bad {
        let (queue_url, receipt_handle) = (url(name), handle.encode());
        let deleted = DeleteMessage {
            queue_url: queue_url.clone(),
            receipt_handle: receipt_handle.clone(),
            ..Default::default()
        };
        let error = refused(&on, deleted).await;
        let garbage = handle::invalid();
        assert_eq!((error.code(), error.message()), (garbage.code(), garbage.message()), "{name} {handle:?}");
        let changed = ChangeMessageVisibility {
            queue_url: queue_url.clone(),
            receipt_handle: receipt_handle.clone(),
            visibility_timeout: Some(0),
            ..Default::default()
        };
        assert_eq!(refusal(&on, changed).await, Code::ReceiptHandleIsInvalid, "{name} {handle:?}");
        let entries = vec![DeleteEntry { id: "a".to_owned(), receipt_handle }];
        let batch = ok(&on, DeleteMessageBatch { queue_url, entries, ..Default::default() }).await;
        assert_eq!((batch.successful.len(), batch.failed.len()), (0, 1), "{name} {handle:?}");
    }
    assert_eq!(rows(&on).await, (2, 2));
    let nowhere =
        DeleteMessage { queue_url: url("nowhere.fifo"), receipt_handle: split.encode(), ..Default::default() };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
}

pub async fn rule_11_batches_of_handles_reach_their_partitions(on: TestStore) {
    orders(&on, FOUR).await;
    for text in ["1", "2"] {
        send_to_all(&on, text).await;
    }
    let all = receive(&on, 10).await;
    let id = |index: usize| format!("e{index}");
    let change = |(index, message): (usize, &Message)| ChangeEntry {
        id: id(index),
        receipt_handle: message.receipt_handle.clone(),
        visibility_timeout: Some(0),
    };
    let entries = all.iter().enumerate().map(change).collect();
    let changed = ok(&on, ChangeMessageVisibilityBatch { queue_url: url(ORDERS), entries, ..Default::default() }).await;
    assert_eq!((changed.successful.len(), changed.failed.len()), (8, 0));
    let again = receive(&on, 10).await;
    assert_eq!(again.len(), 8, "all groups are free again");
    let entry = |(index, message): (usize, &Message)| DeleteEntry {
        id: id(index),
        receipt_handle: message.receipt_handle.clone(),
    };
    let entries = again.iter().enumerate().map(entry).collect();
    let deleted = ok(&on, DeleteMessageBatch { queue_url: url(ORDERS), entries, ..Default::default() }).await;
    assert_eq!(deleted.successful.len(), 8);
    let mut partitions = deleted.tally.partitions;
    partitions.sort_unstable();
    assert_eq!(partitions, [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(rows(&on).await, (0, 0));
    assert_eq!(on.count("SELECT count(*) FROM fifo_groups").await.unwrap(), 0);
}

pub async fn rule_12_a_purge_is_one_step_for_all_partitions(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "old").await;
    let held = receive(&on, 2).await;
    let before = on.rows("SELECT generation FROM queues").await.unwrap()[0].int(0).unwrap();
    let purged = ok(&on, PurgeQueue { queue_url: url(ORDERS) }).await;
    assert_eq!(purged.generations.0, before);
    let alive = "SELECT count(*) FROM parts p JOIN queues q ON q.name = p.queue AND q.generation = p.generation \
                 WHERE p.dead_at IS NULL";
    assert_eq!(on.count(alive).await.unwrap(), 4);
    assert_eq!(on.count("SELECT count(*) FROM parts WHERE dead_at IS NOT NULL").await.unwrap(), 4);
    assert!(receive(&on, 10).await.is_empty());
    assert_eq!(counted(&on, ORDERS).await, (0, 0, 0));
    for message in &held {
        let dead = DeleteMessage {
            queue_url: url(ORDERS),
            receipt_handle: message.receipt_handle.clone(),
            ..Default::default()
        };
        assert_eq!(refusal(&on, dead).await, Code::ReceiptHandleIsInvalid);
    }
    // What was a duplicate before is none now, in any partition.
    send_to_all(&on, "old").await;
    assert_eq!(receive(&on, 10).await.len(), 4);
    drain(&on).await;
    assert_eq!(rows(&on).await, (4, 4));
}

pub async fn rule_12_a_deleted_queue_leaves_nothing(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    assert_eq!(receive(&on, 3).await.len(), 3);
    ok(&on, DeleteQueue { queue_url: url(ORDERS) }).await;
    assert_eq!(refusal(&on, up_to(1)).await, Code::QueueDoesNotExist);
    drain(&on).await;
    for table in ["messages", "flights", "fifo_groups", "fifo_lines", "fifo_duplicates"] {
        assert_eq!(on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap(), 0, "{table}");
    }
    // One of the same name with another count is another queue, in parts that are used again when they have rested.
    pass(&on, 3_601);
    drain(&on).await;
    orders(&on, &[("PartitionCount", "2")]).await;
    assert_eq!(on.count("SELECT count(*) FROM parts").await.unwrap(), 4);
    assert_eq!(on.count("SELECT count(*) FROM parts WHERE queue IS NOT NULL").await.unwrap(), 2);
    send_to_all(&on, "m").await;
    assert_eq!(receive(&on, 10).await.len(), 4);
}

pub async fn rule_12_each_dead_partition_is_drained_by_its_own_share(on: TestStore) {
    orders(&on, FOUR).await;
    for number in 0..40 {
        send(&on, "user-1", &format!("m{number}")).await;
    }
    send(&on, "g3", "m").await;
    ok(&on, DeleteQueue { queue_url: url(ORDERS) }).await;
    // A batch of eight rows: the partition with forty messages does not use it up.
    let drain = Arc::new(FewRows(Drain::new(&Settings::default())));
    sweep_once(&on.store, &drain, Holder::new(&on.store)).await.unwrap();
    let left = "SELECT p.partition FROM messages m JOIN parts p ON p.part = m.mid >> 40 GROUP BY p.partition";
    let left: Vec<i64> = on.rows(left).await.unwrap().iter().map(|row| row.int(0).unwrap()).collect();
    assert_eq!(left, [0]);
}

/// One batch of eight rows.
struct FewRows(Drain);

impl waybill_store::effects::Sweep for FewRows {
    const NAME: &'static str = "queues.drain";

    fn plan(&self) -> waybill_store::effects::Plan {
        waybill_store::effects::Plan { batch: 8, ..self.0.plan() }
    }

    async fn run_batch(
        &self,
        ctx: &waybill_store::Ctx<'_>,
        tx: &mut waybill_store::Tx<'_>,
        limit: i64,
    ) -> Result<u64, Error> {
        self.0.run_batch(ctx, tx, limit).await.map(|_| 0)
    }
}

pub async fn counters_are_those_of_all_partitions(on: TestStore) {
    orders(&on, &[("PartitionCount", "4"), ("VisibilityTimeout", "100")]).await;
    for text in ["1", "2", "3"] {
        send_to_all(&on, text).await;
    }
    for _ in 0..4 {
        assert_eq!(counted(&on, ORDERS).await, (12, 0, 0));
        upkeep(&on).await;
    }
    let held = receive(&on, 10).await;
    assert_eq!(counted(&on, ORDERS).await, (2, 10, 0));
    delete(&on, &held[0]).await;
    assert_eq!(counted(&on, ORDERS).await, (2, 9, 0));
    let later = map(&[("DelaySeconds", "10")]);
    ok(
        &on,
        waybill_queues::ops::set_queue_attributes::SetQueueAttributes { queue_url: url(ORDERS), attributes: later },
    )
    .await;
    send_to_all(&on, "4").await;
    assert_eq!(counted(&on, ORDERS).await, (2, 9, 4));
    pass(&on, 101);
    assert_eq!(counted(&on, ORDERS).await, (15, 0, 0));
}

/// Another program on the same database, which can do only this.
async fn other_program(on: &TestStore, can: Capabilities) -> Result<Store, Error> {
    another(on, |settings| settings.with(can)).await
}

pub async fn rule_14_a_server_that_cannot_serve_makes_no_partitioned_queue(on: TestStore) {
    ok(&on, queue("there.fifo", &[("FifoQueue", "true"), ("PartitionCount", "2")])).await;
    let other = other_program(&on, Capabilities(&[])).await.unwrap();
    let make = |name: &str, count: &str| queue(name, &[("FifoQueue", "true"), ("PartitionCount", count)]);
    let error = other.run(make("new.fifo", "2"), on.admin.clone()).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidAttributeValue);
    assert!(!error.message().contains(HTFIFO), "what is wrong inside is for the log: {}", error.message());
    // The gate comes after the look whether there is such a queue, and is not for others.
    other.run(make("there.fifo", "2"), on.admin.clone()).await.unwrap();
    other.run(make("plain.fifo", "1"), on.admin.clone()).await.unwrap();
    other.close();
}

pub async fn rule_15_what_is_advertised_is_there(on: TestStore) {
    assert_eq!(Capabilities::OWN.0, [HTFIFO]);
    assert_eq!(Capabilities::of(on.store.settings()).0, [HTFIFO]);
    for count in ["2", "4", "8", "16", "32"] {
        let name = format!("of-{count}.fifo");
        let attributes = [("FifoQueue", "true"), ("ContentBasedDeduplication", "true"), ("PartitionCount", count)];
        ok(&on, queue(&name, &attributes)).await;
        for number in 0..60 {
            let one = message(&format!("g{number}"), &format!("m{number}"));
            ok(&on, SendMessage { queue_url: url(&name), ..one }).await;
        }
        let mut got = BTreeSet::new();
        for _ in 0..20 {
            let some = ok(&on, ReceiveMessage { queue_url: url(&name), ..up_to(10) }).await.messages;
            got.extend(some.into_iter().map(|message| message.body));
        }
        assert_eq!(got.len(), 60, "{count}");
    }
}

pub async fn rule_16_a_server_that_lacks_something_refuses_to_begin(on: TestStore) {
    check_capabilities(&on.store).await.unwrap();
    orders(&on, FOUR).await;
    check_capabilities(&on.store).await.unwrap();
    let other = other_program(&on, Capabilities(&["something-else"])).await.unwrap();
    let error = check_capabilities(&other).await.unwrap_err();
    assert_eq!(error.code(), Code::SchemaTooNew);
    assert!(error.message().contains(HTFIFO), "{}", error.message());
    other.close();
}

pub async fn rule_17_what_is_needed_is_noted_with_the_first_queue_that_needs_it(on: TestStore) {
    // Home comes first; where the partitions are in several stores those say it as well.
    let needed = async || on.rows("SELECT count(*) FROM required_capabilities").await.unwrap()[0].int(0).unwrap();
    orders(&on, &[("FifoThroughputLimit", "perMessageGroupId"), ("DeduplicationScope", "messageGroup")]).await;
    assert_eq!(needed().await, 0);
    for name in ["a.fifo", "b.fifo"] {
        ok(&on, queue(name, &[("FifoQueue", "true"), ("PartitionCount", "2")])).await;
        assert_eq!(needed().await, 1);
    }
    // There is no way back: what such a queue has left behind needs it, too.
    for name in ["a.fifo", "b.fifo"] {
        ok(&on, DeleteQueue { queue_url: url(name) }).await;
    }
    assert_eq!(needed().await, 1);
}

pub async fn rule_18_only_partitioned_queues_are_counted_by_partition(on: TestStore) {
    orders(&on, FOUR).await;
    assert_eq!(send(&on, "g3", "m").await.partition, Some(3));
    // A duplicate is no further message.
    assert_eq!(send(&on, "g3", "m").await.partition, None);
    let held = receive(&on, 1).await;
    assert_eq!(held[0].partition, Some(3));
    let gone = || DeleteMessage {
        queue_url: url(ORDERS),
        receipt_handle: held[0].receipt_handle.clone(),
        ..Default::default()
    };
    assert_eq!(ok(&on, gone()).await.tally, Tally::new(1, [3]));
    assert_eq!(ok(&on, gone()).await.tally, Tally::default());
    ok(&on, queue("plain.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")])).await;
    let sent = ok(&on, SendMessage { queue_url: url("plain.fifo"), ..message("g3", "m") }).await;
    let held = ok(&on, ReceiveMessage { queue_url: url("plain.fifo"), ..up_to(1) }).await.messages;
    let receipt_handle = held[0].receipt_handle.clone();
    let gone = ok(&on, DeleteMessage { queue_url: url("plain.fifo"), receipt_handle, ..Default::default() }).await;
    assert_eq!((sent.partition, held[0].partition, gone.tally), (None, None, Tally::new(1, [])));
}

/// The groups of each partition of a queue that have messages there.
async fn groups_in(on: &TestStore, name: &str) -> BTreeSet<(i64, String)> {
    let sql = "SELECT p.partition, m.grp FROM messages m JOIN parts p ON p.part = m.mid >> 40 WHERE p.queue = $1";
    let rows = on.rows_with(sql, &[name]).await.unwrap();
    rows.iter().map(|row| (row.int(0).unwrap(), row.text(1).unwrap().to_owned())).collect()
}

/// Dead letters of `orders.fifo`, which has four partitions, go to a queue with `count`.
async fn with_dead_letters(on: &TestStore, count: &str) {
    ok(on, queue("dead.fifo", &[("FifoQueue", "true"), ("PartitionCount", count)])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("dead.fifo"));
    orders(on, &[("PartitionCount", "4"), ("RedrivePolicy", &policy), ("VisibilityTimeout", "1")]).await;
    for text in ["1", "2"] {
        send_to_all(on, text).await;
    }
    assert_eq!(receive(on, 10).await.len(), 8);
    pass(on, 2);
    assert!(receive(on, 10).await.is_empty());
    tend(on).await;
    assert_eq!((counted(on, ORDERS).await, counted(on, "dead.fifo").await), ((0, 0, 0), (8, 0, 0)));
}

pub async fn rule_19_dead_letters_go_where_their_queue_has_their_group(on: TestStore) {
    with_dead_letters(&on, "8").await;
    let expected: BTreeSet<_> = GROUPS.iter().map(|group| (route(group, 7), (*group).to_owned())).collect();
    assert_eq!(groups_in(&on, "dead.fifo").await, expected);
    let dead = ok(&on, ReceiveMessage { queue_url: url("dead.fifo"), ..up_to(10) }).await.messages;
    for group in GROUPS {
        let own: Vec<_> = texts(&dead).into_iter().filter(|text| text.starts_with(group)).collect();
        assert_eq!(own, [format!("{group} 1"), format!("{group} 2")], "each group in its order");
    }
    for message in &dead {
        let source = arn(ORDERS);
        assert_eq!(message.attributes["DeadLetterQueueSourceArn"], source);
        assert_eq!(message.attributes["MessageDeduplicationId"], message.message_id.to_string());
    }
    // The groups of the source are free.
    send(&on, "g0", "after").await;
    assert_eq!(texts(&receive(&on, 10).await), ["after"]);
}

/// A task is over when all have arrived.
async fn all_moved(on: &TestStore) {
    while on.count("SELECT count(*) FROM move_tasks WHERE active = 1").await.unwrap() > 0 {
        sweep(on, Moves::new(&Settings::default())).await;
        tend(on).await;
    }
}

pub async fn rule_20_moves_keep_to_partitions(on: TestStore) {
    with_dead_letters(&on, "1").await;
    ok(&on, StartMessageMoveTask { source_arn: arn("dead.fifo"), ..StartMessageMoveTask::default() }).await;
    all_moved(&on).await;
    assert_eq!((counted(&on, ORDERS).await, counted(&on, "dead.fifo").await), ((8, 0, 0), (0, 0, 0)));
    let expected: BTreeSet<_> = GROUPS.iter().map(|group| (route(group, 3), (*group).to_owned())).collect();
    assert_eq!(groups_in(&on, ORDERS).await, expected);
    // And from a source that has partitions itself.
    assert_eq!(receive(&on, 10).await.len(), 8);
    pass(&on, 2);
    assert!(receive(&on, 10).await.is_empty());
    tend(&on).await;
    ok(&on, queue("other.fifo", &[("FifoQueue", "true"), ("PartitionCount", "2")])).await;
    let back = StartMessageMoveTask {
        source_arn: arn("dead.fifo"),
        destination_arn: Some(arn("other.fifo")),
        ..StartMessageMoveTask::default()
    };
    ok(&on, back).await;
    all_moved(&on).await;
    assert_eq!(counted(&on, "other.fifo").await, (8, 0, 0));
    let expected: BTreeSet<_> = GROUPS.iter().map(|group| (route(group, 1), (*group).to_owned())).collect();
    assert_eq!(groups_in(&on, "other.fifo").await, expected);
}

/// A restore that loses where a partition is must not make an empty queue of a full one.
pub async fn rule_20_a_partition_without_a_place_is_an_error(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    on.write("UPDATE parts SET queue = 'elsewhere' WHERE partition = 2").await.unwrap();
    for error in [
        refused(&on, up_to(10)).await,
        refused(&on, message("g0", "again")).await,
        refused(&on, SendMessage { message_deduplication_id: Some("x".to_owned()), ..message("g0", "m") }).await,
    ] {
        assert_eq!(error.code(), Code::Internal);
        assert!(error.cause().is_some_and(|cause| cause.contains("partition")), "{error:?}");
    }
    // Those of other partitions are found.
    send(&on, "g1", "another").await;
}

pub async fn groups_of_all_partitions_keep_their_order_under_load(on: TestStore) {
    const EACH: usize = 25;
    orders(&on, &[("PartitionCount", "8"), ("VisibilityTimeout", "1000")]).await;
    let on = Arc::new(on);
    let senders: Vec<_> = (0..12)
        .map(|group| {
            let on = Arc::clone(&on);
            tokio::spawn(async move {
                for number in 0..EACH {
                    send(&on, &format!("g{group}"), &format!("{group} {number:03}")).await;
                }
            })
        })
        .collect();
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let on = Arc::clone(&on);
            tokio::spawn(async move {
                let (mut got, mut idle) = (Vec::new(), 0);
                while idle < 3 {
                    let wait = ReceiveMessage { wait_time_seconds: Some(1), ..up_to(10) };
                    let some = ok(&on, wait).await.messages;
                    idle = if some.is_empty() { idle + 1 } else { 0 };
                    for message in some {
                        got.push((message.attributes["SequenceNumber"].clone(), message.body.clone()));
                        delete(&on, &message).await;
                    }
                }
                got
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    let mut all = Vec::new();
    for receiver in receivers {
        let got = receiver.await.unwrap();
        // Whoever receives a group's messages gets them in their order; a group is with one receiver at a time.
        for group in 0..12 {
            let own: Vec<_> = got.iter().filter(|(_, body)| body.starts_with(&format!("{group} "))).collect();
            assert!(own.is_sorted(), "{own:?}");
        }
        all.extend(got);
    }
    let distinct: BTreeSet<_> = all.iter().map(|(_, body)| body).collect();
    assert_eq!((all.len(), distinct.len()), (12 * EACH, 12 * EACH));
    assert_eq!(counted(&on, ORDERS).await, (0, 0, 0));
}
