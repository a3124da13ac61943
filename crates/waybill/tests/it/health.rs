//! Alive, ready and the figures: what a balancer and an operator look at.

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::postgres::Postgres;

use crate::world::{Engine, Reply, World, until};

const COMMITS: &str = "waybill_store_commits_total";
/// What the server does by itself, it does once.
const QUIET: &str = "[tasks]\nsweep_interval_s = 100000\nchain_interval_s = 100000\narchive_interval_s = 100000\n\
                     [access]\nended_keys_interval_s = 100000\n[background]\nseen_interval_s = 100000\n\
                     [sqs]\nsweep_interval_s = 3600\n\
                     [mail]\nsweep_interval_s = 100000\n[mesh]\nsweep_interval_s = 100000\n\
                     [webhooks]\nsweep_interval_s = 100000\nfeed_interval_s = 100000\n";
const SWEEPS: usize = 21;

/// A server that commits nothing any more unless it is asked to.
async fn quiet(settings: &str) -> World {
    let world = World::with(Engine::Sqlite, &format!("{settings}{QUIET}"), &[]).await;
    until("every sweep has had its turn", || async {
        let shown = world.get(&world.server.admin_key, "/admin/sweeps").await.json();
        let sweeps = shown["sweeps"].as_array().unwrap();
        sweeps.len() == SWEEPS && sweeps.iter().all(|sweep| sweep["last_finished_at"].is_string())
    })
    .await;
    world
}

#[tokio::test]
async fn readiness_is_a_real_write_that_all_who_ask_share() {
    // An hour: however slow the test, it asks within one interval.
    let world = quiet("[doors]\nprobe_ms = 3600000\n").await;
    let before = world.counter(COMMITS).await;
    for _ in 0..20 {
        let reply = Reply::of(world.http.get(world.url("/readyz"))).await;
        assert_eq!((reply.status, reply.json()), (200, json!({ "ready": true })));
    }
    assert_eq!(world.counter(COMMITS).await, before, "a probe was not shared");

    let world = quiet("[doors]\nprobe_ms = 0\n").await;
    let before = world.counter(COMMITS).await;
    for _ in 0..5 {
        Reply::of(world.http.get(world.url("/readyz"))).await;
    }
    assert_eq!(world.counter(COMMITS).await, before + 5, "a probe did not write");
}

#[tokio::test]
async fn figures_are_for_operators() {
    let world = World::start().await;
    let agent = world.key(json!({ "principal": "agent:alice" })).await;
    let reply = world.get(&agent, "/metrics").await;
    reply.must_be(Code::Forbidden, "an agent");
    assert_eq!((&reply.json()["required_role"], &reply.json()["your_role"]), (&json!("admin|system"), &json!("agent")));

    world.admin_post("/admin/tenants", &json!({ "name": "acme" })).await;
    let other = world.key(json!({ "principal": "human:chief", "role": "admin", "tenant": "acme" })).await;
    world.get(&other, "/metrics").await.must_be(Code::Forbidden, "an admin of another tenant");
    let narrow = json!({ "principal": "human:me", "role": "admin", "scopes": ["tasks:read"] });
    let narrow = world.key(narrow).await;
    world.get(&narrow, "/metrics").await.must_be(Code::Forbidden, "a key without admin:read");
    let writer = world.key(json!({ "principal": "human:me", "role": "admin", "scopes": ["admin:write"] })).await;
    assert_eq!(world.get(&writer, "/metrics").await.status, 200, "admin:write stands for it");

    world.task(&agent).await;
    let figures = world.get(&world.server.admin_key, "/metrics").await;
    assert_eq!(figures.status, 200);
    assert!(figures.header("content-type").unwrap().starts_with("text/plain"));
    for name in ["waybill_operation_calls_total", "waybill_http_requests_total", COMMITS, "waybill_clock_offset"] {
        assert!(figures.text.contains(name), "{name} is missing");
    }
    let of_tasks = ["waybill_tasks{state=\"ready\"}", "waybill_queue_age_seconds", "waybill_open_obligations"];
    for name in [&of_tasks[..], &["waybill_receipts_total{type=\"task.assigned\"} 1"]].concat() {
        until(&format!("{name} among the figures"), || async {
            world.get(&world.server.admin_key, "/metrics").await.text.contains(name)
        })
        .await;
    }
    let created = "waybill_operation_calls_total{operation=\"create_task\",code=\"ok\"} 1";
    assert!(figures.text.contains(created), "{}", figures.text);

    for path in ["/healthz", "/v1/health"] {
        let alive = Reply::of(world.http.get(world.url(path))).await.json();
        assert_eq!(alive["status"], "ok");
        assert!(alive["version"].is_string());
    }
}

#[tokio::test]
async fn a_series_begins_with_what_it_counts() {
    let world = World::start().await;
    let agent = world.key(json!({ "principal": "agent:alice" })).await;
    world.task(&agent).await;
    world.get(&agent, "/v1/tasks/not-an-id").await.must_be(Code::InvalidRequest, "no id");
    let figures = world.get(&world.server.admin_key, "/metrics").await.text;
    let counters: Vec<&str> =
        figures.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    assert!(counters.contains(&"waybill_operation_calls_total"), "{figures}");
    let of_counter = |line: &&str| line.split([' ', '{']).next().is_some_and(|name| counters.contains(&name));
    let idle: Vec<&str> = figures.lines().filter(of_counter).filter(|line| line.ends_with(" 0")).collect();
    assert_eq!(idle, Vec::<&str>::new());
    for counted in ["operation=\"get_task\",code=\"invalid_request\"} 1", "operation=\"create_task\",code=\"ok\"} 1"] {
        assert!(figures.contains(counted), "{counted} is not in {figures}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_database_is_alive_and_not_ready_until_it_is_back() {
    let cluster = Postgres::start().unwrap();
    let database = cluster.database().await.unwrap();
    let settings = "[doors]\nprobe_ms = 0\n[postgres]\nconnect_ms = 10000\nretry_ms = 200\n";
    let world = World::on(Some(database), settings, &[]);
    let key = world.server.admin_key.clone();
    let kept = world.task(&key).await;
    let ready = || async { Reply::of(world.http.get(world.url("/readyz"))).await.status };
    assert_eq!(ready().await, 200);

    cluster.stop().unwrap();
    until("it is not ready", || async { ready().await == 503 }).await;
    let unready = Reply::of(world.http.get(world.url("/readyz"))).await;
    assert_eq!(unready.json()["ready"], false, "{}", unready.text);
    assert_eq!(Reply::of(world.http.get(world.url("/healthz"))).await.status, 200, "alive all the same");
    let create = json!({ "type": "echo", "idempotency_key": "once" });
    let refused = world.post(&key, "/v1/tasks", &create).await;
    refused.must_be(Code::StoreUnavailable, "a write without a database");
    assert!(refused.header("retry-after").is_some());
    world.get(&key, &format!("/v1/tasks/{kept}")).await.must_be(Code::StoreUnavailable, "a read without a database");

    cluster.restart().unwrap();
    until("it is ready again", || async { ready().await == 200 }).await;
    assert_eq!(world.get(&key, &format!("/v1/tasks/{kept}")).await.status, 200);
    assert_eq!(world.post(&key, "/v1/tasks", &create).await.status, 201, "the refused one had left nothing");
    assert_eq!(world.post(&key, "/v1/tasks", &create).await.status, 200, "and now it is there");
}
