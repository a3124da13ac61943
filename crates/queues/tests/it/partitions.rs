//! Partitioned FIFO queues, rule by rule: how they are made, where messages go, and how they are received.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use waybill_kernel::{Code, Result};
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::rules::partitions::route;
use waybill_queues::{Message, Process};
use waybill_store::{Backend, Gate, Reply, Settings, SqliteOptions, Store};
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore};

use crate::fifo::{ORDERS, delete, message, orders, receive, send, texts, up_to};
use crate::support::{FAILED, attributes_of, map, ok, pass, queue, refusal, refused, url};

both! {
    rule_01_the_three_attributes_are_shown_where_they_were_set,
    rule_02_no_partition_and_one_are_the_same,
    rule_03_what_cannot_be_is_refused_when_a_queue_is_made,
    rule_04_what_messages_are_found_by_stays,
    rule_05_a_group_has_its_partition,
    rule_06_partitions_share_no_rows,
    rule_07_duplicates_are_of_their_group,
    rule_08_a_sender_waits_for_nobody_of_another_partition,
    rule_09_one_receive_covers_all_partitions,
    rule_09_each_receive_begins_with_another_partition,
    rule_09_queues_that_are_received_from_in_turn_do_not_miss_partitions,
    rule_09_a_queue_limited_as_one_uses_one_partition,
    rule_10_an_empty_queue_is_waited_for_once,
    rule_10_partitions_that_were_cut_off_come_first,
    rule_10_a_send_to_any_partition_ends_a_wait,
    rule_10_a_delay_in_any_partition_ends_a_wait,
    a_receive_from_many_partitions_can_be_made_again,
}

pub const FOUR: &[(&str, &str)] = &[("PartitionCount", "4")];
/// One group for each of four partitions, in their order.
pub const GROUPS: [&str; 4] = ["user-1", "g1", "g0", "g3"];

/// The partition of each message by its group, as the database has it.
async fn partitions_of_groups(on: &TestStore) -> BTreeSet<(String, i64)> {
    let sql = "SELECT m.grp, p.partition FROM messages m JOIN parts p ON p.part = m.mid >> 40";
    on.rows(sql).await.unwrap().iter().map(|row| (row.text(0).unwrap().to_owned(), row.int(1).unwrap())).collect()
}

pub async fn send_to_all(on: &TestStore, text: &str) {
    for group in GROUPS {
        send(on, group, &format!("{group} {text}")).await;
    }
}

fn groups(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.attributes["MessageGroupId"].as_str()).collect()
}

pub async fn rule_01_the_three_attributes_are_shown_where_they_were_set(on: TestStore) {
    let names = ["PartitionCount", "FifoThroughputLimit", "DeduplicationScope"];
    for (name, set) in [
        ("none.fifo", &[][..]),
        ("count.fifo", &[("PartitionCount", "8")]),
        ("limit.fifo", &[("PartitionCount", "8"), ("FifoThroughputLimit", "perQueue")]),
        (
            "all.fifo",
            &[
                ("PartitionCount", "32"),
                ("FifoThroughputLimit", "perMessageGroupId"),
                ("DeduplicationScope", "messageGroup"),
            ],
        ),
        // As tools that make queues of high throughput write it: one partition, and ids of the group's own.
        ("tool.fifo", &[("FifoThroughputLimit", "perMessageGroupId"), ("DeduplicationScope", "messageGroup")]),
    ] {
        let all: Vec<_> = set.iter().copied().chain([("FifoQueue", "true")]).collect();
        ok(&on, queue(name, &all)).await;
        assert_eq!(attributes_of(&on, name, &names).await, map(set), "{name}");
        let shown = attributes_of(&on, name, &["All"]).await;
        assert!(set.iter().all(|(name, value)| shown[*name] == *value), "{name}");
    }
    ok(&on, queue("standard", &[("PartitionCount", "1")])).await;
    assert!(attributes_of(&on, "standard", &names).await.is_empty());
}

