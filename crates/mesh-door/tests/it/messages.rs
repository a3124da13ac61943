//! Messages over the socket: what is answered to whoever sends, and what comes to whoever it is for.

use serde_json::{Value as Json, json};
use waybill_kernel::{Mode, Result};
use waybill_mesh_door::Settings;
use waybill_store::{Ctx, Tx, Work};

use crate::world::{Wanted, World, dm, post};

#[tokio::test]
async fn an_id_is_used_once_and_its_answer_is_the_same_again() {
    let world = World::start().await;
    let (bob, carol) = (world.join("bob").await, world.join("carol").await);
    let mut owner = world.connect(&world.owner).await;
    let first = owner.send("m-1", &dm(&bob, "one")).await;
    assert_eq!((&first["status"], &first["duplicate"]), (&json!(201), &json!(false)));
    let again = owner.send("m-1", &dm(&bob, "one")).await;
    assert_eq!(
        (&again["status"], &again["duplicate"], &again["history_available"]),
        (&json!(200), &json!(true), &json!(true))
    );
    assert_eq!(again["broker_message_id"], first["broker_message_id"]);
    assert_eq!(again["history_id"], first["history_id"]);
    let other = owner.send("m-1", &dm(&bob, "two")).await;
    assert_eq!((&other["status"], &other["error"]), (&json!(409), &json!("idempotency_key_reused")));
    assert_eq!(other["conflict"], "request_fingerprint_mismatch");
    assert_eq!(other["broker_fingerprint_prefix"].as_str().unwrap().len(), 16);
    // Of another sender's message nothing is shown.
    let mut thief = world.connect(&carol).await;
    let refused = thief.send("m-1", &dm(&bob, "one")).await;
    assert_eq!(refused["status"], 409);
    for hidden in ["broker_message_id", "history_id", "broker_fingerprint_prefix"] {
        assert!(refused[hidden].is_null(), "{refused}");
    }
    // Over HTTP it is the same.
    let body = json!({ "client_message_id": "m-1", "envelope": dm(&bob, "one") });
    let http = world.post(&world.owner, "/mesh/v1/messages", &body).await;
    assert_eq!((http.status, &http.json["broker_message_id"]), (200, &first["broker_message_id"]));
    let body = json!({ "client_message_id": "m-1", "envelope": dm(&bob, "two") });
    let http = world.post(&world.owner, "/mesh/v1/messages", &body).await;
    assert_eq!((http.status, &http.json["broker_fingerprint_prefix"]), (409, &other["broker_fingerprint_prefix"]));
    let body = json!({ "client_message_id": "m-2", "envelope": dm(&bob, "new") });
    let http = world.post(&world.owner, "/mesh/v1/messages", &body).await;
    assert_eq!((http.status, &http.json["duplicate"]), (201, &json!(false)));
}

