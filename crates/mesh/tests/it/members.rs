//! Members: what one that is revoked can still do, which is nothing, and who is called what under which key.

use waybill_kernel::Code;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh::ops::files::{BeginFile, ListFiles};
use waybill_mesh::ops::manage::{CloseMesh, CreateMesh};
use waybill_mesh::ops::members::{
    Connect, ConnectionId, LeaveMesh, ListMembers, ReadMeshEvents, RenameMember, RevokeMember, RotateKeys, SetProfile,
};
use waybill_mesh::ops::messages::{FindDeliveries, Link, ReadHistory};
use waybill_mesh::ops::topics::{CreateTopic, ListEpochKeys, ListTopics, Subscribe};
use waybill_mesh::{EventKind, Standing, authenticate};
use waybill_mesh_protocol::Identity;
use waybill_mesh_protocol::rotation::Rotation;
use waybill_testkit::stores::TestStore;

use crate::support::{
    Person, call, count, create_topic, dm, join, new_id, ok, plain_mesh, post, refusal, refused, sent, subscribe, topic,
};

waybill_testkit::both! {
    a_mesh_is_made_once_however_often_its_owner_asks,
    a_revoked_member_cannot_send_connect_or_read,
    only_the_owner_revokes_and_the_owner_does_not_leave,
    who_has_left_may_come_again_under_the_same_name,
    a_member_is_renamed_by_itself_or_by_the_owner,
    new_keys_are_the_same_member_and_old_ones_open_nothing,
    the_last_steps_from_key_to_key_are_named_of_each_member,
    what_happens_to_a_mesh_is_numbered_without_gaps,
}

async fn a_mesh_is_made_once_however_often_its_owner_asks(on: TestStore) {
    let (owner, other) = (Identity::generate(&OsEntropy), Identity::generate(&OsEntropy));
    let create = |keys: &Identity, name: &str, plaintext: bool| {
        let mut create = CreateMesh::new("team".parse().unwrap(), name.parse().unwrap(), keys.public());
        create.plaintext = plaintext;
        create
    };
    let (made, is_replay) = call(&on, &on.admin, create(&owner, "alice", true)).await.unwrap();
    assert!(!is_replay);
    // The answer was lost.
    let (again, is_replay) = call(&on, &on.admin, create(&owner, "alice", true)).await.unwrap();
    assert!(is_replay);
    assert_eq!((again.mesh_id, again.member_id), (made.mesh_id, made.member_id));
    assert_eq!((again.slug, again.created_at), (made.slug, made.created_at));
    for table in ["meshes", "mesh_members", "mesh_events"] {
        assert_eq!(count(&on, table).await, 1, "{table}");
    }
    for (keys, name, plaintext) in [(&other, "alice", true), (&owner, "bob", true), (&owner, "alice", false)] {
        let refusal = refused(&on, &on.admin, create(keys, name, plaintext)).await;
        assert_eq!(refusal, Code::AlreadyExists, "{name}, plaintext: {plaintext}");
    }
    // Its owner is no member any more, and would be told otherwise.
    ok(&on, &on.admin, CloseMesh { mesh: "team".parse().unwrap() }).await;
    assert_eq!(refused(&on, &on.admin, create(&owner, "alice", true)).await, Code::AlreadyExists);
}

fn revoke(by: &Person, whom: &Person) -> RevokeMember {
    RevokeMember { mesh: by.mesh(), member: by.id(), key: whom.key() }
}

