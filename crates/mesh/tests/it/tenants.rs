//! Tenants see nothing of each other's meshes, whatever they know of them.

use waybill_kernel::Code;
use waybill_mesh::ops::members::{Connect, ConnectionId, IssueInvite, ListMembers, ReadMeshEvents, RevokeMember};
use waybill_mesh::ops::messages::{FindDeliveries, Link, ReadHistory};
use waybill_mesh::ops::topics::{CreateTopic, ListTopics, Subscribe};
use waybill_mesh::{authenticate, guest};
use waybill_mesh_protocol::MeshId;
use waybill_testkit::stores::TestStore;

use crate::support::{
    accept, call, create_topic, dm, mesh_of, new_id, ok, plain_mesh, post, refused, rows, sent, topic,
};

waybill_testkit::both! {
    a_caller_of_another_tenant_finds_nothing_of_ours,
    the_tenant_is_that_of_the_mesh_and_of_nothing_else,
}

async fn a_caller_of_another_tenant_finds_nothing_of_ours(on: TestStore) {
    let alice = plain_mesh(&on).await;
    create_topic(&on, &alice, "jobs").await;
    sent(&on, &alice, "a", dm(&alice, "secret")).await;
    let stranger = on.tenant("other").await.unwrap();
    let mallory = mesh_of(&on, &stranger, "team", true).await;
    // With all ids of ours, and a caller of theirs.
    let (mesh, member, caller) = (alice.mesh(), alice.id(), mallory.caller());
    let unknown = Code::MemberUnknown;
    let history = ReadHistory { mesh, member, after: 0, limit: None, mentions: false };
    assert_eq!(refused(&on, caller, history).await, unknown);
    assert_eq!(refused(&on, caller, ListMembers { mesh, member, limit: None, after: None }).await, unknown);
    assert_eq!(refused(&on, caller, ListTopics { mesh, member, limit: None, after: None }).await, unknown);
    assert_eq!(refused(&on, caller, CreateTopic { mesh, member, topic: topic("mine") }).await, unknown);
    assert_eq!(refused(&on, caller, Subscribe { mesh, member, topic: topic("jobs") }).await, unknown);
    assert_eq!(refused(&on, caller, Connect { mesh, member, connection: ConnectionId(new_id()) }).await, unknown);
    assert_eq!(refused(&on, caller, RevokeMember { mesh, member, key: alice.key() }).await, unknown);
    let invite = IssueInvite { mesh, member, uses: None, expires_in_s: None };
    assert_eq!(refused(&on, caller, invite).await, unknown);
    assert_eq!(ok(&on, caller, ReadMeshEvents { mesh, after: 0, limit: None }).await.events.len(), 0);
    let find = FindDeliveries { mesh, member, connection: None, after: 0, limit: None };
    assert_eq!(ok(&on, caller, find).await.link, Link::Ended);
    let before = rows(&on).await;
    for envelope in [dm(&alice, "x"), post("jobs", "x")] {
        let error = call(&on, caller, accept(&alice, "b", envelope)).await.map(drop).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
    }
    assert_eq!(rows(&on).await, before);
    // The same id in another tenant's mesh is another id.
    sent(&on, &mallory, "a", dm(&mallory, "secret")).await;
}

async fn the_tenant_is_that_of_the_mesh_and_of_nothing_else(on: TestStore) {
    let stranger = on.tenant("other").await.unwrap();
    let (alice, mallory) = (plain_mesh(&on).await, mesh_of(&on, &stranger, "team", true).await);
    assert_eq!(alice.caller().tenant, on.admin.tenant);
    assert_eq!(mallory.caller().tenant, stranger.tenant);
    assert_eq!(guest(&on.store, mallory.mesh()).await.unwrap().unwrap().tenant, stranger.tenant);
    // A key is a member's in its own mesh alone.
    assert!(authenticate(&on.store, alice.mesh(), mallory.key()).await.unwrap().is_none());
    let nowhere = MeshId(new_id());
    assert!(authenticate(&on.store, nowhere, alice.key()).await.unwrap().is_none());
    assert!(guest(&on.store, nowhere).await.unwrap().is_none());
}
