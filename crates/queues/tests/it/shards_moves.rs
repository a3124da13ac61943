//! Dead letters in several stores are moved back, or elsewhere, each once and in the order of its group.

use std::collections::BTreeMap;

use serde_json::json;
use waybill_queues::ops::cancel_message_move_task::CancelMessageMoveTask;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::list_message_move_tasks::{ListMessageMoveTasks, MoveTask};
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::ops::start_message_move_task::StartMessageMoveTask;
use waybill_queues::shards::{move_once, tend_once};
use waybill_queues::sweeps::Moves;
use waybill_queues::{PartitionMap, Process, Settings};
use waybill_testkit::both;
use waybill_testkit::stores::{TestStore, readable};

use crate::fifo::{ORDERS, message, up_to};
use crate::partitions::{FOUR, GROUPS};
use crate::shards::restarted_as;
use crate::support::{arn, counted, map, ok, pass, queue, refused, sweep, tend, url};

const DEAD: &str = "dead.fifo";
/// In home alone.
const SOURCE: &str = "source.fifo";
/// In a store that has nothing else.
const FAR: &str = "far.fifo";
/// Of each group. A receive takes ten messages at most, so the rest of a group waits for those.
const EACH: usize = 12;
const ALL: i64 = (GROUPS.len() * EACH) as i64;

/// The first of four groups stays in its store, the others go from one store to another, to and from home among them.
pub fn placed() -> Settings {
    let entries = ["dead.fifo:4=a,b,home,a", "orders.fifo:4=a,home,b,b", "other.fifo:2=home,b", "far.fifo:1=c"];
    Settings { partition_map: PartitionMap::parse(&entries).unwrap(), ..Settings::default() }
}

both! {
    crate::shards_moves::placed(), shards crate::shards_rules::SHARDS =>
    dead_letters_of_several_stores_go_back_to_a_queue_in_home,
    dead_letters_of_several_stores_go_back_to_a_queue_in_several,
    dead_letters_of_several_stores_go_elsewhere,
    dead_letters_of_home_go_back_to_a_queue_in_several_stores,
    a_task_of_several_stores_keeps_its_pace_and_can_be_cancelled,
    a_message_in_any_store_that_came_from_nowhere_fails_the_task,
    a_destination_that_is_gone_fails_the_task_in_any_store,
    a_destination_that_goes_while_messages_are_on_their_way_fails_the_task,
    what_has_departed_arrives_once_after_a_restart,
    a_task_waits_for_a_destination_that_is_away,
    a_task_waits_for_a_source_that_is_away,
    a_store_that_is_behind_moves_nothing_of_before,
    two_who_move_at_once_move_each_message_once,
    an_operator_starts_a_redrive_of_several_stores,
}

/// A queue whose messages die after one receive.
async fn dies_into_dead(on: &TestStore, name: &str, attributes: &[(&str, &str)]) {
    ok(on, queue(DEAD, &[("FifoQueue", "true"), ("PartitionCount", "4")])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn(DEAD));
    let mut all = vec![("FifoQueue", "true"), ("ContentBasedDeduplication", "true"), ("VisibilityTimeout", "1")];
    all.push(("RedrivePolicy", &policy));
    all.extend(attributes);
    ok(on, queue(name, &all)).await;
}

/// So many messages of each group of a queue are sent, received and die.
async fn die(on: &TestStore, name: &str, each: usize) {
    for number in 0..each {
        for group in GROUPS {
            ok(on, SendMessage { queue_url: url(name), ..message(group, &text(group, number)) }).await;
        }
    }
    while counted(on, name).await != (0, 0, 0) {
        ok(on, from(name)).await;
        pass(on, 2);
        tend(on).await;
    }
    assert_eq!(counted(on, DEAD).await, ((GROUPS.len() * each) as i64, 0, 0));
}

fn text(group: &str, number: usize) -> String {
    format!("{group} {number:02}")
}

fn from(name: &str) -> ReceiveMessage {
    ReceiveMessage { queue_url: url(name), ..up_to(10) }
}

fn start() -> StartMessageMoveTask {
    StartMessageMoveTask { source_arn: arn(DEAD), ..StartMessageMoveTask::default() }
}

fn start_to(name: &str) -> StartMessageMoveTask {
    StartMessageMoveTask { destination_arn: Some(arn(name)), ..start() }
}

/// The latest.
async fn task(on: &TestStore) -> MoveTask {
    ok(on, ListMessageMoveTasks { source_arn: arn(DEAD), max_results: None }).await.results.remove(0)
}

