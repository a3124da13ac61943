//! What the daemon learns when it reads the lists of its broker: who has gone, whose keys are whose, keys of topics.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use waybill_daemon::directory::{Directory, Member, Standing};
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_protocol::frames::{MemberGone, MemberRenamed, Peer};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::seal::{open_dm, seal_dm};
use waybill_mesh_protocol::{Destination, Envelope, Identity, Nonce, Plain, ServerFrame, TopicKey};

use super::link_broker::{CONFIG, FakeBroker, Linked, PATIENCE, mesh, message, stranger};
use super::link_lists::{KEYS, MEMBERS, TOPICS};
use super::link_sealed::{epoch_key, minted, posted, signed};
use super::support::{Answer, exchange, identity, member};

/// Lists are read as soon as there is a reason to.
const EAGER: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\nsync_pause_ms = 1\n";
/// For lists that must not be read any more: without a pause between them hundreds are read in this time.
const QUIET: Duration = Duration::from_millis(300);

fn named(number: u8, name: &str, keys: &Identity, steps: &[Rotation]) -> Value {
    json!({ "member_id": member(number), "name": name, "is_owner": false, "keys": keys.public(), "rotations": steps })
}

async fn bodies(daemon: &Linked) -> Vec<String> {
    daemon.inbox().await.into_iter().map(|message| message.body).collect()
}

/// Waits until the directory is as it should be.
async fn until(daemon: &Linked, is_so: impl Fn(&Directory) -> bool) {
    let directory = daemon.handle.directory();
    let mut changes = directory.changes();
    let reached = async {
        while !is_so(directory) {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("the directory does not become so");
}

#[tokio::test]
async fn a_topics_key_is_believed_of_a_minter_that_has_rotated_or_left_since() {
    let mut broker = FakeBroker::start(false).await;
    let [carol_first, carol, eve_first, eve] = [1, 2, 3, 4].map(stranger);
    let (by_carol, by_eve) = (TopicKey::from_bytes([3; 32]), TopicKey::from_bytes([5; 32]));
    {
        let mut http = broker.http.lock().unwrap();
        http.others.push(named(3, "carol", &carol, &[Rotation::sign(mesh(), &carol_first, &carol)]));
        http.lists.departed.push(named(5, "eve", &eve, &[Rotation::sign(mesh(), &eve_first, &eve)]));
        http.lists.keys = vec![minted(&carol_first, &by_carol, 3), minted(&eve_first, &by_eve, 5)];
    }
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    for (seq, key, epoch) in [(1, &by_carol, 3), (2, &by_eve, 5)] {
        connection.deliver(posted(seq, key, epoch, &format!("epoch {epoch}"))).await;
        connection.acknowledged().await;
    }
    assert_eq!(bodies(&daemon).await, ["epoch 3", "epoch 5"]);
    let directory = daemon.handle.directory();
    assert_eq!(directory.member(&member(5)).unwrap().state, Standing::Gone);
    assert!(directory.resolve("eve").is_err(), "nobody can write to who has left");
    daemon.stop().await;
}

async fn asked(daemon: &Linked, method: &str, target: &str, body: &Value) -> Value {
    let mut socket = UnixStream::connect(daemon.handle.folder().socket().unwrap()).await.unwrap();
    exchange(&mut socket, method, target, &[], &body.to_string()).await.expect(200)
}

#[tokio::test]
async fn topics_are_read_anew_after_one_was_left() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, EAGER).await;
    let _connection = broker.ready().await;
    // When the connection begins, and when the history has been read.
    broker.asked(TOPICS, 2).await;
    tokio::time::sleep(QUIET).await;
    let count = broker.count(TOPICS);
    asked(&daemon, "POST", "/v1/topic/unsubscribe", &json!({ "topic": "ops" })).await;
    broker.asked(TOPICS, count + 1).await;
    daemon.stop().await;
}

#[tokio::test]
async fn two_changes_of_the_profile_at_once_are_both_kept() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let _connection = broker.ready().await;
    let (summary, status) = (json!({ "summary": "builds" }), json!({ "status": "busy" }));
    let change = |body| asked(&daemon, "POST", "/v1/profile", body);
    tokio::join!(change(&summary), change(&status));
    let profile = asked(&daemon, "GET", "/v1/profile", &json!({})).await;
    assert_eq!((&profile["summary"], &profile["status"]), (&json!("builds"), &json!("busy")));
    daemon.stop().await;
}

