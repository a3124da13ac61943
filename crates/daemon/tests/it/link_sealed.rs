//! The link of an encrypted mesh: boxes, keys of topics, rotations, and what cannot be opened yet.

use waybill_daemon::outbox::Status;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_protocol::epoch::EpochOf;
use waybill_mesh_protocol::frames::{EpochWanted, KeypairRotated, Message, Subscriber};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::seal::{open_dm, seal_dm, seal_topic};
use waybill_mesh_protocol::{
    Carrier, ClientFrame, Destination, Envelope, EpochBox, EpochKey, Identity, Nonce, Plain, ServerFrame, TopicKey,
    TopicName,
};

use super::link_broker::{CONFIG, FakeBroker, Linked, mesh, message, stranger};
use super::support::{identity, member};

/// The text within the box of this message, as `signer` signs it.
pub fn signed(signer: &Identity, message: &Message, text: &str) -> Vec<u8> {
    let carrier = Carrier { mesh: mesh(), id: &message.client_message_id, envelope: &message.envelope };
    Plain::sign(signer, carrier, text.to_owned(), None).unwrap().to_bytes().unwrap().to_vec()
}

/// From bob, who has these keys, in a box for the other.
pub fn boxed(seq: u64, sender: &Identity, to: &Identity, text: &str) -> Message {
    let mut envelope = Envelope::new(Destination::dm(&to.public_key()), Vec::new());
    envelope.key_id = Some(to.public().key_id());
    let mut message = message(seq, sender, 2, "bob", envelope);
    let plain = signed(sender, &message, text);
    message.envelope.body.0 = seal_dm(sender, &to.public().x25519, Nonce::random(&OsEntropy), &plain).unwrap();
    message
}

pub fn ops() -> TopicName {
    "ops".parse().unwrap()
}

/// A post in bob's name, with a text that is made of it.
pub fn post(seq: u64, key: &TopicKey, epoch: u32, text: impl FnOnce(&Message) -> Vec<u8>) -> Message {
    let mut envelope = Envelope::new(Destination::topic(&ops()), Vec::new());
    envelope.epoch = Some(epoch);
    let mut message = message(seq, &identity(2), 2, "bob", envelope);
    let plain = text(&message);
    message.envelope.body.0 = seal_topic(key, Nonce::random(&OsEntropy), &plain).unwrap();
    message
}

pub fn posted(seq: u64, key: &TopicKey, epoch: u32, text: &str) -> Message {
    post(seq, key, epoch, |message| signed(&identity(2), message, text))
}

/// What somebody has minted, for alice.
pub fn minted(minter: &Identity, key: &TopicKey, epoch: u32) -> EpochKey {
    let of = EpochOf { mesh: mesh(), topic: &ops(), epoch };
    let boxed = EpochBox::seal(minter, of, &identity(1).public(), key, &OsEntropy).unwrap();
    EpochKey { topic: ops(), epoch, minter: minter.public_key(), boxed }
}

/// As the broker passes it on.
pub fn epoch_key(minter: &Identity, key: &TopicKey, epoch: u32) -> ServerFrame {
    ServerFrame::EpochKey(minted(minter, key, epoch))
}

#[tokio::test]
async fn a_box_is_opened_and_one_for_another_key_is_left_closed() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    let (alice, bob, other) = (identity(1), identity(2), stranger(1));
    // To alice's address, in a box for somebody else's key; then one whose sender has not signed its box key.
    let mut misdirected = boxed(1, &bob, &other, "not for alice");
    misdirected.envelope.destination_ref = alice.public_key().to_string();
    let mut forged = boxed(2, &bob, &alice, "not from bob");
    forged.sender.x25519 = other.public().x25519;
    for message in [misdirected, forged, boxed(3, &bob, &alice, "hello alice")] {
        connection.deliver(message).await;
        connection.acknowledged().await;
    }
    let bodies: Vec<String> = daemon.inbox().await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["hello alice"]);
    let held = daemon.handle.link().parts().inbox.held(-1, 10).await.unwrap();
    assert_eq!(held.iter().map(|held| held.seq).collect::<Vec<_>>(), [1], "a key for it may still come");
    daemon.stop().await;
}

#[tokio::test]
async fn what_is_sent_is_sealed_once_for_its_recipient() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    daemon.to_bob("secret words").await;
    let send = connection.sent().await;
    let (alice, bob) = (identity(1), identity(2));
    assert_eq!(send.envelope.key_id, Some(bob.public().key_id()));
    let opened = open_dm(bob.box_secret(), &alice.public().x25519, &send.envelope.body.0).unwrap();
    assert_eq!(Plain::from_bytes(&opened).unwrap().body, "secret words");
    assert!(!serde_json::to_string(&send.envelope).unwrap().contains("secret words"));
    daemon.stop().await;
}

