//! Keys of topics on an encrypted mesh: asked of a keyholder, uploaded, given to subscribers.

use serde_json::json;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_protocol::epoch::EpochOf;
use waybill_mesh_protocol::frames::EpochWanted;
use waybill_mesh_protocol::{EpochBox, EpochKey, Identity, TopicKey};

use crate::world::{Socket, Wanted, World, post};

async fn mint(world: &World, socket: &mut Socket, minter: &Identity, leave_out: usize) -> (TopicKey, u32) {
    let mut wanted = socket.expect("epoch_wanted").await;
    wanted.as_object_mut().unwrap().remove("t");
    let wanted: EpochWanted = serde_json::from_value(wanted).unwrap();
    let key = TopicKey::generate(&OsEntropy);
    let of = EpochOf { mesh: world.mesh, topic: &wanted.topic, epoch: wanted.epoch };
    let boxes: Vec<EpochBox> = wanted
        .subscribers
        .iter()
        .skip(leave_out)
        .map(|subscriber| EpochBox::seal(minter, of, &subscriber.keys, &key, &OsEntropy).unwrap())
        .collect();
    socket.say(&json!({ "t": "epoch_boxes", "topic": wanted.topic, "epoch": wanted.epoch, "boxes": boxes })).await;
    (key, wanted.epoch)
}

async fn given(world: &World, socket: &mut Socket, reader: &Identity) -> (TopicKey, u32) {
    let mut frame = socket.expect("epoch_key").await;
    frame.as_object_mut().unwrap().remove("t");
    let key: EpochKey = serde_json::from_value(frame).unwrap();
    let of = EpochOf { mesh: world.mesh, topic: &key.topic, epoch: key.epoch };
    (key.boxed.open(of, &key.minter, reader.box_secret()).unwrap(), key.epoch)
}

