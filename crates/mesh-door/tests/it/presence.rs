//! What members are told about each other.

use serde_json::json;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_protocol::Identity;
use waybill_mesh_protocol::rotation::Rotation;

use crate::world::{Node, Wanted, World, dm};

#[tokio::test]
async fn comings_goings_and_changes_are_told_to_the_others() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    let mut socket = world.connect(&bob).await;
    let joined = owner.expect("peer_join").await;
    assert_eq!((&joined["name"], &joined["online"]), (&json!("bob"), &json!(true)));
    assert_eq!(joined["keys"], json!(bob.public()));
    let renamed = world.post(&bob, "/mesh/v1/rename", &json!({ "name": "bobby" })).await;
    assert_eq!(renamed.status, 200);
    let told = owner.expect("member_renamed").await;
    assert_eq!((&told["name"], &told["member_id"]), (&json!("bobby"), &joined["member_id"]));

    let new = Identity::generate(&OsEntropy);
    let rotation = Rotation::sign(world.mesh, &bob, &new);
    let rotated = world.post(&bob, "/mesh/v1/rotate", &json!({ "rotation": rotation })).await;
    assert_eq!(rotated.status, 200, "{}", rotated.json);
    let told = owner.expect("member_keypair_rotated").await;
    assert_eq!((&told["rotation"], &told["member_id"]), (&json!(rotation), &joined["member_id"]));
    // The socket is still the same member's.
    assert_eq!(socket.send("m-1", &dm(&world.owner, "still me")).await["status"], 201);
    assert_eq!(owner.expect("deliver").await["sender"], json!(new.public()));
    // A key that was replaced opens no socket and signs nothing.
    let mut old = world.socket().await;
    old.greet(&world, &bob).await;
    assert_eq!(old.closed().await.0, 4005);
    assert_eq!(world.get(&bob, "/mesh/v1/members").await.status, 403);
    assert_eq!(world.get(&new, "/mesh/v1/members").await.status, 200);

    drop(socket);
    assert_eq!(owner.expect("peer_leave").await["key"], json!(new.public_key()));
}

async fn revoke(world: &World, member: &Identity) {
    let target = format!("/mesh/v1/members/{}/revoke", member.public_key());
    assert_eq!(world.post(&world.owner, &target, &json!({})).await.status, 200);
}

#[tokio::test]
async fn a_revoked_member_is_told_and_its_socket_ends_at_once() {
    let world = World::start().await;
    let (bob, carol) = (world.join("bob").await, world.join("carol").await);
    let (mut socket, mut other) = (world.connect(&bob).await, world.connect(&carol).await);
    revoke(&world, &bob).await;
    assert_eq!(socket.expect("member_revoked").await["key"], json!(bob.public_key()));
    assert_eq!(socket.closed().await, (4005, "member_revoked".to_owned()));
    assert_eq!(other.expect("member_revoked").await["key"], json!(bob.public_key()));
    let refused = world.post(&bob, "/mesh/v1/rename", &json!({ "name": "x" })).await;
    assert_eq!((refused.status, &refused.json["error"]), (403, &json!("member_revoked")));
}

#[tokio::test]
async fn a_revocation_on_one_node_ends_the_socket_on_another() {
    let world = World::with(Wanted { postgres: true, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let store = world.test.second_node(|_| {}).await.unwrap();
    let second = Node::start(&store, waybill_store::Registry::default(), waybill_mesh_door::Settings::default()).await;
    let mut socket = world.connect_at(second.address, &bob).await;
    let mut owner = world.connect(&world.owner).await;
    // What is sent on one node is pushed on the other.
    assert_eq!(owner.send("m-1", &dm(&bob, "across")).await["status"], 201);
    assert_eq!(socket.expect("deliver").await["client_message_id"], "m-1");
    revoke(&world, &bob).await;
    socket.expect("member_revoked").await;
    assert_eq!(socket.closed().await.0, 4005);
    assert_eq!(owner.expect("member_revoked").await["key"], json!(bob.public_key()));
    second.stop().await;
}

#[tokio::test]
async fn a_member_that_hides_is_not_announced() {
    let world = World::start().await;
    let (bob, carol) = (world.join("bob").await, world.join("carol").await);
    assert_eq!(world.post(&bob, "/mesh/v1/profile", &json!({ "visible": false })).await.status, 200);
    let mut owner = world.connect(&world.owner).await;
    let _hidden = world.connect(&bob).await;
    let _shown = world.connect(&carol).await;
    assert_eq!(owner.expect("peer_join").await["name"], "carol");
}
