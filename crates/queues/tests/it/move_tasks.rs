//! Dead letters are moved back, or elsewhere, at the pace that was asked for.

use serde_json::json;
use tokio::time::timeout;
use waybill_kernel::{Code, Mode, Result};
use waybill_queues::Settings;
use waybill_queues::ops::cancel_message_move_task::CancelMessageMoveTask;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::list_message_move_tasks::{ListMessageMoveTasks, MoveTask};
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::ops::start_message_move_task::StartMessageMoveTask;
use waybill_queues::sweeps::Moves;
use waybill_store::effects::Sweep;
use waybill_store::{Ctx, Topic, Tx, Work};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{FAILED, arn, body, counted, map, ok, pass, queue, refusal, rows, sweep, up_to, url};

both! {
    dead_letters_go_back_to_where_they_came_from,
    dead_letters_go_elsewhere,
    a_task_keeps_its_pace,
    a_batch_takes_no_more_than_it_may,
    a_task_can_be_cancelled,
    a_message_that_came_from_nowhere_fails_the_task,
    a_destination_that_is_gone_fails_the_task,
    what_is_in_flight_stays,
    one_task_at_a_time,
    bad_tasks,
    tasks_read_and_write_as_sdks_do,
}

/// `a` and `b`, whose dead letters go to `dead`.
async fn queues(on: &TestStore) {
    ok(on, queue("dead", &[])).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn("dead"));
    for name in ["a", "b"] {
        ok(on, queue(name, &[("RedrivePolicy", &policy), ("VisibilityTimeout", "1")])).await;
    }
}

async fn send_to(on: &TestStore, name: &str, text: &str) {
    ok(on, SendMessage { queue_url: url(name), ..body(text) }).await;
}

async fn received(on: &TestStore, name: &str) -> Vec<String> {
    let messages = ok(on, ReceiveMessage { queue_url: url(name), ..up_to(10) }).await.messages;
    messages.into_iter().map(|message| message.body).collect()
}

/// So many messages of each source die.
async fn dead(on: &TestStore, each: usize) {
    for name in ["a", "b"] {
        for number in 0..each {
            send_to(on, name, &format!("{name}{number}")).await;
        }
        while !received(on, name).await.is_empty() {}
        pass(on, 2);
        while counted(on, name).await.0 > 0 {
            assert!(received(on, name).await.is_empty());
        }
    }
    assert_eq!(counted(on, "dead").await, (2 * each as i64, 0, 0));
}

fn start() -> StartMessageMoveTask {
    StartMessageMoveTask { source_arn: arn("dead"), ..StartMessageMoveTask::default() }
}

async fn tasks(on: &TestStore) -> Vec<MoveTask> {
    ok(on, ListMessageMoveTasks { source_arn: arn("dead"), max_results: Some(10) }).await.results
}

async fn moves(on: &TestStore) {
    sweep(on, Moves::new(&Settings::default())).await;
}

async fn dead_letters_go_back_to_where_they_came_from(on: TestStore) {
    queues(&on).await;
    dead(&on, 15).await;
    let before = on.store.now().micros();
    ok(&on, start()).await;
    assert_eq!(tasks(&on).await[0].approximate_number_of_messages_to_move, 30);
    while tasks(&on).await[0].status == "RUNNING" {
        moves(&on).await;
    }
    let task = tasks(&on).await.remove(0);
    assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("COMPLETED", 30));
    assert_eq!((task.task_handle, task.destination_arn), (None, None));
    assert_eq!((counted(&on, "a").await, counted(&on, "dead").await), ((15, 0, 0), (0, 0, 0)));
    let mut got = received(&on, "b").await;
    got.extend(received(&on, "b").await);
    got.sort();
    let mut expected: Vec<String> = (0..15).map(|number| format!("b{number}")).collect();
    expected.sort();
    assert_eq!(got, expected);
    // They are young again, and no dead letters.
    let all = ReceiveMessage { queue_url: url("a"), attribute_names: vec!["All".to_owned()], ..up_to(1) };
    let message = ok(&on, all).await.messages.remove(0);
    assert_eq!(message.attributes["ApproximateReceiveCount"], "1");
    assert!(!message.attributes.contains_key("DeadLetterQueueSourceArn"));
    assert!(message.attributes["SentTimestamp"].parse::<i64>().unwrap() >= before / 1_000);
    assert_eq!(rows(&on).await.0, 30);
}