#[tokio::test]
async fn the_keyholder_makes_each_epoch_and_all_subscribers_get_it() {
    let world = World::with(Wanted { encrypted: true, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let (mut owner, mut reader) = (world.connect(&world.owner).await, world.connect(&bob).await);
    world.topic("secrets", &[&world.owner]).await;
    let (key, epoch) = mint(&world, &mut owner, &world.owner, 0).await;
    assert_eq!(epoch, 1);
    assert_eq!(given(&world, &mut owner, &world.owner).await, (key, 1));
    // Somebody subscribes: the next key is made for both.
    world.topic("secrets", &[]).await;
    let subscribed = world.post(&bob, "/mesh/v1/topics/secrets/subscribe", &json!({})).await;
    assert_eq!(subscribed.status, 200);
    let (key, epoch) = mint(&world, &mut owner, &world.owner, 0).await;
    assert_eq!(epoch, 2);
    for (socket, identity) in [(&mut owner, &world.owner), (&mut reader, &bob)] {
        let (opened, epoch) = given(&world, socket, identity).await;
        assert!(opened == key && epoch == 2);
    }
    let mut envelope = post("secrets", "sealed");
    envelope.epoch = Some(2);
    assert_eq!(owner.send("m-1", &envelope).await["status"], 201);
    envelope.epoch = Some(9);
    assert_eq!(owner.send("m-2", &envelope).await["error"], "epoch_unknown");
    // What was given is there to be asked for.
    let keys = world.get(&bob, "/mesh/v1/epochs?topic=secrets").await;
    assert_eq!((keys.status, keys.json["keys"].as_array().unwrap().len()), (200, 1));
}

#[tokio::test]
async fn after_a_revocation_nothing_is_posted_until_there_is_another_key() {
    let world = World::with(Wanted { encrypted: true, ..Wanted::default() }).await;
    let (bob, carol) = (world.join("bob").await, world.join("carol").await);
    world.topic("secrets", &[&world.owner, &bob, &carol]).await;
    // Who connects later is asked as well.
    let mut owner = world.connect(&world.owner).await;
    let (_, epoch) = mint(&world, &mut owner, &world.owner, 0).await;
    given(&world, &mut owner, &world.owner).await;
    let target = format!("/mesh/v1/members/{}/revoke", bob.public_key());
    assert_eq!(world.post(&world.owner, &target, &json!({})).await.status, 200);
    // Boxes that leave somebody out are not taken.
    mint(&world, &mut owner, &world.owner, 1).await;
    let mut envelope = post("secrets", "sealed");
    envelope.epoch = Some(epoch);
    for id in ["m-1", "m-2"] {
        let refused = owner.send(id, &envelope).await;
        assert_eq!((&refused["status"], &refused["error"]), (&json!(503), &json!("epoch_pending")));
    }
}

/// Everybody subscribes to so many topics that have a first key; then one of them is revoked.
async fn revoke_from(world: &World, topics: usize, revoked: &Identity) {
    let numbers = format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {topics})");
    let made = format!(
        "INSERT INTO mesh_topics (tenant, mesh_id, topic, created_by, created_at, epoch, blocked) {numbers} \
         SELECT h.tenant, h.mesh_id, 'topic-' || n.i, h.owner, 0, 1, 0 FROM n CROSS JOIN meshes h"
    );
    world.test.write(&made).await.unwrap();
    let subscribed = "INSERT INTO mesh_subscriptions (tenant, mesh_id, topic, member_id, since_seq, created_at) \
        SELECT t.tenant, t.mesh_id, t.topic, m.member_id, 0, 0 FROM mesh_topics t CROSS JOIN mesh_members m";
    world.test.write(subscribed).await.unwrap();
    let target = format!("/mesh/v1/members/{}/revoke", revoked.public_key());
    assert_eq!(world.post(&world.owner, &target, &json!({})).await.status, 200);
}

#[tokio::test]
async fn every_topic_of_a_revoked_member_gets_its_key() {
    let world = World::with(Wanted { encrypted: true, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    revoke_from(&world, 20, &bob).await;
    world.until("SELECT count(*) FROM mesh_topics WHERE blocked = 1 OR epoch = 2", 20).await;
    // One at a time, as it is asked: many more than are asked for at once.
    for _ in 0..20 {
        let (_, epoch) = mint(&world, &mut owner, &world.owner, 0).await;
        assert_eq!(epoch, 2);
    }
    world.until("SELECT count(*) FROM mesh_topics WHERE blocked = 0 AND epoch = 2 AND floor_epoch = 2", 20).await;
}

#[tokio::test]
async fn keys_that_cannot_be_made_keep_nobody_from_the_others() {
    let world = World::with(Wanted { encrypted: true, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    revoke_from(&world, 20, &bob).await;
    // Those that are asked for first never get all of their boxes.
    for _ in 0..8 {
        mint(&world, &mut owner, &world.owner, 1).await;
    }
    for _ in 0..12 {
        mint(&world, &mut owner, &world.owner, 0).await;
    }
    world.until("SELECT count(*) FROM mesh_topics WHERE blocked = 0", 12).await;
}

#[tokio::test]
async fn a_burst_of_events_closes_no_socket() {
    let world = World::with(Wanted { encrypted: true, ..Wanted::default() }).await;
    let (bob, carol) = (world.join("bob").await, world.join("carol").await);
    let (mut owner, mut other) = (world.connect(&world.owner).await, world.connect(&carol).await);
    revoke_from(&world, 600, &bob).await;
    for socket in [&mut owner, &mut other] {
        assert_eq!(socket.expect("member_revoked").await["key"], json!(bob.public_key()));
    }
    mint(&world, &mut owner, &world.owner, 0).await;
    for socket in [&mut owner, &mut other] {
        socket.say(&json!({ "t": "ping" })).await;
        socket.expect("pong").await;
    }
    world.until("SELECT count(*) FROM mesh_topics WHERE blocked = 0", 1).await;
}
