//! Rotation of this member's own keys, at every place where it can break; and files.

use waybill_daemon::rotation::KEYPAIR_NEXT;
use waybill_daemon::{Folder, identity::load_identity};
use waybill_kernel::Code;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_protocol::seal::seal_dm;
use waybill_mesh_protocol::{Destination, Envelope, Identity, Nonce, Plain};

use super::link_broker::{CONFIG, FakeBroker, Linked, Rotating, message};
use super::support::identity;

fn folder(daemon: &Linked) -> Folder {
    daemon.handle.folder().clone()
}

fn archived(daemon: &Linked) -> usize {
    daemon.handle.link().parts().keyring.archive().keys().len()
}

/// From bob, in a box for the key that alice had at first.
fn to_the_old_key(seq: u64) -> waybill_mesh_protocol::frames::Message {
    let (alice, bob) = (identity(1), identity(2));
    let plain = Plain { body: "old key".to_owned(), meta: None }.to_bytes().unwrap();
    let sealed = seal_dm(&bob, &alice.public().x25519, Nonce::random(&OsEntropy), &plain).unwrap();
    let mut envelope = Envelope::new(Destination::dm(&alice.public_key()), sealed);
    envelope.key_id = Some(alice.public().key_id());
    message(seq, &bob, 2, "bob", envelope)
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
    connection.deliver(to_the_old_key(1)).await;
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
    for lost in [Rotating::AnswerLost, Rotating::RequestLost] {
        let mut broker = FakeBroker::start(false).await;
        let daemon = Linked::start(&broker, CONFIG).await;
        let connection = broker.ready().await;
        broker.http.lock().unwrap().rotating = lost;
        daemon.handle.link().parts().rotator.rotate().await.unwrap_err();
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
async fn a_file_comes_back_whole_and_one_that_was_touched_does_not_come_at_all() {
    let broker = FakeBroker::start(false).await;
    let daemon = Linked::start(&broker, CONFIG).await;
    let files = daemon.handle.link().parts().files.clone();
    let (source, out) = (daemon.home.path().join("report.bin"), daemon.home.path().join("out.bin"));
    // Nothing, one chunk less one, exactly one, one more, and several.
    for bytes in [0, 65_535, 65_536, 65_537, 300_000] {
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        std::fs::write(&source, &content).unwrap();
        let shared = files.share(&source, false).await.unwrap();
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
            assert!(!out.exists() && !daemon.home.path().join("out.bin.part").exists());
        }
    }
    assert_eq!(files.list().await.unwrap().len(), 5);
    assert_eq!(files.get("no-such", &out).await.unwrap_err().code(), Code::NotFound);
    assert!(files.share(daemon.home.path(), false).await.is_err(), "a folder is no file");
    daemon.stop().await;
}

fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    bytes
}
