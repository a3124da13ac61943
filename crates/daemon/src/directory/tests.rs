use std::sync::Arc;

use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Clock, Entropy};
use waybill_mesh_protocol::Identity;

use super::*;
use crate::inbox;

fn identity(seed: u64) -> Identity {
    Identity::generate(&SeededEntropy::new(seed))
}

fn member(id: u128, name: &str, seed: u64) -> Member {
    Member {
        id: MemberId(Uuid::from_u128(id)),
        name: name.to_owned(),
        keys: identity(seed).public(),
        is_owner: id == 1,
        state: Standing::Active,
    }
}

async fn open(folder: &tempfile::TempDir, plaintext: bool) -> (Directory, Store) {
    open_bounded(folder, plaintext, MEMBERS_MAX).await
}

async fn open_bounded(folder: &tempfile::TempDir, plaintext: bool, members_max: usize) -> (Directory, Store) {
    let (clock, entropy) = (Arc::new(Clock::system()), Arc::new(SeededEntropy::new(99)) as Arc<dyn Entropy>);
    let (store, _) = inbox::open_store(&folder.path().join("inbox.db"), &clock, &entropy).await.unwrap();
    let directory = Directory::bounded(store.clone(), identity(1).public_key(), plaintext, members_max);
    (directory.await.unwrap(), store)
}

fn never(_: &Member, _: &Member) -> bool {
    false
}

#[tokio::test]
async fn what_was_learnt_is_known_after_a_start_without_a_network() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, store) = open(&folder, false).await;
    directory.learn_members(vec![member(1, "alice", 1), member(2, "bob", 2)], never).await.unwrap();
    let key = TopicKey::from_bytes([5; 32]);
    let topic = Topic { name: "ops".to_owned(), subscribed: true, epoch: Some(3) };
    let learnt = Change::EpochKey { topic: "ops".to_owned(), epoch: 3, key: key.clone() };
    directory.learn(vec![Change::Topic(topic), learnt]).await.unwrap();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let (again, _) = open(&folder, false).await;
    assert_eq!(again.members(), directory.members());
    assert_eq!(again.resolve("bob").unwrap(), member(2, "bob", 2));
    assert_eq!(again.resolve(&identity(2).public_key().to_string().to_uppercase()).unwrap().name, "bob");
    assert_eq!(again.posting_key("ops").unwrap(), Some((3, key)));
    assert_eq!(again.posting_key("dev").unwrap_err().code(), Code::TopicUnknown);
    assert_eq!(again.resolve("carol").unwrap_err().code(), Code::MemberUnknown);
    assert_eq!(again.resolve(&identity(3).public_key().to_string()).unwrap_err().code(), Code::MemberUnknown);
}

#[tokio::test]
async fn a_topic_needs_its_key_unless_the_mesh_is_plain() {
    let folder = tempfile::tempdir().unwrap();
    for plaintext in [false, true] {
        let (directory, store) = open(&folder, plaintext).await;
        let topic = |subscribed, epoch| Change::Topic(Topic { name: "ops".to_owned(), subscribed, epoch });
        directory.learn(vec![topic(true, Some(1))]).await.unwrap();
        assert_eq!(directory.posting_key("ops").is_ok(), plaintext, "without a key");
        directory.learn(vec![topic(false, None)]).await.unwrap();
        assert!(directory.posting_key("ops").is_err(), "not subscribed");
        tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    }
}

