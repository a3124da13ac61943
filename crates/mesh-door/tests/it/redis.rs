//! The limiter that several servers share.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::Barrier;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Result, Tenant, Time};
use waybill_mesh::limiter::{Attempt, Limiter, Limits, Verdict};
use waybill_mesh_door::Settings;
use waybill_mesh_door::redis::Shared;
use waybill_mesh_protocol::MeshId;
use waybill_testkit::redis::Redis;
use waybill_testkit::stores::Chosen;

use crate::world::{Wanted, World, dm};

const WINDOW: Duration = Duration::from_secs(60);

/// A machine that stands still for some seconds is no failure of Redis.
fn settings() -> Settings {
    Settings { redis_ms: 20_000, redis_pause_ms: 10, ..Settings::default() }
}

fn attempt(mesh: u128, id: &str, seconds: i64) -> Attempt<'_> {
    let now = Time::from_micros(seconds * 1_000_000);
    Attempt {
        tenant: Tenant(1),
        mesh: MeshId(Uuid::from_u128(mesh)),
        client_message_id: id,
        now,
        window: WINDOW,
        budget: 2,
    }
}

async fn ask(limiter: &Shared, mesh: u128, id: &str, seconds: i64) -> Verdict {
    limiter.consume(attempt(mesh, id, seconds)).await.unwrap()
}

#[tokio::test]
async fn servers_count_together_and_each_id_once() {
    let redis = Redis::start().unwrap();
    let [here, there] = [0, 1].map(|_| Shared::new(&redis.url(), &settings()).unwrap());
    assert_eq!(ask(&here, 1, "a", 0).await, Verdict::Counted);
    assert_eq!(ask(&there, 1, "a", 59).await, Verdict::CountedBefore);
    assert_eq!(ask(&there, 1, "b", 1).await, Verdict::Counted);
    for _ in 0..3 {
        assert_eq!(ask(&here, 1, "c", 50).await, Verdict::Denied { retry_after: Duration::from_secs(10) });
    }
    // One that was counted is let through in a window that is full; a denied one has used nothing.
    assert_eq!(ask(&here, 1, "b", 50).await, Verdict::CountedBefore);
    assert_eq!(ask(&there, 1, "c", 60).await, Verdict::Counted);
    // Another mesh has a window of its own.
    assert_eq!(ask(&here, 2, "a", 0).await, Verdict::Counted);
    assert_eq!(here.condition().as_str(), "redis");

    let mut client = ::redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> = ::redis::cmd("KEYS").arg("*").query_async(&mut client).await.unwrap();
    let mesh = Uuid::from_u128(1);
    for key in [format!("rl:{{{mesh}}}:0"), format!("rli:{{{mesh}}}:a:0"), format!("rli:{{{mesh}}}:c:1")] {
        assert!(keys.contains(&key), "{key}: {keys:?}");
    }
    assert!(!keys.contains(&format!("rli:{{{mesh}}}:c:0")), "a denied one leaves nothing");
    let lives =
        async |key: String| -> i64 { ::redis::cmd("PTTL").arg(key).query_async(&mut client.clone()).await.unwrap() };
    let (counter, marker) = (lives(format!("rl:{{{mesh}}}:0")).await, lives(format!("rli:{{{mesh}}}:a:0")).await);
    assert!((1..=60_000).contains(&counter) && (60_000..=120_000).contains(&marker), "{counter} {marker}");
}

#[tokio::test]
async fn of_many_at_once_one_is_counted() {
    let redis = Redis::start().unwrap();
    let limiter = Arc::new(Shared::new(&redis.url(), &settings()).unwrap());
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { ask(&limiter, 1, "same", 0).await })
        })
        .collect();
    let mut counted = 0;
    for asked in asked {
        counted += usize::from(asked.await.unwrap() == Verdict::Counted);
    }
    assert_eq!(counted, 1);
}