async fn is_completed(on: &TestStore, moved: i64) {
    let task = task(on).await;
    assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("COMPLETED", moved));
    assert_eq!((task.task_handle, task.failure_reason), (None, None));
    assert_eq!((counted(on, DEAD).await, on_their_way(on).await), ((0, 0, 0), 0));
}

/// Everything that a queue has, by group, in the order in which it is received. Nothing is left of it.
async fn drained(on: &TestStore, name: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        let messages = ok(on, from(name)).await.messages;
        if messages.is_empty() {
            assert_eq!(counted(on, name).await, (0, 0, 0));
            return all;
        }
        for message in messages {
            let receipt_handle = message.receipt_handle.clone();
            ok(on, DeleteMessage { queue_url: url(name), receipt_handle, ..DeleteMessage::default() }).await;
            all.entry(message.attributes["MessageGroupId"].clone()).or_default().push(message.body);
        }
    }
}

fn in_order(each: usize) -> BTreeMap<String, Vec<String>> {
    let texts = |group: &str| -> Vec<String> { (0..each).map(|number| text(group, number)).collect() };
    GROUPS.map(|group| (group.to_owned(), texts(group))).into_iter().collect()
}

/// Another program on the same stores, which knows nothing of before.
async fn restarted(mut on: TestStore) -> TestStore {
    let again = restarted_as(&on, placed(), Process::default()).await;
    on.store = again.home().clone();
    on.stores = again;
    // On PostgreSQL the clock of a new process begins with the database's time, before what has passed in the test.
    pass(&on, 1_000);
    on
}

async fn on_their_way(on: &TestStore) -> i64 {
    on.count("SELECT count(*) FROM transfers WHERE refused = 0").await.unwrap()
}

async fn dead_letters_of_several_stores_go_back_to_a_queue_in_home(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, EACH).await;
    ok(&on, start()).await;
    let running = task(&on).await;
    assert_eq!((running.status.as_str(), running.approximate_number_of_messages_to_move), ("RUNNING", ALL));
    tend(&on).await;
    is_completed(&on, ALL).await;
    // They are young again, and no dead letters.
    let young = ok(&on, from(SOURCE)).await.messages.remove(0);
    assert_eq!(young.attributes["ApproximateReceiveCount"], "1");
    assert!(!young.attributes.contains_key("DeadLetterQueueSourceArn"));
    let attributes = map(&[("RedrivePolicy", "")]);
    ok(&on, SetQueueAttributes { queue_url: url(SOURCE), attributes }).await;
    pass(&on, 2);
    assert_eq!(drained(&on, SOURCE).await, in_order(EACH));
    assert_eq!(on.count("SELECT count(*) FROM fifo_groups").await.unwrap(), 0);
}

async fn dead_letters_of_several_stores_go_back_to_a_queue_in_several(on: TestStore) {
    dies_into_dead(&on, ORDERS, FOUR).await;
    die(&on, ORDERS, EACH).await;
    ok(&on, start()).await;
    tend(&on).await;
    is_completed(&on, ALL).await;
    assert_eq!(drained(&on, ORDERS).await, in_order(EACH));
    // Nothing is left to move.
    pass(&on, 1);
    ok(&on, start()).await;
    tend(&on).await;
    is_completed(&on, 0).await;
}

async fn dead_letters_of_several_stores_go_elsewhere(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, 3).await;
    ok(&on, queue("other.fifo", &[("FifoQueue", "true"), ("PartitionCount", "2")])).await;
    // What nobody knows the source of can go there too.
    let own = SendMessage {
        queue_url: url(DEAD),
        message_deduplication_id: Some("own".to_owned()),
        ..message("g1", "g1 own")
    };
    ok(&on, own).await;
    ok(&on, start_to("other.fifo")).await;
    tend(&on).await;
    assert_eq!(task(&on).await.destination_arn, Some(arn("other.fifo")));
    is_completed(&on, 13).await;
    let mut expected = in_order(3);
    expected.get_mut("g1").unwrap().push("g1 own".to_owned());
    assert_eq!(drained(&on, "other.fifo").await, expected);
}