#[tokio::test]
async fn between_the_switch_of_an_epoch_and_its_key_the_key_before_it_is_used_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, store) = open(&folder, false).await;
    let topic = |epoch| Change::Topic(Topic { name: "ops".to_owned(), subscribed: true, epoch: Some(epoch) });
    let key = |epoch: u32| {
        let key = TopicKey::from_bytes([epoch as u8; 32]);
        (Change::EpochKey { topic: "ops".to_owned(), epoch, key: key.clone() }, key)
    };
    directory.learn(vec![key(1).0, key(3).0, topic(3)]).await.unwrap();
    // The broker has named the epoch; its key has not come.
    directory.learn(vec![topic(5)]).await.unwrap();
    assert_eq!(directory.posting_key("ops").unwrap(), Some((3, key(3).1)));
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let (directory, _) = open(&folder, false).await;
    assert_eq!(directory.posting_key("ops").unwrap(), Some((3, key(3).1)));
    // A key from beyond the topic's epoch is not used before the broker has switched to it.
    directory.learn(vec![key(6).0]).await.unwrap();
    assert_eq!(directory.posting_key("ops").unwrap(), Some((3, key(3).1)));
    directory.learn(vec![key(5).0]).await.unwrap();
    assert_eq!(directory.posting_key("ops").unwrap(), Some((5, key(5).1)));
}

#[tokio::test]
async fn a_key_that_is_not_believed_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = open(&folder, false).await;
    directory.learn_members(vec![member(1, "alice", 1), member(2, "bob", 2)], never).await.unwrap();
    let before = directory.members();
    let unsigned = Member {
        keys: MemberKeys { x25519: identity(9).public().x25519, ..member(4, "dan", 4).keys },
        ..member(4, "dan", 4)
    };
    let owner = Member { is_owner: true, ..member(5, "eve", 5) };
    // Bob with another key, a stranger with bob's, one whose box key is another's, a second owner, two who claim one key.
    let liars = vec![member(2, "bob", 3), member(3, "thief", 2), unsigned, owner];
    directory.learn_members(liars, never).await.unwrap();
    assert_eq!(directory.members(), before);
    directory.learn_members(vec![member(6, "one", 6), member(7, "two", 6)], never).await.unwrap();
    assert_eq!(directory.members().len(), before.len() + 1, "the first to claim a key has it");
}

#[tokio::test]
async fn a_rotation_that_the_known_key_has_signed_is_followed_and_the_old_key_stays_known() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, store) = open(&folder, false).await;
    directory.learn_members(vec![member(1, "alice", 1), member(2, "bob", 2)], never).await.unwrap();
    directory.learn_members(vec![member(2, "bob", 3)], |_, _| true).await.unwrap();
    // The owner rotates too, and is still the owner afterwards.
    directory.learn_members(vec![member(1, "alice", 4)], |_, _| true).await.unwrap();
    directory.learn_members(vec![member(1, "alice", 5)], |_, _| true).await.unwrap();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let (directory, _) = open(&folder, false).await;
    let old = identity(2).public_key();
    assert_eq!(directory.holder(&old).unwrap().keys, identity(3).public());
    assert_eq!(directory.resolve(&old.to_string()).unwrap().keys, identity(3).public());
    let keys = directory.box_keys_of(&old);
    assert_eq!(keys, [identity(2).public().x25519, identity(3).public().x25519]);
    assert_eq!(directory.resolve("alice").unwrap().keys, identity(5).public());
    // A key that was somebody's is not another's afterwards.
    directory.learn_members(vec![member(9, "thief", 2)], never).await.unwrap();
    assert_eq!(directory.owner_of_key(&old), Some(MemberId(Uuid::from_u128(2))));
    assert_eq!(directory.members().len(), 2);
}

#[tokio::test]
async fn a_member_that_ended_is_no_recipient_and_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = open(&folder, false).await;
    directory.learn_members(vec![member(2, "bob", 2)], never).await.unwrap();
    let key = identity(2).public_key();
    directory.update(&key, |member| member.state = Standing::Revoked).await.unwrap();
    assert_eq!(directory.resolve("bob").unwrap_err().code(), Code::MemberUnknown);
    assert_eq!(directory.holder(&key).unwrap().name, "bob");
    directory.learn_members(vec![member(3, "bob", 3)], never).await.unwrap();
    assert_eq!(directory.resolve("bob").unwrap().id, MemberId(Uuid::from_u128(3)));
    directory.learn_members(vec![member(4, "bob", 4)], never).await.unwrap();
    assert_eq!(directory.resolve("bob").unwrap_err().code(), Code::InvalidRequest, "two have the name");
}