#[tokio::test]
async fn a_minter_whom_nobody_knows_is_no_reason_to_read_the_lists_for_ever() {
    let mut broker = FakeBroker::start(false).await;
    let (nobody, key) = (stranger(9), TopicKey::from_bytes([4; 32]));
    broker.http.lock().unwrap().lists.keys = vec![minted(&nobody, &key, 4)];
    let daemon = Linked::start(&broker, EAGER).await;
    let mut connection = broker.ready().await;
    // Before messages are opened, and when the history has been read.
    broker.asked(KEYS, 2).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(broker.count(KEYS), 2);
    // One that is pushed may be of a member that has only just joined.
    connection.send(epoch_key(&nobody, &key, 5)).await;
    broker.asked(KEYS, 3).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(broker.count(KEYS), 3);
    assert_eq!(daemon.handle.directory().epoch_key("ops", 4), None);
    daemon.stop().await;
}

#[tokio::test]
async fn a_post_of_an_unknown_epoch_has_the_keys_read_once() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, EAGER).await;
    let mut connection = broker.ready().await;
    broker.asked(KEYS, 2).await;
    let (bob, key) = (identity(2), TopicKey::from_bytes([4; 32]));
    // The frame with this key was lost.
    broker.http.lock().unwrap().lists.keys = vec![minted(&bob, &key, 4)];
    connection.deliver(posted(1, &key, 4, "missed")).await;
    connection.acknowledged().await;
    assert_eq!(daemon.received(1).await[0].body, "missed");
    let count = broker.count(KEYS);
    for seq in 2..5 {
        connection.deliver(posted(seq, &key, 9, "of an epoch without a key")).await;
        connection.acknowledged().await;
    }
    broker.asked(KEYS, count + 1).await;
    connection.deliver(posted(5, &key, 9, "of the same epoch")).await;
    connection.acknowledged().await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(broker.count(KEYS), count + 1);
    daemon.stop().await;
}

#[tokio::test]
async fn what_the_first_reading_was_too_early_for_is_read_when_the_history_has_been() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let (mut connection, after) = broker.greeted().await;
    let key = TopicKey::from_bytes([4; 32]);
    broker.http.lock().unwrap().lists.keys = vec![minted(&identity(2), &key, 4)];
    connection.page(Vec::new(), after, false).await;
    until(&daemon, |directory| directory.epoch_key("ops", 4).is_some()).await;
    daemon.stop().await;
}

#[tokio::test]
async fn what_waits_for_a_member_that_has_rotated_meanwhile_is_sealed_anew_before_it_is_sent() {
    let (alice, bob, new) = (identity(1), identity(2), stranger(4));
    // Learnt with the connection, or before a crash that has left the messages as they were.
    for was_learnt in [false, true] {
        let mut broker = FakeBroker::start(false).await;
        let daemon = Linked::start(&broker, CONFIG).await;
        // Nothing is sent over a connection that nobody has greeted.
        let mut connection = broker.accept().await;
        daemon.to_bob("waiting").await;
        if was_learnt {
            let directory = daemon.handle.directory();
            let rotated = Member { keys: new.public(), ..directory.resolve("bob").unwrap() };
            directory.learn_members(vec![rotated], |_, _| true).await.unwrap();
        }
        {
            let mut http = broker.http.lock().unwrap();
            http.bob = new.public();
            http.lists.steps.insert(2, vec![Rotation::sign(mesh(), &bob, &new)]);
        }
        connection.greet(false).await;
        connection.asked_history().await;
        let sent = connection.sent().await;
        assert_eq!(sent.envelope.key_id, Some(new.public().key_id()), "{was_learnt}");
        let opened = open_dm(new.box_secret(), &alice.public().x25519, &sent.envelope.body.0).unwrap();
        assert_eq!(Plain::from_bytes(&opened).unwrap().body, "waiting");
        daemon.stop().await;
    }
}

