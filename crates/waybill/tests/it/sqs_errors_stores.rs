//! Errors that take more than a wrong request: too many messages in flight, and a store that is away.

use serde_json::{Value as Json, json};
use waybill_kernel::{Clock, Mode, Result};
use waybill_store::{Ctx, Tx, Work};
use waybill_testkit::postgres::{Database, Postgres};

use crate::sqs::{Client, must_be};
use crate::sqs_errors::{form, must_be_xml, policy};
use crate::world::{Engine, World};

/// Runs a test on both stores.
macro_rules! on_both {
    ($($name:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Engine::Sqlite).await; })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Engine::Postgres).await; })+
        }
    };
}

on_both! {
    too_many_in_flight_is_over_the_limit
    what_is_in_a_store_that_is_away_is_not_available
}

/// The same in both protocols.
async fn is_refused(client: &Client, action: &str, input: Json, (status, shape, code): (u16, &str, &str)) {
    must_be(&client.call(action, input.clone()).await, status, shape, code, action);
    must_be_xml(&client.query(&form(action, &input)).await, status, code, action);
}

async fn too_many_in_flight_is_over_the_limit(engine: Engine) {
    let mut world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let url = client.queue("jobs").await;
    client.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "m" })).await;
    assert!(world.server.term().unwrap().success());
    let store = world.open_store(Clock::system()).await;
    store.system().run(Full).await.unwrap();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    world.server.restart().unwrap();
    let client = client.at(&world.server.sqs_url);
    is_refused(&client, "ReceiveMessage", json!({ "QueueUrl": url }), (403, "OverLimit", "OverLimit")).await;
}

/// As many messages in flight as a queue may have.
struct Full;

impl Work for Full {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const FLIGHTS: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000) \
            INSERT INTO flights (mid, tenant, part, visible_at, receives) \
            SELECT (p.part << 40) + 500000000000 + n.i, p.tenant, p.part, 9000000000000000, 1 FROM n, parts p";
        tx.execute(FLIGHTS, &[]).await?;
        tx.execute("UPDATE parts SET crowded = 1", &[]).await.map(drop)
    }
}

async fn what_is_in_a_store_that_is_away_is_not_available(engine: Engine) {
    let (far, other) = (database().await, database().await);
    let settings = format!("[shards]\nfar = \"{}\"\n[sqs]\nfifo_partition_map = [\"dead.fifo:1=far\"]\n", far.url);
    let world = World::with(engine, &settings, &[]).await;
    let client = Client::new(&world).await;
    let made = async |name: &str, attributes: Json| {
        let made = client.ok("CreateQueue", json!({ "QueueName": name, "Attributes": attributes })).await;
        made["QueueUrl"].as_str().unwrap().to_owned()
    };
    let dead = made("dead.fifo", json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true" })).await;
    made("source.fifo", json!({ "FifoQueue": "true", "RedrivePolicy": policy("dead.fifo") })).await;
    let send = json!({ "QueueUrl": dead, "MessageBody": "m", "MessageGroupId": "g" });
    client.ok("SendMessage", send.clone()).await;

    let admin = other.connect().await.unwrap();
    let connections = async |are_allowed: bool| {
        admin
            .batch_execute(&format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {are_allowed}", far.name))
            .await
            .unwrap();
    };
    connections(false).await;
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", far.name);
    admin.batch_execute(&end).await.unwrap();
    let unavailable = (503, "ServiceUnavailable", "ServiceUnavailable");
    is_refused(&client, "SendMessage", send, unavailable).await;
    is_refused(&client, "PurgeQueue", json!({ "QueueUrl": dead }), unavailable).await;
    let task = json!({ "SourceArn": "arn:aws:sqs:us-east-1:000000000000:dead.fifo" });
    is_refused(&client, "StartMessageMoveTask", task, unavailable).await;
    connections(true).await;
}

async fn database() -> Database {
    Postgres::shared().await.unwrap().database().await.unwrap()
}
