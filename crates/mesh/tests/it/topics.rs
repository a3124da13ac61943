//! Topics and the keys of encrypted ones.

use serde_json::json;
use waybill_kernel::Code;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh::EventKind;
use waybill_mesh::ops::members::{
    Connect, ConnectionId, Disconnect, LeaveMesh, ReadMeshEvents, RevokeMember, RotateKeys,
};
use waybill_mesh::ops::topics::{
    CreateTopic, EpochUploaded, FindEpochWork, ListEpochKeys, ListTopics, Subscribe, Unsubscribe, UploadEpoch,
    WORK_PAGE_MAX,
};
use waybill_mesh_protocol::epoch::EpochOf;
use waybill_mesh_protocol::frames::EpochWanted;
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{Envelope, EpochBox, Identity, TopicKey};
use waybill_testkit::stores::TestStore;

use crate::support::{
    Person, create_topic, join, mesh_of, new_id, ok, post, refusal, refused, rows, run, sent, subscribe, topic,
};

mod usual {
    use super::*;

    waybill_testkit::both! {
        a_topic_of_an_encrypted_mesh_waits_for_its_first_key,
        all_boxes_come_at_once_or_not_at_all,
        the_owner_makes_keys_before_others_and_others_when_it_is_away,
        after_a_revocation_posts_wait_for_the_next_key,
        after_a_departure_posts_go_on_under_the_present_key,
        old_epochs_are_taken_for_a_while_and_unknown_ones_never,
        boxes_are_signed_by_who_makes_them,
        who_has_made_a_key_and_left_is_named_with_it,
        a_join_raises_no_floor_and_keeps_the_one_there_is,
        work_comes_in_pages_of_topics,
        a_member_that_ends_while_it_makes_a_topic_is_left_behind_in_none,
    }
}

mod small {
    use super::*;

    waybill_testkit::both! {
        waybill_mesh::Settings { topics_max: 1, encrypted_subscribers_max: 1, ..waybill_mesh::Settings::default() } => caps_of_topics_are_kept
    }
}

async fn encrypted(on: &TestStore) -> Person {
    mesh_of(on, &on.admin, "team", false).await
}

async fn connect(on: &TestStore, who: &Person) -> ConnectionId {
    let connection = ConnectionId(new_id());
    ok(on, who.caller(), Connect { mesh: who.mesh(), member: who.id(), connection }).await;
    connection
}

async fn work(on: &TestStore, who: &Person) -> Vec<EpochWanted> {
    ok(on, who.caller(), FindEpochWork { mesh: who.mesh(), member: who.id(), after: None }).await.wanted
}

/// Boxes of one key for those that are wanted.
fn boxes(by: &Person, wanted: &EpochWanted, key: &TopicKey) -> Vec<EpochBox> {
    let of = EpochOf { mesh: by.mesh(), topic: &wanted.topic, epoch: wanted.epoch };
    let seal = |keys| EpochBox::seal(&by.identity, of, keys, key, &OsEntropy).unwrap();
    wanted.subscribers.iter().map(|subscriber| seal(&subscriber.keys)).collect()
}

fn upload(by: &Person, wanted: &EpochWanted, boxes: Vec<EpochBox>) -> UploadEpoch {
    let (topic, epoch) = (wanted.topic.clone(), wanted.epoch);
    UploadEpoch { mesh: by.mesh(), member: by.id(), key: by.key(), topic, epoch, boxes }
}

/// Makes whatever key is wanted of the member.
async fn mint(on: &TestStore, by: &Person) -> (EpochWanted, EpochUploaded) {
    let wanted = work(on, by).await.remove(0);
    let made = boxes(by, &wanted, &TopicKey::generate(&OsEntropy));
    let uploaded = ok(on, by.caller(), upload(by, &wanted, made)).await;
    (wanted, uploaded)
}

async fn epochs(on: &TestStore, who: &Person) -> Vec<u32> {
    let list = ListEpochKeys { mesh: who.mesh(), member: who.id(), topic: None, after_topic: None, after_epoch: None };
    ok(on, who.caller(), list).await.keys.iter().map(|key| key.epoch).collect()
}

