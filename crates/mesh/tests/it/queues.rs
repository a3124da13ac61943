//! Messages to queues: what a queue gets, how often, and what is refused.

use std::collections::BTreeMap;

use waybill_kernel::Code;
use waybill_mesh::EventKind;
use waybill_mesh::ops::manage::CheckMesh;
use waybill_mesh::ops::members::{ReadMeshEvents, RevokeMember};
use waybill_mesh::ops::messages::ReadHistory;
use waybill_mesh::ops::queues::{AllowQueue, DisallowQueue, ListAllowedQueues, QUEUES_MAX};
use waybill_mesh_protocol::{Destination, DestinationKind, Envelope, Meta};
use waybill_queues::ops::{CreateQueue, DeleteQueue, PurgeQueue, ReceiveMessage, SendMessage};
use waybill_queues::shards::Placed;
use waybill_queues::{Message, PartitionMap};
use waybill_testkit::stores::{TestStore, readable};

use crate::support::{Person, accept, call, count, join, mesh_of, ok, plain_mesh, refusal, refused, rows, send, sent};

mod usual {
    use super::*;

    waybill_testkit::both! {
        a_message_to_an_allowed_queue_is_in_it_once,
        what_is_not_allowed_and_what_there_is_not_are_refused_alike,
        a_queue_that_is_disallowed_takes_nothing_more,
        a_queue_that_is_deleted_takes_nothing_more,
        an_encrypted_mesh_sends_to_no_queue,
        bodies_are_held_to_what_the_queue_takes,
        only_the_owner_says_which_queues,
        a_fifo_queue_keeps_a_members_order,
        the_queues_throttle_holds_and_what_it_refuses_leaves_nothing,
        first_sends_of_one_id_at_once_make_one_message,
    }
}

mod with_shards {
    use super::*;

    waybill_testkit::both! {
        crate::queues::spread(), shards &["a"] => a_queue_in_several_stores_is_refused_by_name,
    }
}

/// The second partition of one queue is elsewhere than in home.
fn spread() -> waybill_queues::Settings {
    let entry = "spread.fifo:2=home,a".to_owned();
    waybill_queues::Settings {
        partition_map: PartitionMap::parse(&[entry]).unwrap(),
        ..waybill_queues::Settings::default()
    }
}

async fn queue(on: &TestStore, name: &str, attributes: &[(&str, &str)]) {
    let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ok(on, &on.admin, CreateQueue { queue_name: name.to_owned(), attributes, ..CreateQueue::default() }).await;
}

fn allow(who: &Person, queue: &str) -> AllowQueue {
    AllowQueue { mesh: who.mesh(), member: who.id(), queue: queue.to_owned() }
}

fn disallow(who: &Person, queue: &str) -> DisallowQueue {
    DisallowQueue { mesh: who.mesh(), member: who.id(), queue: queue.to_owned() }
}

fn to_queue(queue: &str, text: &str) -> Envelope {
    let destination = Destination { kind: DestinationKind::Queue, reference: queue.to_owned() };
    Envelope::new(destination, text.as_bytes().to_vec())
}

async fn receive(on: &TestStore, queue: &str) -> Vec<Message> {
    let receive = ReceiveMessage {
        queue_url: queue.to_owned(),
        max_number_of_messages: Some(10),
        attribute_names: vec!["All".to_owned()],
        message_attribute_names: vec!["All".to_owned()],
        ..ReceiveMessage::default()
    };
    ok(on, &on.admin, receive).await.messages
}

fn texts(message: &Message) -> BTreeMap<&str, &str> {
    let texts = message.message_attributes.iter();
    texts.map(|(name, attribute)| (name.as_str(), attribute.string_value.as_deref().unwrap())).collect()
}