#[tokio::test]
async fn a_message_of_an_epoch_that_is_not_known_yet_waits_for_its_key() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    let (key, bob) = (TopicKey::from_bytes([9; 32]), identity(2));
    connection.deliver(posted(1, &key, 4, "early")).await;
    connection.acknowledged().await;
    assert!(daemon.inbox().await.is_empty());
    // A key that no member has minted is not believed.
    connection.send(epoch_key(&stranger(2), &key, 4)).await;
    connection.send(epoch_key(&bob, &key, 4)).await;
    assert_eq!(daemon.received(1).await[0].body, "early");
    // Another key for the same epoch replaces nothing.
    connection.send(epoch_key(&bob, &TopicKey::from_bytes([8; 32]), 4)).await;
    connection.deliver(posted(2, &key, 4, "later")).await;
    connection.acknowledged().await;
    assert_eq!(daemon.received(2).await[1].body, "later");
    assert_eq!(daemon.handle.directory().posting_key("ops").unwrap(), Some((4, key)));
    daemon.stop().await;
}

#[tokio::test]
async fn the_keyholder_mints_a_key_that_every_subscriber_can_open_and_nobody_else() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    let (alice, bob, liar) = (identity(1), identity(2), stranger(3));
    let subscriber = |number, identity: &Identity| Subscriber { member_id: member(number), keys: identity.public() };
    // The third one claims to be bob with another key.
    let subscribers = vec![subscriber(1, &alice), subscriber(2, &bob), subscriber(2, &liar)];
    connection.send(ServerFrame::EpochWanted(EpochWanted { topic: ops(), epoch: 2, subscribers })).await;
    let ClientFrame::EpochBoxes(boxes) = connection.frame().await else { panic!("no boxes") };
    assert_eq!((boxes.topic.clone(), boxes.epoch, boxes.boxes.len()), (ops(), 2, 2));
    let of = EpochOf { mesh: mesh(), topic: &boxes.topic, epoch: 2 };
    let keys: Vec<TopicKey> = [&alice, &bob]
        .iter()
        .zip(&boxes.boxes)
        .map(|(identity, boxed)| boxed.open(of, &alice.public_key(), identity.box_secret()).unwrap())
        .collect();
    assert_eq!(keys[0], keys[1]);
    // Its own box comes back like everybody's; then it posts with the key.
    let own = EpochKey { topic: ops(), epoch: 2, minter: alice.public_key(), boxed: boxes.boxes[0].clone() };
    let mut changes = daemon.handle.directory().changes();
    connection.send(ServerFrame::EpochKey(own)).await;
    while daemon.handle.directory().posting_key("ops").is_err() {
        changes.changed().await.unwrap();
    }
    daemon.to_ops("post").await;
    let send = connection.sent().await;
    assert_eq!(send.envelope.epoch, Some(2));
    daemon.stop().await;
}

#[tokio::test]
async fn after_a_rotation_what_was_never_sent_is_sealed_anew_and_what_was_sent_is_not() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    daemon.to_bob("sent").await;
    daemon.to_bob("waiting").await;
    let sent = connection.sent().await;
    let (alice, bob, new) = (identity(1), identity(2), stranger(4));
    // First one that bob's key has not signed, then the real one.
    for (signer, to) in [(stranger(5), stranger(6)), (bob.clone(), new.clone())] {
        let rotation = Rotation { old: bob.public_key(), ..Rotation::sign(mesh(), &signer, &to) };
        connection.send(ServerFrame::MemberKeypairRotated(KeypairRotated { member_id: member(2), rotation })).await;
    }
    // What bob sends now tells that the frames before were worked on.
    connection.deliver(boxed(1, &new, &alice, "it is me")).await;
    connection.acknowledged().await;
    assert_eq!(daemon.inbox().await[0].body, "it is me");
    drop(connection);
    broker.http.lock().unwrap().bob = new.public();
    let mut connection = broker.ready().await;
    let again = connection.sent().await;
    assert_eq!(again, sent, "transmitted bytes stay");
    connection.accept(&again).await;
    daemon.becomes("sent", Status::Done).await;
    let waiting = connection.sent().await;
    assert_eq!(waiting.envelope.key_id, Some(new.public().key_id()));
    let opened = open_dm(new.box_secret(), &alice.public().x25519, &waiting.envelope.body.0).unwrap();
    assert_eq!(Plain::from_bytes(&opened).unwrap().body, "waiting");
    daemon.stop().await;
}

#[tokio::test]
async fn what_is_addressed_to_a_members_first_key_is_sealed_anew_with_each_of_its_rotations() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    daemon.to_bob("sent").await;
    daemon.to_bob("waiting").await;
    let sent = connection.sent().await;
    let keys = [identity(2), stranger(4), stranger(5)];
    for pair in keys.windows(2) {
        let rotation = Rotation::sign(mesh(), &pair[0], &pair[1]);
        connection.send(ServerFrame::MemberKeypairRotated(KeypairRotated { member_id: member(2), rotation })).await;
    }
    // What bob sends now tells that the frames before were worked on.
    connection.deliver(boxed(1, &keys[2], &identity(1), "it is me")).await;
    connection.acknowledged().await;
    connection.accept(&sent).await;
    let waiting = connection.sent().await;
    assert_eq!(waiting.envelope.key_id, Some(keys[2].public().key_id()));
    daemon.stop().await;
}