pub async fn rule_02_no_partition_and_one_are_the_same(on: TestStore) {
    let fifo = |count: &str| queue(ORDERS, &[("FifoQueue", "true"), ("PartitionCount", count)]);
    let set = |count: &str| SetQueueAttributes {
        queue_url: url(ORDERS),
        attributes: map(&[("PartitionCount", count), ("DelaySeconds", "0")]),
    };
    ok(&on, fifo("0")).await;
    ok(&on, fifo("1")).await;
    ok(&on, queue(ORDERS, &[("FifoQueue", "true")])).await;
    assert_eq!(refusal(&on, fifo("2")).await, Code::QueueNameExists);
    for same in ["0", "1", "01"] {
        ok(&on, set(same)).await;
    }
    assert_eq!(refusal(&on, set("2")).await, Code::InvalidAttributeValue);
    assert_eq!(on.count("SELECT count(*) FROM parts").await.unwrap(), 1);
    // Such a queue has handles of one kind only, and routes to its one partition.
    ok(&on, SendMessage { message_deduplication_id: Some("d".to_owned()), ..message("g3", "m") }).await;
    assert!(receive(&on, 1).await[0].receipt_handle.starts_with("AQ"));
}

pub async fn rule_03_what_cannot_be_is_refused_when_a_queue_is_made(on: TestStore) {
    let fifo = |pairs: &[(&str, &str)]| {
        let all: Vec<_> = pairs.iter().copied().chain([("FifoQueue", "true")]).collect();
        queue(ORDERS, &all)
    };
    for count in ["3", "64", "33", "-1", "", "two", "4.0"] {
        assert_eq!(refusal(&on, fifo(&[("PartitionCount", count)])).await, Code::InvalidAttributeValue, "{count}");
    }
    for bad in [("FifoThroughputLimit", "perNobody"), ("DeduplicationScope", "everywhere")] {
        assert_eq!(refusal(&on, fifo(&[bad])).await, Code::InvalidAttributeValue, "{bad:?}");
    }
    let both = fifo(&[("PartitionCount", "2"), ("DeduplicationScope", "queue")]);
    let error = refused(&on, both).await;
    assert_eq!((error.code(), error.code().entry().sqs.shape), (Code::InvalidRequest, "InvalidParameterValue"));
    for bad in [("PartitionCount", "2"), ("FifoThroughputLimit", "perQueue"), ("DeduplicationScope", "messageGroup")] {
        assert_eq!(refusal(&on, queue("standard", &[bad])).await, Code::InvalidAttributeValue, "{bad:?}");
    }
    // Nothing was made, and nothing was noted about what it would have needed.
    assert_eq!(on.count("SELECT count(*) FROM parts").await.unwrap(), 0);
    assert_eq!(on.count("SELECT count(*) FROM required_capabilities").await.unwrap(), 0);
    for count in ["0", "1"] {
        ok(&on, queue("standard", &[("PartitionCount", count)])).await;
    }
    ok(&on, fifo(&[("PartitionCount", "1"), ("DeduplicationScope", "queue")])).await;
}