async fn dead_letters_go_elsewhere(on: TestStore) {
    queues(&on).await;
    dead(&on, 3).await;
    ok(&on, queue("elsewhere", &[])).await;
    // What nobody knows the source of can go there too.
    send_to(&on, "dead", "own").await;
    ok(&on, StartMessageMoveTask { destination_arn: Some(arn("elsewhere")), ..start() }).await;
    moves(&on).await;
    assert_eq!(tasks(&on).await[0].destination_arn, Some(arn("elsewhere")));
    assert_eq!(tasks(&on).await[0].status, "COMPLETED");
    assert_eq!((counted(&on, "elsewhere").await, counted(&on, "dead").await), ((7, 0, 0), (0, 0, 0)));
}

async fn a_task_keeps_its_pace(on: TestStore) {
    queues(&on).await;
    dead(&on, 10).await;
    ok(&on, StartMessageMoveTask { max_number_of_messages_per_second: Some(2), ..start() }).await;
    moves(&on).await;
    assert_eq!(counted(&on, "dead").await.0, 20);
    for round in 1..=5 {
        pass(&on, 2);
        moves(&on).await;
        moves(&on).await;
        assert_eq!(counted(&on, "dead").await.0, 20 - 2 * round);
    }
    // More than a second without a run is not made up for.
    pass(&on, 3_600);
    moves(&on).await;
    assert_eq!(tasks(&on).await[0].approximate_number_of_messages_moved, 12);
    assert_eq!(tasks(&on).await[0].max_number_of_messages_per_second, Some(2));
}

/// One transaction of the sweep.
struct Batch(i64);

impl Work for Batch {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        Moves::new(&Settings::default()).run_batch(ctx, tx, self.0).await
    }
}

/// Messages that are older than they are kept are not moved, but a transaction takes no more of them for that.
async fn a_batch_takes_no_more_than_it_may(on: TestStore) {
    queues(&on).await;
    for number in 0..35 {
        send_to(&on, "dead", &format!("m{number}")).await;
    }
    ok(&on, SetQueueAttributes { queue_url: url("dead"), attributes: map(&[("MessageRetentionPeriod", "60")]) }).await;
    pass(&on, 61);
    ok(&on, start()).await;
    for left in [15, 0] {
        assert_eq!(on.store.system().run(Batch(20)).await.unwrap(), if left > 0 { 20 } else { 15 });
        assert_eq!(rows(&on).await.0, left);
        assert_eq!(tasks(&on).await[0].status, if left > 0 { "RUNNING" } else { "COMPLETED" });
    }
    assert_eq!(tasks(&on).await[0].approximate_number_of_messages_moved, 0);
}

async fn a_task_can_be_cancelled(on: TestStore) {
    queues(&on).await;
    dead(&on, 5).await;
    let handle =
        ok(&on, StartMessageMoveTask { max_number_of_messages_per_second: Some(4), ..start() }).await.task_handle;
    pass(&on, 2);
    moves(&on).await;
    let cancel = || CancelMessageMoveTask { task_handle: handle.clone() };
    assert_eq!(ok(&on, cancel()).await.approximate_number_of_messages_moved, 4);
    pass(&on, 1);
    moves(&on).await;
    assert_eq!(counted(&on, "dead").await.0, 6);
    assert_eq!(tasks(&on).await[0].status, "CANCELLED");
    assert_eq!(refusal(&on, cancel()).await, Code::NotFound);
    // Another may take its place.
    ok(&on, start()).await;
    let statuses: Vec<String> = tasks(&on).await.into_iter().map(|task| task.status).collect();
    assert_eq!(statuses, ["RUNNING", "CANCELLED"]);
}

async fn a_message_that_came_from_nowhere_fails_the_task(on: TestStore) {
    queues(&on).await;
    dead(&on, 2).await;
    send_to(&on, "dead", "own").await;
    ok(&on, start()).await;
    let woken = on.store.flag(Topic::new("queue", on.admin.tenant, b"dead"));
    moves(&on).await;
    assert!(timeout(FAILED, woken.wait()).await.is_ok(), "those who wait have not seen it meanwhile");
    let task = tasks(&on).await.remove(0);
    assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("FAILED", 4));
    assert_eq!(task.failure_reason.as_deref(), Some("CouldNotDetermineMessageSource"));
    // It is as if nobody had touched it.
    let all = ReceiveMessage { queue_url: url("dead"), attribute_names: vec!["All".to_owned()], ..up_to(10) };
    let message = ok(&on, all).await.messages.remove(0);
    assert_eq!((message.body.as_str(), message.attributes["ApproximateReceiveCount"].as_str()), ("own", "1"));
}