async fn a_message_to_an_allowed_queue_is_in_it_once(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    queue(&on, "jobs", &[]).await;
    ok(&on, alice.caller(), allow(&alice, "jobs")).await;
    let mut envelope = to_queue("jobs", "build main");
    envelope.meta = Some(Meta::parse(r#"{"b":1,"a":2}"#).unwrap());
    envelope.reply_to = Some("before".parse().unwrap());
    let first = sent(&on, &bob, "m-1", envelope.clone()).await;
    for _ in 0..3 {
        let (again, replay) = send(&on, &bob, "m-1", envelope.clone()).await.map_err(readable).unwrap();
        assert!(again.duplicate && replay && again.broker_message_id == first.broker_message_id);
    }
    // Another text under the id is another message, which is refused and not queued either.
    let conflict = refusal(&on, &bob, "m-1", to_queue("jobs", "build other")).await;
    assert_eq!(conflict.code(), Code::IdempotencyKeyReused);
    assert_eq!(rows(&on).await, [1, 1, 1, 0, 0]);
    let received = receive(&on, "jobs").await;
    let [message] = &received[..] else { panic!("{received:?}") };
    assert_eq!(message.body, "build main");
    assert_eq!(message.attributes["SenderId"], bob.caller().principal.to_string());
    let (key, id) = (bob.key().to_string(), first.broker_message_id.to_string());
    let expected = BTreeMap::from([
        ("mesh", "team"),
        ("sender", &key),
        ("client_message_id", "m-1"),
        ("broker_message_id", &id),
        ("priority", "next"),
        ("reply_to", "before"),
        ("meta", r#"{"a":2,"b":1}"#),
    ]);
    assert_eq!(texts(message), expected);
    // It was sent to no member, and all that was committed belongs together.
    for who in [&alice, &bob] {
        let history = ReadHistory { mesh: who.mesh(), member: who.id(), after: 0, limit: None, mentions: false };
        assert!(ok(&on, who.caller(), history).await.messages.is_empty());
    }
    let check = ok(&on, &on.admin, CheckMesh { mesh: "team".parse().unwrap(), cursor: None }).await;
    assert_eq!((check.findings, check.looked_at), (Vec::new(), 3));
}

async fn what_is_not_allowed_and_what_there_is_not_are_refused_alike(on: TestStore) {
    let alice = plain_mesh(&on).await;
    queue(&on, "secret", &[("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", "0.001")]).await;
    let mut shown = Vec::new();
    for reference in ["secret", "none", "x/secret", "http://localhost/000000000000/secret"] {
        // More often than the queue's throttle would allow: it is not asked.
        for _ in 0..12 {
            let error = refusal(&on, &alice, "a", to_queue(reference, "x")).await;
            assert_eq!(error.code(), Code::DestinationUnknown, "{reference}");
            shown.push(error.to_json());
        }
    }
    assert!(shown.iter().all(|error| *error == shown[0]), "{shown:?}");
    assert_eq!((rows(&on).await, count(&on, "messages").await), ([0; 5], 0));
    let missing = refused(&on, alice.caller(), allow(&alice, "none")).await;
    assert_eq!(missing, Code::QueueDoesNotExist);
    for no_name in ["", "a/b", "http://localhost/000000000000/secret"] {
        assert_eq!(refused(&on, alice.caller(), allow(&alice, no_name)).await, Code::QueueDoesNotExist, "{no_name}");
    }
}

async fn a_queue_that_is_disallowed_takes_nothing_more(on: TestStore) {
    let alice = plain_mesh(&on).await;
    queue(&on, "jobs", &[]).await;
    assert!(ok(&on, alice.caller(), allow(&alice, "jobs")).await.allowed);
    assert!(!ok(&on, alice.caller(), allow(&alice, "jobs")).await.allowed);
    sent(&on, &alice, "a", to_queue("jobs", "one")).await;
    assert!(ok(&on, alice.caller(), disallow(&alice, "jobs")).await.disallowed);
    assert!(!ok(&on, alice.caller(), disallow(&alice, "jobs")).await.disallowed);
    assert_eq!(refusal(&on, &alice, "b", to_queue("jobs", "two")).await.code(), Code::DestinationUnknown);
    // What was accepted before stays accepted.
    assert!(send(&on, &alice, "a", to_queue("jobs", "one")).await.map_err(readable).unwrap().0.duplicate);
    assert_eq!((rows(&on).await, count(&on, "messages").await), ([1, 1, 1, 0, 0], 1));
    let events = ReadMeshEvents { mesh: alice.mesh(), after: 0, limit: None };
    let kinds: Vec<EventKind> = ok(&on, alice.caller(), events).await.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::MeshCreated, EventKind::QueueAllowed, EventKind::QueueDisallowed]);
    ok(&on, alice.caller(), allow(&alice, "jobs")).await;
    sent(&on, &alice, "b", to_queue("jobs", "two")).await;
}

async fn a_queue_that_is_deleted_takes_nothing_more(on: TestStore) {
    let alice = plain_mesh(&on).await;
    queue(&on, "jobs", &[]).await;
    ok(&on, alice.caller(), allow(&alice, "jobs")).await;
    sent(&on, &alice, "a", to_queue("jobs", "one")).await;
    ok(&on, &on.admin, PurgeQueue { queue_url: "jobs".to_owned() }).await;
    sent(&on, &alice, "b", to_queue("jobs", "two")).await;
    assert_eq!(receive(&on, "jobs").await.len(), 1);
    ok(&on, &on.admin, DeleteQueue { queue_url: "jobs".to_owned() }).await;
    let gone = refusal(&on, &alice, "c", to_queue("jobs", "three")).await;
    let never = refusal(&on, &alice, "c", to_queue("never", "three")).await;
    assert_eq!((gone.code(), gone.to_json()), (Code::DestinationUnknown, never.to_json()));
    assert!(send(&on, &alice, "a", to_queue("jobs", "one")).await.map_err(readable).unwrap().0.duplicate);
    assert_eq!(rows(&on).await, [2, 2, 2, 0, 0]);
}

async fn an_encrypted_mesh_sends_to_no_queue(on: TestStore) {
    let alice = mesh_of(&on, &on.admin, "team", false).await;
    queue(&on, "jobs", &[]).await;
    assert_eq!(refused(&on, alice.caller(), allow(&alice, "jobs")).await, Code::QueueNeedsPlaintext);
    assert_eq!(refusal(&on, &alice, "a", to_queue("jobs", "x")).await.code(), Code::QueueNeedsPlaintext);
    assert_eq!((rows(&on).await, count(&on, "messages").await), ([0; 5], 0));
}

async fn bodies_are_held_to_what_the_queue_takes(on: TestStore) {
    let alice = plain_mesh(&on).await;
    queue(&on, "small", &[("MaximumMessageSize", "1024")]).await;
    ok(&on, alice.caller(), allow(&alice, "small")).await;
    let error = refusal(&on, &alice, "a", to_queue("small", &"x".repeat(1_024))).await;
    assert_eq!(error.code(), Code::PayloadTooLarge, "the attributes are counted");
    assert_eq!(error.detail("limit_bytes"), Some(&serde_json::json!(1_024)));
    let mut bytes = to_queue("small", "");
    assert_eq!(refusal(&on, &alice, "a", bytes.clone()).await.code(), Code::InvalidMessageContents);
    bytes.body.0 = vec![0xff, 0xfe];
    assert_eq!(refusal(&on, &alice, "a", bytes).await.code(), Code::InvalidMessageContents);
    let control = refusal(&on, &alice, "a", to_queue("small", "a\u{1}")).await;
    assert_eq!(control.code(), Code::InvalidMessageContents);
    // The mesh's own limit comes first.
    let large = refusal(&on, &alice, "a", to_queue("small", &"x".repeat(65_537))).await;
    assert!(large.detail("max_payload_inline_bytes").is_some());
    assert_eq!((rows(&on).await, count(&on, "messages").await), ([0; 5], 0));
    sent(&on, &alice, "a", to_queue("small", &"x".repeat(512))).await;
    assert_eq!(count(&on, "messages").await, 1);
}

async fn only_the_owner_says_which_queues(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    queue(&on, "jobs", &[]).await;
    let list = |who: &Person| ListAllowedQueues { mesh: who.mesh(), member: who.id() };
    assert_eq!(refused(&on, bob.caller(), allow(&bob, "jobs")).await, Code::Forbidden);
    ok(&on, alice.caller(), allow(&alice, "jobs")).await;
    assert_eq!(refused(&on, bob.caller(), disallow(&bob, "jobs")).await, Code::Forbidden);
    assert_eq!(refused(&on, bob.caller(), list(&bob)).await, Code::Forbidden);
    let listed = ok(&on, alice.caller(), list(&alice)).await.queues;
    assert_eq!(listed.iter().map(|view| view.queue.as_str()).collect::<Vec<_>>(), ["jobs"]);
    // A revoked member sends to no queue.
    ok(&on, alice.caller(), RevokeMember { mesh: alice.mesh(), member: alice.id(), key: bob.key() }).await;
    assert_eq!(refusal(&on, &bob, "a", to_queue("jobs", "x")).await.code(), Code::MemberRevoked);
    // Another mesh of the tenant has a list of its own.
    let carol = mesh_of(&on, &on.admin, "others", true).await;
    assert_eq!(refusal(&on, &carol, "a", to_queue("jobs", "x")).await.code(), Code::DestinationUnknown);
    for number in 1..QUEUES_MAX {
        queue(&on, &format!("q{number}"), &[]).await;
        ok(&on, alice.caller(), allow(&alice, &format!("q{number}"))).await;
    }
    queue(&on, "more", &[]).await;
    assert_eq!(refused(&on, alice.caller(), allow(&alice, "more")).await, Code::TooManyQueues);
}

async fn a_fifo_queue_keeps_a_members_order(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    queue(&on, "jobs.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")]).await;
    ok(&on, alice.caller(), allow(&alice, "jobs.fifo")).await;
    // The same text twice is two messages: the mesh tells them apart, and the queue does not think otherwise.
    for (who, id, text) in [(&bob, "1", "x"), (&alice, "2", "x"), (&bob, "3", "x"), (&bob, "4", "y")] {
        sent(&on, who, id, to_queue("jobs.fifo", text)).await;
    }
    assert!(send(&on, &bob, "3", to_queue("jobs.fifo", "x")).await.map_err(readable).unwrap().0.duplicate);
    let received = receive(&on, "jobs.fifo").await;
    let of = |who: &Person| -> Vec<&str> {
        let group = who.id().to_string();
        let own = received.iter().filter(|message| message.attributes["MessageGroupId"] == group);
        own.map(|message| texts(message)["client_message_id"]).collect()
    };
    assert_eq!((of(&bob), of(&alice)), (vec!["1", "3", "4"], vec!["2"]));
}