#[tokio::test]
async fn without_redis_a_server_counts_alone_and_says_so() {
    let mut redis = Redis::start().unwrap();
    let limiter = Shared::new(&redis.url(), &settings()).unwrap();
    assert_eq!(ask(&limiter, 1, "a", 0).await, Verdict::Counted);
    redis.kill9().unwrap();
    // It counts from nothing, and keeps to the budget.
    assert_eq!(ask(&limiter, 1, "b", 0).await, Verdict::Counted);
    assert_eq!(limiter.condition().as_str(), "in_process: redis does not answer");
    assert_eq!(ask(&limiter, 1, "b", 0).await, Verdict::CountedBefore);
    assert_eq!(ask(&limiter, 1, "c", 0).await, Verdict::Counted);
    assert_eq!(ask(&limiter, 1, "d", 0).await, Verdict::Denied { retry_after: WINDOW });
    redis.restart().unwrap();
    // It is asked again after its pause.
    for number in 0.. {
        ask(&limiter, 2, &format!("x{number}"), 0).await;
        if limiter.condition().as_str() == "redis" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ask(&limiter, 1, "d", 0).await, Verdict::Counted);
}

#[tokio::test]
async fn a_committed_id_is_answered_in_a_full_window_and_uses_nothing() {
    let redis = Redis::start().unwrap();
    let limits = Limits(Arc::new(Shared::new(&redis.url(), &settings()).unwrap()));
    let mesh = waybill_mesh::Settings { sends_per_window: 1, ..waybill_mesh::Settings::default() };
    let chosen = Chosen { mesh, mesh_limits: limits, ..Chosen::default() };
    let world = World::with(Wanted { chosen, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let mut owner = world.connect(&world.owner).await;
    assert_eq!(owner.send("m-1", &dm(&bob, "one")).await["status"], 201);
    for _ in 0..3 {
        assert_eq!(owner.send("m-1", &dm(&bob, "one")).await["status"], 200);
        assert_eq!(owner.send("m-2", &dm(&bob, "two")).await["status"], json!(429));
    }
    let mut client = ::redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let counters: Vec<String> = ::redis::cmd("KEYS").arg("rl:*").query_async(&mut client).await.unwrap();
    assert_eq!(counters.len(), 1);
    let used: i64 = ::redis::cmd("GET").arg(&counters[0]).query_async(&mut client).await.unwrap();
    assert_eq!(used, 1);
}

/// Lets attempts whose ids begin with `race` through in pairs: when it answers, both have looked for the id and found nothing.
struct InPairs {
    inner: Shared,
    pair: Barrier,
}

impl Limiter for InPairs {
    fn consume<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(async move {
            if attempt.client_message_id.starts_with("race") {
                self.pair.wait().await;
            }
            self.inner.consume(attempt).await
        })
    }
}

#[tokio::test]
async fn two_first_sends_of_one_id_past_b0_cost_one_unit() {
    let redis = Redis::start().unwrap();
    let limiter = InPairs { inner: Shared::new(&redis.url(), &settings()).unwrap(), pair: Barrier::new(2) };
    let mesh = waybill_mesh::Settings { sends_per_window: 2, ..waybill_mesh::Settings::default() };
    let chosen = Chosen { mesh, mesh_limits: Limits(Arc::new(limiter)), ..Chosen::default() };
    let world = World::with(Wanted { chosen, ..Wanted::default() }).await;
    let bob = world.join("bob").await;
    let send = async |id: &str, text: &str| {
        let body = json!({ "client_message_id": id, "envelope": dm(&bob, text) });
        let answer = world.post(&world.owner, "/mesh/v1/messages", &body).await;
        (answer.status, answer.json["broker_message_id"].clone())
    };
    // The same message: the loser is told of the winner's.
    let (first, second) = tokio::join!(send("race-1", "same"), send("race-1", "same"));
    let mut statuses = [first.0, second.0];
    statuses.sort_unstable();
    assert_eq!((statuses, &first.1), ([200, 201], &second.1));
    // Two messages under one id: the loser is refused.
    let (first, second) = tokio::join!(send("race-2", "one"), send("race-2", "two"));
    let mut statuses = [first.0, second.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    // Both units are used, each once.
    assert_eq!(send("another", "x").await.0, 429);
    assert_eq!(world.test.count("SELECT count(*) FROM mesh_messages").await.unwrap(), 2);
    let mut client = ::redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let counters: Vec<String> = ::redis::cmd("KEYS").arg("rl:*").query_async(&mut client).await.unwrap();
    let used: i64 = ::redis::cmd("GET").arg(&counters[0]).query_async(&mut client).await.unwrap();
    assert_eq!((counters.len(), used), (1, 2));
}