#[tokio::test]
async fn what_was_accepted_is_answered_in_a_window_that_is_full() {
    let chosen = waybill_mesh::Settings { sends_per_window: 1, ..waybill_mesh::Settings::default() }.into();
    let world = World::with(Wanted { chosen, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    assert_eq!(owner.send("m-1", &dm(&bob, "one")).await["status"], 201);
    let denied = owner.send("m-2", &dm(&bob, "two")).await;
    assert_eq!(denied["status"], 429);
    assert!(denied["retry_after"].as_u64().unwrap() >= 1, "{denied}");
    assert_eq!(owner.send("m-1", &dm(&bob, "one")).await["status"], 200);
    let body = json!({ "client_message_id": "m-2", "envelope": dm(&bob, "two") });
    let http = world.post(&world.owner, "/mesh/v1/messages", &body).await;
    assert_eq!(http.status, 429);
    assert!(http.head.contains("\r\nretry-after: "), "{}", http.head);
}

#[tokio::test]
async fn destinations_that_are_not_there_are_refused_and_use_nothing() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    let gone = waybill_mesh_protocol::Identity::generate(&waybill_kernel::entropy::OsEntropy);
    for (envelope, error) in [(dm(&gone, "x"), "member_unknown"), (post("builds", "x"), "topic_unknown")] {
        let refused = owner.send("m-1", &envelope).await;
        assert_eq!((&refused["status"], &refused["error"]), (&json!(404), &json!(error)));
    }
    let large = owner.send("m-1", &dm(&bob, &"x".repeat(65_537))).await;
    assert_eq!(large["status"], 413);
    assert_eq!(owner.send("m-1", &dm(&bob, &"x".repeat(65_536))).await["status"], 201);
}

async fn delivered(socket: &mut crate::world::Socket) -> (Json, String) {
    let delivery = socket.expect("deliver").await;
    let id = delivery["client_message_id"].as_str().unwrap().to_owned();
    (delivery, id)
}

#[tokio::test]
async fn a_delivery_is_pushed_until_it_is_acknowledged() {
    let door = Settings { redeliver_ms: 200, ..Settings::default() };
    let world = World::with(Wanted { door, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let (mut owner, mut receiver) = (world.connect(&world.owner).await, world.connect(&bob).await);
    assert_eq!(owner.send("m-1", &dm(&bob, "one")).await["status"], 201);
    let (first, id) = delivered(&mut receiver).await;
    assert_eq!(id, "m-1");
    assert_eq!(first["sender_name"], "owner");
    // It is not acknowledged, so it comes again.
    let (again, _) = delivered(&mut receiver).await;
    assert_eq!(again["delivery_id"], first["delivery_id"]);
    receiver.acknowledge(&first).await;
    world.until("SELECT count(*) FROM mesh_deliveries", 0).await;
    // Twice, or for something that never was, changes nothing.
    receiver.acknowledge(&first).await;
    receiver.say(&json!({ "t": "delivered", "delivery_id": world.mesh })).await;
    assert_eq!(owner.send("m-2", &dm(&bob, "two")).await["status"], 201);
    loop {
        let (delivery, id) = delivered(&mut receiver).await;
        // One that was on its way when the first was acknowledged.
        if id == "m-1" {
            continue;
        }
        assert_eq!(id, "m-2");
        receiver.acknowledge(&delivery).await;
        break;
    }
    world.until("SELECT count(*) FROM mesh_deliveries", 0).await;
}

#[tokio::test]
async fn what_came_while_away_is_pushed_at_the_next_connection_and_is_in_the_history() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    world.topic("builds", &[&world.owner, &bob]).await;
    let mut owner = world.connect(&world.owner).await;
    for number in 0..5 {
        let envelope = if number % 2 == 0 { dm(&bob, "direct") } else { post("builds", "post") };
        assert_eq!(owner.send(&format!("m-{number}"), &envelope).await["status"], 201);
    }
    let mut receiver = world.connect(&bob).await;
    for number in 0..5 {
        let (delivery, id) = delivered(&mut receiver).await;
        assert_eq!(id, format!("m-{number}"));
        if number < 3 {
            receiver.acknowledge(&delivery).await;
        }
    }
    world.until("SELECT count(*) FROM mesh_deliveries", 2).await;
    drop(receiver);
    world.connections(1).await;
    // The two that were not acknowledged.
    let mut receiver = world.connect(&bob).await;
    for number in [3, 4] {
        assert_eq!(delivered(&mut receiver).await.1, format!("m-{number}"));
    }
    receiver.say(&json!({ "t": "history", "id": "h", "after": 0, "limit": 2 })).await;
    let page = receiver.expect("history_page").await;
    assert_eq!((&page["id"], &page["more"]), (&json!("h"), &json!(true)));
    let ids: Vec<_> =
        page["messages"].as_array().unwrap().iter().map(|message| &message["client_message_id"]).collect();
    assert_eq!(ids, ["m-0", "m-1"]);
    receiver.say(&json!({ "t": "history", "after": page["next_after"], "limit": 100 })).await;
    let rest = receiver.expect("history_page").await;
    assert_eq!((rest["messages"].as_array().unwrap().len(), &rest["more"]), (3, &json!(false)));
    let http = world.get(&bob, "/mesh/v1/history?after=0&limit=3").await;
    assert_eq!((http.status, http.json["messages"].as_array().unwrap().len()), (200, 3));
}

#[tokio::test]
async fn a_page_of_large_messages_is_cut_to_a_frame() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    for number in 0..20 {
        assert_eq!(owner.send(&format!("m-{number}"), &dm(&bob, &"x".repeat(60_000))).await["status"], 201);
    }
    let mut receiver = world.connect(&bob).await;
    let (mut after, mut seen) = (json!(0), 0);
    loop {
        receiver.say(&json!({ "t": "history", "after": after, "limit": 100 })).await;
        let page = receiver.expect("history_page").await;
        let messages = page["messages"].as_array().unwrap();
        assert!(messages.len() < 20 && page.to_string().len() <= 1 << 20);
        seen += messages.len();
        after = page["next_after"].clone();
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(seen, 20);
}

#[tokio::test]
async fn a_window_is_pushed_and_the_rest_waits() {
    let door = Settings { deliveries_max: 4, ..Settings::default() };
    let world = World::with(Wanted { door, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let (mut owner, mut receiver) = (world.connect(&world.owner).await, world.connect(&bob).await);
    for number in 0..20 {
        assert_eq!(owner.send(&format!("m-{number}"), &dm(&bob, "x")).await["status"], 201);
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(delivered(&mut receiver).await.0);
    }
    // Everything before the pong was written before it: no fifth is on its way.
    receiver.say(&json!({ "t": "ping" })).await;
    assert_eq!(receiver.next().await["t"], "pong");
    for number in 4..20 {
        receiver.acknowledge(&held.remove(0)).await;
        let (delivery, id) = delivered(&mut receiver).await;
        assert_eq!(id, format!("m-{number}"));
        held.push(delivery);
    }
}

#[tokio::test]
async fn who_never_reads_is_left_and_loses_nothing() {
    let door = Settings { write_ms: 300, ..Settings::default() };
    let world = World::with(Wanted { door, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    // Much more than the buffers of a socket hold.
    let mut owner = world.connect(&world.owner).await;
    for number in 0..200 {
        assert_eq!(owner.send(&format!("m-{number}"), &dm(&bob, &"x".repeat(65_000))).await["status"], 201);
    }
    let stuck = world.connect(&bob).await;
    owner.expect("peer_join").await;
    owner.expect("peer_leave").await;
    world.until("SELECT count(*) FROM mesh_deliveries", 200).await;
    drop(stuck);
    // It comes again and reads.
    let mut receiver = world.connect(&bob).await;
    for number in 0..200 {
        let (delivery, id) = delivered(&mut receiver).await;
        assert_eq!(id, format!("m-{number}"));
        receiver.acknowledge(&delivery).await;
    }
    world.until("SELECT count(*) FROM mesh_deliveries", 0).await;
}

#[tokio::test]
async fn a_flood_of_messages_is_paced_and_each_is_answered() {
    let chosen = waybill_mesh::Settings { sends_per_window: 10_000, ..waybill_mesh::Settings::default() }.into();
    let door = Settings { frames_max: 4, ..Settings::default() };
    let world = World::with(Wanted { door, chosen, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    for number in 0..300 {
        let body = "x".repeat(if number % 2 == 0 { 10 } else { 20_000 });
        owner
            .say(&json!({ "t": "send", "client_message_id": format!("m-{number}"), "envelope": dm(&bob, &body) }))
            .await;
    }
    let mut answered = std::collections::BTreeSet::new();
    while answered.len() < 300 {
        let result = owner.expect("send_result").await;
        assert_eq!(result["status"], 201, "{result}");
        assert!(answered.insert(result["client_message_id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(world.test.count("SELECT count(*) FROM mesh_messages").await.unwrap(), 300);
}

/// A change of the schema, beside a write: what changes no row is not kept.
struct Schema(&'static str);

impl Work for Schema {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute(self.0, &[]).await?;
        tx.execute("UPDATE mesh_counters SET last = last", &[]).await.map(drop)
    }
}

#[tokio::test]
async fn an_acknowledgement_that_fails_is_tried_again() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let (mut owner, mut receiver) = (world.connect(&world.owner).await, world.connect(&bob).await);
    let schema = async |sql| world.test.store.system().run(Schema(sql)).await;
    for number in 0..3 {
        assert_eq!(owner.send(&format!("m-{number}"), &dm(&bob, "x")).await["status"], 201);
    }
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(delivered(&mut receiver).await.0);
    }
    let refuses = "CREATE TRIGGER refuses BEFORE DELETE ON mesh_deliveries BEGIN SELECT RAISE(ABORT, 'not now'); END";
    schema(refuses).await.unwrap();
    for delivery in &held {
        receiver.acknowledge(delivery).await;
    }
    // The socket goes on meanwhile.
    receiver.say(&json!({ "t": "ping" })).await;
    assert_eq!(receiver.next().await["t"], "pong");
    assert_eq!(world.test.count("SELECT count(*) FROM mesh_deliveries").await.unwrap(), 3);
    schema("DROP TRIGGER refuses").await.unwrap();
    // Nothing more is said about them by anybody.
    world.until("SELECT count(*) FROM mesh_deliveries", 0).await;
}

#[tokio::test]
async fn what_was_acknowledged_last_is_not_pushed_again_to_who_left_at_once() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let (mut owner, mut receiver) = (world.connect(&world.owner).await, world.connect(&bob).await);
    for number in 0..3 {
        assert_eq!(owner.send(&format!("m-{number}"), &dm(&bob, "x")).await["status"], 201);
    }
    for _ in 0..3 {
        let (delivery, _) = delivered(&mut receiver).await;
        receiver.acknowledge(&delivery).await;
    }
    // All three were heard before it.
    receiver.say(&json!({ "t": "ping" })).await;
    assert_eq!(receiver.next().await["t"], "pong");
    drop(receiver);
    world.until("SELECT count(*) FROM mesh_deliveries", 0).await;
}

#[tokio::test]
async fn what_is_sent_together_is_answered_one_by_one() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let (mut owner, mut receiver) = (world.connect(&world.owner).await, world.connect(&bob).await);
    assert_eq!(owner.send("m-3", &dm(&bob, "3")).await["status"], 201);
    assert_eq!(owner.send("m-4", &dm(&bob, "another")).await["status"], 201);
    // More than are looked for together; two of them are one message.
    for number in (0..40).chain([7]) {
        let id = format!("m-{number}");
        owner.feed(&json!({ "t": "send", "client_message_id": id, "envelope": dm(&bob, &number.to_string()) })).await;
    }
    owner.flush().await;
    let mut statuses = std::collections::BTreeMap::<String, Vec<u64>>::new();
    for _ in 0..41 {
        let result = owner.expect("send_result").await;
        let id = result["client_message_id"].as_str().unwrap().to_owned();
        statuses.entry(id).or_default().push(result["status"].as_u64().unwrap());
    }
    for number in 0..40 {
        let mut of = statuses.remove(&format!("m-{number}")).unwrap();
        of.sort_unstable();
        let wanted: &[u64] = match number {
            3 => &[200],
            4 => &[409],
            7 => &[200, 201],
            _ => &[201],
        };
        assert_eq!(of, wanted, "m-{number}");
    }
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let (delivery, id) = delivered(&mut receiver).await;
        receiver.acknowledge(&delivery).await;
        assert!(seen.insert(id));
    }
    world.until("SELECT count(*) FROM mesh_deliveries", 0).await;
}