#[tokio::test]
async fn the_first_key_of_an_epoch_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, store) = open(&folder, false).await;
    for byte in [1, 2] {
        let key = TopicKey::from_bytes([byte; 32]);
        directory.learn(vec![Change::EpochKey { topic: "ops".to_owned(), epoch: 1, key }]).await.unwrap();
    }
    assert_eq!(directory.epoch_key("ops", 1), Some(TopicKey::from_bytes([1; 32])));
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    assert_eq!(open(&folder, false).await.0.epoch_key("ops", 1), Some(TopicKey::from_bytes([1; 32])));
}

#[tokio::test]
async fn a_key_that_only_signed_steps_tell_of_says_who_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = open(&folder, false).await;
    directory.learn_members(vec![member(2, "bob", 2)], never).await.unwrap();
    let old = identity(9).public_key();
    assert_eq!(directory.resolve(&old.to_string()).unwrap_err().code(), Code::MemberUnknown);
    directory.add_proven(old, MemberId(Uuid::from_u128(2)));
    assert_eq!(directory.resolve(&old.to_string()).unwrap().name, "bob");
}

#[tokio::test]
async fn an_owner_that_has_rotated_before_it_was_known_is_believed_by_the_pinned_key() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = open(&folder, false).await;
    let pinned = identity(1).public_key();
    let rotated = Member { is_owner: true, ..member(1, "alice", 7) };
    let by_another = |known: &Member, _: &Member| known.keys.ed25519 != pinned;
    directory.learn_members(vec![rotated.clone()], by_another).await.unwrap();
    assert!(directory.members().is_empty(), "nobody who is believed has signed its key");
    let by_pinned = |known: &Member, _: &Member| known.keys.ed25519 == pinned;
    directory.learn_members(vec![rotated.clone()], by_pinned).await.unwrap();
    assert_eq!(directory.member(&rotated.id).unwrap().keys, rotated.keys);
    // By a later list, with a name of its own since.
    directory.add_proven(pinned, rotated.id);
    directory.learn_members(vec![Member { name: "anna".to_owned(), ..rotated.clone() }], never).await.unwrap();
    assert_eq!(directory.member(&rotated.id).unwrap().name, "anna");
}

#[tokio::test]
async fn an_owner_that_the_pinned_key_speaks_for_stays_the_owner_when_it_rotates_on() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, store) = open(&folder, false).await;
    let pinned = identity(1).public_key();
    let rotated = member(1, "alice", 7);
    directory.learn_members(vec![rotated.clone()], |known, _| known.keys.ed25519 == pinned).await.unwrap();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    // The broker may name the steps before no more.
    let (directory, _) = open(&folder, false).await;
    let again = member(1, "alice", 8);
    directory.learn_members(vec![again.clone()], |known, _| known.keys == rotated.keys).await.unwrap();
    assert_eq!(directory.member(&again.id), Some(again.clone()));
    let renamed = Member { name: "anna".to_owned(), ..again };
    directory.learn_members(vec![renamed.clone()], never).await.unwrap();
    assert_eq!(directory.member(&renamed.id), Some(renamed));
}

#[tokio::test]
async fn where_the_owner_is_known_the_pinned_key_makes_no_other_one() {
    let pinned = identity(1).public_key();
    let by_pinned = |known: &Member, _: &Member| known.keys.ed25519 == pinned;
    let (present, rotated) = (member(1, "alice", 1), member(1, "alice", 7));
    let usurper = Member { is_owner: true, ..member(5, "eve", 5) };
    for owner in [present, rotated] {
        let folder = tempfile::tempdir().unwrap();
        let (directory, _) = open(&folder, false).await;
        directory.learn_members(vec![owner.clone(), usurper.clone()], by_pinned).await.unwrap();
        assert_eq!(directory.members(), std::slice::from_ref(&owner), "in the same list");
        directory.learn_members(vec![usurper.clone()], by_pinned).await.unwrap();
        assert_eq!(directory.members(), [owner], "in a later one");
    }
}

