//! Rotation of this member's own keys, at every place where it can break; and files.

use std::path::Path;

use serde_json::json;
use tokio::net::UnixStream;
use waybill_daemon::outbox::Status;
use waybill_daemon::rotation::KEYPAIR_NEXT;
use waybill_daemon::{Folder, identity::load_identity};
use waybill_kernel::Code;
use waybill_mesh_protocol::frames::{KeypairRotated, Send};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::seal::open_dm;
use waybill_mesh_protocol::{Carrier, Identity, Plain, ServerFrame, TopicKey};

use super::link_broker::{CONFIG, FakeBroker, Linked, Rotating, mesh, stranger};
use super::link_sealed::{boxed, epoch_key, post, signed};
use super::support::{exchange, identity, member};

fn folder(daemon: &Linked) -> Folder {
    daemon.handle.folder().clone()
}

fn archived(daemon: &Linked) -> usize {
    daemon.handle.link().parts().keyring.archive().keys().len()
}

#[tokio::test]
async fn new_keys_take_the_place_of_the_old_which_still_open_what_is_on_its_way() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let before = broker.ready().await;
    let rotated = daemon.handle.link().parts().rotator.rotate().await.unwrap();
    assert_eq!(rotated.old, identity(1).public_key().to_string());
    daemon.handle.link().reconnect();
    let kept = load_identity(&folder(&daemon)).unwrap().unwrap();
    assert_eq!(kept.public(), broker.http.lock().unwrap().alice);
    assert_eq!(rotated.new, kept.public_key().to_string());
    assert_eq!(archived(&daemon), 1);
    let mut connection = broker.ready().await;
    drop(before);
    connection.deliver(boxed(1, &identity(2), &identity(1), "old key")).await;
    connection.acknowledged().await;
    assert_eq!(daemon.inbox().await[0].body, "old key");
    let daemon = daemon.restarted().await;
    assert_eq!(daemon.handle.link().parts().keyring.public_key(), kept.public_key());
    assert_eq!(archived(&daemon), 1);
    daemon.stop().await;
}

#[tokio::test]
async fn a_refusal_leaves_everything_as_it_was() {
    let broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    broker.http.lock().unwrap().rotating = Rotating::Refused;
    let error = daemon.handle.link().parts().rotator.rotate().await.unwrap_err();
    assert_eq!(error.code(), Code::MemberRevoked);
    assert_eq!(archived(&daemon), 0);
    assert!(folder(&daemon).read(KEYPAIR_NEXT).unwrap().is_none());
    assert_eq!(daemon.handle.link().parts().keyring.public_key(), identity(1).public_key());
    daemon.stop().await;
}

#[tokio::test]
async fn an_archive_that_cannot_be_written_aborts() {
    let broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    // A folder in the place of the file: no rename replaces it.
    let path = folder(&daemon).file("keypair-archive.json");
    std::fs::create_dir_all(path.join("x")).unwrap();
    let error = daemon.handle.link().parts().rotator.rotate().await.unwrap_err();
    assert_eq!(error.code(), Code::KeyRotationAborted);
    assert_eq!(error.code().entry().code, "key_rotation_aborted_archive_write_failed");
    assert_eq!(broker.http.lock().unwrap().alice, identity(1).public(), "the broker was told nothing");
    assert_eq!(load_identity(&folder(&daemon)).unwrap().unwrap().public(), identity(1).public());
    std::fs::remove_dir_all(path).unwrap();
    daemon.stop().await;
}

#[tokio::test]
async fn a_lost_answer_is_cleared_up_before_the_next_connection() {
    for lost in [Rotating::AnswerLost, Rotating::RequestLost, Rotating::TurnedAway] {
        let mut broker = FakeBroker::start(false).await;
        let daemon = Linked::start(&broker, CONFIG).await;
        let connection = broker.ready().await;
        broker.http.lock().unwrap().rotating = lost;
        let error = daemon.handle.link().parts().rotator.rotate().await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{lost:?}");
        let next = folder(&daemon).read_text(KEYPAIR_NEXT).unwrap().unwrap();
        let next = Identity::from_json(&next).unwrap();
        broker.http.lock().unwrap().rotating = Rotating::Taken;
        let daemon = daemon.restarted().await;
        drop(connection);
        let _connected = broker.ready().await;
        assert_eq!(daemon.handle.link().parts().keyring.public_key(), next.public_key(), "{lost:?}");
        assert_eq!(broker.http.lock().unwrap().alice, next.public());
        assert!(folder(&daemon).read(KEYPAIR_NEXT).unwrap().is_none());
        assert_eq!(archived(&daemon), 1);
        daemon.stop().await;
    }
}