pub async fn rule_04_what_messages_are_found_by_stays(on: TestStore) {
    orders(&on, FOUR).await;
    let set = |pairs: &[(&str, &str)]| SetQueueAttributes { queue_url: url(ORDERS), attributes: map(pairs) };
    for bad in [
        ("PartitionCount", "8"),
        ("PartitionCount", "1"),
        ("PartitionCount", "0"),
        ("FifoThroughputLimit", "perQueue"),
        ("DeduplicationScope", "queue"),
    ] {
        let error = refused(&on, set(&[("DelaySeconds", "7"), bad])).await;
        assert_eq!(error.code(), Code::InvalidAttributeValue, "{bad:?}");
        assert!(error.message().contains(bad.0), "{}", error.message());
    }
    // The whole request was refused, also what could have been changed.
    assert_eq!(attributes_of(&on, ORDERS, &["DelaySeconds"]).await, map(&[("DelaySeconds", "0")]));
    let same = [
        ("PartitionCount", "4"),
        ("FifoThroughputLimit", "perMessageGroupId"),
        ("DeduplicationScope", "messageGroup"),
        ("DelaySeconds", "7"),
    ];
    ok(&on, set(&same)).await;
    assert_eq!(attributes_of(&on, ORDERS, &["DelaySeconds"]).await, map(&[("DelaySeconds", "7")]));
    // The same goes for one that is made again.
    let again = |pair| queue(ORDERS, &[("FifoQueue", "true"), pair]);
    ok(&on, again(("FifoThroughputLimit", "perMessageGroupId"))).await;
    ok(&on, again(("DeduplicationScope", "messageGroup"))).await;
    for other in [("PartitionCount", "8"), ("PartitionCount", "1"), ("FifoThroughputLimit", "perQueue")] {
        assert_eq!(refusal(&on, again(other)).await, Code::QueueNameExists, "{other:?}");
    }
}

pub async fn rule_05_a_group_has_its_partition(on: TestStore) {
    orders(&on, &[("PartitionCount", "8")]).await;
    let all: Vec<String> = (0..40).map(|number| format!("group-{number}")).collect();
    // One by one, and several in a batch.
    for (number, group) in all.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        send(&on, group, &format!("m{number}")).await;
    }
    let odd: Vec<_> = all.iter().enumerate().filter(|(number, _)| number % 2 == 1).collect();
    for (from, some) in odd.chunks(10).enumerate() {
        let entry = |(number, group): &(usize, &String)| SendEntry {
            id: number.to_string(),
            message_body: format!("m{number} {from}"),
            message_group_id: Some((*group).clone()),
            ..SendEntry::default()
        };
        let batch = SendMessageBatch {
            queue_url: url(ORDERS),
            entries: some.iter().map(entry).collect(),
            ..Default::default()
        };
        let sent = ok(&on, batch).await;
        assert_eq!((sent.successful.len(), sent.failed.len()), (some.len(), 0));
        for ((_, group), entry) in some.iter().zip(&sent.successful) {
            assert_eq!(entry.sent.partition.map(i64::from), Some(route(group, 7)), "{group}");
        }
    }
    let expected: BTreeSet<_> = all.iter().map(|group| (group.clone(), route(group, 7))).collect();
    assert_eq!(partitions_of_groups(&on).await, expected);
    assert_eq!(expected.iter().map(|(_, partition)| *partition).collect::<BTreeSet<_>>().len(), 8);
}

pub async fn rule_06_partitions_share_no_rows(on: TestStore) {
    ok(&on, queue("plain.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")])).await;
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    ok(&on, SendMessage { queue_url: url("plain.fifo"), ..message("g0", "m") }).await;
    for table in ["fifo_groups", "fifo_lines", "fifo_duplicates"] {
        let sql = format!(
            "SELECT count(*) FROM {table} t JOIN parts p ON p.part = t.part WHERE p.queue = 'orders.fifo' \
             AND NOT EXISTS (SELECT 1 FROM {table} o WHERE o.part <> t.part AND o.part IN (SELECT part FROM parts \
             WHERE queue = 'orders.fifo' AND partition = p.partition))"
        );
        assert_eq!(on.count(&sql).await.unwrap(), 4, "{table}");
    }
    // A queue that is not split is as it was: one part, partition 0, and duplicates of the queue.
    let plain = on.rows("SELECT partition FROM parts WHERE queue = 'plain.fifo'").await.unwrap();
    assert_eq!((plain.len(), plain[0].int(0).unwrap()), (1, 0));
    let sql = "SELECT count(*) FROM fifo_duplicates d JOIN parts p ON p.part = d.part WHERE d.scope = '' \
               AND p.queue = 'plain.fifo'";
    assert_eq!(on.count(sql).await.unwrap(), 1);
}