fn sealed(epoch: u32) -> Envelope {
    let mut envelope = post("jobs", "ciphertext");
    envelope.epoch = Some(epoch);
    envelope
}

async fn a_topic_of_an_encrypted_mesh_waits_for_its_first_key(on: TestStore) {
    let alice = encrypted(&on).await;
    create_topic(&on, &alice, "jobs").await;
    assert_eq!(refusal(&on, &alice, "a", sealed(1)).await.code(), Code::EpochPending);
    assert_eq!(work(&on, &alice).await, [], "nobody is connected");
    connect(&on, &alice).await;
    let (wanted, uploaded) = mint(&on, &alice).await;
    assert_eq!((wanted.epoch, wanted.subscribers.len(), uploaded.switched), (1, 1, true));
    assert_eq!(work(&on, &alice).await, []);
    sent(&on, &alice, "a", sealed(1)).await;
    // What it has made it gets like everybody else.
    let list =
        ListEpochKeys { mesh: alice.mesh(), member: alice.id(), topic: None, after_topic: None, after_epoch: None };
    let keys = ok(&on, alice.caller(), list).await.keys;
    let of = EpochOf { mesh: alice.mesh(), topic: &keys[0].topic, epoch: 1 };
    keys[0].boxed.open(of, &keys[0].minter, alice.identity.box_secret()).unwrap();
    // In plain text nothing is asked for.
    let plain = mesh_of(&on, &on.admin, "plain", true).await;
    create_topic(&on, &plain, "jobs").await;
    connect(&on, &plain).await;
    assert_eq!(work(&on, &plain).await, []);
    sent(&on, &plain, "a", post("jobs", "x")).await;
}

async fn all_boxes_come_at_once_or_not_at_all(on: TestStore) {
    let alice = encrypted(&on).await;
    let bob = join(&on, &alice, "bob").await;
    create_topic(&on, &alice, "jobs").await;
    connect(&on, &alice).await;
    let before = work(&on, &alice).await.remove(0);
    // Somebody subscribes after the keyholder was asked.
    subscribe(&on, &bob, "jobs").await;
    let some = boxes(&alice, &before, &TopicKey::generate(&OsEntropy));
    let uploaded = ok(&on, alice.caller(), upload(&alice, &before, some)).await;
    assert_eq!((uploaded.switched, uploaded.missing), (false, 1));
    assert_eq!(on.count("SELECT count(*) FROM mesh_epoch_boxes").await.unwrap(), 0, "half a key was kept");
    assert_eq!(refusal(&on, &alice, "a", sealed(1)).await.code(), Code::EpochPending);
    let (wanted, uploaded) = mint(&on, &alice).await;
    assert_eq!((wanted.subscribers.len(), uploaded.switched), (2, true));
    assert_eq!((epochs(&on, &alice).await, epochs(&on, &bob).await), (vec![1], vec![1]));
    // Who makes another key for the same epoch is too late, and hears that there is one.
    let late = boxes(&bob, &wanted, &TopicKey::generate(&OsEntropy));
    let minters = "SELECT count(DISTINCT minter_key) FROM mesh_epoch_boxes";
    assert!(ok(&on, bob.caller(), upload(&bob, &wanted, late)).await.switched);
    assert_eq!(on.count(minters).await.unwrap(), 1, "two keys are mixed");
}

