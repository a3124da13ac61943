//! A message that was received too often goes to where its queue's policy points, and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use waybill_kernel::Code;
use waybill_queues::Message;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::list_dead_letter_source_queues::ListDeadLetterSourceQueues;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{
    arn, attributes_of, bodies, body, counted, drain, jobs, map, ok, pass, queue, receive, refusal, rows, send, text,
    up_to, upkeep, url,
};

both! {
    a_message_is_delivered_as_often_as_the_policy_says,
    a_dead_letter_is_the_message_it_was,
    healthy_messages_behind_it_are_delivered,
    nothing_is_taken_twice_by_one_receive,
    a_dead_letter_ends_a_wait,
    a_broken_policy_blocks_nobody,
    a_queue_says_whose_dead_letters_it_takes,
    policies_are_checked_when_they_are_set,
    sources_are_listed,
    a_dead_letter_grows_old_from_its_first_day,
}

fn policy(target: &str, count: i64) -> String {
    format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":{count}}}"#, arn(target))
}

async fn set(on: &TestStore, name: &str, attribute: &str, value: &str) {
    let attributes = map(&[(attribute, value)]);
    ok(on, SetQueueAttributes { queue_url: url(name), attributes }).await;
}

/// Of any queue, with all that there is to know.
async fn received(on: &TestStore, name: &str) -> Vec<Message> {
    let all = || vec!["All".to_owned()];
    let request = ReceiveMessage {
        queue_url: url(name),
        message_system_attribute_names: all(),
        message_attribute_names: all(),
        ..up_to(10)
    };
    ok(on, request).await.messages
}

/// Jobs that are visible again after a second, with dead letters after so many receives.
async fn with_dead_letters(on: &TestStore, count: i64) {
    ok(on, queue("dead", &[])).await;
    jobs(on, &[("RedrivePolicy", &policy("dead", count)), ("VisibilityTimeout", "1")]).await;
}

/// One in `dead`, which came from `jobs`.
pub async fn one_dead_letter(on: &TestStore) {
    with_dead_letters(on, 1).await;
    send(on, "poison").await;
    receive(on, 1).await;
    pass(on, 2);
    assert!(receive(on, 1).await.is_empty());
}

async fn a_message_is_delivered_as_often_as_the_policy_says(on: TestStore) {
    with_dead_letters(&on, 3).await;
    send(&on, "poison").await;
    for round in 1..=3 {
        let messages = received(&on, "jobs").await;
        assert_eq!(messages[0].attributes["ApproximateReceiveCount"], round.to_string());
        assert!(received(&on, "dead").await.is_empty());
        pass(&on, 2);
    }
    assert!(received(&on, "jobs").await.is_empty());
    assert_eq!((counted(&on, "jobs").await, counted(&on, "dead").await), ((0, 0, 0), (1, 0, 0)));
    assert_eq!(received(&on, "dead").await[0].body, "poison");
    assert_eq!(rows(&on).await, (1, 1));
}

async fn a_dead_letter_is_the_message_it_was(on: TestStore) {
    with_dead_letters(&on, 1).await;
    let sent = ok(
        &on,
        SendMessage {
            message_attributes: [("n".to_owned(), text("String", "v"))].into(),
            message_group_id: Some("g".to_owned()),
            ..body("poison")
        },
    )
    .await;
    let first = received(&on, "jobs").await.remove(0);
    pass(&on, 2);
    assert!(received(&on, "jobs").await.is_empty());
    let dead = received(&on, "dead").await.remove(0);
    assert_eq!((dead.message_id, &dead.md5_of_body), (sent.message_id, &first.md5_of_body));
    assert_eq!(dead.message_attributes, first.message_attributes);
    for name in ["SentTimestamp", "SenderId", "MessageGroupId"] {
        assert_eq!(dead.attributes[name], first.attributes[name], "{name}");
    }
    assert_eq!(dead.attributes["ApproximateReceiveCount"], "1");
    assert_eq!(dead.attributes["DeadLetterQueueSourceArn"], arn("jobs"));
    assert!(!first.attributes.contains_key("DeadLetterQueueSourceArn"));
}