pub async fn rule_07_duplicates_are_of_their_group(on: TestStore) {
    orders(&on, FOUR).await;
    // Two groups of one partition, and one of another.
    let neighbour = (0..).map(|number| format!("n{number}")).find(|name| route(name, 3) == route("g0", 3)).unwrap();
    let with = |group: &str, text: &str| SendMessage {
        message_deduplication_id: Some("same".to_owned()),
        ..message(group, text)
    };
    let mut first = BTreeMap::new();
    for group in ["g0", &neighbour, "g1"] {
        first.insert(group.to_owned(), ok(&on, with(group, "first")).await.message_id);
    }
    assert_eq!(first.values().collect::<BTreeSet<_>>().len(), 3);
    for (group, id) in &first {
        let again = ok(&on, with(group, "second")).await;
        assert_eq!((again.message_id, again.partition), (*id, None), "{group}");
    }
    assert_eq!(on.count("SELECT count(*) FROM messages").await.unwrap(), 3);
    // Also within one batch, each by its own group.
    let entry = |id: &str, group: &str| SendEntry {
        id: id.to_owned(),
        message_body: "third".to_owned(),
        message_group_id: Some(group.to_owned()),
        message_deduplication_id: Some("other".to_owned()),
        ..SendEntry::default()
    };
    let entries = vec![entry("a", "g0"), entry("b", "g1"), entry("c", "g0"), entry("d", &neighbour)];
    let sent = ok(&on, SendMessageBatch { queue_url: url(ORDERS), entries, ..Default::default() }).await.successful;
    assert_eq!(sent[0].sent.message_id, sent[2].sent.message_id);
    assert_eq!(on.count("SELECT count(*) FROM messages").await.unwrap(), 6);
    // Without partitions the scope is what was set.
    ok(&on, queue("queue.fifo", &[("FifoQueue", "true"), ("DeduplicationScope", "queue")])).await;
    ok(&on, queue("group.fifo", &[("FifoQueue", "true"), ("DeduplicationScope", "messageGroup")])).await;
    for (name, kept) in [("queue.fifo", 1), ("group.fifo", 2)] {
        for group in ["a", "b"] {
            ok(&on, SendMessage { queue_url: url(name), ..with(group, "m") }).await;
        }
        let counted = crate::support::counted(&on, name).await;
        assert_eq!(counted, (kept, 0, 0), "{name}");
    }
}

/// On PostgreSQL a sender stands still in the middle of its transaction; on SQLite there is one writer, and each partition
/// has its own numbers.
pub async fn rule_08_a_sender_waits_for_nobody_of_another_partition(on: TestStore) {
    orders(&on, FOUR).await;
    let on = Arc::new(on);
    if on.store.is_postgres() {
        let (gate, mut arrived) = Gate::new();
        let gate = Arc::new(gate);
        let (held, through) = (Arc::clone(&on), Arc::clone(&gate));
        let slow = tokio::spawn(async move {
            held.store.run_gated(message("g0", "slow"), held.admin.clone(), Some(through)).await.unwrap();
        });
        for _ in 0..4 {
            timeout(FAILED, arrived.recv()).await.unwrap().unwrap();
            gate.step();
        }
        timeout(FAILED, arrived.recv()).await.unwrap().unwrap();
        for group in ["user-1", "g1", "g3"] {
            timeout(FAILED, send(&on, group, "quick")).await.unwrap();
        }
        gate.open();
        timeout(FAILED, slow).await.unwrap().unwrap();
    } else {
        for _ in 0..2 {
            send(&on, "g0", &format!("m{:?}", Instant::now())).await;
        }
        let sql = "SELECT next FROM parts ORDER BY partition";
        let next: Vec<i64> = on.rows(sql).await.unwrap().iter().map(|row| row.int(0).unwrap()).collect();
        assert_eq!(next, [0, 0, 2, 0]);
    }
    let mut last = String::new();
    for number in 0..5 {
        let sequence = send(&on, "g0", &format!("in order {number}")).await.sequence_number.unwrap();
        assert!(sequence > last, "{sequence} after {last}");
        last = sequence;
    }
}