/// A group that waits for those of it that are on their way is not the end of the task.
async fn dead_letters_of_home_go_back_to_a_queue_in_several_stores(on: TestStore) {
    const ROUNDS: usize = 6;
    dies_into_dead(&on, ORDERS, FOUR).await;
    ok(&on, queue("graves.fifo", &[("FifoQueue", "true")])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("graves.fifo"));
    let attributes = map(&[("RedrivePolicy", &policy)]);
    ok(&on, SetQueueAttributes { queue_url: url(ORDERS), attributes }).await;
    for number in 0..EACH {
        ok(&on, message("g0", &text("g0", number))).await;
    }
    while counted(&on, ORDERS).await != (0, 0, 0) {
        ok(&on, from(ORDERS)).await;
        pass(&on, 2);
        tend(&on).await;
    }
    assert_eq!(counted(&on, "graves.fifo").await.0, EACH as i64);
    ok(&on, StartMessageMoveTask { source_arn: arn("graves.fifo"), ..StartMessageMoveTask::default() }).await;
    for _ in 0..ROUNDS {
        sweep(&on, Moves::new(&Settings::default())).await;
        tend(&on).await;
    }
    assert_eq!(on.count("SELECT count(*) FROM move_tasks WHERE status = 'COMPLETED'").await.unwrap(), 1);
    let expected: Vec<String> = (0..EACH).map(|number| text("g0", number)).collect();
    assert_eq!(drained(&on, ORDERS).await, BTreeMap::from([("g0".to_owned(), expected)]));
}

async fn a_task_of_several_stores_keeps_its_pace_and_can_be_cancelled(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, 3).await;
    let paced = StartMessageMoveTask { max_number_of_messages_per_second: Some(4), ..start() };
    let handle = ok(&on, paced).await.task_handle;
    tend(&on).await;
    assert_eq!(counted(&on, SOURCE).await, (0, 0, 0));
    for moved in [4, 8] {
        // More than a second without a round is not made up for.
        pass(&on, 2);
        tend(&on).await;
        tend(&on).await;
        assert_eq!(task(&on).await.approximate_number_of_messages_moved, moved);
        assert_eq!((counted(&on, SOURCE).await, counted(&on, DEAD).await), ((moved, 0, 0), (12 - moved, 0, 0)));
    }
    let cancelled = ok(&on, CancelMessageMoveTask { task_handle: handle }).await;
    assert_eq!(cancelled.approximate_number_of_messages_moved, 8);
    pass(&on, 10);
    tend(&on).await;
    let task = task(&on).await;
    assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("CANCELLED", 8));
    assert_eq!((counted(&on, SOURCE).await, counted(&on, DEAD).await), ((8, 0, 0), (4, 0, 0)));
}

async fn a_message_in_any_store_that_came_from_nowhere_fails_the_task(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    for group in GROUPS {
        let own = SendMessage {
            queue_url: url(DEAD),
            message_deduplication_id: Some(group.to_owned()),
            ..message(group, "own")
        };
        ok(&on, own).await;
        ok(&on, start()).await;
        tend(&on).await;
        let task = task(&on).await;
        assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("FAILED", 0), "{group}");
        assert_eq!(task.failure_reason.as_deref(), Some("CouldNotDetermineMessageSource"), "{group}");
        // It is as if nobody had touched it.
        let kept = ok(&on, from(DEAD)).await.messages.remove(0);
        assert_eq!((kept.body.as_str(), kept.attributes["ApproximateReceiveCount"].as_str()), ("own", "1"), "{group}");
        ok(&on, PurgeQueue { queue_url: url(DEAD) }).await;
        pass(&on, 61);
    }
}

async fn a_destination_that_is_gone_fails_the_task_in_any_store(on: TestStore) {
    dies_into_dead(&on, ORDERS, FOUR).await;
    die(&on, ORDERS, 1).await;
    ok(&on, start()).await;
    ok(&on, DeleteQueue { queue_url: url(ORDERS) }).await;
    tend(&on).await;
    let failed = task(&on).await;
    assert_eq!((failed.status.as_str(), failed.approximate_number_of_messages_moved), ("FAILED", 0));
    assert_eq!(failed.failure_reason.as_deref(), Some("AWS.SimpleQueueService.NonExistentQueue"));
    assert_eq!(counted(&on, DEAD).await, (4, 0, 0));
    // With the source its tasks are gone.
    dies_into_dead(&on, SOURCE, &[]).await;
    ok(&on, start_to(SOURCE)).await;
    ok(&on, DeleteQueue { queue_url: url(DEAD) }).await;
    assert_eq!(on.count("SELECT count(*) FROM move_tasks").await.unwrap(), 0);
    tend(&on).await;
    assert_eq!(counted(&on, SOURCE).await, (0, 0, 0));
}

/// They come back, and can be moved elsewhere.
async fn a_destination_that_goes_while_messages_are_on_their_way_fails_the_task(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, 2).await;
    ok(&on, queue(FAR, &[("FifoQueue", "true")])).await;
    ok(&on, start_to(FAR)).await;
    move_once(&on.stores).await.map_err(readable).unwrap();
    assert_eq!(on_their_way(&on).await, 8);
    ok(&on, DeleteQueue { queue_url: url(FAR) }).await;
    tend(&on).await;
    assert_eq!(task(&on).await.failure_reason.as_deref(), Some("AWS.SimpleQueueService.NonExistentQueue"));
    assert_eq!(counted(&on, DEAD).await, (8, 0, 0));
    pass(&on, 1);
    ok(&on, start()).await;
    tend(&on).await;
    is_completed(&on, 8).await;
    assert_eq!(drained(&on, SOURCE).await, in_order(2));
}

