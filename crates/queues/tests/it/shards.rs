//! Partitions in several stores: how they are placed, and what becomes of changes that are cut off between two stores.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use waybill_kernel::{Code, Mode, Result, Tenant};
use waybill_queues::ops::change_message_visibility::ChangeMessageVisibility;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::operator::peek_messages::PeekMessages;
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::rules::handle::Handle;
use waybill_queues::shards::{OnShards, check_placement};
use waybill_queues::{Figures, PartitionMap, Process, Settings, Tally};
use waybill_store::{Backend, Ctx, Shard, SqliteOptions, Store, Stores, Tx, Value, Work};
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore, readable};

use crate::fifo::{ORDERS, message, orders, receive, send, texts, up_to};
use crate::partitions::{FOUR, GROUPS, send_to_all};
use crate::shards_rules::SHARDS;
use crate::support::{arn, call, counted, drain, map, ok, pass, queue, refusal, refused, rows, tend, url};

/// Two partitions in one store, one in another, one in home; and queues of one partition in each of the two.
pub fn placed() -> Settings {
    placed_by(&["orders.fifo:4=a,b,home,a", "single.fifo:1=b", "other.fifo:1=a"])
}

fn placed_by(entries: &[&str]) -> Settings {
    Settings { partition_map: PartitionMap::parse(entries).unwrap(), ..Settings::default() }
}

both! {
    crate::shards::placed(), shards crate::shards_rules::SHARDS =>
    rule_11_a_handle_of_another_kind_is_none_in_any_store,
    rule_13_each_partition_is_where_the_map_says,
    rule_13_a_queue_of_one_partition_can_be_placed,
    rule_13_what_is_recorded_routes,
    rule_14_a_queue_without_a_place_is_refused,
    no_partition_of_a_store_is_left_out,
    an_answer_of_several_stores_has_no_more_than_fits,
    attributes_are_followed_everywhere,
    rule_13_stores_that_follow_a_throttle_late_fill_no_bucket,
    rule_16_every_store_of_a_partitioned_queue_says_what_it_takes,
    a_purge_that_was_cut_off_is_finished,
    a_purge_that_was_cut_off_is_met_by_a_call,
    a_purge_that_was_cut_off_can_be_made_again,
    a_purge_that_is_made_again_takes_what_was_sent_meanwhile,
    a_change_that_was_cut_off_does_not_stand_for_a_purge,
    a_deletion_that_was_cut_off_is_finished,
    a_deletion_that_was_cut_off_does_not_touch_the_next_queue,
    a_deletion_that_was_cut_off_can_be_made_again,
    a_queue_whose_making_was_cut_off_is_met_by_a_call,
    what_is_left_of_a_queue_goes_in_its_time,
    operators_see_all_of_it,
    a_dead_letter_without_a_place_is_delivered_once_more,
    a_dead_letter_that_has_arrived_does_not_arrive_again,
    a_dead_letter_that_is_purged_on_its_way_leaves_nothing,
    a_dead_letter_that_is_purged_on_its_way_does_not_arrive,
    a_dead_letter_that_was_turned_away_leaves_nothing,
    each_database_has_its_name,
}

/// How many messages each store has, home first and the others by name.
pub async fn messages_of(on: &TestStore) -> Vec<i64> {
    on.rows("SELECT count(*) FROM messages").await.unwrap().iter().map(|row| row.int(0).unwrap()).collect()
}

async fn pending(on: &TestStore) -> i64 {
    on.count("SELECT count(*) FROM shard_changes").await.unwrap()
}

/// Another program on the same stores.
async fn restarted(on: &TestStore, settings: Settings) -> Stores {
    restarted_as(on, settings, Process::default()).await
}

pub async fn restarted_as(on: &TestStore, settings: Settings, process: Process) -> Stores {
    let home = match on.store.is_postgres() {
        true => Backend::Postgres(stores::postgres_options(&on.database().unwrap().url)),
        false => Backend::Sqlite(SqliteOptions::at(on.file().unwrap())),
    };
    on.stores.close();
    let home = stores::open_with(home, &on.time, |all| all.with(settings).with(process)).await.unwrap();
    on.beside(home, &on.shards(SHARDS)).await.map_err(readable).unwrap()
}