async fn the_owner_makes_keys_before_others_and_others_when_it_is_away(on: TestStore) {
    let alice = encrypted(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &carol, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    connect(&on, &carol).await;
    assert_eq!(work(&on, &carol).await.len(), 1);
    connect(&on, &bob).await;
    assert_eq!((work(&on, &bob).await.len(), work(&on, &carol).await.len()), (1, 0), "the lower id goes first");
    subscribe(&on, &alice, "jobs").await;
    let connection = connect(&on, &alice).await;
    assert_eq!((work(&on, &alice).await.len(), work(&on, &bob).await.len()), (1, 0), "the owner goes first");
    ok(&on, alice.caller(), Disconnect { mesh: alice.mesh(), member: alice.id(), connection }).await;
    assert_eq!(work(&on, &bob).await.len(), 1);
    let events = ok(&on, alice.caller(), ReadMeshEvents { mesh: alice.mesh(), after: 0, limit: None }).await.events;
    let asked: Vec<_> =
        events.iter().filter(|event| event.kind == EventKind::EpochRequested).map(|event| event.member).collect();
    assert_eq!(asked.last(), Some(&Some(bob.id())), "{asked:?}");
    assert!(asked.contains(&None) && asked.contains(&Some(alice.id())));
}

async fn after_a_revocation_posts_wait_for_the_next_key(on: TestStore) {
    let alice = encrypted(&on).await;
    let bob = join(&on, &alice, "bob").await;
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    connect(&on, &alice).await;
    mint(&on, &alice).await;
    sent(&on, &alice, "a", sealed(1)).await;
    ok(&on, alice.caller(), RevokeMember { mesh: alice.mesh(), member: alice.id(), key: bob.key() }).await;
    assert_eq!(refusal(&on, &alice, "b", sealed(1)).await.code(), Code::EpochPending);
    let (wanted, uploaded) = mint(&on, &alice).await;
    assert_eq!((wanted.epoch, wanted.subscribers.len(), uploaded.switched), (2, 1, true));
    // The revoked one has the key that this was encrypted with. Nothing is left of the attempt, and its id is free.
    let before = rows(&on).await;
    let refused = refusal(&on, &alice, "b", sealed(1)).await;
    assert_eq!((refused.code(), refused.detail("epoch")), (Code::EpochUnknown, Some(&json!(2))));
    assert_eq!(rows(&on).await, before, "a refusal has left something");
    sent(&on, &alice, "b", sealed(2)).await;
    sent(&on, &alice, "c", sealed(2)).await;
    assert_eq!(on.count("SELECT count(*) FROM mesh_epoch_boxes").await.unwrap(), 2, "the revoked one has boxes");
}

async fn after_a_departure_posts_go_on_under_the_present_key(on: TestStore) {
    let alice = encrypted(&on).await;
    let bob = join(&on, &alice, "bob").await;
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    connect(&on, &alice).await;
    mint(&on, &alice).await;
    ok(&on, bob.caller(), Unsubscribe { mesh: bob.mesh(), member: bob.id(), topic: topic("jobs") }).await;
    sent(&on, &alice, "a", sealed(1)).await;
    let list = ok(&on, bob.caller(), ListTopics { mesh: bob.mesh(), member: bob.id(), limit: None, after: None }).await;
    let view = &list.topics[0];
    assert_eq!((view.epoch, view.pending_epoch, view.blocked), (1, Some(2), false));
    assert_eq!((view.subscribers, view.subscribed), (1, false));
    // A key that is being made when somebody leaves is given up: it may have been made for that one as well.
    let before = work(&on, &alice).await.remove(0);
    subscribe(&on, &bob, "jobs").await;
    ok(&on, bob.caller(), Unsubscribe { mesh: bob.mesh(), member: bob.id(), topic: topic("jobs") }).await;
    let old = boxes(&alice, &before, &TopicKey::generate(&OsEntropy));
    assert_eq!(refused(&on, alice.caller(), upload(&alice, &before, old)).await, Code::EpochUnknown);
    assert_eq!(mint(&on, &alice).await.0.epoch, 3);
    assert_eq!(epochs(&on, &alice).await, [1, 3]);
    // Whoever has left has the key from before.
    assert_eq!(refusal(&on, &alice, "b", sealed(1)).await.code(), Code::EpochUnknown);
    sent(&on, &alice, "b", sealed(3)).await;
}

async fn a_join_raises_no_floor_and_keeps_the_one_there_is(on: TestStore) {
    let alice = encrypted(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &alice, "jobs").await;
    connect(&on, &alice).await;
    mint(&on, &alice).await;
    subscribe(&on, &bob, "jobs").await;
    mint(&on, &alice).await;
    sent(&on, &alice, "before the join", sealed(1)).await;
    ok(&on, alice.caller(), RevokeMember { mesh: alice.mesh(), member: alice.id(), key: bob.key() }).await;
    // Who joins while the key is made changes nothing about why it is made.
    subscribe(&on, &carol, "jobs").await;
    assert_eq!(mint(&on, &alice).await.0.epoch, 3);
    assert_eq!(refusal(&on, &alice, "a", sealed(2)).await.code(), Code::EpochUnknown);
    let dave = join(&on, &alice, "dave").await;
    subscribe(&on, &dave, "jobs").await;
    assert_eq!(mint(&on, &alice).await.0.epoch, 4);
    for (epoch, good) in [(2, false), (3, true), (4, true)] {
        let id = format!("m{epoch}");
        if good {
            sent(&on, &alice, &id, sealed(epoch)).await;
        } else {
            assert_eq!(refusal(&on, &alice, &id, sealed(epoch)).await.code(), Code::EpochUnknown, "{epoch}");
        }
    }
}

async fn work_comes_in_pages_of_topics(on: TestStore) {
    let alice = encrypted(&on).await;
    let bob = join(&on, &alice, "bob").await;
    connect(&on, &alice).await;
    for number in 0..20 {
        let name = format!("jobs-{number:02}");
        create_topic(&on, &alice, &name).await;
        subscribe(&on, &bob, &name).await;
    }
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let find = FindEpochWork { mesh: alice.mesh(), member: alice.id(), after: after.take() };
        let page = ok(&on, alice.caller(), find).await.wanted;
        assert!(page.len() <= WORK_PAGE_MAX && page.iter().all(|wanted| wanted.subscribers.len() == 2));
        found.extend(page.iter().map(|wanted| wanted.topic.to_string()));
        if page.len() < WORK_PAGE_MAX {
            break;
        }
        after = page.last().map(|wanted| wanted.topic.clone());
    }
    assert_eq!(found, (0..20).map(|number| format!("jobs-{number:02}")).collect::<Vec<_>>());
}

