//! `GET /v1/events` and the headers of what is deprecated.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::world::{Engine, World, until};

/// Before a test gives up on something that must come.
const PATIENCE: Duration = Duration::from_secs(30);

struct Stream {
    response: reqwest::Response,
    text: String,
}

impl Stream {
    async fn open(world: &World, key: &str, last_event_id: Option<&str>) -> Self {
        let mut request = world.http.get(world.url("/v1/events")).bearer_auth(key);
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut stream = Self { response, text: String::new() };
        assert!(stream.block().await.unwrap().contains(": connected"));
        stream
    }

    /// The next lines up to an empty one; None at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return Some(block);
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await.unwrap().ok().flatten()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The id and the receipt of the next event.
    async fn receipt(&mut self) -> (String, Json) {
        loop {
            let block = self.block().await.unwrap();
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let Some(data) = field("data: ") {
                assert_eq!(field("event: ").as_deref(), Some("receipt"), "{block}");
                return (field("id: ").unwrap(), serde_json::from_str(&data).unwrap());
            }
        }
    }
}

async fn follow(engine: Engine) {
    let mut world = World::with(engine, "", &[]).await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let bob = world.key(json!({ "principal": "agent:bob" })).await;
    world.task(&alice).await;
    // A stream begins behind what is given out by then; an older transaction of another test may hold it back for a moment.
    until("her receipt is given out", || async {
        world.get(&alice, "/v1/receipts").await.json()["receipts"].as_array().is_some_and(|all| all.len() == 1)
    })
    .await;
    let mut stream = Stream::open(&world, &alice, None).await;
    world.task(&bob).await;
    let (first, second) = (world.task(&alice).await, world.task(&alice).await);
    let (cursor, receipt) = stream.receipt().await;
    assert_eq!(receipt["task_id"], json!(first), "what was there before and what is another's does not come");
    assert_eq!(stream.receipt().await.1["task_id"], json!(second));

    let mut again = Stream::open(&world, &alice, Some(&cursor)).await;
    assert_eq!(again.receipt().await.1["task_id"], json!(second), "it goes on after the last event");
    let refused = world.http.get(world.url("/v1/events")).bearer_auth(&bob).header("Last-Event-ID", &cursor);
    crate::world::Reply::of(refused).await.must_be(Code::InvalidCursor, "another's place");
    world.get(&bob, "/v1/events?principal_kind=agent&principal_id=alice").await.must_be(Code::Forbidden, "another's");
    for twice in ["last_event_id=&last_event_id=x", "last_event_id=x&last_event_id="] {
        world.get(&alice, &format!("/v1/events?{twice}")).await.must_be(Code::InvalidRequest, twice);
    }

    assert!(world.server.term().unwrap().success(), "an open stream does not hold a stopping server up");
    // A turn that the stop has woken may say that there was nothing, and then it ends.
    while let Some(last) = stream.block().await {
        assert_eq!(last, ": nothing new");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_come_as_they_are_written_on_sqlite() {
    follow(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_come_as_they_are_written_on_postgresql() {
    follow(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_have_a_bound() {
    let world = World::with(Engine::Sqlite, "[doors]\nstreams_max = 1\nadmin_places = 0\n", &[]).await;
    let key = world.server.admin_key.clone();
    let _open = Stream::open(&world, &key, None).await;
    world.get(&key, "/v1/events").await.must_be(Code::Overloaded, "a second stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_nothing_to_give_says_so_as_often_as_is_set() {
    const USUAL: Duration = Duration::from_secs(15);
    let world = World::with(Engine::Sqlite, "[doors]\nheartbeat_s = 1\n", &[]).await;
    let mut stream = Stream::open(&world, &world.server.admin_key, None).await;
    let began = Instant::now();
    for _ in 0..2 {
        assert_eq!(stream.block().await.unwrap(), ": nothing new");
    }
    assert!(began.elapsed() < USUAL, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a12_8_bootstrap_says_that_it_is_deprecated_and_what_takes_its_place() {
    for engine in [Engine::Sqlite, Engine::Postgres] {
        bootstrap_is_deprecated(World::with(engine, "", &[]).await).await;
    }
}

async fn bootstrap_is_deprecated(world: World) {
    let key = world.key(json!({ "principal": "agent:alice" })).await;
    let reply = world.get(&key, "/v1/bootstrap").await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.header("x-asyncgate-deprecated"), Some("true"));
    assert_eq!(reply.header("deprecation"), Some("true"));
    assert_eq!(reply.header("link"), Some("</v1/obligations/open>; rel=\"successor-version\""));
    let buckets = &reply.json()["attention"];
    for bucket in ["assigned_tasks", "waiting_results", "running_or_scheduled", "anomalies"] {
        assert_eq!(buckets[bucket], json!([]), "{bucket}");
    }
    assert!(world.server.log().contains("agent:alice"), "the log does not name the caller");
    assert_eq!(world.get(&key, "/v1/obligations/open").await.header("deprecation"), None);
}
