//! Two sockets with one key.

use serde_json::json;
use waybill_mesh::ops::members::{Connect, ConnectionId};

use crate::world::{Node, Wanted, World};

async fn world(policy: &'static str) -> World {
    World::with(Wanted { policy, ..Wanted::default() }).await
}

async fn audited(world: &World) -> i64 {
    world.test.count("SELECT count(*) FROM mesh_events WHERE kind = 'member_concurrent_connection'").await.unwrap()
}

#[tokio::test]
async fn the_newest_takes_the_place_of_the_older_one() {
    let world = world("prefer_newest").await;
    let mut older = world.connect(&world.owner).await;
    let mut newer = world.connect(&world.owner).await;
    assert_eq!(older.closed().await, (4003, "replaced_by_newer_connection".to_owned()));
    newer.say(&json!({ "t": "ping" })).await;
    newer.expect("pong").await;
    world.connections(1).await;
    assert_eq!(audited(&world).await, 1);
}

#[tokio::test]
async fn the_oldest_stays() {
    let world = world("prefer_oldest").await;
    let mut older = world.connect(&world.owner).await;
    let mut newer = world.connect(&world.owner).await;
    assert_eq!(newer.closed().await, (4004, "member_already_connected".to_owned()));
    older.say(&json!({ "t": "ping" })).await;
    older.expect("pong").await;
    assert_eq!(audited(&world).await, 1);
    // Once it has gone another may come.
    drop(older);
    world.connections(0).await;
    let mut next = world.connect(&world.owner).await;
    next.say(&json!({ "t": "ping" })).await;
    next.expect("pong").await;
}

#[tokio::test]
async fn both_live_where_that_is_allowed() {
    let world = world("allow_concurrent").await;
    let bob = world.join("bob").await;
    let (mut first, mut second) = (world.connect(&bob).await, world.connect(&bob).await);
    let mut owner = world.connect(&world.owner).await;
    assert_eq!(owner.send("m-1", &crate::world::dm(&bob, "to both")).await["status"], 201);
    for socket in [&mut first, &mut second] {
        assert_eq!(socket.expect("deliver").await["client_message_id"], "m-1");
    }
    world.connections(3).await;
    assert_eq!(audited(&world).await, 1);
    // That one of two has gone is nobody's concern; that both have is.
    drop(first);
    world.connections(2).await;
    drop(second);
    assert_eq!(owner.expect("peer_leave").await["key"], json!(bob.public_key()));
}

#[tokio::test]
async fn what_a_killed_server_has_left_keeps_nobody_out() {
    let mut world = world("prefer_oldest").await;
    let membership = waybill_mesh::authenticate(&world.test.store, world.mesh, world.owner.public_key()).await;
    let membership = membership.unwrap().unwrap();
    let connection = ConnectionId(world.mesh.0);
    let connect = Connect { mesh: world.mesh, member: membership.member, connection };
    world.test.store.run(connect, membership.caller).await.unwrap();
    // The server starts anew; the lease of the old connection has not ended.
    let next = Node::start(&world.test.store, waybill_store::Registry::default(), Default::default()).await;
    std::mem::replace(&mut world.node, next).stop().await;
    world.connections(0).await;
    let mut socket = world.connect(&world.owner).await;
    socket.say(&json!({ "t": "ping" })).await;
    socket.expect("pong").await;
    assert_eq!(audited(&world).await, 0);
    world.connections(1).await;
}

#[tokio::test]
async fn a_connection_that_was_taken_for_dead_is_closed_so_that_its_member_comes_again() {
    let world = world("prefer_oldest").await;
    let bob = world.join("bob").await;
    let mut receiver = world.connect(&bob).await;
    world.connections(1).await;
    // As a server finds them that did not come to renew them in time: its host slept, or the database was away.
    assert_eq!(waybill_mesh::forget_connections(&world.test.store).await.unwrap(), 1);
    let message = json!({ "client_message_id": "m-1", "envelope": crate::world::dm(&bob, "to bob") });
    assert_eq!(world.post(&world.owner, "/mesh/v1/messages", &message).await.status, 201);
    assert_eq!(receiver.closed().await, (1001, "going_away".to_owned()));
    let mut again = world.connect(&bob).await;
    assert_eq!(again.expect("deliver").await["client_message_id"], "m-1");
}