#[tokio::test]
async fn what_is_addressed_to_a_key_that_this_member_had_long_ago_is_its_own() {
    let mut broker = FakeBroker::start(false).await;
    let (first, alice, bob) = (stranger(1), identity(1), identity(2));
    // The key is in no archive any more: signed steps alone tell whose it was.
    broker.http.lock().unwrap().lists.steps.insert(1, vec![Rotation::sign(mesh(), &first, &alice)]);
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    let mut envelope = Envelope::new(Destination::dm(&first.public_key()), Vec::new());
    envelope.key_id = Some(alice.public().key_id());
    let mut direct = message(1, &bob, 2, "bob", envelope);
    let plain = signed(&bob, &direct, "to an old address");
    direct.envelope.body.0 = seal_dm(&bob, &alice.public().x25519, Nonce::random(&OsEntropy), &plain).unwrap();
    connection.deliver(direct).await;
    connection.acknowledged().await;
    assert_eq!(bodies(&daemon).await, ["to an old address"]);
    daemon.stop().await;
}

async fn send(daemon: &Linked, to: &str) -> Answer {
    let mut socket = UnixStream::connect(daemon.handle.folder().socket().unwrap()).await.unwrap();
    let body = json!({ "to": to, "message": "m" }).to_string();
    exchange(&mut socket, "POST", "/v1/send", &[], &body).await
}

#[tokio::test]
async fn a_name_that_comes_back_is_that_of_the_member_who_has_it_now() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, EAGER).await;
    let mut connection = broker.ready().await;
    broker.asked(TOPICS, 2).await;
    let (alice, [second, third]) = (identity(1), [3, 4].map(stranger));
    {
        let mut http = broker.http.lock().unwrap();
        http.lists.gone.insert(2);
        http.others = vec![named(3, "bob", &second, &[])];
    }
    // Leaving looks like going offline.
    let bob = MemberGone { member_id: member(2), key: identity(2).public_key() };
    connection.send(ServerFrame::PeerLeave(bob)).await;
    let (name, keys) = ("bob".parse().unwrap(), second.public());
    connection.send(ServerFrame::PeerJoin(Peer { member_id: member(3), name, keys, online: true })).await;
    until(&daemon, |directory| directory.resolve("bob").is_ok_and(|bob| bob.id == member(3))).await;
    send(&daemon, "bob").await.expect(202);
    // That one leaves too, and another takes the name.
    {
        let mut http = broker.http.lock().unwrap();
        http.others = vec![named(4, "bob", &third, &[])];
    }
    let carol = Peer { member_id: member(4), name: "carol".parse().unwrap(), keys: third.public(), online: true };
    connection.send(ServerFrame::PeerJoin(carol)).await;
    let renamed = MemberRenamed { member_id: member(4), key: third.public_key(), name: "bob".parse().unwrap() };
    connection.send(ServerFrame::MemberRenamed(renamed)).await;
    until(&daemon, |directory| directory.resolve("bob").is_ok_and(|bob| bob.id == member(4))).await;
    assert_eq!(daemon.handle.directory().resolve("alice").unwrap().keys, alice.public());
    daemon.stop().await;
}

#[tokio::test]
async fn a_recipient_whom_nobody_has_told_of_is_looked_for() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, EAGER).await;
    let _connection = broker.ready().await;
    broker.asked(TOPICS, 2).await;
    broker.http.lock().unwrap().others.push(named(3, "carol", &stranger(3), &[]));
    send(&daemon, "carol").await.expect(202);
    send(&daemon, "dave").await.expect(404);
    daemon.stop().await;
}

#[tokio::test]
async fn who_joins_or_ends_while_the_list_is_on_its_way_is_what_the_frames_say() {
    let mut broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, EAGER).await;
    let mut connection = broker.ready().await;
    broker.asked(TOPICS, 2).await;
    let hold = Arc::new(Semaphore::new(0));
    broker.http.lock().unwrap().lists.hold = Some(Arc::clone(&hold));
    daemon.handle.link().parts().refresh.notify_one();
    broker.asked(MEMBERS, 3).await;
    let (name, keys) = ("carol".parse().unwrap(), stranger(3).public());
    connection.send(ServerFrame::PeerJoin(Peer { member_id: member(3), name, keys, online: true })).await;
    let bob = MemberGone { member_id: member(2), key: identity(2).public_key() };
    connection.send(ServerFrame::MemberRevoked(bob)).await;
    let is_so = |directory: &Directory| directory.resolve("carol").is_ok() && directory.resolve("bob").is_err();
    until(&daemon, is_so).await;
    hold.add_permits(1);
    // Topics are read after members were learnt.
    broker.asked(TOPICS, 3).await;
    assert!(is_so(daemon.handle.directory()));
    daemon.stop().await;
}