async fn rule_11_a_handle_of_another_kind_is_none_in_any_store(on: TestStore) {
    orders(&on, FOUR).await;
    send(&on, "g0", "m").await;
    let good = Handle::decode(&receive(&on, 1).await[0].receipt_handle).unwrap();
    assert_eq!(good.partition, Some(2));
    let gone = |handle: Handle| DeleteMessage {
        queue_url: url(ORDERS),
        receipt_handle: handle.encode(),
        ..DeleteMessage::default()
    };
    let changed = |handle: Handle| ChangeMessageVisibility {
        queue_url: url(ORDERS),
        receipt_handle: handle.encode(),
        visibility_timeout: Some(0),
        ..ChangeMessageVisibility::default()
    };
    for bad in [
        Handle { partition: None, ..good },
        Handle { partition: Some(4), ..good },
        Handle { partition: Some(u32::MAX), ..good },
        Handle { generation: good.generation + 1, ..good },
    ] {
        assert_eq!(refusal(&on, gone(bad)).await, Code::ReceiptHandleIsInvalid, "{bad:?}");
        assert_eq!(refusal(&on, changed(bad)).await, Code::ReceiptHandleIsInvalid, "{bad:?}");
    }
    // One that leads to another store is nobody's there: whatever it does, it does nothing.
    for other in [0, 1, 3] {
        let other = Handle { partition: Some(other), ..good };
        assert_eq!(refusal(&on, changed(other)).await, Code::ReceiptHandleIsInvalid);
        if let Ok(deleted) = call(&on, &on.admin, gone(other)).await {
            assert_eq!(deleted.tally, Tally::default());
        }
    }
    assert_eq!(rows(&on).await, (1, 1));
    assert_eq!(ok(&on, gone(good)).await.tally, Tally::new(1, [2]));
}

async fn rule_13_each_partition_is_where_the_map_says(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    // Home has the third, a the first and the last, b the second.
    assert_eq!(messages_of(&on).await, [1, 2, 1, 0]);
    let of = "SELECT m.grp FROM messages m ORDER BY m.grp";
    let groups: Vec<_> = on.rows(of).await.unwrap().iter().map(|row| row.text(0).unwrap().to_owned()).collect();
    assert_eq!(groups, ["g0", "g3", "user-1", "g1"]);
    let shown = on.rows("SELECT shards FROM queues WHERE shards IS NOT NULL").await.unwrap();
    assert_eq!((shown.len(), shown[0].text(0).unwrap()), (1, r#"["a","b","home","a"]"#));
    let mut got = receive(&on, 10).await;
    got.sort_by(|one, other| one.body.cmp(&other.body));
    assert_eq!(texts(&got), ["g0 m", "g1 m", "g3 m", "user-1 m"]);
    // The same name in another tenant is another queue, which the map does not place.
    let other = on.tenant("acme").await.unwrap();
    let same = queue(ORDERS, &[("FifoQueue", "true")]);
    call(&on, &other, same).await.unwrap();
    let found = on.rows("SELECT count(*) FROM queues WHERE shards IS NULL AND here IS NULL").await.unwrap();
    assert_eq!(found[0].int(0).unwrap(), 1);
}

async fn rule_13_a_queue_of_one_partition_can_be_placed(on: TestStore) {
    ok(&on, queue("single.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")])).await;
    let to_single =
        |text: &str| waybill_queues::ops::SendMessage { queue_url: url("single.fifo"), ..message("g", text) };
    for text in ["1", "2"] {
        ok(&on, to_single(text)).await;
    }
    assert_eq!(messages_of(&on).await, [0, 0, 2, 0]);
    let from_single = || waybill_queues::ops::ReceiveMessage { queue_url: url("single.fifo"), ..up_to(10) };
    let got = ok(&on, from_single()).await.messages;
    assert_eq!(texts(&got), ["1", "2"]);
    // Its handles are those of any queue that is not split.
    assert!(got[0].receipt_handle.starts_with("AQ"));
    let receipt_handle = got[0].receipt_handle.clone();
    ok(&on, DeleteMessage { queue_url: url("single.fifo"), receipt_handle, ..Default::default() }).await;
    assert_eq!(counted(&on, "single.fifo").await, (0, 1, 0));
}

