//! Two live connections with one key, and connections of processes that are gone.

use waybill_kernel::Code;
use waybill_mesh::ops::manage::SetMeshPolicy;
use waybill_mesh::ops::members::{
    Connect, Connected, ConnectionId, ConnectionRef, Disconnect, KeepConnections, ListMembers, ReadMeshEvents,
    SetProfile,
};
use waybill_mesh::ops::messages::{FindDeliveries, Link};
use waybill_mesh::sweeps::Over;
use waybill_mesh::{EventKind, Policy, Settings, forget_connections};
use waybill_testkit::stores::TestStore;

use crate::support::{Person, new_id, ok, pass, plain_mesh, refused, sweep};

waybill_testkit::both! {
    the_newest_connection_takes_the_place_of_the_older,
    the_oldest_connection_stays,
    both_connections_stay,
    a_connection_that_nobody_renews_ends,
    others_see_who_is_connected_and_wants_to_be_seen,
    connections_from_before_a_start_are_forgotten_where_one_process_has_them_all,
}

async fn set(on: &TestStore, connection_policy: Policy) {
    ok(on, &on.admin, SetMeshPolicy { mesh: "team".parse().unwrap(), connection_policy }).await;
}

async fn connect(on: &TestStore, who: &Person) -> (ConnectionId, Connected) {
    let connection = ConnectionId(new_id());
    let connect = Connect { mesh: who.mesh(), member: who.id(), connection };
    (connection, ok(on, who.caller(), connect).await)
}

async fn link(on: &TestStore, who: &Person, connection: ConnectionId) -> Link {
    let (mesh, member) = (who.mesh(), who.id());
    let find = FindDeliveries { mesh, member, connection: Some(connection), after: 0, limit: None };
    ok(on, who.caller(), find).await.link
}

async fn kinds(on: &TestStore, who: &Person) -> Vec<EventKind> {
    let events = ok(on, who.caller(), ReadMeshEvents { mesh: who.mesh(), after: 0, limit: None }).await;
    events.events.iter().map(|event| event.kind).collect()
}

/// Whether the first member is shown as connected, and with how many connections.
async fn shown(on: &TestStore, who: &Person) -> (bool, i64) {
    let list = ListMembers { mesh: who.mesh(), member: who.id(), limit: None, after: None };
    let listed = ok(on, who.caller(), list).await;
    (listed.members[0].online, listed.members[0].connections)
}

async fn concurrent(on: &TestStore, who: &Person) -> usize {
    kinds(on, who).await.iter().filter(|kind| **kind == EventKind::MemberConcurrentConnection).count()
}

async fn the_newest_connection_takes_the_place_of_the_older(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (first, connected) = connect(&on, &alice).await;
    assert!(connected.admitted && connected.siblings == 0);
    assert_eq!((link(&on, &alice, first).await, concurrent(&on, &alice).await), (Link::Current, 0));
    let (second, connected) = connect(&on, &alice).await;
    assert!(connected.admitted && connected.siblings == 1);
    assert_eq!(link(&on, &alice, first).await, Link::Replaced);
    assert_eq!((link(&on, &alice, second).await, concurrent(&on, &alice).await), (Link::Current, 1));
    // The older one's end changes nothing about the newer.
    let end = Disconnect { mesh: alice.mesh(), member: alice.id(), connection: first };
    assert!(!ok(&on, alice.caller(), end).await.was_connected);
    assert_eq!(link(&on, &alice, second).await, Link::Current);
}

async fn the_oldest_connection_stays(on: TestStore) {
    let alice = plain_mesh(&on).await;
    set(&on, Policy::PreferOldest).await;
    let (first, _) = connect(&on, &alice).await;
    let (second, connected) = connect(&on, &alice).await;
    assert!(!connected.admitted);
    assert_eq!(link(&on, &alice, first).await, Link::Current);
    assert_ne!(link(&on, &alice, second).await, Link::Current);
    assert_eq!(concurrent(&on, &alice).await, 1, "also where the newer is refused");
    // Once the older has ended, or its process is gone, another may come.
    let end = Disconnect { mesh: alice.mesh(), member: alice.id(), connection: first };
    assert!(ok(&on, alice.caller(), end).await.was_connected);
    assert!(connect(&on, &alice).await.1.admitted);
    pass(&on, Settings::default().connection_lease_s);
    assert!(connect(&on, &alice).await.1.admitted);
}