/// The program has ended between the first step and the second.
async fn what_has_departed_arrives_once_after_a_restart(mut on: TestStore) {
    dies_into_dead(&on, ORDERS, FOUR).await;
    die(&on, ORDERS, EACH).await;
    ok(&on, start()).await;
    for _ in 0..2 {
        move_once(&on.stores).await.map_err(readable).unwrap();
        assert!(on_their_way(&on).await > 0);
        assert_eq!(task(&on).await.status, "RUNNING", "what is on its way holds the rest of its group");
        on = restarted(on).await;
        tend_once(&on.stores).await.map_err(readable).unwrap();
    }
    tend(&on).await;
    is_completed(&on, ALL).await;
    assert_eq!(drained(&on, ORDERS).await, in_order(EACH));
}

async fn a_task_waits_for_a_destination_that_is_away(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, EACH).await;
    ok(&on, queue(FAR, &[("FifoQueue", "true")])).await;
    on.stores.find("c").unwrap().close();
    ok(&on, start_to(FAR)).await;
    for _ in 0..3 {
        // It fails when there is something to carry, and not before that nor while it is not tried again.
        let _ = tend_once(&on.stores).await;
    }
    assert_eq!(task(&on).await.status, "RUNNING");
    assert!(ok(&on, from(DEAD)).await.messages.is_empty(), "their groups wait for those that are on their way");
    let on = restarted(on).await;
    pass(&on, 10);
    tend(&on).await;
    is_completed(&on, ALL).await;
    assert_eq!(drained(&on, FAR).await, in_order(EACH));
}

/// What the other stores have is moved meanwhile.
async fn a_task_waits_for_a_source_that_is_away(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, EACH).await;
    ok(&on, start()).await;
    on.stores.find("b").unwrap().close();
    for _ in 0..6 {
        assert!(tend_once(&on.stores).await.is_err());
    }
    assert_eq!((task(&on).await.status.as_str(), counted(&on, SOURCE).await), ("RUNNING", (ALL - EACH as i64, 0, 0)));
    assert_eq!(refused(&on, start()).await.code().entry().http, 503, "nobody knows how much there is to move");
    let on = restarted(on).await;
    pass(&on, 10);
    tend(&on).await;
    is_completed(&on, ALL).await;
    assert_eq!(drained(&on, SOURCE).await, in_order(EACH));
}

/// Home is purged, and the program has ended before the others were.
async fn a_store_that_is_behind_moves_nothing_of_before(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, 1).await;
    on.store.run(PurgeQueue { queue_url: url(DEAD) }, on.admin.clone()).await.unwrap();
    ok(&on, start()).await;
    move_once(&on.stores).await.map_err(readable).unwrap();
    is_completed(&on, 0).await;
    tend(&on).await;
    assert_eq!(counted(&on, SOURCE).await, (0, 0, 0));
}

async fn two_who_move_at_once_move_each_message_once(on: TestStore) {
    const ROUNDS: usize = 10;
    dies_into_dead(&on, ORDERS, FOUR).await;
    die(&on, ORDERS, EACH).await;
    ok(&on, start()).await;
    // One may find that the other is at it, which is no failure.
    let rounds = async || {
        for _ in 0..ROUNDS {
            let _ = tend_once(&on.stores).await;
        }
    };
    tokio::join!(rounds(), rounds());
    pass(&on, 10);
    tend(&on).await;
    is_completed(&on, ALL).await;
    assert_eq!(drained(&on, ORDERS).await, in_order(EACH));
}

async fn an_operator_starts_a_redrive_of_several_stores(on: TestStore) {
    dies_into_dead(&on, SOURCE, &[]).await;
    die(&on, SOURCE, 1).await;
    on.call(&on.admin, "start_redrive", json!({ "queue": DEAD })).await.unwrap();
    let redrive = async || {
        let listed = on.call(&on.admin, "list_redrives", json!({ "queue": DEAD })).await.unwrap().json;
        let of = &listed["redrives"][0];
        (of["status"].clone(), of["moved"].clone(), of["to_move"].clone())
    };
    assert_eq!(redrive().await, (json!("RUNNING"), json!(0), json!(4)));
    tend(&on).await;
    assert_eq!(redrive().await, (json!("COMPLETED"), json!(4), json!(4)));
    assert_eq!(drained(&on, SOURCE).await, in_order(1));
}