async fn rule_13_what_is_recorded_routes(on: TestStore) {
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    // Without an entry the queue is found where it was made.
    let again = restarted(&on, Settings::default()).await;
    check_placement(&again).await.map_err(readable).unwrap();
    let admin = on.admin.clone();
    let flow = waybill_store::Flow::new(&admin, &again);
    let received = waybill_queues::shards::OnShards::dispatch(up_to(10), &flow).await.unwrap().0;
    assert!(matches!(received, waybill_store::Reply::Done(received) if received.messages.len() == 4));
    again.close();
    for (entries, named) in [
        (vec!["orders.fifo:4=b,a,home,a"], ORDERS),
        (vec!["orders.fifo:2=a,b"], ORDERS),
        (vec!["orders.fifo:4=home,home,home,home"], ORDERS),
        (vec!["new.fifo:2=a,z"], "\"z\""),
    ] {
        let again = restarted(&on, placed_by(&entries)).await;
        let error = check_placement(&again).await.unwrap_err();
        assert_eq!(error.code(), Code::ConfigInvalid, "{entries:?}");
        assert!(error.message().contains(named), "{entries:?}: {error}");
        again.close();
    }
    // A longer entry that begins alike agrees, and other queues may be added.
    let again = restarted(&on, placed_by(&["orders.fifo:8=a,b,home,a,b,b,b,b", "new.fifo:2=a,c"])).await;
    check_placement(&again).await.map_err(readable).unwrap();
    again.close();
    // A store that holds partitions must be there.
    let home = restarted(&on, Settings::default()).await;
    let alone = Stores::from(home.home().clone());
    let error = check_placement(&alone).await.unwrap_err();
    assert!(error.code() == Code::ConfigInvalid && error.message().contains(ORDERS), "{error}");
    home.close();
}

async fn rule_14_a_queue_without_a_place_is_refused(on: TestStore) {
    for (name, count) in [("elsewhere.fifo", "2"), (ORDERS, "8"), ("single.fifo", "2")] {
        let error = refused(&on, queue(name, &[("FifoQueue", "true"), ("PartitionCount", count)])).await;
        assert_eq!(error.code(), Code::InvalidAttributeValue, "{name}");
        assert!(!error.message().contains("map"), "what is wrong inside is for the log: {error}");
    }
    for table in ["queues", "parts", "shard_changes", "required_capabilities"] {
        assert_eq!(on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap(), 0, "{table}");
    }
}