async fn healthy_messages_behind_it_are_delivered(on: TestStore) {
    with_dead_letters(&on, 1).await;
    for number in 0..25 {
        send(&on, &format!("poison {number}")).await;
    }
    for _ in 0..3 {
        received(&on, "jobs").await;
    }
    pass(&on, 2);
    for text in ["a", "b", "c"] {
        send(&on, text).await;
    }
    // Those that are moved do not take the places of those that were asked for.
    assert_eq!(bodies(&on).await, ["a", "b", "c"]);
    assert_eq!(counted(&on, "dead").await, (25, 0, 0));
    let open = ReceiveMessage { visibility_timeout: Some(0), ..up_to(10) };
    pass(&on, 2);
    assert_eq!(ok(&on, open).await.messages.len(), 0);
    assert_eq!(counted(&on, "dead").await, (28, 0, 0));
}

/// What it leaves visible is due at once, while it looks for more in the place of the dead.
async fn nothing_is_taken_twice_by_one_receive(on: TestStore) {
    with_dead_letters(&on, 1).await;
    for number in 0..3 {
        send(&on, &format!("poison {number}")).await;
    }
    assert_eq!(receive(&on, 10).await.len(), 3);
    pass(&on, 2);
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    let open = ReceiveMessage { visibility_timeout: Some(0), ..up_to(10) };
    let messages = ok(&on, open).await.messages;
    assert_eq!(messages.iter().map(|message| message.body.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(counted(&on, "dead").await, (3, 0, 0));
}

async fn a_dead_letter_ends_a_wait(on: TestStore) {
    with_dead_letters(&on, 1).await;
    send(&on, "poison").await;
    received(&on, "jobs").await;
    pass(&on, 2);
    let on = Arc::new(on);
    let waits = Arc::clone(&on);
    let waiter = tokio::spawn(async move {
        let wait = ReceiveMessage { queue_url: url("dead"), wait_time_seconds: Some(20), ..up_to(1) };
        ok(&waits, wait).await.messages.len()
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = std::time::Instant::now();
    assert!(receive(&on, 10).await.is_empty());
    assert_eq!(waiter.await.unwrap(), 1);
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
}

async fn a_broken_policy_blocks_nobody(on: TestStore) {
    with_dead_letters(&on, 1).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    assert_eq!(receive(&on, 10).await.len(), 2);
    pass(&on, 2);
    ok(&on, DeleteQueue { queue_url: url("dead") }).await;
    // There is nowhere to go: they are delivered once more.
    assert_eq!(receive(&on, 10).await.len(), 2);
    pass(&on, 2);
    ok(&on, queue("dead", &[("RedriveAllowPolicy", r#"{"redrivePermission":"denyAll"}"#)])).await;
    assert_eq!(receive(&on, 10).await.len(), 2);
    pass(&on, 2);
    set(&on, "dead", "RedriveAllowPolicy", "").await;
    assert_eq!(receive(&on, 10).await.len(), 0);
    assert_eq!(counted(&on, "dead").await, (2, 0, 0));
    // Without a policy everything is as it would be without.
    set(&on, "jobs", "RedrivePolicy", "").await;
    send(&on, "c").await;
    for _ in 0..3 {
        assert_eq!(bodies(&on).await, ["c"]);
        pass(&on, 2);
    }
}

async fn a_queue_says_whose_dead_letters_it_takes(on: TestStore) {
    let allow = |arns: &[&str]| {
        let arns: Vec<String> = arns.iter().map(|name| arn(name)).collect();
        format!(r#"{{"redrivePermission":"byQueue","sourceQueueArns":{arns:?}}}"#)
    };
    ok(&on, queue("dead", &[("RedriveAllowPolicy", &allow(&["other"]))])).await;
    let create = || queue("jobs", &[("RedrivePolicy", &policy("dead", 1)), ("VisibilityTimeout", "1")]);
    assert_eq!(refusal(&on, create()).await, Code::InvalidAttributeValue);
    set(&on, "dead", "RedriveAllowPolicy", &allow(&["other", "jobs"])).await;
    ok(&on, create()).await;
    // Asked again when it comes to it.
    send(&on, "m").await;
    assert_eq!(receive(&on, 1).await.len(), 1);
    pass(&on, 2);
    set(&on, "dead", "RedriveAllowPolicy", &allow(&["other"])).await;
    assert_eq!(receive(&on, 1).await.len(), 1);
    pass(&on, 2);
    set(&on, "dead", "RedriveAllowPolicy", "{}").await;
    assert!(receive(&on, 1).await.is_empty());
}

async fn policies_are_checked_when_they_are_set(on: TestStore) {
    jobs(&on, &[]).await;
    ok(&on, queue("dead", &[])).await;
    let other_account = policy("dead", 3).replace("000000000000", "123456789012");
    let other_region = policy("dead", 3).replace("us-east-1", "eu-west-1");
    for bad in [
        policy("nowhere", 3),
        policy("dead", 0),
        policy("dead", 1_001),
        other_account,
        other_region,
        "{}".to_owned(),
        "nonsense".to_owned(),
    ] {
        let attributes = map(&[("RedrivePolicy", &bad), ("DelaySeconds", "7")]);
        let set = SetQueueAttributes { queue_url: url("jobs"), attributes };
        assert_eq!(refusal(&on, set).await, Code::InvalidAttributeValue, "{bad}");
        assert_eq!(refusal(&on, queue("new", &[("RedrivePolicy", &bad)])).await, Code::InvalidAttributeValue, "{bad}");
    }
    let itself =
        SetQueueAttributes { queue_url: url("jobs"), attributes: map(&[("RedrivePolicy", &policy("jobs", 3))]) };
    assert_eq!(refusal(&on, itself).await, Code::InvalidAttributeValue);
    // All or nothing.
    assert_eq!(attributes_of(&on, "jobs", &["DelaySeconds", "RedrivePolicy"]).await, map(&[("DelaySeconds", "0")]));
    // As it was sent, and not as we would write it.
    let spaced = policy("dead", 3).replace(",", ", ");
    set(&on, "jobs", "RedrivePolicy", &spaced).await;
    assert_eq!(attributes_of(&on, "jobs", &["RedrivePolicy"]).await["RedrivePolicy"], spaced);
    ok(&on, queue("jobs", &[("RedrivePolicy", &policy("dead", 3))])).await;
    assert_eq!(refusal(&on, queue("jobs", &[("RedrivePolicy", &policy("dead", 4))])).await, Code::QueueNameExists);
}

async fn sources_are_listed(on: TestStore) {
    ok(&on, queue("dead", &[])).await;
    for name in ["c", "a", "b", "d"] {
        ok(&on, queue(name, &[("RedrivePolicy", &policy("dead", 3))])).await;
    }
    ok(&on, queue("e", &[])).await;
    set(&on, "d", "RedrivePolicy", "").await;
    let list = |max_results, next_token| ListDeadLetterSourceQueues { queue_url: url("dead"), max_results, next_token };
    let all = ok(&on, list(None, None)).await;
    assert_eq!((all.queue_names, all.next_token), (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], None));
    let first = ok(&on, list(Some(2), None)).await;
    assert_eq!(first.queue_names, ["a", "b"]);
    let second = ok(&on, list(Some(2), first.next_token)).await;
    assert_eq!((second.queue_names, second.next_token), (vec!["c".to_owned()], None));
    ok(&on, DeleteQueue { queue_url: url("b") }).await;
    assert_eq!(ok(&on, list(None, None)).await.queue_names, ["a", "c"]);
    let nowhere = ListDeadLetterSourceQueues { queue_url: url("nowhere"), ..list(None, None) };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
    assert_eq!(refusal(&on, list(Some(0), None)).await, Code::InvalidRequest);
}

async fn a_dead_letter_grows_old_from_its_first_day(on: TestStore) {
    with_dead_letters(&on, 1).await;
    set(&on, "dead", "MessageRetentionPeriod", "1000").await;
    send(&on, "poison").await;
    received(&on, "jobs").await;
    pass(&on, 900);
    // A younger one lies before it.
    ok(&on, SendMessage { queue_url: url("dead"), ..body("young") }).await;
    assert!(received(&on, "jobs").await.is_empty());
    assert_eq!(counted(&on, "dead").await, (2, 0, 0));
    pass(&on, 101);
    for _ in 0..3 {
        upkeep(&on).await;
    }
    assert_eq!(counted(&on, "dead").await, (1, 0, 0));
    assert_eq!(received(&on, "dead").await[0].body, "young");
    drain(&on).await;
    assert_eq!(rows(&on).await, (1, 1));
}
