//! The link against a broker that cuts, repeats, reorders, is late or falls silent.

use waybill_daemon::events::EventKind;
use waybill_daemon::outbox::Status;
use waybill_kernel::Code;
use waybill_mesh_protocol::frames::{MemberGone, Send, SendResult};
use waybill_mesh_protocol::negotiation::{FeatureRequest, Features};
use waybill_mesh_protocol::{ClientFrame, CloseCode, ServerFrame};

use super::link_broker::{CONFIG, FakeBroker, Linked, accepted, from_bob};
use super::support::{identity, member};

#[tokio::test]
async fn a_delivery_is_in_the_inbox_before_it_is_acknowledged_and_a_repeat_is_nothing_new() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut events = daemon.handle.events().subscribe(None);
    let mut connection = broker.ready().await;
    let id = connection.deliver(from_bob(7, "hello")).await;
    assert_eq!(connection.acknowledged().await, id);
    let inbox = daemon.inbox().await;
    assert_eq!(inbox.len(), 1);
    assert_eq!((inbox[0].body.as_str(), inbox[0].sender_name.as_str()), ("hello", "bob"));
    // Both copies of a repeat are acknowledged: the broker has not heard the first time.
    for _ in 0..2 {
        connection.deliver(from_bob(7, "hello")).await;
        assert_eq!(connection.acknowledged().await, id);
    }
    connection.deliver(from_bob(8, "next")).await;
    connection.acknowledged().await;
    let mut told = Vec::new();
    while told.len() < 2 {
        let event = events.next().await.unwrap().event;
        if event.kind == EventKind::Message {
            told.push(event.data["client_message_id"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(told, ["in-7", "in-8"], "a repeat is not told");
    assert_eq!(daemon.inbox().await.len(), 2);
    daemon.stop().await;
}

#[tokio::test]
async fn a_known_member_with_a_box_key_that_it_has_not_signed_is_not_believed() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    let mut forged = from_bob(1, "forged");
    forged.sender.x25519 = identity(3).public().x25519;
    for message in [forged, from_bob(2, "own")] {
        connection.deliver(message).await;
        connection.acknowledged().await;
    }
    let bodies: Vec<String> = daemon.inbox().await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["own"]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_cut_between_send_and_answer_sends_the_same_bytes_again() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    daemon.to_bob("a").await;
    let first = connection.sent().await;
    drop(connection);
    let mut connection = broker.ready().await;
    let again = connection.sent().await;
    assert_eq!(again, first);
    let digest = accepted(&first);
    let (message, history) = (digest.broker_message_id.unwrap(), digest.history_id);
    let duplicate =
        SendResult::duplicate(first.client_message_id.clone(), message, history, true, waybill_kernel::Time::EPOCH);
    connection.answer(duplicate).await;
    daemon.becomes("a", Status::Done).await;
    daemon.stop().await;
}

#[tokio::test]
async fn answers_come_in_any_order_and_each_destination_has_one_in_flight() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    for id in ["bob-1", "bob-2", "bob-3"] {
        daemon.to_bob(id).await;
    }
    daemon.to_ops("ops-1").await;
    let mut first = [connection.sent().await, connection.sent().await];
    first.sort_by(|one, other| one.client_message_id.cmp(&other.client_message_id));
    let ids: Vec<&str> = first.iter().map(|send| send.client_message_id.as_str()).collect();
    assert_eq!(ids, ["bob-1", "ops-1"]);
    // The later one first. Nothing else of bob's may come before bob-1 is answered.
    connection.accept(&first[1]).await;
    daemon.becomes("ops-1", Status::Done).await;
    assert_eq!(daemon.handle.outbox().known("bob-2").await.unwrap().unwrap().status, Status::Pending);
    connection.accept(&first[0]).await;
    for id in ["bob-2", "bob-3"] {
        let send = connection.sent().await;
        assert_eq!(send.client_message_id.as_str(), id, "in the order of their acceptance");
        connection.accept(&send).await;
        daemon.becomes(id, Status::Done).await;
    }
    daemon.stop().await;
}

#[tokio::test]
async fn no_more_are_in_flight_than_the_window_has_places() {
    const NARROW: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\nwindow = 1\n";
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, NARROW).await;
    let mut connection = broker.ready().await;
    for id in ["1", "2", "3"] {
        daemon.to_bob(&format!("bob-{id}")).await;
        daemon.to_ops(&format!("ops-{id}")).await;
    }
    let mut sent = Vec::new();
    for _ in 0..6 {
        let send = connection.sent().await;
        assert_eq!(daemon.handle.outbox().figures().await.unwrap().of(Status::Inflight), 1);
        connection.accept(&send).await;
        sent.push(send.client_message_id.as_str().to_owned());
    }
    for (at, id) in sent.iter().enumerate() {
        daemon.becomes(id, Status::Done).await;
        assert!(at >= 2 || id.ends_with("-1"), "no line goes twice before another goes once: {sent:?}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn deliveries_that_come_together_are_each_stored_acknowledged_and_told_once_and_in_order() {
    const COUNT: u64 = 200;
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut events = daemon.handle.events().subscribe(None);
    let mut connection = broker.ready().await;
    let mut ids = Vec::new();
    for seq in 1..=COUNT {
        ids.push(connection.deliver(from_bob(seq, "m")).await);
    }
    for id in ids {
        assert_eq!(connection.acknowledged().await, id);
    }
    let mut told = Vec::new();
    while (told.len() as u64) < COUNT {
        let event = events.next().await.unwrap().event;
        if event.kind == EventKind::Message {
            told.push(event.data["seq"].as_u64().unwrap());
        }
    }
    assert!(told.into_iter().eq(1..=COUNT));
    drop(connection);
    assert_eq!(broker.greeted().await.1, COUNT, "the place moves with what was stored");
    daemon.stop().await;
}

#[tokio::test]
async fn a_refusal_does_not_block_and_a_failure_holds_the_line() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    daemon.to_bob("dead").await;
    daemon.to_bob("after").await;
    let send = connection.sent().await;
    connection.answer(SendResult::refused(send.client_message_id.clone(), &no(Code::PayloadTooLarge))).await;
    daemon.becomes("dead", Status::Dead).await;
    let send = connection.sent().await;
    assert_eq!(send.client_message_id.as_str(), "after");
    daemon.to_bob("last").await;
    connection.answer(SendResult::refused(send.client_message_id.clone(), &no(Code::Unavailable))).await;
    let again = connection.sent().await;
    assert_eq!(again, send, "the one that failed goes before those behind it");
    connection.accept(&again).await;
    let last = connection.sent().await;
    assert_eq!(last.client_message_id.as_str(), "last");
    daemon.stop().await;
}

fn no(code: Code) -> waybill_kernel::Error {
    waybill_kernel::Error::new(code, "no")
}

#[tokio::test]
async fn a_message_without_an_answer_is_sent_again_and_an_answer_that_nobody_waits_for_changes_nothing() {
    const LATE: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\nanswer_ms = 100\n[outbox]\nbackoff_min_ms = 1\n\
                        backoff_max_ms = 1\n";
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, LATE).await;
    let mut connection = broker.ready().await;
    daemon.to_bob("a").await;
    let first = connection.sent().await;
    let again = connection.sent().await;
    assert_eq!(again, first);
    connection.accept(&again).await;
    daemon.becomes("a", Status::Done).await;
    let before = daemon.handle.outbox().known("a").await.unwrap();
    // The answer to the first attempt, and one to a message that was never sent.
    connection.answer(SendResult::refused(first.client_message_id.clone(), &no(Code::Unavailable))).await;
    let stranger = Send { client_message_id: "never sent".parse().unwrap(), ..first };
    connection.accept(&stranger).await;
    daemon.to_bob("b").await;
    let next = connection.sent().await;
    connection.accept(&next).await;
    daemon.becomes("b", Status::Done).await;
    assert_eq!(daemon.handle.outbox().known("a").await.unwrap(), before);
    daemon.stop().await;
}

