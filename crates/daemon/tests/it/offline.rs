//! An hour without a broker, with messages all the while, and what reaches the broker after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use waybill_daemon::directory::{Change, Member, Standing, Topic};
use waybill_daemon::{Folder, Membership};
use waybill_mesh_protocol::{Identity, TopicKey};

use crate::link_broker::{CONFIG, FakeBroker};
use crate::support::{Plan, Running, identity, member, start, start_in};

const DESTINATIONS: u8 = 32;
/// Of the hour; time passes between them.
const ROUNDS: usize = 20;
const HOUR: Duration = Duration::from_secs(3_600);
/// Of one destination in one round. `bench --only mesh` does the same with a hundred thousand in all.
const MESSAGES: usize = 8;

/// The members that are written to, beside those whom every test knows.
fn others() -> Vec<Identity> {
    (0..DESTINATIONS).map(|number| identity(100 + u64::from(number))).collect()
}

async fn learn(daemon: &Running) {
    let known = others().into_iter().zip(100_u8..).map(|(keys, number)| {
        let (id, name) = (member(number), format!("member-{number}"));
        Change::Member(Member { id, name, keys: keys.public(), is_owner: false, state: Standing::Active })
    });
    daemon.handle.directory().learn(known.collect()).await.unwrap();
}

/// One program for each destination, all at once.
async fn queue(daemon: &Arc<Running>, round: usize) {
    let mut programs = JoinSet::new();
    for keys in others() {
        let daemon = Arc::clone(daemon);
        programs.spawn(async move {
            let to = keys.public_key().to_string();
            for number in round * MESSAGES..(round + 1) * MESSAGES {
                let id = format!("{number}-{to}");
                let body = json!({ "to": to, "message": number.to_string(), "client_message_id": id });
                daemon.post("/v1/send", &body).await.expect(202);
            }
        });
    }
    while let Some(done) = programs.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_queued_in_an_hour_offline_reaches_the_broker_in_order_per_destination() {
    let daemon = Arc::new(start(Plan { config: CONFIG, ..Plan::default() }).await);
    learn(&daemon).await;
    for round in 0..ROUNDS {
        queue(&daemon, round).await;
        daemon.time.pass(HOUR / ROUNDS as u32);
    }
    let all = ROUNDS * MESSAGES * usize::from(DESTINATIONS);
    assert_eq!(daemon.get("/v1/health").await.expect(200)["queue_depth"], all);
    let Ok(daemon) = Arc::try_unwrap(daemon) else { panic!("a program goes on") };
    let (home, time) = daemon.stop().await;

    // The broker is there from now on.
    let mut broker = FakeBroker::start(true).await;
    let folder = Folder::open(home.path(), "acme").unwrap();
    let membership = Membership::load(&folder).unwrap().unwrap();
    Membership { server: format!("http://{}", broker.address), ..membership }.save(&folder).unwrap();
    let daemon = start_in(home, time, false).await;
    let mut connection = broker.ready().await;
    let mut sent: HashMap<String, Vec<usize>> = HashMap::new();
    for _ in 0..all {
        let send = connection.sent().await;
        let number = String::from_utf8(send.envelope.body.0.clone()).unwrap().parse().unwrap();
        sent.entry(send.envelope.destination_ref.clone()).or_default().push(number);
        connection.accept(&send).await;
    }
    assert_eq!(sent.len(), usize::from(DESTINATIONS));
    let expected: Vec<usize> = (0..ROUNDS * MESSAGES).collect();
    for (destination, order) in sent {
        assert_eq!(order, expected, "{destination}");
    }
    // The last answers are on their way.
    while daemon.get("/v1/health").await.expect(200)["queue_depth"] != 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_is_taken_offline_between_the_switch_of_an_epoch_and_the_arrival_of_its_key() {
    let daemon = start(Plan { plaintext: false, ..Plan::default() }).await;
    let name = || "builds".to_owned();
    let key = Change::EpochKey { topic: name(), epoch: 1, key: TopicKey::from_bytes([1; 32]) };
    // The broker has said that the second epoch has begun, and the link broke before its key came.
    let topic = Change::Topic(Topic { name: name(), subscribed: true, epoch: Some(2) });
    daemon.handle.directory().learn(vec![key, topic]).await.unwrap();
    let (home, time) = daemon.stop().await;
    let daemon = start_in(home, time, false).await;
    let body = json!({ "topic": "builds", "message": "m", "client_message_id": "a" });
    daemon.post("/v1/topic/post", &body).await.expect(202);
    let claimed = daemon.handle.outbox().claim(64).await.unwrap();
    assert!(claimed.flights[0].envelope.contains("\"epoch\":1"), "{}", claimed.flights[0].envelope);
    daemon.stop().await;
}