async fn a_destination_that_is_gone_fails_the_task(on: TestStore) {
    queues(&on).await;
    dead(&on, 2).await;
    ok(&on, start()).await;
    ok(&on, DeleteQueue { queue_url: url("b") }).await;
    moves(&on).await;
    let task = tasks(&on).await.remove(0);
    assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("FAILED", 2));
    assert_eq!(task.failure_reason.as_deref(), Some("AWS.SimpleQueueService.NonExistentQueue"));
    assert_eq!((counted(&on, "a").await.0, counted(&on, "dead").await.0), (2, 2));
    // With the source its tasks are gone.
    ok(&on, DeleteQueue { queue_url: url("dead") }).await;
    assert_eq!(on.count("SELECT count(*) FROM move_tasks").await.unwrap(), 0);
}

async fn what_is_in_flight_stays(on: TestStore) {
    queues(&on).await;
    dead(&on, 2).await;
    let one = ReceiveMessage { queue_url: url("dead"), ..up_to(1) };
    assert_eq!(ok(&on, one).await.messages.len(), 1);
    ok(&on, start()).await;
    moves(&on).await;
    let task = tasks(&on).await.remove(0);
    assert_eq!((task.status.as_str(), task.approximate_number_of_messages_moved), ("COMPLETED", 3));
    assert_eq!(counted(&on, "dead").await, (0, 1, 0));
}

async fn one_task_at_a_time(on: TestStore) {
    queues(&on).await;
    for _ in 0..12 {
        let handle = ok(&on, start()).await.task_handle;
        assert_eq!(refusal(&on, start()).await, Code::InvalidRequest);
        ok(&on, CancelMessageMoveTask { task_handle: handle }).await;
        pass(&on, 1);
    }
    assert_eq!(tasks(&on).await.len(), 10);
    assert!(on.count("SELECT count(*) FROM move_tasks").await.unwrap() <= 11);
    let one = ok(&on, ListMessageMoveTasks { source_arn: arn("dead"), max_results: None }).await.results;
    assert_eq!(one.len(), 1);
}

async fn bad_tasks(on: TestStore) {
    queues(&on).await;
    let to = |name: &str| StartMessageMoveTask { destination_arn: Some(arn(name)), ..start() };
    let from = |arn: &str| StartMessageMoveTask { source_arn: arn.to_owned(), ..start() };
    let paced = |rate| StartMessageMoveTask { max_number_of_messages_per_second: Some(rate), ..start() };
    for (task, code) in [
        (from(""), Code::MissingParameter),
        (from(&arn("nowhere")), Code::NotFound),
        (from("arn:aws:sqs:us-east-1:123456789012:dead"), Code::NotFound),
        (from(&arn("a")), Code::InvalidRequest),
        (to("nowhere"), Code::NotFound),
        (to("dead"), Code::InvalidRequest),
        (paced(0), Code::InvalidRequest),
        (paced(501), Code::InvalidRequest),
    ] {
        let shown = format!("{task:?}");
        assert_eq!(refusal(&on, task).await, code, "{shown}");
    }
    assert_eq!(Code::NotFound.entry().sqs.shape, "ResourceNotFoundException");
    let list = |source_arn: String, max_results| ListMessageMoveTasks { source_arn, max_results };
    assert_eq!(refusal(&on, list(arn("nowhere"), None)).await, Code::NotFound);
    assert_eq!(refusal(&on, list(arn("dead"), Some(11))).await, Code::InvalidRequest);
    assert_eq!(refusal(&on, CancelMessageMoveTask { task_handle: "x".to_owned() }).await, Code::NotFound);
}

async fn tasks_read_and_write_as_sdks_do(on: TestStore) {
    queues(&on).await;
    let request = json!({ "SourceArn": arn("dead"), "MaxNumberOfMessagesPerSecond": 5, "New": true });
    let started = ok(&on, serde_json::from_value::<StartMessageMoveTask>(request).unwrap()).await;
    let handle = started.task_handle.clone();
    assert_eq!(serde_json::to_value(started).unwrap(), json!({ "TaskHandle": handle }));
    let list = serde_json::from_value::<ListMessageMoveTasks>(json!({ "SourceArn": arn("dead") })).unwrap();
    let listed = serde_json::to_value(ok(&on, list).await).unwrap();
    assert_eq!(
        listed,
        json!({ "Results": [{
            "TaskHandle": handle, "Status": "RUNNING", "SourceArn": arn("dead"), "MaxNumberOfMessagesPerSecond": 5,
            "ApproximateNumberOfMessagesMoved": 0, "ApproximateNumberOfMessagesToMove": 0,
            "StartedTimestamp": listed["Results"][0]["StartedTimestamp"],
        }] })
    );
    let cancelled = ok(&on, CancelMessageMoveTask { task_handle: handle }).await;
    assert_eq!(serde_json::to_value(cancelled).unwrap(), json!({ "ApproximateNumberOfMessagesMoved": 0 }));
}