#[tokio::test]
async fn history_is_read_to_its_end_and_goes_on_from_there() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let (mut connection, after) = broker.greeted().await;
    assert_eq!(after, 0);
    connection.page(vec![from_bob(1, "one")], 1, false).await;
    connection.deliver(from_bob(2, "two")).await;
    connection.acknowledged().await;
    drop(connection);
    let (mut connection, after) = broker.greeted().await;
    assert_eq!(after, 2);
    // A push in the middle of the reading must not move the place: what is between would be passed over.
    connection.deliver(from_bob(9, "pushed")).await;
    connection.acknowledged().await;
    connection.page(vec![from_bob(3, "three")], 3, true).await;
    assert_eq!(connection.asked_history().await, 3);
    drop(connection);
    let (mut connection, after) = broker.greeted().await;
    assert_eq!(after, 3, "the reading was cut, and goes on where it was");
    connection.page(vec![from_bob(9, "pushed")], 9, false).await;
    // Caught up: from now on a delivery moves the place.
    connection.deliver(from_bob(12, "later")).await;
    connection.acknowledged().await;
    drop(connection);
    let (connection, after) = broker.greeted().await;
    assert_eq!(after, 12);
    let bodies: Vec<String> = daemon.inbox().await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["one", "two", "pushed", "three", "later"]);
    let daemon = daemon.restarted().await;
    drop(connection);
    assert_eq!(broker.greeted().await.1, 12, "also after a restart");
    daemon.stop().await;
}