async fn a_revoked_member_cannot_send_connect_or_read(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    let connection = ConnectionId(new_id());
    let (mesh, member) = (bob.mesh(), bob.id());
    ok(&on, bob.caller(), Connect { mesh, member, connection }).await;
    sent(&on, &alice, "a", post("jobs", "for bob")).await;
    let find = || FindDeliveries { mesh, member, connection: Some(connection), after: 0, limit: None };
    assert_eq!(ok(&on, bob.caller(), find()).await.deliveries.len(), 1);

    assert!(ok(&on, alice.caller(), revoke(&alice, &bob)).await.revoked);
    assert!(!ok(&on, alice.caller(), revoke(&alice, &bob)).await.revoked, "twice");
    let found = ok(&on, bob.caller(), find()).await;
    assert_eq!((found.link, found.deliveries.len()), (Link::Ended, 0));
    assert_eq!(refusal(&on, &bob, "b", dm(&alice, "x")).await.code(), Code::MemberRevoked);
    let caller = bob.caller();
    let revoked = Code::MemberRevoked;
    assert_eq!(refused(&on, caller, Connect { mesh, member, connection: ConnectionId(new_id()) }).await, revoked);
    let history = ReadHistory { mesh, member, after: 0, limit: None, mentions: false };
    assert_eq!(refused(&on, caller, history).await, revoked);
    assert_eq!(refused(&on, caller, ListMembers { mesh, member, limit: None, after: None }).await, revoked);
    assert_eq!(refused(&on, caller, ListTopics { mesh, member, limit: None, after: None }).await, revoked);
    assert_eq!(refused(&on, caller, CreateTopic { mesh, member, topic: topic("new") }).await, revoked);
    assert_eq!(refused(&on, caller, Subscribe { mesh, member, topic: topic("jobs") }).await, revoked);
    let keys = ListEpochKeys { mesh, member, topic: None, after_topic: None, after_epoch: None };
    assert_eq!(refused(&on, caller, keys).await, revoked);
    assert_eq!(refused(&on, caller, ListFiles { mesh, member, limit: None, before: None }).await, revoked);
    let file = BeginFile { mesh, member, size_bytes: 1, meta: String::new(), topic: None, to: None, persistent: false };
    assert_eq!(refused(&on, caller, file).await, revoked);
    let rename = RenameMember { mesh, member, name: "x".parse().unwrap(), key: None };
    assert_eq!(refused(&on, caller, rename).await, revoked);
    let rotation = Rotation::sign(mesh, &bob.identity, &Identity::generate(&OsEntropy));
    assert_eq!(refused(&on, caller, RotateKeys { mesh, member, rotation }).await, revoked);
    let profile = SetProfile { mesh, member, summary: None, status: None, visible: Some(true) };
    assert_eq!(refused(&on, caller, profile).await, revoked);
    let standing = authenticate(&on.store, mesh, bob.key()).await.unwrap().unwrap().standing;
    assert_eq!(standing, Standing::Revoked);
    for table in ["mesh_deliveries", "mesh_connections"] {
        assert_eq!(count(&on, table).await, 0, "{table}");
    }
    assert_eq!(count(&on, "mesh_subscriptions").await, 1, "the owner's");
}

async fn only_the_owner_revokes_and_the_owner_does_not_leave(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    assert_eq!(refused(&on, bob.caller(), revoke(&bob, &carol)).await, Code::Forbidden);
    let stranger = Identity::generate(&OsEntropy).public_key();
    let unknown = RevokeMember { mesh: alice.mesh(), member: alice.id(), key: stranger };
    assert_eq!(refused(&on, alice.caller(), unknown).await, Code::MemberUnknown);
    let leave = LeaveMesh { mesh: alice.mesh(), member: alice.id() };
    assert_eq!(refused(&on, alice.caller(), leave).await, Code::Forbidden);
}

async fn who_has_left_may_come_again_under_the_same_name(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    ok(&on, bob.caller(), LeaveMesh { mesh: bob.mesh(), member: bob.id() }).await;
    assert_eq!(refusal(&on, &bob, "a", dm(&alice, "x")).await.code(), Code::MemberRevoked);
    let again = join(&on, &alice, "bob").await;
    assert_ne!(again.id(), bob.id());
    sent(&on, &again, "a", dm(&alice, "x")).await;
}

async fn a_member_is_renamed_by_itself_or_by_the_owner(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let rename = |by: &Person, name: &str, whom: Option<&Person>| RenameMember {
        mesh: by.mesh(),
        member: by.id(),
        name: name.parse().unwrap(),
        key: whom.map(Person::key),
    };
    ok(&on, bob.caller(), rename(&bob, "robert", None)).await;
    ok(&on, alice.caller(), rename(&alice, "bobby", Some(&bob))).await;
    assert_eq!(refused(&on, bob.caller(), rename(&bob, "alice", None)).await, Code::AlreadyExists);
    assert_eq!(refused(&on, bob.caller(), rename(&bob, "al", Some(&alice))).await, Code::Forbidden);
    let list = ListMembers { mesh: bob.mesh(), member: bob.id(), limit: Some(1), after: None };
    let first = ok(&on, bob.caller(), list).await;
    let rest = ListMembers { mesh: bob.mesh(), member: bob.id(), limit: None, after: first.next_after };
    let rest = ok(&on, bob.caller(), rest).await;
    let names: Vec<_> = first.members.iter().chain(&rest.members).map(|member| member.name.as_str()).collect();
    assert_eq!((names, rest.next_after), (vec!["alice", "bobby"], None));
    assert!(first.members[0].is_owner && !rest.members[0].is_owner);
}