async fn old_epochs_are_taken_for_a_while_and_unknown_ones_never(on: TestStore) {
    let alice = encrypted(&on).await;
    create_topic(&on, &alice, "jobs").await;
    connect(&on, &alice).await;
    mint(&on, &alice).await;
    for number in 0..10 {
        let joiner = join(&on, &alice, &format!("joiner-{number}")).await;
        subscribe(&on, &joiner, "jobs").await;
        mint(&on, &alice).await;
    }
    // It is at 11 now and takes 4 to 11.
    for (epoch, good) in [(0, false), (3, false), (4, true), (11, true), (12, false)] {
        let id = format!("m{epoch}");
        if good {
            sent(&on, &alice, &id, sealed(epoch)).await;
        } else {
            assert_eq!(refusal(&on, &alice, &id, sealed(epoch)).await.code(), Code::EpochUnknown, "{epoch}");
        }
    }
    assert_eq!(refusal(&on, &alice, "plain", post("jobs", "x")).await.code(), Code::InvalidRequest);
    let page = |after_epoch| ListEpochKeys {
        mesh: alice.mesh(),
        member: alice.id(),
        topic: Some(topic("jobs")),
        after_topic: Some(topic("jobs")),
        after_epoch: Some(after_epoch),
    };
    let keys = ok(&on, alice.caller(), page(9)).await.keys;
    assert_eq!(keys.iter().map(|key| key.epoch).collect::<Vec<_>>(), [10, 11]);
}