#[tokio::test]
async fn an_inbox_that_began_anew_is_filled_in_the_order_of_the_messages() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let (mut connection, after) = broker.greeted().await;
    assert_eq!(after, 0);
    // What was never acknowledged is pushed at once; what is older comes with the history alone.
    connection.deliver(from_bob(9, "nine")).await;
    connection.page(vec![from_bob(1, "one")], 1, true).await;
    assert_eq!(connection.asked_history().await, 1, "nothing was acknowledged before");
    drop(connection);
    // Also when the reading was cut.
    let (mut connection, after) = broker.greeted().await;
    assert_eq!(after, 1);
    let pushed = [connection.deliver(from_bob(9, "nine")).await, connection.deliver(from_bob(12, "twelve")).await];
    connection.page(vec![from_bob(3, "three")], 3, true).await;
    assert_eq!(connection.asked_history().await, 3);
    connection.page(vec![from_bob(9, "nine")], 9, false).await;
    for id in pushed {
        assert_eq!(connection.acknowledged().await, id);
    }
    let bodies: Vec<String> = daemon.inbox().await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["one", "three", "nine", "twelve"]);
    drop(connection);
    assert_eq!(broker.greeted().await.1, 12);
    daemon.stop().await;
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_left() {
    const SILENT: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\nping_ms = 20\ndead_ms = 200\n";
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, SILENT).await;
    let mut told = daemon.handle.events().subscribe(None);
    // It is neither read nor answered, and stays open.
    let silent = broker.ready().await;
    let answering = broker.ready().await;
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        kinds.push(told.next().await.unwrap().event.kind);
    }
    assert_eq!(kinds, [EventKind::DaemonDisconnect, EventKind::DaemonReconnect]);
    drop((silent, answering));
    daemon.stop().await;
}

#[tokio::test]
async fn a_broker_that_never_greets_is_left() {
    const SLOW: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\nconnect_ms = 100\n";
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, SLOW).await;
    let mute = broker.accept().await;
    let other = broker.accept().await;
    assert!(!daemon.handle.link().status().connected);
    drop((mute, other));
    daemon.stop().await;
}

#[tokio::test]
async fn the_link_does_not_outlive_a_daemon_that_is_dropped() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    daemon.task.abort();
    assert_eq!(connection.closed_with().await, None, "nobody says goodbye");
}

#[tokio::test]
async fn every_final_close_code_ends_the_daemon_with_its_own_error() {
    for (close, code) in [
        (CloseCode::Replaced, Code::ReplacedByNewerConnection),
        (CloseCode::AlreadyConnected, Code::MemberAlreadyConnected),
        (CloseCode::MemberRevoked, Code::MemberRevoked),
        (CloseCode::FeatureMissing, Code::FeatureMissing),
        (CloseCode::ParametersInvalid, Code::FeatureParametersInvalid),
        (CloseCode::ParameterBelowFloor, Code::FeatureParameterBelowFloor),
    ] {
        let mut broker = FakeBroker::start(true).await;
        let daemon = Linked::start(&broker, CONFIG).await;
        let mut connection = broker.accept().await;
        connection.hello(true).await;
        connection.close(close).await;
        let error = daemon.ended().await;
        assert_eq!(error.code(), code, "{close}");
        assert_ne!(error.code().entry().exit, 0);
    }
}