async fn both_connections_stay(on: TestStore) {
    let alice = plain_mesh(&on).await;
    set(&on, Policy::AllowConcurrent).await;
    let (first, _) = connect(&on, &alice).await;
    let (second, connected) = connect(&on, &alice).await;
    assert!(connected.admitted && connected.siblings == 1);
    for connection in [first, second] {
        assert_eq!(link(&on, &alice, connection).await, Link::Current);
    }
    assert_eq!(concurrent(&on, &alice).await, 1);
    assert_eq!(shown(&on, &alice).await, (true, 2));
    // The member has gone when the last of them has.
    for (connection, gone) in [(first, false), (second, true)] {
        let end = Disconnect { mesh: alice.mesh(), member: alice.id(), connection };
        ok(&on, alice.caller(), end).await;
        assert_eq!(kinds(&on, &alice).await.contains(&EventKind::PeerLeave), gone);
    }
    // One that was not renewed in time is forgotten when another comes, and nobody has taken its place.
    let (late, _) = connect(&on, &alice).await;
    pass(&on, Settings::default().connection_lease_s);
    connect(&on, &alice).await;
    assert_eq!(link(&on, &alice, late).await, Link::Lost);
}

async fn a_connection_that_nobody_renews_ends(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (connection, _) = connect(&on, &alice).await;
    let lease = Settings::default().connection_lease_s;
    let (mesh, member) = (alice.mesh(), alice.id());
    for _ in 0..3 {
        pass(&on, lease - 1);
        let keep = KeepConnections { connections: vec![ConnectionRef { mesh, member, connection }] };
        assert_eq!(ok(&on, alice.caller(), keep).await.kept, 1);
        sweep(&on, Over::new(&Settings::default())).await;
    }
    assert_eq!(link(&on, &alice, connection).await, Link::Current);
    pass(&on, lease + 60);
    sweep(&on, Over::new(&Settings::default())).await;
    assert_eq!(link(&on, &alice, connection).await, Link::Lost, "it was not replaced by anybody");
    assert!(kinds(&on, &alice).await.contains(&EventKind::PeerLeave));
    let keep = KeepConnections { connections: vec![ConnectionRef { mesh, member, connection }; 1_001] };
    assert_eq!(refused(&on, alice.caller(), keep).await, Code::InvalidRequest);
}

async fn others_see_who_is_connected_and_wants_to_be_seen(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (mesh, member) = (alice.mesh(), alice.id());
    assert_eq!(shown(&on, &alice).await, (false, 0));
    connect(&on, &alice).await;
    assert_eq!(shown(&on, &alice).await, (true, 1));
    let profile = SetProfile { mesh, member, summary: Some("builds".to_owned()), status: None, visible: Some(false) };
    ok(&on, alice.caller(), profile).await;
    assert_eq!(shown(&on, &alice).await, (false, 0));
    let long = SetProfile { mesh, member, summary: None, status: Some("x".repeat(201)), visible: None };
    assert_eq!(refused(&on, alice.caller(), long).await, Code::InvalidRequest);
    let list = ListMembers { mesh, member, limit: None, after: None };
    let shown = ok(&on, alice.caller(), list).await;
    assert_eq!((shown.members[0].summary.as_deref(), shown.members[0].status.as_deref()), (Some("builds"), None));
}

async fn connections_from_before_a_start_are_forgotten_where_one_process_has_them_all(on: TestStore) {
    let alice = plain_mesh(&on).await;
    set(&on, Policy::PreferOldest).await;
    let (before, _) = connect(&on, &alice).await;
    let told = kinds(&on, &alice).await.len();
    let forgotten = forget_connections(&on.store).await.unwrap();
    if on.store.is_postgres() {
        // It may be another node's.
        assert_eq!((forgotten, link(&on, &alice, before).await), (0, Link::Current));
        return;
    }
    assert_eq!((forgotten, link(&on, &alice, before).await), (1, Link::Lost));
    assert_eq!(kinds(&on, &alice).await.len(), told, "nobody is told of it");
    let (_, connected) = connect(&on, &alice).await;
    assert!(connected.admitted && connected.siblings == 0);
    assert_eq!(concurrent(&on, &alice).await, 0);
    assert_eq!(forget_connections(&on.store).await.unwrap(), 1);
    assert_eq!(forget_connections(&on.store).await.unwrap(), 0);
}
