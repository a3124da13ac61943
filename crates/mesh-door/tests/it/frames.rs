//! What a socket refuses, and who is taken for dead.

use futures_util::SinkExt;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use waybill_mesh_door::Settings;

use crate::world::{Wanted, World, dm};

#[tokio::test]
async fn a_frame_with_a_field_too_many_ends_the_socket() {
    let world = World::start().await;
    for frame in [
        json!({ "t": "history", "after": 0, "limit": 1, "extra": true }),
        json!({ "t": "ping", "extra": 1 }),
        json!({ "t": "teleport" }),
        json!({ "after": 0 }),
        json!([1]),
    ] {
        let mut socket = world.connect(&world.owner).await;
        socket.say(&frame).await;
        assert_eq!(socket.expect("error").await["error"], "invalid_request", "{frame}");
        assert_eq!(socket.closed().await, (4006, "frame_invalid".to_owned()), "{frame}");
    }
    let mut socket = world.connect(&world.owner).await;
    socket.0.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(socket.closed().await.0, 4006);
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_answered_and_the_socket_goes_on() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let mut socket = world.connect(&world.owner).await;
    let mut envelope = json!(dm(&bob, "hi"));
    envelope["surprise"] = json!(1);
    socket.say(&json!({ "t": "send", "id": "7", "client_message_id": "m-1", "envelope": envelope })).await;
    let refused = socket.expect("send_result").await;
    assert_eq!(
        (&refused["id"], &refused["status"], &refused["client_message_id"]),
        (&json!("7"), &json!(400), &json!("m-1"))
    );
    let mut envelope = json!(dm(&bob, "hi"));
    envelope["body"] = json!("not base64!");
    socket.say(&json!({ "t": "send", "client_message_id": "m-1", "envelope": envelope })).await;
    assert_eq!(socket.expect("send_result").await["status"], 400);
    // Nothing of it was used.
    assert_eq!(socket.send("m-1", &dm(&bob, "hi")).await["status"], 201);
    socket.say(&json!({ "t": "ping", "id": "p" })).await;
    assert_eq!(socket.expect("pong").await["id"], "p");
}

#[tokio::test]
async fn a_frame_of_ten_megabytes_is_refused_by_its_length() {
    let world = World::start().await;
    let mut socket = world.connect(&world.owner).await;
    // The other side stops to listen; the writing may fail.
    let _ = socket.0.send(Message::text("x".repeat(10 << 20))).await;
    assert_eq!(socket.closed().await, (1009, "frame_too_big".to_owned()));
    // Of strangers much less is taken.
    let mut stranger = world.socket().await;
    stranger.challenged().await;
    let _ = stranger.0.send(Message::text("x".repeat(5 << 10))).await;
    assert_eq!(stranger.closed().await.0, 1009);
}

#[tokio::test]
async fn who_never_answers_a_ping_is_taken_for_dead() {
    let door = Settings { ping_ms: 50, dead_ms: 200, ..Settings::default() };
    let world = World::with(Wanted { door, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let mut watching = world.connect(&world.owner).await;
    // Its pongs are made when it reads, and it does not.
    let mut silent = world.connect(&bob).await;
    watching.expect("peer_join").await;
    watching.expect("peer_leave").await;
    assert_eq!(silent.closed().await, (4008, "ping_timeout".to_owned()));
    world.connections(1).await;
}

#[tokio::test]
async fn a_server_that_stops_says_so_to_every_socket() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let mut sockets = [world.connect(&world.owner).await, world.connect(&bob).await, world.socket().await];
    let World { node, test, .. } = world;
    let stopped = tokio::spawn(node.stop());
    for socket in &mut sockets {
        assert_eq!(socket.closed().await, (1001, "going_away".to_owned()));
    }
    stopped.await.unwrap();
    assert_eq!(test.count("SELECT count(*) FROM mesh_connections").await.unwrap(), 0);
}
