//! What is sent arrives as it was.

use std::collections::BTreeMap;

use waybill_kernel::Code;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::{Blob, MessageAttribute};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{bodies, body, jobs, ok, pass, receive, refusal, rows, send, text, up_to};

both! {
    messages_arrive_in_the_order_they_were_sent,
    attributes_arrive_as_far_as_they_are_asked_for,
    a_large_message_arrives_whole,
    a_message_waits_for_its_delay,
    numbers_of_deleted_messages_do_no_harm,
}

async fn messages_arrive_in_the_order_they_were_sent(on: TestStore) {
    jobs(&on, &[]).await;
    for number in 0..12 {
        send(&on, &format!("m{number}")).await;
    }
    assert_eq!(receive(&on, 1).await[0].body, "m0");
    let next: Vec<String> = (1..11).map(|number| format!("m{number}")).collect();
    assert_eq!(bodies(&on).await, next);
    assert_eq!(bodies(&on).await, ["m11"]);
    assert_eq!(bodies(&on).await, Vec::<String>::new());
    assert_eq!(rows(&on).await, (12, 12));
}

async fn attributes_arrive_as_far_as_they_are_asked_for(on: TestStore) {
    jobs(&on, &[]).await;
    let binary = MessageAttribute {
        data_type: "Binary".to_owned(),
        string_value: None,
        binary_value: Some(Blob(vec![0, 1, 2, 255])),
    };
    let sent = ok(
        &on,
        SendMessage {
            message_attributes: BTreeMap::from([
                ("a".to_owned(), text("Number", "42")),
                ("b".to_owned(), binary.clone()),
                ("c".to_owned(), text("String.custom", "hello")),
            ]),
            message_system_attributes: BTreeMap::from([("AWSTraceHeader".to_owned(), text("String", "Root=1-5759"))]),
            message_group_id: Some("user-1".to_owned()),
            ..body("hello")
        },
    )
    .await;
    assert_eq!(sent.md5_of_message_body, "5d41402abc4b2a76b9719d911017c592");
    assert_eq!(sent.md5_of_message_attributes.as_deref(), Some("e9a895aebdc547417538bd87ec526f30"));
    assert!(sent.md5_of_message_system_attributes.is_some());
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();

    // Without a word nothing is shown; the messages stay visible.
    let quiet = ReceiveMessage { visibility_timeout: Some(0), ..up_to(1) };
    let message = ok(&on, quiet).await.messages.remove(0);
    assert!(message.attributes.is_empty() && message.message_attributes.is_empty());
    assert_eq!((message.message_id, message.md5_of_message_attributes), (sent.message_id, None));

    let all = ReceiveMessage {
        visibility_timeout: Some(0),
        attribute_names: names(&["All"]),
        message_attribute_names: names(&["b", "c"]),
        ..up_to(1)
    };
    let message = ok(&on, all).await.messages.remove(0);
    assert_eq!(message.message_attributes.keys().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(message.message_attributes["b"], binary);
    // Of the two, and not of the three that were sent.
    assert!(message.md5_of_message_attributes.is_some_and(|md5| Some(md5) != sent.md5_of_message_attributes));
    let now = on.store.now().micros() / 1_000;
    for (name, value) in [
        ("AWSTraceHeader", "Root=1-5759"),
        ("ApproximateReceiveCount", "2"),
        ("MessageGroupId", "user-1"),
        ("SenderId", &on.admin.principal.to_string()),
    ] {
        assert_eq!(message.attributes[name], value);
    }
    for name in ["SentTimestamp", "ApproximateFirstReceiveTimestamp"] {
        let millis: i64 = message.attributes[name].parse().unwrap();
        assert!((now - 60_000..=now).contains(&millis), "{name} {millis}");
    }
    assert_eq!(message.attributes.len(), 6);
}

async fn a_large_message_arrives_whole(on: TestStore) {
    const MAX: usize = 1_048_576;
    jobs(&on, &[]).await;
    let attributes = BTreeMap::from([("n".to_owned(), text("String", "v"))]);
    let large = "x".repeat(MAX - "nStringv".len());
    let sent = ok(&on, SendMessage { message_attributes: attributes.clone(), ..body(&large) }).await;
    let received = receive(&on, 1).await.remove(0);
    assert!(received.body == large);
    assert_eq!(received.md5_of_body, sent.md5_of_message_body);
    let larger = format!("{large}x");
    let refused = SendMessage { message_attributes: attributes, ..body(&larger) };
    assert_eq!(refusal(&on, refused).await, Code::InvalidRequest);
    ok(&on, body(&"x".repeat(MAX))).await;
    assert_eq!(refusal(&on, body(&"x".repeat(MAX + 1))).await, Code::InvalidRequest);
}

async fn a_message_waits_for_its_delay(on: TestStore) {
    jobs(&on, &[("DelaySeconds", "10")]).await;
    let delayed = |text: &str, delay_seconds| SendMessage { delay_seconds, ..body(text) };
    ok(&on, delayed("by the queue", None)).await;
    ok(&on, delayed("later", Some(20))).await;
    ok(&on, delayed("at once", Some(0))).await;
    assert_eq!(bodies(&on).await, ["at once"]);
    assert_eq!(bodies(&on).await, Vec::<String>::new());
    pass(&on, 11);
    let message = ok(&on, ReceiveMessage { attribute_names: vec!["All".to_owned()], ..up_to(10) }).await.messages;
    assert_eq!(message.iter().map(|message| message.body.as_str()).collect::<Vec<_>>(), ["by the queue"]);
    assert_eq!(message[0].attributes["ApproximateReceiveCount"], "1");
    pass(&on, 10);
    assert_eq!(bodies(&on).await, ["later"]);
}

/// SQLite gives the number of the last message again when it is gone.
async fn numbers_of_deleted_messages_do_no_harm(on: TestStore) {
    jobs(&on, &[]).await;
    let mut stale = Vec::new();
    for round in 0..30 {
        for number in 0..3 {
            send(&on, &format!("{round}.{number}")).await;
        }
        let messages = receive(&on, 10).await;
        assert_eq!(messages.len(), 3, "round {round}");
        for message in &messages {
            assert!(message.body.starts_with(&format!("{round}.")));
        }
        for handle in stale.iter().chain(&messages) {
            ok(&on, crate::support::delete(handle)).await;
        }
        assert_eq!(rows(&on).await, (0, 0));
        stale = messages;
    }
}