async fn the_queues_throttle_holds_and_what_it_refuses_leaves_nothing(on: TestStore) {
    let alice = plain_mesh(&on).await;
    queue(&on, "jobs", &[("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", "0.001")]).await;
    ok(&on, alice.caller(), allow(&alice, "jobs")).await;
    for number in 0..10 {
        sent(&on, &alice, &format!("m{number}"), to_queue("jobs", "x")).await;
    }
    let error = refusal(&on, &alice, "m10", to_queue("jobs", "x")).await;
    assert_eq!(error.code(), Code::Throttling);
    assert!(error.detail("retry_after").is_some());
    assert!(send(&on, &alice, "m3", to_queue("jobs", "x")).await.map_err(readable).unwrap().0.duplicate);
    assert_eq!((rows(&on).await, count(&on, "messages").await), ([10, 10, 10, 0, 0], 10));
    // Those who send over SQS pay from the same bucket.
    let send = SendMessage { queue_url: "jobs".to_owned(), message_body: "x".to_owned(), ..SendMessage::default() };
    assert_eq!(refused(&on, &on.admin, send).await, Code::Throttling);
}

async fn first_sends_of_one_id_at_once_make_one_message(on: TestStore) {
    let alice = plain_mesh(&on).await;
    queue(&on, "jobs", &[]).await;
    ok(&on, alice.caller(), allow(&alice, "jobs")).await;
    let sends = (0..8).map(|_| call(&on, alice.caller(), accept(&alice, "a", to_queue("jobs", "x"))));
    let answers = futures_util::future::join_all(sends).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.map_err(readable).unwrap().0).collect();
    assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1);
    assert_eq!((rows(&on).await, count(&on, "messages").await), ([1, 1, 1, 0, 0], 1));
}