/// Two partitions of one store, and a client that asks for one message at a time.
async fn no_partition_of_a_store_is_left_out(on: TestStore) {
    orders(&on, &[("PartitionCount", "4"), ("VisibilityTimeout", "0")]).await;
    send_to_all(&on, "m").await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..8 {
        seen.extend(receive(&on, 1).await.into_iter().map(|message| message.body));
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

/// Two of the largest messages fill an answer, also where each store has but one of them.
async fn an_answer_of_several_stores_has_no_more_than_fits(on: TestStore) {
    orders(&on, FOUR).await;
    for group in GROUPS {
        let text = format!("{group}{}", "x".repeat((1 << 20) - group.len()));
        send(&on, group, &text).await;
    }
    let mut seen = Vec::new();
    for _ in 0..2 {
        let got = receive(&on, 10).await;
        assert_eq!(got.len(), 2);
        assert!(got.iter().all(|message| message.attributes["ApproximateReceiveCount"] == "1"));
        seen.extend(got.into_iter().map(|message| message.body));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
    assert_eq!(counted(&on, ORDERS).await, (0, 4, 0));
}

async fn attributes_are_followed_everywhere(on: TestStore) {
    orders(&on, FOUR).await;
    let set = |pairs: &[(&str, &str)]| SetQueueAttributes { queue_url: url(ORDERS), attributes: map(pairs) };
    ok(&on, set(&[("DelaySeconds", "10"), ("MaximumMessageSize", "1024")])).await;
    assert_eq!(pending(&on).await, 0);
    send_to_all(&on, "m").await;
    assert_eq!(counted(&on, ORDERS).await, (0, 0, 4));
    let large = "x".repeat(1_025);
    for group in GROUPS {
        assert_eq!(refusal(&on, message(group, &large)).await, Code::InvalidRequest, "{group}");
    }
    // Also where the change was cut off after home had it: the next look finishes it.
    on.store.run(set(&[("DelaySeconds", "0")]), on.admin.clone()).await.unwrap();
    assert_eq!(pending(&on).await, 2);
    tend(&on).await;
    assert_eq!(pending(&on).await, 0);
    send_to_all(&on, "n").await;
    assert_eq!(counted(&on, ORDERS).await, (4, 0, 4));
}

/// The program has ended before the others had followed: each send finds another throttle than the one before.
async fn rule_13_stores_that_follow_a_throttle_late_fill_no_bucket(on: TestStore) {
    orders(&on, &[FOUR, &[("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", "0.0001")]].concat()).await;
    send_to_all(&on, "before").await;
    let attributes = map(&[("ThrottleSendCapacity", "20")]);
    on.store.run(SetQueueAttributes { queue_url: url(ORDERS), attributes }, on.admin.clone()).await.unwrap();
    assert_eq!(pending(&on).await, 2);
    for number in 0..20 {
        send(&on, GROUPS[number % 4], &format!("m{number}")).await;
    }
    for (number, group) in GROUPS.into_iter().enumerate() {
        assert_eq!(refusal(&on, message(group, &format!("more {number}"))).await, Code::Throttling, "{group}");
    }
    tend(&on).await;
    assert_eq!(refusal(&on, message("g1", "more")).await, Code::Throttling, "what they have followed is not new");
}

/// Whoever takes the file of one for a home of its own would find half of the queue.
async fn rule_16_every_store_of_a_partitioned_queue_says_what_it_takes(on: TestStore) {
    const NEEDED: &str = "SELECT count(*) FROM required_capabilities WHERE name = 'htfifo'";
    let needed =
        async || -> Vec<i64> { on.rows(NEEDED).await.unwrap().iter().map(|row| row.int(0).unwrap()).collect() };
    ok(&on, queue("single.fifo", &[("FifoQueue", "true")])).await;
    assert_eq!(needed().await, [0, 0, 0, 0]);
    orders(&on, FOUR).await;
    assert_eq!(needed().await, [1, 1, 1, 0], "the last has none of its partitions");
}

/// Messages everywhere, some of them received, and then home alone is purged: the program has ended there.
async fn purge_cut_off(on: &TestStore) -> Vec<String> {
    orders(on, FOUR).await;
    send_to_all(on, "old").await;
    let held = receive(on, 10).await;
    send_to_all(on, "older").await;
    on.store.run(PurgeQueue { queue_url: url(ORDERS) }, on.admin.clone()).await.unwrap();
    assert_eq!(pending(on).await, 2);
    held.into_iter().map(|message| message.receipt_handle).collect()
}

/// Nothing of before is there, and what comes now is.
async fn is_purged(on: &TestStore, handles: &[String]) {
    assert_eq!((pending(on).await, counted(on, ORDERS).await), (0, (0, 0, 0)));
    for handle in handles {
        let dead = DeleteMessage { queue_url: url(ORDERS), receipt_handle: handle.clone(), ..DeleteMessage::default() };
        assert_eq!(refusal(on, dead).await, Code::ReceiptHandleIsInvalid);
    }
    assert!(receive(on, 10).await.is_empty());
    send_to_all(on, "old").await;
    assert_eq!(receive(on, 10).await.len(), 4, "what was a duplicate before is none now");
    drain(on).await;
    assert_eq!(rows(on).await, (4, 4));
}

async fn a_purge_that_was_cut_off_is_finished(on: TestStore) {
    let handles = purge_cut_off(&on).await;
    tend(&on).await;
    is_purged(&on, &handles).await;
}

/// Whoever knows the queue as home has it brings the other stores up to date.
async fn a_purge_that_was_cut_off_is_met_by_a_call(on: TestStore) {
    let handles = purge_cut_off(&on).await;
    // A program that remembers nothing.
    let (again, mut on) = (restarted(&on, placed()).await, on);
    on.store = again.home().clone();
    on.stores = again;
    for group in GROUPS {
        send(&on, group, &format!("{group} new")).await;
    }
    assert_eq!(counted(&on, ORDERS).await, (4, 0, 0));
    let got = receive(&on, 10).await;
    assert!(got.len() == 4 && got.iter().all(|message| message.body.ends_with("new")), "{:?}", texts(&got));
    for handle in handles {
        let dead = DeleteMessage { queue_url: url(ORDERS), receipt_handle: handle, ..DeleteMessage::default() };
        assert_eq!(refusal(&on, dead).await, Code::ReceiptHandleIsInvalid);
    }
    tend(&on).await;
    assert_eq!((pending(&on).await, counted(&on, ORDERS).await), (0, (0, 4, 0)), "what is finished is not made again");
}

async fn a_purge_that_was_cut_off_can_be_made_again(on: TestStore) {
    let handles = purge_cut_off(&on).await;
    ok(&on, PurgeQueue { queue_url: url(ORDERS) }).await;
    is_purged(&on, &handles).await;
    assert_eq!(refusal(&on, PurgeQueue { queue_url: url(ORDERS) }).await, Code::PurgeQueueInProgress);
}

async fn a_purge_that_is_made_again_takes_what_was_sent_meanwhile(on: TestStore) {
    let handles = purge_cut_off(&on).await;
    // Into home, which has been purged.
    send(&on, "g0", "meanwhile").await;
    let purge = serde_json::json!({ "queue": ORDERS });
    on.call(&on.admin, "purge_queue", purge.clone()).await.unwrap();
    is_purged(&on, &handles).await;
    assert_eq!(on.call(&on.admin, "purge_queue", purge).await.unwrap_err().code(), Code::PurgeQueueInProgress);
}

async fn a_change_that_was_cut_off_does_not_stand_for_a_purge(on: TestStore) {
    orders(&on, FOUR).await;
    ok(&on, PurgeQueue { queue_url: url(ORDERS) }).await;
    pass(&on, 30);
    send_to_all(&on, "old").await;
    let change = SetQueueAttributes { queue_url: url(ORDERS), attributes: map(&[("VisibilityTimeout", "40")]) };
    on.store.run(change, on.admin.clone()).await.unwrap();
    assert_eq!(pending(&on).await, 2);
    ok(&on, PurgeQueue { queue_url: url(ORDERS) }).await;
    is_purged(&on, &[]).await;
}

async fn deletion_cut_off(on: &TestStore) {
    orders(on, FOUR).await;
    send_to_all(on, "old").await;
    assert_eq!(receive(on, 2).await.len(), 2);
    on.store.run(DeleteQueue { queue_url: url(ORDERS) }, on.admin.clone()).await.unwrap();
    assert_eq!(pending(on).await, 2);
}

async fn is_deleted(on: &TestStore) {
    assert_eq!(pending(on).await, 0);
    assert_eq!(refusal(on, up_to(1)).await, Code::QueueDoesNotExist);
    for group in GROUPS {
        assert_eq!(refusal(on, message(group, "late")).await, Code::QueueDoesNotExist, "{group}");
    }
    drain(on).await;
    for table in ["messages", "flights", "fifo_groups", "fifo_lines", "fifo_duplicates"] {
        assert_eq!(on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap(), 0, "{table}");
    }
}

async fn a_deletion_that_was_cut_off_is_finished(on: TestStore) {
    deletion_cut_off(&on).await;
    tend(&on).await;
    is_deleted(&on).await;
}

async fn a_deletion_that_was_cut_off_can_be_made_again(on: TestStore) {
    deletion_cut_off(&on).await;
    ok(&on, DeleteQueue { queue_url: url(ORDERS) }).await;
    is_deleted(&on).await;
    assert_eq!(refusal(&on, DeleteQueue { queue_url: url(ORDERS) }).await, Code::QueueDoesNotExist);
}

/// A queue of the same name is made before the other stores know of the end of the one before.
async fn a_deletion_that_was_cut_off_does_not_touch_the_next_queue(on: TestStore) {
    deletion_cut_off(&on).await;
    // With two partitions: home has one of the old ones and none of the new ones.
    orders(&on, &[("PartitionCount", "2")]).await;
    assert_eq!(pending(&on).await, 0);
    assert_eq!(counted(&on, ORDERS).await, (0, 0, 0));
    send_to_all(&on, "new").await;
    tend(&on).await;
    let got = receive(&on, 10).await;
    assert!(got.len() == 4 && got.iter().all(|message| message.body.ends_with("new")), "{:?}", texts(&got));
    drain(&on).await;
    assert_eq!(rows(&on).await, (4, 4));
}

async fn a_queue_whose_making_was_cut_off_is_met_by_a_call(on: TestStore) {
    let make = queue(ORDERS, &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true"), ("PartitionCount", "4")]);
    on.store.run(make, on.admin.clone()).await.unwrap();
    assert_eq!(pending(&on).await, 2);
    send_to_all(&on, "m").await;
    assert_eq!(receive(&on, 10).await.len(), 4);
    // Making it again agrees, and finishes what is left.
    orders(&on, FOUR).await;
    assert_eq!(pending(&on).await, 0);
    assert_eq!(counted(&on, ORDERS).await, (0, 4, 0));
}

async fn what_is_left_of_a_queue_goes_in_its_time(on: TestStore) {
    orders(&on, FOUR).await;
    ok(&on, DeleteQueue { queue_url: url(ORDERS) }).await;
    let left = "SELECT count(*) FROM queues";
    drain(&on).await;
    assert_eq!(on.count(left).await.unwrap(), 2, "somebody may still be late");
    pass(&on, 3_601);
    drain(&on).await;
    assert_eq!(on.count(left).await.unwrap(), 0);
}

async fn operators_see_all_of_it(on: TestStore) {
    orders(&on, &[("PartitionCount", "4"), ("VisibilityTimeout", "100")]).await;
    for text in ["1", "2"] {
        send_to_all(&on, text).await;
    }
    assert_eq!(receive(&on, 4).await.len(), 4);
    let ask = |name: &'static str, input: serde_json::Value| on.call(&on.admin, name, input);
    let expected = serde_json::json!({ "visible": 4, "in_flight": 4, "delayed": 0 });
    let shown = ask("get_queue", serde_json::json!({ "queue": ORDERS })).await.unwrap().json;
    assert_eq!(shown["messages"], expected);
    assert!(shown["oldest_message_at"].is_string());
    let listed = ask("list_queues", serde_json::json!({})).await.unwrap().json;
    assert_eq!(listed["queues"][0]["messages"], expected);
    // Page by page through all stores.
    let (mut bodies, mut input) = (Vec::new(), serde_json::json!({ "queue": ORDERS, "limit": 1 }));
    for _ in 0..20 {
        let page = ask("peek_messages", input.clone()).await.unwrap().json;
        bodies.extend(page["messages"].as_array().unwrap().iter().map(|message| message["body"].to_string()));
        match &page["next_cursor"] {
            serde_json::Value::Null => break,
            cursor => input["cursor"] = cursor.clone(),
        }
    }
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), 4);
    // A page counts as not yet taken until its turn is dropped.
    let peek = PeekMessages { queue: ORDERS.to_owned(), limit: None, body_bytes: None, cursor: None };
    let (_, turn) = OnShards::dispatch(peek, &waybill_store::Flow::new(&on.admin, &on.stores)).await.unwrap();
    assert!(turn.is_some());
    for bad in ["7.", "x", "0.zz", ""] {
        let input = serde_json::json!({ "queue": ORDERS, "cursor": bad });
        assert_eq!(ask("peek_messages", input).await.unwrap_err().code(), Code::InvalidCursor, "{bad:?}");
    }
    Figures::default().measure(&on.stores).await.map_err(readable).unwrap();
    ask("purge_queue", serde_json::json!({ "queue": ORDERS })).await.unwrap();
    assert_eq!((pending(&on).await, counted(&on, ORDERS).await), (0, (0, 0, 0)));
}

/// Its queue is gone, and nobody knows that in the store that the message is in.
async fn a_dead_letter_without_a_place_is_delivered_once_more(on: TestStore) {
    ok(&on, queue("dead.fifo", &[("FifoQueue", "true")])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("dead.fifo"));
    orders(&on, &[("PartitionCount", "4"), ("RedrivePolicy", &policy), ("VisibilityTimeout", "1")]).await;
    send(&on, "g1", "m").await;
    ok(&on, DeleteQueue { queue_url: url("dead.fifo") }).await;
    assert_eq!(receive(&on, 10).await.len(), 1);
    for _ in 0..2 {
        pass(&on, 2);
        assert!(receive(&on, 10).await.is_empty(), "it is on its way");
        tend(&on).await;
        assert_eq!(texts(&receive(&on, 10).await), ["m"]);
    }
    // When there is a queue again it goes there.
    ok(&on, queue("dead.fifo", &[("FifoQueue", "true")])).await;
    pass(&on, 2);
    assert!(receive(&on, 10).await.is_empty());
    tend(&on).await;
    assert_eq!((counted(&on, ORDERS).await, counted(&on, "dead.fifo").await), ((0, 0, 0), (1, 0, 0)));
    assert_eq!(on.count("SELECT count(*) FROM transfers").await.unwrap(), 0);
}

/// Two servers have taken up the same message, and the second comes when the first has done all of it. Here the second is
/// another message that goes by the number of the first.
async fn a_dead_letter_that_has_arrived_does_not_arrive_again(on: TestStore) {
    const LATE: &str = "UPDATE transfers SET move = (SELECT o.move FROM transfers o ORDER BY o.mid LIMIT 1), \
                        next_at = next_at + 3600000000 WHERE mid = (SELECT max(l.mid) FROM transfers l)";
    ok(&on, queue("dead.fifo", &[("FifoQueue", "true")])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("dead.fifo"));
    orders(&on, &[("PartitionCount", "4"), ("RedrivePolicy", &policy), ("VisibilityTimeout", "1")]).await;
    for text in ["1", "2"] {
        send(&on, "g1", text).await;
    }
    assert_eq!(receive(&on, 10).await.len(), 2);
    pass(&on, 2);
    assert!(receive(&on, 10).await.is_empty());
    on.write(LATE).await.unwrap();
    for _ in 0..2 {
        tend(&on).await;
        assert_eq!(counted(&on, "dead.fifo").await, (1, 0, 0));
        pass(&on, 3_700);
    }
    assert_eq!(on.count("SELECT count(*) FROM transfers").await.unwrap(), 0);
    // It is remembered for as long as a message can be on its way.
    for (days, known) in [(14, 1), (1, 0)] {
        pass(&on, days * 86_400);
        drain(&on).await;
        assert_eq!(on.count("SELECT count(*) FROM arrivals").await.unwrap(), known, "{days}");
    }
}

/// A queue in one store, whose dead letters go to one in another; and a message that is on its way.
async fn on_its_way(on: &TestStore) {
    ok(on, queue("single.fifo", &[("FifoQueue", "true")])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("single.fifo"));
    let source = [("FifoQueue", "true"), ("RedrivePolicy", policy.as_str()), ("VisibilityTimeout", "1")];
    ok(on, queue("other.fifo", &source)).await;
    let dies = waybill_queues::ops::SendMessage {
        queue_url: url("other.fifo"),
        message_deduplication_id: Some("d".to_owned()),
        ..message("user-1", "m")
    };
    ok(on, dies).await;
    for received in [1, 0] {
        assert_eq!(ok(on, from_other()).await.messages.len(), received);
        pass(on, 2);
    }
    assert_eq!(on.count("SELECT count(*) FROM transfers").await.unwrap(), 1);
}

fn from_other() -> waybill_queues::ops::ReceiveMessage {
    waybill_queues::ops::ReceiveMessage { queue_url: url("other.fifo"), ..up_to(10) }
}

/// The number of its part is used again, and so is the number that it had.
async fn a_dead_letter_that_is_purged_on_its_way_leaves_nothing(on: TestStore) {
    on_its_way(&on).await;
    ok(&on, PurgeQueue { queue_url: url("other.fifo") }).await;
    drain(&on).await;
    pass(&on, 3_601);
    drain(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM transfers").await.unwrap(), 0);
    orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    tend(&on).await;
    assert_eq!((counted(&on, ORDERS).await, counted(&on, "single.fifo").await), ((4, 0, 0), (0, 0, 0)));
}

/// Also while nobody has deleted it yet.
async fn a_dead_letter_that_is_purged_on_its_way_does_not_arrive(on: TestStore) {
    on_its_way(&on).await;
    ok(&on, PurgeQueue { queue_url: url("other.fifo") }).await;
    tend(&on).await;
    assert_eq!(counted(&on, "single.fifo").await, (0, 0, 0));
    assert_eq!(on.count("SELECT count(*) FROM transfers").await.unwrap(), 0);
}

async fn a_dead_letter_that_was_turned_away_leaves_nothing(on: TestStore) {
    on_its_way(&on).await;
    ok(&on, DeleteQueue { queue_url: url("single.fifo") }).await;
    tend(&on).await;
    drain(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM transfers WHERE refused = 1").await.unwrap(), 1);
    // Without a policy nobody asks whether it was turned away before.
    let attributes = map(&[("RedrivePolicy", "")]);
    ok(&on, SetQueueAttributes { queue_url: url("other.fifo"), attributes }).await;
    let again = ok(&on, from_other()).await.messages;
    let receipt_handle = again[0].receipt_handle.clone();
    ok(&on, DeleteMessage { queue_url: url("other.fifo"), receipt_handle, ..DeleteMessage::default() }).await;
    drain(&on).await;
    assert_eq!(on.count("SELECT count(*) FROM transfers").await.unwrap(), 0);
}

/// Two that were swapped would each look for the other's messages.
async fn each_database_has_its_name(on: TestStore) {
    let shards = on.shards(SHARDS);
    let again = restarted(&on, placed()).await;
    let home: Store = again.home().clone();
    for (_, store) in again.shards() {
        store.close();
    }
    let swapped = [
        Shard { name: "a".to_owned(), backend: shards[1].backend.clone() },
        Shard { name: "b".to_owned(), backend: shards[0].backend.clone() },
    ];
    let error = on.beside(home.clone(), &swapped).await.err().unwrap();
    assert!(error.code() == Code::ConfigInvalid && error.message().contains("The shard a"), "{error}");
    let renamed = [Shard { name: "new".to_owned(), backend: shards[0].backend.clone() }];
    let error = on.beside(home.clone(), &renamed).await.err().unwrap();
    assert!(error.message().contains("is the database of a"), "{error}");
    // The same as before are welcome.
    on.beside(home, &shards).await.map_err(readable).unwrap().close();
}

/// A send that has found its queue, and goes on when it is told to.
struct Sending {
    tenant: Tenant,
    queue: &'static str,
    has_begun: Arc<Notify>,
    may_end: Arc<Notify>,
}

impl Work for Sending {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const SHARE: &str = "SELECT pg_advisory_xact_lock_shared(hashtextextended($2, $1)) IS NOT NULL";
        tx.as_tenant(self.tenant).query(SHARE, &[Value::from(self.queue)]).await?;
        self.has_begun.notify_one();
        self.may_end.notified().await;
        Ok(())
    }
}

#[tokio::test]
async fn a_dead_letter_arrives_beside_those_who_send() {
    let on = stores::open_postgres_set(placed()).await.unwrap().with_shards(SHARDS).await.unwrap();
    on_its_way(&on).await;
    let (has_begun, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let sending = Sending {
        tenant: on.admin.tenant,
        queue: "single.fifo",
        has_begun: Arc::clone(&has_begun),
        may_end: Arc::clone(&may_end),
    };
    let store = on.stores.find("b").unwrap().clone();
    let sending = tokio::spawn(async move { store.system().run(sending).await });
    has_begun.notified().await;
    assert!(timeout(Duration::from_secs(20), tend(&on)).await.is_ok(), "it waits for the sender");
    assert_eq!(counted(&on, "single.fifo").await, (1, 0, 0));
    may_end.notify_one();
    sending.await.unwrap().unwrap();
}