async fn new_keys_are_the_same_member_and_old_ones_open_nothing(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let new = Identity::generate(&OsEntropy);
    let rotation = Rotation::sign(bob.mesh(), &bob.identity, &new);
    let rotate = |rotation| RotateKeys { mesh: bob.mesh(), member: bob.id(), rotation };
    for _ in 0..2 {
        ok(&on, bob.caller(), rotate(rotation)).await;
    }
    // Who was away learns from the directory how the old key led to the new one.
    let list = ListMembers { mesh: alice.mesh(), member: alice.id(), limit: None, after: None };
    let shown = ok(&on, alice.caller(), list).await.members;
    let steps: Vec<_> = shown.iter().map(|member| (member.name.as_str(), member.rotations.as_slice())).collect();
    assert_eq!(steps, [("alice", [].as_slice()), ("bob", [rotation].as_slice())]);
    // Nobody takes the keys of another, nor goes back to its own.
    let theft = Rotation::sign(bob.mesh(), &new, &alice.identity);
    assert_eq!(refused(&on, bob.caller(), rotate(theft)).await, Code::AlreadyExists);
    let back = Rotation::sign(bob.mesh(), &new, &bob.identity);
    assert_eq!(refused(&on, bob.caller(), rotate(back)).await, Code::AlreadyExists);
    let old = authenticate(&on.store, bob.mesh(), bob.key()).await.unwrap().unwrap();
    assert_eq!((old.standing, old.member), (Standing::RotatedOut, bob.id()));
    let now = authenticate(&on.store, bob.mesh(), new.public_key()).await.unwrap().unwrap();
    assert_eq!((now.standing, now.member, now.name.as_str()), (Standing::Live, bob.id(), "bob"));
    // What is signed with the old key is refused, what was sealed for it still arrives.
    assert_eq!(refusal(&on, &bob, "a", dm(&alice, "x")).await.code(), Code::MemberRevoked);
    sent(&on, &alice, "b", dm(&bob, "for the old key")).await;
    let find = FindDeliveries { mesh: bob.mesh(), member: bob.id(), connection: None, after: 0, limit: None };
    assert_eq!(ok(&on, bob.caller(), find).await.deliveries.len(), 1);
}

async fn the_last_steps_from_key_to_key_are_named_of_each_member(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    let mut steps = Vec::new();
    for (member, times) in [(&bob, 11), (&carol, 2)] {
        let (mut old, mut all) = (member.identity.clone(), Vec::new());
        for _ in 0..times {
            let new = Identity::generate(&OsEntropy);
            let rotation = Rotation::sign(member.mesh(), &old, &new);
            ok(&on, member.caller(), RotateKeys { mesh: member.mesh(), member: member.id(), rotation }).await;
            all.push(rotation);
            old = new;
        }
        steps.push(all);
    }
    let list = ListMembers { mesh: alice.mesh(), member: alice.id(), limit: None, after: None };
    let shown = ok(&on, alice.caller(), list).await.members;
    let shown: Vec<_> = shown.iter().map(|member| member.rotations.as_slice()).collect();
    assert_eq!(shown, [&[][..], &steps[0][3..], &steps[1][..]]);
}

async fn what_happens_to_a_mesh_is_numbered_without_gaps(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    ok(&on, alice.caller(), revoke(&alice, &bob)).await;
    let read = |after| ReadMeshEvents { mesh: alice.mesh(), after, limit: None };
    let all = ok(&on, alice.caller(), read(0)).await;
    let kinds: Vec<_> = all.events.iter().map(|event| event.kind).collect();
    use EventKind::{InviteIssued, MemberJoined, MemberRevoked, MeshCreated};
    assert_eq!(kinds, [MeshCreated, InviteIssued, MemberJoined, MemberRevoked]);
    assert!(all.events.iter().map(|event| event.seq).eq(1..=4) && !all.more);
    assert_eq!(all.events[3].member, Some(bob.id()));
    assert_eq!(ok(&on, alice.caller(), read(3)).await.events.len(), 1);
}