#[tokio::test]
async fn the_time_of_an_old_key_begins_when_the_broker_has_the_new_one() {
    for lost in [Rotating::AnswerLost, Rotating::RequestLost] {
        let mut broker = FakeBroker::start(false).await;
        let daemon = Linked::start(&broker, CONFIG).await;
        let connection = broker.ready().await;
        broker.http.lock().unwrap().rotating = lost;
        daemon.handle.link().parts().rotator.rotate().await.unwrap_err();
        // The host may be away for longer than an old key is good for.
        let asked = daemon.handle.link().parts().clock.now();
        broker.http.lock().unwrap().rotating = Rotating::Taken;
        let daemon = daemon.restarted().await;
        drop(connection);
        let mut connection = broker.ready().await;
        let archive = daemon.handle.link().parts().keyring.archive();
        let [old] = archive.keys() else { panic!("{} keys", archive.keys().len()) };
        assert_eq!(old.ed25519, identity(1).public_key(), "{lost:?}");
        assert!(old.rotated_out_at >= asked, "{lost:?}: what others have sealed meanwhile is still on its way");
        connection.deliver(boxed(1, &identity(2), &identity(1), "old key")).await;
        connection.acknowledged().await;
        assert_eq!(daemon.inbox().await[0].body, "old key");
        daemon.stop().await;
    }
}

/// As bob reads what alice has sent with these keys: the box opens, and the text is signed by them.
fn read_by_bob(sent: &Send, alice: &Identity) -> String {
    let plain = open_dm(identity(2).box_secret(), &alice.public().x25519, &sent.envelope.body.0).unwrap();
    let plain = Plain::from_bytes(&plain).unwrap();
    plain.verify(Carrier { mesh: mesh(), id: &sent.client_message_id, envelope: &sent.envelope }).unwrap();
    assert_eq!(*plain.signer(), alice.public_key());
    plain.body
}

#[tokio::test]
async fn what_was_never_sent_leaves_with_the_new_keys_and_what_was_sent_as_it_was() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    daemon.to_bob("sent").await;
    daemon.to_bob("waiting").await;
    let sent = connection.sent().await;
    daemon.handle.link().parts().rotator.rotate().await.unwrap();
    let new = load_identity(&folder(&daemon)).unwrap().unwrap();
    assert!(folder(&daemon).read(KEYPAIR_NEXT).unwrap().is_none());
    daemon.handle.link().reconnect();
    let mut connection = broker.ready().await;
    let again = connection.sent().await;
    assert_eq!(again, sent, "transmitted bytes stay");
    assert_eq!(read_by_bob(&again, &identity(1)), "sent");
    connection.accept(&again).await;
    daemon.becomes("sent", Status::Done).await;
    let waiting = connection.sent().await;
    assert_eq!(read_by_bob(&waiting, &new), "waiting");
    // A retry seals nothing: the same bytes once more.
    daemon.handle.link().reconnect();
    let mut connection = broker.ready().await;
    assert_eq!(connection.sent().await, waiting);
    daemon.stop().await;
}

#[tokio::test]
async fn a_crash_before_the_outbox_was_sealed_anew_is_made_up_for() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    // Nothing is sent over a connection that nobody has greeted.
    let before = broker.accept().await;
    daemon.to_bob("waiting").await;
    // As a crash leaves it: the new keys are in their place, and the mark of the rotation is still there.
    let (new, folder) = (stranger(1), folder(&daemon));
    for name in ["keypair.json", KEYPAIR_NEXT] {
        folder.write(name, new.to_json().unwrap().as_bytes()).unwrap();
    }
    broker.http.lock().unwrap().alice = new.public();
    let daemon = daemon.restarted().await;
    drop(before);
    let mut connection = broker.ready().await;
    let waiting = connection.sent().await;
    assert_eq!(read_by_bob(&waiting, &new), "waiting");
    assert!(folder.read(KEYPAIR_NEXT).unwrap().is_none());
    daemon.stop().await;
}

#[tokio::test]
async fn what_a_member_has_sealed_before_its_rotation_is_its_own_after_it() {
    let mut broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut connection = broker.ready().await;
    let (alice, bob, new) = (identity(1), identity(2), stranger(4));
    let key = TopicKey::from_bytes([9; 32]);
    connection.send(epoch_key(&bob, &key, 1)).await;
    let rotation = Rotation::sign(mesh(), &bob, &new);
    connection.send(ServerFrame::MemberKeypairRotated(KeypairRotated { member_id: member(2), rotation })).await;
    // The broker names the keys that the sender had when it took the message.
    for mut message in [boxed(1, &bob, &alice, "dm"), post(2, &key, 1, |message| signed(&bob, message, "post"))] {
        message.sender = new.public();
        connection.deliver(message).await;
        connection.acknowledged().await;
    }
    let bodies: Vec<String> = daemon.inbox().await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["dm", "post"]);
    daemon.stop().await;
}

