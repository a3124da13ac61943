//! Who has written a message, where the broker lies: alone, or together with a member that has the key of the topic.

use serde_json::{Value, json};
use waybill_daemon::directory::{Change, Member, Standing};
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_protocol::frames::Message;
use waybill_mesh_protocol::seal::{open_dm, open_topic, seal_dm, seal_topic};
use waybill_mesh_protocol::{Carrier, Destination, Envelope, Identity, MeshId, Nonce, Plain, Priority, TopicKey};

use super::link_broker::{CONFIG, Connection, FakeBroker, Linked, mesh, message, stranger};
use super::link_sealed::{boxed, epoch_key, post, signed};
use super::support::{identity, member};

const KEY: [u8; 32] = [9; 32];

/// Alice's daemon with the key of a topic; bob and carol are members.
async fn linked() -> (FakeBroker, Linked, Connection) {
    let mut broker = FakeBroker::start(false).await;
    let carol = json!({ "member_id": member(3), "name": "carol", "is_owner": false, "keys": stranger(3).public(),
        "online": true });
    broker.http.lock().unwrap().others.push(carol);
    let daemon = Linked::start(&broker, CONFIG).await;
    let keys = stranger(3).public();
    let carol = Member { id: member(3), name: "carol".to_owned(), keys, is_owner: false, state: Standing::Active };
    daemon.handle.directory().learn(vec![Change::Member(carol)]).await.unwrap();
    let mut connection = broker.ready().await;
    connection.send(epoch_key(&identity(2), &TopicKey::from_bytes(KEY), 1)).await;
    (broker, daemon, connection)
}

async fn deliver(connection: &mut Connection, message: Message) {
    let delivery = connection.deliver(message).await;
    assert_eq!(connection.acknowledged().await, delivery, "what is refused must not come for ever");
}

async fn bodies(daemon: &Linked) -> Vec<String> {
    daemon.inbox().await.into_iter().map(|message| message.body).collect()
}

async fn held(daemon: &Linked) -> Vec<i64> {
    let held = daemon.handle.link().parts().inbox.held(-1, 100).await.unwrap();
    held.iter().map(|held| held.seq).collect()
}

fn counted(reason: &str) -> bool {
    let figures = waybill_daemon::metrics::recorder().unwrap().render();
    figures.contains(&format!("waybill_daemon_invalid_inbound_total{{reason=\"{reason}\"}}"))
}

/// What is in the box, with fields changed.
fn bent(plain: &[u8], change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(plain).unwrap();
    change(value.as_object_mut().unwrap());
    serde_json::to_vec(&value).unwrap()
}

#[tokio::test]
async fn an_own_message_that_is_handed_back_is_not_the_others() {
    let (_broker, daemon, mut connection) = linked().await;
    daemon.to_bob("my own words").await;
    let sent = connection.sent().await;
    let (alice, bob) = (identity(1), identity(2));
    let mut envelope = Envelope::new(Destination::dm(&alice.public_key()), sent.envelope.body.0.clone());
    envelope.key_id = Some(alice.public().key_id());
    // The box itself opens: its key is the same in both directions.
    open_dm(alice.box_secret(), &bob.public().x25519, &envelope.body.0).unwrap();
    let mut same_id = message(1, &bob, 2, "bob", envelope.clone());
    same_id.client_message_id = sent.client_message_id;
    deliver(&mut connection, same_id).await;
    deliver(&mut connection, message(2, &bob, 2, "bob", envelope)).await;
    deliver(&mut connection, boxed(3, &bob, &alice, "bob's words")).await;
    assert_eq!(bodies(&daemon).await, ["bob's words"]);
    assert!(held(&daemon).await.is_empty());
    assert!(counted("signature_wrong"));
    daemon.stop().await;
}

#[tokio::test]
async fn a_post_that_another_subscriber_has_made_is_not_bobs() {
    let (_broker, daemon, mut connection) = linked().await;
    let (bob, carol, key) = (identity(2), stranger(3), TopicKey::from_bytes(KEY));
    let own_name = |message: &Message| signed(&carol, message, "by carol");
    let bobs_name = |message: &Message| {
        bent(&signed(&carol, message, "by carol"), |plain| {
            plain.insert("from".to_owned(), json!(bob.public_key()));
        })
    };
    let unknown = |message: &Message| signed(&stranger(9), message, "by nobody");
    deliver(&mut connection, post(1, &key, 1, own_name)).await;
    deliver(&mut connection, post(2, &key, 1, bobs_name)).await;
    deliver(&mut connection, post(3, &key, 1, unknown)).await;
    deliver(&mut connection, post(4, &key, 1, |message| signed(&bob, message, "by bob"))).await;
    assert_eq!(bodies(&daemon).await, ["by bob"]);
    assert_eq!(held(&daemon).await, [3], "the key of nobody may turn out to be one that bob had");
    assert!(counted("signed_by_another") && counted("signature_wrong") && counted("sender_unproven"));
    daemon.stop().await;
}

