//! What operators see and do: lists, one queue, attributes, purges, redrives.

use serde_json::json;
use waybill_kernel::{Code, Time};
use waybill_queues::Settings;
use waybill_queues::ops::create_queue::CreateQueue as CreateAction;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::operator::Depth;
use waybill_queues::ops::operator::cancel_redrive::CancelRedrive;
use waybill_queues::ops::operator::create_queue::CreateQueue;
use waybill_queues::ops::operator::get_queue::{GetQueue, QueueView};
use waybill_queues::ops::operator::list_queues::{ListQueues, Queues};
use waybill_queues::ops::operator::list_redrives::{ListRedrives, Redrive};
use waybill_queues::ops::operator::purge_queue::PurgeQueue;
use waybill_queues::ops::operator::set_queue_attributes::SetQueueAttributes;
use waybill_queues::ops::operator::start_redrive::StartRedrive;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::sweeps::Moves;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::dead_letters::one_dead_letter;
use crate::fifo;
use crate::partitions::{FOUR, GROUPS, send_to_all};
use crate::support::{
    arn, attributes_of, bodies, body, call, counted, delete, jobs, map, ok, pass, queue, receive, refusal, refused,
    send, sweep, url,
};

both! {
    a_list_tells_how_much_is_in_each_queue,
    a_list_comes_in_pages,
    one_queue_tells_all_about_itself,
    a_partitioned_queue_is_one_queue,
    a_queue_is_made_by_the_rules_of_sqs,
    attributes_are_set_by_the_rules_of_sqs,
    a_purge_tells_its_generations_and_when_the_next_one_may_come,
    a_redrive_is_started_followed_and_cancelled,
    bad_redrives,
    who_may_look_may_not_purge,
}

fn get(name: &str) -> GetQueue {
    GetQueue { queue: name.to_owned() }
}

fn depth(visible: i64, in_flight: i64, delayed: i64) -> Depth {
    Depth { visible, in_flight, delayed }
}

fn names(queues: &Queues) -> Vec<&str> {
    queues.queues.iter().map(|queue| queue.queue.as_str()).collect()
}

async fn a_list_tells_how_much_is_in_each_queue(on: TestStore) {
    assert!(ok(&on, ListQueues::default()).await.queues.is_empty());
    one_dead_letter(&on).await;
    ok(&on, queue("orders.fifo", &[("FifoQueue", "true")])).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    ok(&on, SendMessage { delay_seconds: Some(60), ..body("later") }).await;
    receive(&on, 1).await;
    let listed = ok(&on, ListQueues::default()).await;
    assert_eq!(names(&listed), ["dead", "jobs", "orders.fifo"]);
    let [dead, jobs, orders] = listed.queues.as_slice() else { panic!("three queues") };
    let expected = [depth(1, 0, 0), depth(1, 1, 1), depth(0, 0, 0)].map(Some);
    assert_eq!([dead.messages, jobs.messages, orders.messages], expected);
    assert_eq!((jobs.dead_letter_queue.as_deref(), jobs.is_dead_letter_queue), (Some("dead"), false));
    assert_eq!((dead.dead_letter_queue.as_deref(), dead.is_dead_letter_queue), (None, true));
    assert_eq!((orders.fifo, jobs.fifo), (true, false));
    let stranger = on.tenant("other").await.unwrap();
    assert!(call(&on, &stranger, ListQueues::default()).await.unwrap().queues.is_empty());
}

async fn a_list_comes_in_pages(on: TestStore) {
    for name in ["b1", "a", "b3", "b2", "c"] {
        ok(&on, queue(name, &[])).await;
    }
    let list = |cursor| ListQueues { prefix: Some("b".to_owned()), limit: Some(2), cursor };
    let first = ok(&on, list(None)).await;
    assert_eq!(names(&first), ["b1", "b2"]);
    let second = ok(&on, list(first.next_cursor.clone())).await;
    assert_eq!((names(&second), &second.next_cursor), (vec!["b3"], &None));
    let other = ListQueues { prefix: None, ..list(first.next_cursor) };
    assert_eq!(refusal(&on, other).await, Code::InvalidCursor);
    assert_eq!(refusal(&on, ListQueues { limit: Some(0), ..list(None) }).await, Code::InvalidRequest);
    assert_eq!(refusal(&on, ListQueues { prefix: Some("b".repeat(81)), ..list(None) }).await, Code::InvalidRequest);
    assert_eq!(names(&ok(&on, ListQueues { limit: Some(u32::MAX), ..ListQueues::default() }).await).len(), 5);
}