#[tokio::test]
async fn keys_from_before_a_member_was_known_are_its_own_when_signed_steps_lead_on() {
    let mut broker = FakeBroker::start(false).await;
    let (alice, liar) = (identity(1), stranger(7));
    let [first, second, third] = [stranger(1), stranger(2), stranger(3)];
    let steps = [Rotation::sign(mesh(), &first, &second), Rotation::sign(mesh(), &second, &third)];
    // A step that the key before has not signed.
    let claimed = Rotation { old: liar.public_key(), ..Rotation::sign(mesh(), &stranger(8), &first) };
    let carol = json!({ "member_id": member(3), "name": "carol", "is_owner": false, "keys": third.public(), "online": true,
        "rotations": [claimed, steps[0], steps[1]] });
    broker.http.lock().unwrap().others.push(carol);
    let daemon = Linked::start(&broker, CONFIG).await;
    let mut changes = daemon.handle.directory().changes();
    let mut connection = broker.ready().await;
    while daemon.handle.directory().owner_of_key(&first.public_key()).is_none() {
        changes.changed().await.unwrap();
    }
    for (seq, keys) in [(1, &first), (2, &second), (3, &third), (4, &liar)] {
        let mut message = boxed(seq, keys, &alice, &seq.to_string());
        (message.sender_id, message.sender_name) = (member(3), "carol".parse().unwrap());
        connection.deliver(message).await;
        connection.acknowledged().await;
    }
    let bodies: Vec<String> = daemon.inbox().await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["1", "2", "3"]);
    // The first key came without a box key, and has one by now, also after a restart.
    let daemon = daemon.restarted().await;
    assert_eq!(daemon.handle.directory().owner_of_key(&first.public_key()), Some(member(3)));
    daemon.stop().await;
}

#[tokio::test]
async fn a_file_comes_back_whole_and_one_that_was_touched_does_not_come_at_all() {
    let broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let files = daemon.handle.link().parts().files.clone();
    let (source, out) = (daemon.home.path().join("report.bin"), daemon.home.path().join("out.bin"));
    // Nothing, one chunk less one, exactly one, one more, and several.
    for bytes in [0, 65_535, 65_536, 65_537, 300_000] {
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        std::fs::write(&source, &content).unwrap();
        let shared = files.share(&source, None, false).await.unwrap();
        assert_eq!((shared.name.as_str(), shared.bytes), ("report.bin", bytes as u64));
        let id = shared.file_id.to_string();
        let fetched = files.get(&id, &out).await.unwrap();
        assert_eq!((fetched.path, std::fs::read(&out).unwrap()), (out.clone(), content.clone()), "{bytes}");
        std::fs::remove_file(&out).unwrap();
        let stored = broker.http.lock().unwrap().files[&id].clone();
        assert!(bytes < 1_000 || !stored.windows(64).any(|part| part == &content[..64]), "it is stored encrypted");
        for bent in [stored[..stored.len() - 1].to_vec(), [&stored[..], &[0]].concat(), flipped(&stored)] {
            broker.http.lock().unwrap().files.insert(id.clone(), bent);
            assert_eq!(files.get(&id, &out).await.unwrap_err().code(), Code::BoxUnreadable);
            assert!(!out.exists() && !parts_in(daemon.home.path()));
        }
    }
    assert_eq!(files.list().await.unwrap().len(), 5);
    assert_eq!(files.get("no-such", &out).await.unwrap_err().code(), Code::NotFound);
    assert!(files.share(daemon.home.path(), None, false).await.is_err(), "a folder is no file");
    daemon.stop().await;
}

/// Whether a file that did not become whole was left here.
fn parts_in(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".part"))
}

#[tokio::test]
async fn a_file_of_the_user_is_not_touched_by_what_is_written_beside_it() {
    let broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let files = daemon.handle.link().parts().files.clone();
    let (source, out) = (daemon.home.path().join("report.bin"), daemon.home.path().join("out.bin"));
    std::fs::write(&source, b"report").unwrap();
    let own = daemon.home.path().join("out.bin.part");
    std::fs::write(&own, b"of the user").unwrap();
    let shared = files.share(&source, None, false).await.unwrap();
    files.get(&shared.file_id.to_string(), &out).await.unwrap();
    assert_eq!(std::fs::read(&out).unwrap(), b"report");
    assert_eq!(std::fs::read(&own).unwrap(), b"of the user");
    daemon.stop().await;
}

#[tokio::test]
async fn a_file_is_given_to_the_broker_for_those_it_is_meant_for() {
    let broker = FakeBroker::start(true).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let path = daemon.home.path().join("report.bin");
    std::fs::write(&path, b"report").unwrap();
    let bob = identity(2).public_key().to_string();
    let whom = [json!({ "to": "bob" }), json!({ "to": bob }), json!({ "topic": "ops" }), json!({})];
    for mut body in whom {
        body["path"] = json!(path);
        let mut socket = UnixStream::connect(daemon.handle.folder().socket().unwrap()).await.unwrap();
        exchange(&mut socket, "POST", "/v1/file/share", &[], &body.to_string()).await.expect(200);
    }
    let uploads = broker.http.lock().unwrap().uploads.clone();
    let target = |whom: &str| format!("/mesh/v1/files?persistent=false{whom}");
    let (to_bob, to_ops) = (target(&format!("&to={bob}")), target("&topic=ops"));
    assert_eq!(uploads, [to_bob.clone(), to_bob, to_ops, target("")]);
    daemon.stop().await;
}

fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    bytes
}