pub async fn rule_09_one_receive_covers_all_partitions(on: TestStore) {
    orders(&on, FOUR).await;
    for text in ["1", "2"] {
        send_to_all(&on, text).await;
    }
    let all = receive(&on, 10).await;
    assert_eq!(all.len(), 8);
    for group in GROUPS {
        let own: Vec<_> = texts(&all).into_iter().filter(|text| text.starts_with(group)).collect();
        assert_eq!(own, [format!("{group} 1"), format!("{group} 2")], "each group in its order");
    }
    assert!(receive(&on, 10).await.is_empty());
    for message in &all {
        delete(&on, message).await;
    }
    // A client that asks for one at a time drains everything, too.
    send_to_all(&on, "3").await;
    let mut got = BTreeSet::new();
    for _ in 0..4 {
        let one = receive(&on, 1).await;
        got.insert(one[0].body.clone());
        delete(&on, &one[0]).await;
    }
    assert_eq!(got.len(), 4);
    assert_eq!(on.count("SELECT count(*) FROM messages").await.unwrap(), 0);
}

pub async fn rule_09_each_receive_begins_with_another_partition(on: TestStore) {
    orders(&on, &[("PartitionCount", "4"), ("VisibilityTimeout", "0")]).await;
    send_to_all(&on, "m").await;
    // Nothing is taken away, so whichever partition is first is the one that answers.
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.extend(groups(&receive(&on, 1).await).into_iter().map(str::to_owned));
    }
    assert_eq!(seen[..4], GROUPS);
    assert_eq!(seen[4..], GROUPS);
    // Where a receive ends before it has seen them all, the next goes on from there.
    assert_eq!(groups(&receive(&on, 3).await), &GROUPS[..3]);
    assert_eq!(groups(&receive(&on, 3).await), [GROUPS[3], GROUPS[0], GROUPS[1]]);
    assert_eq!(groups(&receive(&on, 1).await), [GROUPS[2]]);
}

pub async fn rule_09_queues_that_are_received_from_in_turn_do_not_miss_partitions(on: TestStore) {
    let both = ["one.fifo", "two.fifo"];
    for name in both {
        let attributes = [
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", "true"),
            ("PartitionCount", "2"),
            ("VisibilityTimeout", "0"),
        ];
        ok(&on, queue(name, &attributes)).await;
        for group in ["user-1", "g1"] {
            ok(&on, SendMessage { queue_url: url(name), ..message(group, group) }).await;
        }
    }
    for name in both {
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            for other in both {
                let one = ok(&on, ReceiveMessage { queue_url: url(other), ..up_to(1) }).await.messages;
                if other == name {
                    seen.insert(one[0].body.clone());
                }
            }
        }
        assert_eq!(seen.len(), 2, "{name}");
    }
}

pub async fn rule_09_a_queue_limited_as_one_uses_one_partition(on: TestStore) {
    orders(&on, &[("PartitionCount", "8"), ("FifoThroughputLimit", "perQueue")]).await;
    for group in ["user-1", "g0", "g1", "g3", "g4"] {
        send(&on, group, group).await;
    }
    assert_eq!(
        partitions_of_groups(&on).await.iter().map(|(_, partition)| *partition).collect::<BTreeSet<_>>(),
        [0].into()
    );
    let all = receive(&on, 10).await;
    assert_eq!(all.len(), 5);
    // Its handles are those of a partitioned queue all the same.
    assert!(all.iter().all(|message| message.receipt_handle.starts_with("Ag") && message.partition == Some(0)));
    delete(&on, &all[0]).await;
    assert_eq!(on.count("SELECT count(*) FROM messages").await.unwrap(), 4);
}