#[tokio::test]
async fn a_connection_of_its_own_that_the_broker_still_keeps_is_waited_for() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    drop(broker.ready().await);
    for _ in 0..5 {
        let mut connection = broker.accept().await;
        connection.hello(true).await;
        connection.close(CloseCode::AlreadyConnected).await;
    }
    drop(broker.ready().await);
    daemon.stop().await;
}

#[tokio::test]
async fn a_connection_that_the_broker_keeps_for_too_long_is_anothers() {
    const SHORT: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\nown_connection_ms = 1\n";
    let mut broker = FakeBroker::start(true).await;
    let mut daemon = Linked::start(&broker, SHORT).await;
    drop(broker.ready().await);
    let ended = loop {
        tokio::select! {
            ended = &mut daemon.task => break ended.unwrap().unwrap_err(),
            mut connection = broker.accept() => {
                connection.hello(true).await;
                connection.close(CloseCode::AlreadyConnected).await;
            }
        }
    };
    assert_eq!(ended.code(), Code::MemberAlreadyConnected);
}

#[tokio::test]
async fn another_close_code_is_followed_by_another_connection() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    for close in [CloseCode::GoingAway, CloseCode::TooSlow, CloseCode::PingTimeout, CloseCode::Unauthorized] {
        let mut connection = broker.accept().await;
        connection.hello(true).await;
        connection.close(close).await;
    }
    drop(broker.ready().await);
    daemon.stop().await;
}

#[tokio::test]
async fn a_member_that_is_revoked_stops_and_one_that_is_not_goes_on() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    let bob = MemberGone { member_id: member(2), key: identity(2).public_key() };
    broker.http.lock().unwrap().lists.gone.insert(2);
    connection.send(ServerFrame::MemberRevoked(bob)).await;
    connection.deliver(from_bob(1, "sent before")).await;
    connection.acknowledged().await;
    assert_eq!(daemon.handle.directory().resolve("bob").unwrap_err().code(), Code::MemberUnknown);
    let alice = MemberGone { member_id: member(1), key: identity(1).public_key() };
    let status = daemon.handle.link().watch();
    connection.send(ServerFrame::MemberRevoked(alice)).await;
    assert_eq!(daemon.ended().await.code(), Code::MemberRevoked);
    assert!(status.borrow().is_revoked());
}

#[tokio::test]
async fn a_broker_without_what_the_daemon_needs_is_closed_with_the_number_for_it() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.accept().await;
    connection.hello(true).await;
    assert!(matches!(connection.frame().await, ClientFrame::FeatureNegotiationRequest(_)));
    let mut response = Features::default().answer(&FeatureRequest::default()).unwrap();
    response.supported.remove("key_epoch");
    connection.agree(response).await;
    assert_eq!(connection.closed_with().await, Some(CloseCode::FeatureMissing.code()));
    let mut told = daemon.handle.events().subscribe(Some(0));
    assert_eq!(daemon.ended().await.code(), Code::FeatureMissing);
    assert_eq!(told.next().await.unwrap().event.kind, EventKind::FeatureNegotiationFailed);
}

#[tokio::test]
async fn an_override_beyond_the_brokers_memory_is_refused() {
    const LONG: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\n[outbox]\nmax_age_seconds = 31536000\n";
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, LONG).await;
    let mut connection = broker.accept().await;
    connection.greet(true).await;
    assert_eq!(daemon.ended().await.code(), Code::OutboxMaxAgeAboveDedupeWindow);
}

#[tokio::test]
async fn frames_that_cannot_be_read_are_passed_over() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    for text in
        ["", "{", "[]", r#"{"t":"no_such"}"#, r#"{"t":"ping","more":1}"#, r#"{"t":"deliver","delivery_id":"x"}"#]
    {
        connection.send_text(text.to_owned()).await;
    }
    connection.deliver(from_bob(1, "still there")).await;
    connection.acknowledged().await;
    assert_eq!(daemon.inbox().await[0].body, "still there");
    daemon.stop().await;
}

#[tokio::test]
async fn a_frame_larger_than_frames_may_be_ends_the_connection_and_not_the_daemon() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    connection.send_too_much(2 << 20).await;
    let mut connection = broker.ready().await;
    connection.deliver(from_bob(1, "after it")).await;
    connection.acknowledged().await;
    daemon.stop().await;
}