async fn boxes_are_signed_by_who_makes_them(on: TestStore) {
    let alice = encrypted(&on).await;
    let bob = join(&on, &alice, "bob").await;
    create_topic(&on, &alice, "jobs").await;
    connect(&on, &alice).await;
    let wanted = work(&on, &alice).await.remove(0);
    let key = TopicKey::generate(&OsEntropy);
    let of_bob = boxes(&bob, &wanted, &key);
    assert_eq!(
        refused(&on, alice.caller(), upload(&alice, &wanted, of_bob.clone())).await,
        Code::SignatureDoesNotMatch
    );
    assert_eq!(refused(&on, bob.caller(), upload(&bob, &wanted, of_bob)).await, Code::NotSubscribed);
    let mut other = wanted.clone();
    other.epoch = 2;
    let moved = boxes(&alice, &other, &key);
    assert_eq!(refused(&on, alice.caller(), upload(&alice, &wanted, moved.clone())).await, Code::SignatureDoesNotMatch);
    assert_eq!(refused(&on, alice.caller(), upload(&alice, &other, moved)).await, Code::EpochUnknown);
    assert_eq!(refused(&on, alice.caller(), upload(&alice, &wanted, Vec::new())).await, Code::InvalidRequest);
}

async fn who_has_made_a_key_and_left_is_named_with_it(on: TestStore) {
    let alice = encrypted(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &bob, "jobs").await;
    subscribe(&on, &carol, "jobs").await;
    connect(&on, &bob).await;
    mint(&on, &bob).await;
    let list = || {
        let (mesh, member) = (carol.mesh(), carol.id());
        ListEpochKeys { mesh, member, topic: None, after_topic: None, after_epoch: None }
    };
    assert!(ok(&on, carol.caller(), list()).await.departed.is_empty(), "the list of members names it");
    let new = Identity::generate(&OsEntropy);
    let rotation = Rotation::sign(bob.mesh(), &bob.identity, &new);
    ok(&on, bob.caller(), RotateKeys { mesh: bob.mesh(), member: bob.id(), rotation }).await;
    ok(&on, bob.caller(), LeaveMesh { mesh: bob.mesh(), member: bob.id() }).await;
    let answer = ok(&on, carol.caller(), list()).await;
    assert_eq!(answer.keys.iter().map(|key| key.minter).collect::<Vec<_>>(), [bob.key()]);
    let [gone] = answer.departed.as_slice() else { panic!("{:?}", answer.departed) };
    assert_eq!((gone.member_id, gone.name.as_str(), gone.is_owner), (bob.id(), "bob", false));
    assert_eq!((gone.keys, gone.rotations.as_slice()), (new.public(), [rotation].as_slice()));
}

async fn caps_of_topics_are_kept(on: TestStore) {
    let alice = encrypted(&on).await;
    let bob = join(&on, &alice, "bob").await;
    create_topic(&on, &alice, "jobs").await;
    let create = |name: &str| CreateTopic { mesh: alice.mesh(), member: alice.id(), topic: topic(name) };
    assert_eq!(refused(&on, alice.caller(), create("jobs")).await, Code::AlreadyExists);
    assert_eq!(refused(&on, alice.caller(), create("more")).await, Code::TooManyTopics);
    let second = Subscribe { mesh: bob.mesh(), member: bob.id(), topic: topic("jobs") };
    assert_eq!(refused(&on, bob.caller(), second).await, Code::TooManySubscribers);
    assert_eq!(on.count("SELECT count(*) FROM mesh_subscriptions").await.unwrap(), 1);
}

async fn a_member_that_ends_while_it_makes_a_topic_is_left_behind_in_none(on: TestStore) {
    let alice = encrypted(&on).await;
    for round in 0..8 {
        let bob = join(&on, &alice, &format!("bob {round}")).await;
        let create = CreateTopic { mesh: bob.mesh(), member: bob.id(), topic: topic(&format!("t{round}")) };
        let revoke = RevokeMember { mesh: alice.mesh(), member: alice.id(), key: bob.key() };
        let (made, _) = tokio::join!(run(&on, bob.caller(), create), ok(&on, alice.caller(), revoke));
        if let Err(error) = made {
            assert_eq!(error.code(), Code::MemberRevoked);
        }
    }
    assert_eq!(on.count("SELECT count(*) FROM mesh_subscriptions").await.unwrap(), 0);
}