#[tokio::test]
async fn a_name_and_an_end_that_were_told_while_a_list_was_on_its_way_are_newer_than_the_list() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = open(&folder, false).await;
    let listed = vec![member(2, "bob", 2), member(3, "carol", 3)];
    directory.learn_members(listed.clone(), never).await.unwrap();
    let before = directory.snapshot();
    directory.update(&identity(2).public_key(), |bob| bob.name = "robert".to_owned()).await.unwrap();
    directory.update(&identity(3).public_key(), |carol| carol.state = Standing::Revoked).await.unwrap();
    directory.learn_list(&before, listed.clone(), never).await.unwrap();
    assert_eq!(directory.resolve("robert").unwrap().id, listed[0].id);
    assert_eq!(directory.member(&listed[1].id).unwrap().state, Standing::Revoked);
    // A list that was asked for later knows better.
    directory.learn_list(&directory.snapshot(), listed.clone(), never).await.unwrap();
    assert_eq!(directory.members(), listed);
}

#[tokio::test]
async fn members_that_have_ended_take_no_places_and_the_oldest_of_them_are_forgotten() {
    const MAX: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let (directory, store) = open_bounded(&folder, false, MAX).await;
    let gone =
        async |seed| directory.update(&identity(seed).public_key(), |member| member.state = Standing::Gone).await;
    let rotated = member(2, "bob", 90);
    directory.learn_members(vec![member(1, "alice", 1), member(2, "bob", 2)], never).await.unwrap();
    directory.learn_members(vec![rotated.clone()], |_, _| true).await.unwrap();
    gone(90).await.unwrap();
    for number in 3_u64..=20 {
        let runner = member(number.into(), &format!("runner-{number}"), number);
        directory.learn_members(vec![runner.clone()], never).await.unwrap();
        assert_eq!(directory.resolve(&runner.name).unwrap(), runner);
        assert!(directory.members().len() <= 2 * MAX);
        gone(number).await.unwrap();
    }
    let known = directory.members();
    assert!(known.contains(&Member { state: Standing::Gone, ..member(20, "runner-20", 20) }), "{known:?}");
    assert!(!known.iter().any(|member| member.name == "runner-3"), "{known:?}");
    // Signed steps may lead on from its key.
    assert_eq!(directory.owner_of_key(&identity(2).public_key()), Some(rotated.id));
    let late = [(21_u64, "one"), (22, "two"), (23, "three")].map(|(number, name)| member(number.into(), name, number));
    directory.learn_members(late.to_vec(), never).await.unwrap();
    let is_known = late.map(|late| directory.resolve(&late.name).is_ok());
    assert_eq!(is_known, [true, true, false], "with alice there is room for two more");
    let known = directory.members();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    assert_eq!(open(&folder, false).await.0.members(), known);
}

#[tokio::test]
async fn a_member_is_known_by_all_the_keys_it_has_had() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = open(&folder, false).await;
    directory.learn_members(vec![member(2, "bob", 2), member(3, "carol", 3)], never).await.unwrap();
    directory.add_proven(identity(9).public_key(), member(2, "bob", 2).id);
    directory.learn_members(vec![member(2, "bob", 4)], |_, _| true).await.unwrap();
    let keys = [4, 9, 2].map(|seed| identity(seed).public_key());
    for key in &keys {
        assert_eq!(directory.keys_beside(key), keys);
    }
    assert_eq!(directory.keys_beside(&identity(3).public_key()), [identity(3).public_key()]);
    assert!(directory.keys_beside(&identity(5).public_key()).is_empty());
}