pub async fn rule_10_an_empty_queue_is_waited_for_once(on: TestStore) {
    orders(&on, FOUR).await;
    let began = Instant::now();
    let wait = ReceiveMessage { wait_time_seconds: Some(2), ..up_to(10) };
    assert!(ok(&on, wait).await.messages.is_empty());
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1_900) && took < Duration::from_secs(8), "it took {took:?}");
    // No wait at all still looks into each.
    for group in GROUPS {
        send(&on, group, group).await;
        let at_once = ReceiveMessage { wait_time_seconds: Some(0), ..up_to(1) };
        assert_eq!(texts(&ok(&on, at_once).await.messages), [group]);
    }
}

/// A server that has no time at all looks into one partition, and goes on from there.
pub async fn rule_10_partitions_that_were_cut_off_come_first(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    let hasty = Process::default().with_pass_max(Duration::ZERO);
    let store = another(&on, |settings| settings.with(hasty)).await.unwrap();
    let look = || async {
        let Reply::Done(received) = store.run(up_to(10), on.admin.clone()).await.unwrap() else { panic!("empty") };
        groups(&received.messages).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for group in GROUPS {
        assert_eq!(look().await, [group]);
    }
    store.close();
}

/// Another server on the same database, with settings of its own.
pub async fn another(on: &TestStore, more: impl FnOnce(Settings) -> Settings) -> Result<Store> {
    let backend = match on.store.is_postgres() {
        true => Backend::Postgres(stores::postgres_options(&on.database().unwrap().url)),
        // The file is of one program at a time.
        false => {
            on.store.close();
            Backend::Sqlite(SqliteOptions::at(on.file().unwrap()))
        }
    };
    stores::open_with(backend, &on.time, more).await
}

async fn wait_for(on: &Arc<TestStore>) -> tokio::task::JoinHandle<Vec<Message>> {
    let waits = Arc::clone(on);
    let wait = ReceiveMessage { wait_time_seconds: Some(20), ..up_to(10) };
    let waiter = tokio::spawn(async move { ok(&waits, wait).await.messages });
    tokio::time::sleep(Duration::from_millis(200)).await;
    waiter
}

pub async fn rule_10_a_send_to_any_partition_ends_a_wait(on: TestStore) {
    orders(&on, &[("PartitionCount", "4"), ("VisibilityTimeout", "1000")]).await;
    let on = Arc::new(on);
    for group in GROUPS {
        let waiter = wait_for(&on).await;
        let began = Instant::now();
        send(&on, group, group).await;
        let messages = timeout(FAILED, waiter).await.unwrap().unwrap();
        assert_eq!(texts(&messages), [group]);
        assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    }
}

pub async fn rule_10_a_delay_in_any_partition_ends_a_wait(on: TestStore) {
    orders(&on, &[("PartitionCount", "4"), ("VisibilityTimeout", "5")]).await;
    send_to_all(&on, "m").await;
    assert_eq!(receive(&on, 10).await.len(), 4);
    let on = Arc::new(on);
    let waiter = wait_for(&on).await;
    let began = Instant::now();
    pass(&on, 6);
    assert!(!timeout(FAILED, waiter).await.unwrap().unwrap().is_empty());
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
}

pub async fn a_receive_from_many_partitions_can_be_made_again(on: TestStore) {
    orders(&on, &[("PartitionCount", "4"), ("VisibilityTimeout", "100")]).await;
    send_to_all(&on, "m").await;
    let attempt = || ReceiveMessage { receive_request_attempt_id: Some("one".to_owned()), ..up_to(10) };
    let first = ok(&on, attempt()).await.messages;
    assert_eq!(first.len(), 4);
    assert_eq!(ok(&on, attempt()).await.messages, first);
    delete(&on, &first[3]).await;
    assert!(ok(&on, attempt()).await.messages.is_empty());
}