#[tokio::test]
async fn a_forged_post_that_waited_for_its_key_is_let_go_when_it_is_opened() {
    let (_broker, daemon, mut connection) = linked().await;
    let (bob, key) = (identity(2), TopicKey::from_bytes([7; 32]));
    deliver(&mut connection, post(1, &key, 2, |message| signed(&stranger(3), message, "by carol"))).await;
    deliver(&mut connection, post(2, &key, 2, |message| signed(&bob, message, "by bob"))).await;
    assert_eq!(held(&daemon).await, [1, 2]);
    connection.send(epoch_key(&bob, &key, 2)).await;
    assert_eq!(daemon.received(1).await[0].body, "by bob");
    assert!(held(&daemon).await.is_empty());
    daemon.stop().await;
}

#[tokio::test]
async fn a_signature_is_good_where_it_was_made_for_and_nowhere_else() {
    let (_broker, daemon, mut connection) = linked().await;
    let (alice, bob, key) = (identity(1), identity(2), TopicKey::from_bytes(KEY));
    let moved = |seq: u64, change: &dyn Fn(&mut Message)| {
        let mut message = boxed(seq, &bob, &alice, "moved");
        change(&mut message);
        message
    };
    // What the broker can do by itself: everything outside of the box.
    let id = |message: &mut Message| message.client_message_id = "another".parse().unwrap();
    let reply = |message: &mut Message| message.envelope.reply_to = Some("another".parse().unwrap());
    let priority = |message: &mut Message| message.envelope.priority = Priority::Now;
    let mention = |message: &mut Message| message.envelope.mentions = vec![identity(1).public_key()];
    let changes: [&dyn Fn(&mut Message); 4] = [&id, &reply, &priority, &mention];
    for (seq, change) in (1..).zip(changes) {
        deliver(&mut connection, moved(seq, change)).await;
    }
    // And with a member that has opened it: another topic, another epoch, another mesh, the box of another.
    let real = post(10, &key, 1, |message| signed(&bob, message, "moved"));
    let plain = open_topic(&key, &real.envelope.body.0).unwrap();
    connection.send(epoch_key(&bob, &TopicKey::from_bytes([8; 32]), 2)).await;
    let mut newer = real.clone();
    newer.envelope.epoch = Some(2);
    newer.envelope.body.0 = seal_topic(&TopicKey::from_bytes([8; 32]), Nonce::random(&OsEntropy), &plain).unwrap();
    deliver(&mut connection, newer).await;
    let elsewhere = |message: &Message| {
        let other = MeshId(waybill_kernel::id::digest_id(&[b"another mesh"]));
        let carrier = Carrier { mesh: other, id: &message.client_message_id, envelope: &message.envelope };
        assert_ne!(other, mesh());
        Plain::sign(&bob, carrier, "moved".to_owned(), None).unwrap().to_bytes().unwrap().to_vec()
    };
    deliver(&mut connection, post(11, &key, 1, elsewhere)).await;
    let mut direct = boxed(12, &bob, &alice, "moved");
    direct.client_message_id = real.client_message_id.clone();
    direct.envelope.body.0 = seal_dm(&bob, &alice.public().x25519, Nonce::random(&OsEntropy), &plain).unwrap();
    deliver(&mut connection, direct).await;
    assert!(bodies(&daemon).await.is_empty());
    assert!(held(&daemon).await.is_empty());
    // Nothing of that stands in the way of the real one under the same id.
    deliver(&mut connection, real).await;
    assert_eq!(bodies(&daemon).await, ["moved"]);
    daemon.stop().await;
}

#[tokio::test]
async fn without_a_signature_it_is_no_message() {
    let (_broker, daemon, mut connection) = linked().await;
    let (bob, key): (Identity, _) = (identity(2), TopicKey::from_bytes(KEY));
    let fields = ["signature", "from", "version"];
    for (seq, field) in (1..).zip(fields) {
        let without = |message: &Message| {
            bent(&signed(&bob, message, "hello"), |plain| assert!(plain.remove(field).is_some(), "{field}"))
        };
        deliver(&mut connection, post(seq, &key, 1, without)).await;
    }
    deliver(&mut connection, post(9, &key, 1, |_| br#"{"body":"hello"}"#.to_vec())).await;
    assert!(bodies(&daemon).await.is_empty() && held(&daemon).await.is_empty());
    assert!(counted("content_invalid"));
    daemon.stop().await;
}
