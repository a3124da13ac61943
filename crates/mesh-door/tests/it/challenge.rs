//! Who is let in, and who is told why not.

use serde_json::json;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_door::Settings;
use waybill_mesh_protocol::challenge::unix_seconds;
use waybill_mesh_protocol::{Identity, SKEW_SECONDS_MAX};

use crate::world::{Wanted, World, hello};

#[tokio::test]
async fn a_member_is_greeted_by_name() {
    let world = World::start().await;
    let mut socket = world.socket().await;
    socket.greet(&world, &world.owner).await;
    let greeted = socket.next().await;
    assert_eq!(
        (&greeted["t"], &greeted["name"], &greeted["slug"]),
        (&json!("hello_ok"), &json!("owner"), &json!("builds"))
    );
    assert_eq!(greeted["plaintext"], true);
}

#[tokio::test]
async fn a_challenge_is_answered_once_in_time_and_by_the_members_own_key() {
    let world = World::start().await;
    let now = unix_seconds(world.now());
    let stranger = Identity::generate(&OsEntropy);
    for (identity, time, error) in [
        (&world.owner, now - SKEW_SECONDS_MAX - 1, "request_time_too_skewed"),
        (&world.owner, now + SKEW_SECONDS_MAX + 1, "request_time_too_skewed"),
        (&stranger, now, "member_unknown"),
    ] {
        let mut socket = world.socket().await;
        let nonce = socket.challenged().await;
        socket.say(&hello(&world, identity, &nonce, time)).await;
        assert_eq!(socket.next().await["error"], error);
        assert_eq!(socket.closed().await, (4001, "unauthorized".to_owned()));
    }
    // The answer to another challenge.
    let (mut first, mut second) = (world.socket().await, world.socket().await);
    let nonce = first.challenged().await;
    second.challenged().await;
    second.say(&hello(&world, &world.owner, &nonce, now)).await;
    assert_eq!(second.next().await["error"], "signature_does_not_match");
    assert_eq!(second.closed().await.0, 4001);
    // The right one, and then once more.
    let answer = hello(&world, &world.owner, &nonce, now);
    first.say(&answer).await;
    first.expect("hello_ok").await;
    first.say(&answer).await;
    assert_eq!(first.closed().await.0, 4001);
    // Within the bounds of skew.
    for time in [now - SKEW_SECONDS_MAX, now + SKEW_SECONDS_MAX] {
        let mut socket = world.socket().await;
        let nonce = socket.challenged().await;
        socket.say(&hello(&world, &world.owner, &nonce, time)).await;
        socket.expect("hello_ok").await;
    }
}

#[tokio::test]
async fn who_is_silent_is_closed_before_and_after_the_challenge() {
    let door = Settings { challenge_ms: 100, ..Settings::default() };
    let world = World::with(Wanted { door, ..Wanted::default() }).await;
    let mut silent = world.socket().await;
    assert_eq!(silent.closed().await, (4002, "challenge_timeout".to_owned()));
    let mut greeted = world.socket().await;
    greeted.greet(&world, &world.owner).await;
    assert_eq!(greeted.closed().await.0, 4002);
}

#[tokio::test]
async fn a_revoked_key_is_told_so() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let revoked = world.post(&world.owner, &format!("/mesh/v1/members/{}/revoke", bob.public_key()), &json!({})).await;
    assert_eq!((revoked.status, &revoked.json["revoked"]), (200, &json!(true)));
    let mut socket = world.socket().await;
    socket.greet(&world, &bob).await;
    assert_eq!(socket.next().await["t"], "member_revoked");
    assert_eq!(socket.closed().await, (4005, "member_revoked".to_owned()));
}

#[tokio::test]
async fn features_are_agreed_on_or_the_socket_is_closed_with_their_number() {
    let world = World::start().await;
    let negotiate = async |request| {
        let mut socket = world.socket().await;
        socket.greet(&world, &world.owner).await;
        socket.expect("hello_ok").await;
        socket.say(&request).await;
        socket
    };
    let mut socket = negotiate(json!({ "t": "feature_negotiation_request", "id": "n", "optional": ["unheard_of"],
        "require": ["client_message_id_dedupe", "max_payload", "concurrent_connection_policy"] }))
    .await;
    let answer = socket.next().await;
    assert_eq!((&answer["id"], &answer["missing_required"]), (&json!("n"), &json!([])));
    let dedupe =
        json!({ "version": 2, "mode": "retention_scoped", "dedupe_retention_days": 365, "request_fingerprint": true });
    assert_eq!(answer["supported"]["client_message_id_dedupe"], dedupe);
    assert_eq!(answer["supported"]["max_payload"]["inline_bytes"], 65_536);
    assert_eq!(answer["supported"]["concurrent_connection_policy"]["policy"], "prefer_newest");
    assert!(answer["supported"]["key_epoch"].is_null(), "what is not asked for is not told");

    let mut socket = negotiate(json!({ "t": "feature_negotiation_request", "require": ["teleport"] })).await;
    assert_eq!(socket.next().await["missing_required"], json!(["teleport"]));
    assert_eq!(socket.closed().await, (4010, "feature_missing".to_owned()));

    let many: Vec<String> = (0..100).map(|number| format!("f{number}")).collect();
    let mut socket = negotiate(json!({ "t": "feature_negotiation_request", "require": many })).await;
    assert_eq!(socket.next().await["error"], "invalid_request");
    assert_eq!(socket.closed().await, (4011, "parameters_invalid".to_owned()));

    // Nothing else comes before it.
    let mut socket = negotiate(json!({ "t": "history", "after": 0, "limit": 1 })).await;
    assert_eq!(socket.closed().await.0, 4006);
}

#[tokio::test]
async fn unanswered_challenges_of_one_address_are_bounded() {
    let door = Settings { challenges_per_address_max: 2, ..Settings::default() };
    let world = World::with(Wanted { door, ..Wanted::default() }).await;
    let (mut first, mut second) = (world.socket().await, world.socket().await);
    let _third = world.socket().await;
    // The one that has taken longest makes way.
    assert_eq!(first.closed().await.0, 4009);
    // Who has answered is not among them any more.
    second.greet(&world, &world.owner).await;
    second.expect("hello_ok").await;
    world.socket().await;
}

#[tokio::test]
async fn a_tenant_and_a_member_have_their_part_of_all_sockets() {
    let door = Settings { sockets_max: 4, ..Settings::default() };
    let world = World::with(Wanted { door, policy: "allow_concurrent", ..Wanted::default() }).await;
    let (bob, carol) = (world.join("bob").await, world.join("carol").await);
    let _first = world.connect(&world.owner).await;
    // A hundredth of four is one.
    let mut again = world.socket().await;
    again.greet(&world, &world.owner).await;
    assert_eq!(again.next().await["error"], "overloaded");
    assert_eq!(again.closed().await, (4009, "too_many_connections".to_owned()));
    let _second = world.connect(&bob).await;
    // Half of them are the tenant's.
    let mut third = world.socket().await;
    third.greet(&world, &carol).await;
    assert_eq!(third.closed().await.0, 4009);
}

#[tokio::test]
async fn what_does_not_ask_for_a_websocket_is_told_how() {
    let world = World::start().await;
    let answer = world.request("GET", "/mesh/ws", None, "").await;
    assert_eq!(answer.status, 426);
    assert!(answer.head.contains("sec-websocket-version: 13"), "{}", answer.head);
    assert_eq!(world.request("POST", "/mesh/ws", None, "{}").await.status, 405);
}