async fn a_queue_in_several_stores_is_refused_by_name(on: TestStore) {
    let alice = plain_mesh(&on).await;
    // Its first partition is in home, and it has no other.
    create(&on, &[("FifoQueue", "true")]).await;
    ok(&on, alice.caller(), allow(&alice, "spread.fifo")).await;
    sent(&on, &alice, "a", to_queue("spread.fifo", "x")).await;
    call(&on, &on.admin, Placed(DeleteQueue { queue_url: "spread.fifo".to_owned() })).await.map_err(readable).unwrap();
    // Made anew elsewhere it is allowed still, and out of reach.
    create(&on, &[("FifoQueue", "true"), ("PartitionCount", "2")]).await;
    assert_eq!(refusal(&on, &alice, "b", to_queue("spread.fifo", "x")).await.code(), Code::QueueElsewhere);
    ok(&on, alice.caller(), disallow(&alice, "spread.fifo")).await;
    assert_eq!(refused(&on, alice.caller(), allow(&alice, "spread.fifo")).await, Code::QueueElsewhere);
    assert_eq!(refusal(&on, &alice, "b", to_queue("spread.fifo", "x")).await.code(), Code::DestinationUnknown);
}

async fn create(on: &TestStore, attributes: &[(&str, &str)]) {
    let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let create = CreateQueue { queue_name: "spread.fifo".to_owned(), attributes, ..CreateQueue::default() };
    call(on, &on.admin, Placed(create)).await.map_err(readable).unwrap();
}