async fn one_queue_tells_all_about_itself(on: TestStore) {
    ok(&on, queue("dead", &[])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":3}}"#, arn("dead"));
    let attributes = [("RedrivePolicy", policy.as_str()), ("VisibilityTimeout", "45")];
    ok(&on, CreateAction { tags: map(&[("team", "a")]), ..queue("jobs", &attributes) }).await;
    let before: QueueView = ok(&on, get("jobs")).await;
    assert_eq!((before.messages, before.oldest_message_at), (depth(0, 0, 0), None));
    let sent_at = on.store.now();
    send(&on, "a").await;
    pass(&on, 5);
    send(&on, "b").await;
    let message = receive(&on, 1).await.remove(0);
    let shown = ok(&on, get("jobs")).await;
    assert_eq!((shown.queue.as_str(), shown.arn.as_str(), shown.fifo), ("jobs", arn("jobs").as_str(), false));
    assert_eq!(shown.messages, depth(1, 1, 0));
    let oldest: Time = shown.oldest_message_at.unwrap();
    assert!(oldest >= sent_at && oldest < sent_at.after(std::time::Duration::from_secs(5)));
    assert_eq!(shown.attributes["VisibilityTimeout"], "45");
    assert_eq!((shown.attributes["RedrivePolicy"].as_str(), shown.tags), (policy.as_str(), map(&[("team", "a")])));
    assert!(shown.attributes.keys().all(|name| !name.starts_with("Approximate") && !name.ends_with("Timestamp")));
    let target = shown.dead_letter_queue.unwrap();
    assert_eq!((target.queue.as_str(), target.max_receive_count), ("dead", 3));
    assert_eq!((shown.is_dead_letter_queue, shown.purged_at), (false, None));
    let dead = ok(&on, get("dead")).await;
    assert_eq!((dead.is_dead_letter_queue, dead.dead_letter_sources), (true, vec!["jobs".to_owned()]));
    ok(&on, delete(&message)).await;
    assert_eq!(ok(&on, get("jobs")).await.messages, depth(1, 0, 0));
    for name in ["nowhere", "", "a/b", "a b"] {
        assert_eq!(refusal(&on, get(name)).await, Code::QueueDoesNotExist, "{name:?}");
    }
    let stranger = on.tenant("other").await.unwrap();
    let theirs = call(&on, &stranger, get("jobs")).await;
    assert_eq!(theirs.err().map(|error| error.code()), Some(Code::QueueDoesNotExist));
}

async fn a_partitioned_queue_is_one_queue(on: TestStore) {
    fifo::orders(&on, FOUR).await;
    let first_at = on.store.now();
    // The oldest is not in the first partition.
    for group in GROUPS.iter().rev() {
        fifo::send(&on, group, group).await;
        pass(&on, 5);
    }
    send_to_all(&on, "later").await;
    fifo::receive(&on, 1).await;
    let shown = ok(&on, get(fifo::ORDERS)).await;
    assert_eq!(shown.messages, depth(7, 1, 0));
    let oldest: Time = shown.oldest_message_at.unwrap();
    assert!(oldest >= first_at && oldest < first_at.after(std::time::Duration::from_secs(5)));
    assert_eq!(shown.attributes["PartitionCount"], "4");
    assert_eq!(ok(&on, ListQueues::default()).await.queues[0].messages, Some(depth(7, 1, 0)));
    ok(&on, PurgeQueue { queue: fifo::ORDERS.to_owned() }).await;
    let purged = ok(&on, get(fifo::ORDERS)).await;
    assert_eq!((purged.messages, purged.oldest_message_at), (depth(0, 0, 0), None));
    send_to_all(&on, "new").await;
    assert_eq!(ok(&on, get(fifo::ORDERS)).await.messages, depth(4, 0, 0));
    assert_eq!(fifo::receive(&on, 10).await.len(), 4);
}

async fn a_queue_is_made_by_the_rules_of_sqs(on: TestStore) {
    let create = |name: &str, attributes: &[(&str, &str)]| CreateQueue {
        queue: name.to_owned(),
        attributes: map(attributes),
        ..CreateQueue::default()
    };
    let made = ok(&on, create("jobs", &[("DelaySeconds", "3")])).await;
    assert_eq!((made.queue.as_str(), made.arn), ("jobs", arn("jobs")));
    ok(&on, create("jobs", &[("DelaySeconds", "3")])).await;
    assert_eq!(attributes_of(&on, "jobs", &["DelaySeconds"]).await["DelaySeconds"], "3");
    // Its name tells that it is one.
    ok(&on, create("orders.fifo", &[])).await;
    assert_eq!(attributes_of(&on, "orders.fifo", &["FifoQueue"]).await["FifoQueue"], "true");
    for (name, attributes, code) in [
        ("jobs", &[("DelaySeconds", "4")][..], Code::QueueNameExists),
        ("a b", &[], Code::InvalidRequest),
        ("new", &[("Colour", "red")], Code::InvalidAttributeName),
        ("new", &[("DelaySeconds", "901")], Code::InvalidAttributeValue),
        ("new.fifo", &[("FifoQueue", "false")], Code::InvalidRequest),
    ] {
        assert_eq!(refusal(&on, create(name, attributes)).await, code, "{name} {attributes:?}");
    }
}

async fn attributes_are_set_by_the_rules_of_sqs(on: TestStore) {
    jobs(&on, &[("DelaySeconds", "1")]).await;
    let set =
        |attributes: &[(&str, &str)]| SetQueueAttributes { queue: "jobs".to_owned(), attributes: map(attributes) };
    let now = ok(&on, set(&[("DelaySeconds", "2"), ("VisibilityTimeout", "7")])).await;
    assert_eq!((now.queue.as_str(), now.attributes["DelaySeconds"].as_str()), ("jobs", "2"));
    let all = attributes_of(&on, "jobs", &["DelaySeconds", "VisibilityTimeout"]).await;
    assert_eq!(all, map(&[("DelaySeconds", "2"), ("VisibilityTimeout", "7")]));
    for (attributes, code) in [
        (&[][..], Code::MissingParameter),
        (&[("DelaySeconds", "3"), ("Colour", "red")], Code::InvalidAttributeName),
        (&[("DelaySeconds", "3"), ("VisibilityTimeout", "-1")], Code::InvalidAttributeValue),
    ] {
        assert_eq!(refusal(&on, set(attributes)).await, code, "{attributes:?}");
    }
    // All or none of them.
    assert_eq!(attributes_of(&on, "jobs", &["DelaySeconds"]).await["DelaySeconds"], "2");
    let elsewhere = SetQueueAttributes { queue: "nowhere".to_owned(), ..set(&[("DelaySeconds", "3")]) };
    assert_eq!(refusal(&on, elsewhere).await, Code::QueueDoesNotExist);
}

async fn a_purge_tells_its_generations_and_when_the_next_one_may_come(on: TestStore) {
    let purge = || PurgeQueue { queue: "jobs".to_owned() };
    jobs(&on, &[]).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    let before = ok(&on, get("jobs")).await;
    let purged = ok(&on, purge()).await;
    let after = ok(&on, get("jobs")).await;
    assert_eq!((purged.generation_before, purged.generation_after), (before.generation, after.generation));
    assert!(purged.generation_before < purged.generation_after);
    assert_eq!((after.messages, bodies(&on).await.len()), (depth(0, 0, 0), 0));
    let purged_at = after.purged_at.unwrap();
    assert_eq!(purged.next_purge_at.since(purged_at).as_secs(), 60);
    pass(&on, 20);
    let error = refused(&on, purge()).await;
    let wait_s = error.detail("retry_after").and_then(serde_json::Value::as_u64).unwrap();
    assert_eq!((error.code(), error.code().entry().http), (Code::PurgeQueueInProgress, 429));
    assert!((38..=41).contains(&wait_s), "{wait_s}");
    pass(&on, wait_s);
    ok(&on, purge()).await;
    assert_eq!(refusal(&on, PurgeQueue { queue: "nowhere".to_owned() }).await, Code::QueueDoesNotExist);
}

fn redrive() -> StartRedrive {
    StartRedrive { queue: "dead".to_owned(), ..StartRedrive::default() }
}

async fn redrives(on: &TestStore) -> Vec<Redrive> {
    ok(on, ListRedrives { queue: "dead".to_owned(), limit: None }).await.redrives
}

async fn a_redrive_is_started_followed_and_cancelled(on: TestStore) {
    let cancel = || CancelRedrive { queue: "dead".to_owned() };
    one_dead_letter(&on).await;
    assert!(redrives(&on).await.is_empty());
    assert_eq!(refusal(&on, cancel()).await, Code::NotFound);
    let started = ok(&on, StartRedrive { per_second: Some(500), ..redrive() }).await;
    let running = redrives(&on).await.remove(0);
    assert_eq!((running.task_handle.as_ref(), running.status.as_str()), (Some(&started.task_handle), "RUNNING"));
    assert_eq!((running.moved, running.to_move, running.per_second), (0, 1, Some(500)));
    assert_eq!(refusal(&on, redrive()).await, Code::InvalidRequest);
    assert_eq!(ok(&on, cancel()).await.moved, 0);
    assert_eq!(redrives(&on).await[0].status, "CANCELLED");
    assert_eq!(refusal(&on, cancel()).await, Code::NotFound);
    pass(&on, 1);
    ok(&on, StartRedrive { destination: Some("jobs".to_owned()), ..redrive() }).await;
    while redrives(&on).await[0].status == "RUNNING" {
        sweep(&on, Moves::new(&Settings::default())).await;
    }
    let done = redrives(&on).await;
    assert_eq!((done.len(), done[0].status.as_str(), done[0].moved), (2, "COMPLETED", 1));
    assert_eq!((done[0].destination.as_deref(), &done[0].task_handle), (Some("jobs"), &None));
    assert_eq!((counted(&on, "jobs").await, counted(&on, "dead").await), ((1, 0, 0), (0, 0, 0)));
    assert_eq!(serde_json::to_value(&done[0]).unwrap()["failure_reason"], json!(null));
}

async fn bad_redrives(on: TestStore) {
    one_dead_letter(&on).await;
    for (start, code) in [
        (StartRedrive { per_second: Some(0), ..redrive() }, Code::InvalidRequest),
        (StartRedrive { per_second: Some(501), ..redrive() }, Code::InvalidRequest),
        (StartRedrive { destination: Some("nowhere".to_owned()), ..redrive() }, Code::NotFound),
        (StartRedrive { destination: Some("dead".to_owned()), ..redrive() }, Code::InvalidRequest),
        // Nobody's dead letters go there.
        (StartRedrive { queue: "jobs".to_owned(), ..redrive() }, Code::InvalidRequest),
        (StartRedrive { queue: "nowhere".to_owned(), ..redrive() }, Code::NotFound),
    ] {
        let what = format!("{start:?}");
        assert_eq!(refusal(&on, start).await, code, "{what}");
    }
    for limit in [0, 11] {
        let list = ListRedrives { queue: "dead".to_owned(), limit: Some(limit) };
        assert_eq!(refusal(&on, list).await, Code::InvalidRequest);
    }
    ok(&on, DeleteQueue { queue_url: url("dead") }).await;
    let gone = ListRedrives { queue: "dead".to_owned(), limit: None };
    assert_eq!(refusal(&on, gone).await, Code::NotFound);
}

/// By their scopes: an auditor and a consumer look, a manager and an admin act, a sender does neither.
async fn who_may_look_may_not_purge(on: TestStore) {
    use waybill_kernel::{Caller, Scope, Scopes};
    let allowed = |scope: Scope| {
        let caller = Caller { scopes: Scopes::new([scope]), ..on.admin.clone() };
        let of_queues = on.registry.entries().map(|entry| entry.spec()).filter(|spec| spec.domain == "queues");
        of_queues.filter(|spec| spec.allows(&caller)).map(|spec| spec.name).collect::<Vec<_>>()
    };
    let all = [
        "list_queues",
        "create_queue",
        "get_queue",
        "set_queue_attributes",
        "peek_messages",
        "purge_queue",
        "start_redrive",
        "list_redrives",
        "cancel_redrive",
    ];
    for (scope, expected) in [
        (Scope::QueuesSend, &["list_queues", "get_queue"][..]),
        (Scope::QueuesReceive, &["list_queues", "get_queue", "peek_messages"]),
        (Scope::QueuesManage, &all),
        (Scope::AdminRead, &["list_queues", "get_queue", "peek_messages", "list_redrives"]),
        (Scope::AdminWrite, &all),
        (Scope::TasksWrite, &[]),
    ] {
        assert_eq!(allowed(scope), expected, "{scope}");
    }
}
