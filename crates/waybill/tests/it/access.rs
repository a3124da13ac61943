//! Who is let in: every route but a few needs a key, and a key that is not good is no key.

use reqwest::Method;
use serde_json::json;
use waybill_kernel::{Code, Mode, Profile, Role, Scope};

use crate::world::{Engine, Reply, World, raw, status_of, until};

/// What answers without a key. A route that is added here is a decision.
const OPEN: &[&str] = &["/", "/healthz", "/v1/health", "/readyz", "/openapi.json", "/docs"];

/// Routes beside the operations.
const KEPT: &[&str] = &["/metrics", "/mcp", "/mcp/tasks", "/mcp/queues"];

/// The form of a key, with a good checksum, that no server has ever made.
const UNKNOWN_KEY: &str = "aga_0123456789AB0123456789ABCDEFGHIJKLMNOPQRSTUVgnpLRq";

#[tokio::test]
async fn every_route_needs_a_key_but_the_open_ones() {
    let world = World::start().await;
    let task = world.task(&world.server.admin_key).await;
    let registry = waybill_domains::registry();
    let operations = registry.entries().map(|entry| entry.spec().route.path.replace("{task_id}", &task));
    let paths: Vec<String> = operations.chain(KEPT.iter().map(|path| (*path).to_owned())).collect();
    for path in &paths {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let request = world.http.request(method.clone(), world.url(path)).header("X-HTTP-Method-Override", "GET");
            let reply = Reply::of(request).await;
            assert_eq!(reply.status, 401, "{method} {path}");
            assert!(reply.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")), "{path}");
            if method != Method::HEAD {
                reply.must_be(Code::Unauthorized, path);
            }
        }
    }
    for path in OPEN {
        let reply = Reply::of(world.http.get(world.url(path))).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert!(reply.header("x-request-id").is_some(), "{path}");
        assert!(!reply.text.contains(&task), "{path} shows a task");
    }
    // Other spellings of a kept path lead to nothing, or to the same question.
    for path in
        ["//v1/tasks", "/./v1/tasks", "/v1/%2e/tasks", "/v1/tasks.", "/V1/TASKS", "/v1/tasks/", "/docs/../metrics"]
    {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", world.address());
        let status = status_of(&raw(world.address(), request.as_bytes()));
        assert!([401, 404].contains(&status), "{path}: {status}");
    }
}

#[tokio::test]
async fn a_key_that_is_not_good_is_refused_whatever_is_wrong_with_it() {
    let world = World::with(Engine::Sqlite, "[access]\nkey_recheck_ms = 50\n", &[]).await;
    let good = world.key(json!({ "principal": "agent:alice" })).await;
    let other = world.key(json!({ "principal": "agent:bob" })).await;
    // The id of one live key with the secret of another.
    let mixed = format!("{}{}", &good[..16], &other[16..]);
    let longer = format!("Bearer {good}0");
    let upper = format!("Bearer {}", good.to_uppercase());
    let mixed = format!("Bearer {mixed}");
    let unknown = format!("Bearer {UNKNOWN_KEY}");
    let huge = format!("Bearer {}", "x".repeat(10_000));
    let basic = format!("Basic {good}");
    let two = format!("Bearer {good}, Bearer {good}");
    let values = [
        "",
        "Bearer",
        "Bearer ",
        "bearer\t",
        &good,
        &basic,
        "Bearer garbage",
        "Bearer aga_",
        &unknown,
        &mixed,
        &longer,
        &upper,
        &two,
        &huge,
    ];
    for value in values {
        for path in ["/v1/tasks", "/mcp", "/metrics"] {
            let reply = Reply::of(world.http.get(world.url(path)).header("Authorization", value)).await;
            reply.must_be(Code::Unauthorized, &format!("{path} with {value:.40}"));
            assert!(!reply.text.contains(&good[16..48]), "an answer repeats a secret");
        }
    }
    let twice =
        world.http.get(world.url("/v1/tasks")).bearer_auth(&good).header("Authorization", format!("Bearer {good}"));
    Reply::of(twice).await.must_be(Code::Unauthorized, "two Authorization headers");
    // A key in the address would end in every log on the way.
    let in_query = world.http.get(world.url(&format!("/v1/tasks?key={good}&access_token={good}")));
    Reply::of(in_query).await.must_be(Code::Unauthorized, "a key in the query");
    assert_eq!(world.get(&good, "/v1/tasks").await.status, 200, "the good one is still good");
}

#[tokio::test]
async fn a_key_ends_when_it_expires_and_when_it_is_revoked_on_both_doors() {
    let world = World::start().await;
    let short = world.key(json!({ "principal": "agent:alice", "expires_in_seconds": 1 })).await;
    until("the key expires", || async { world.get(&short, "/v1/tasks").await.status == 401 }).await;
    world.get(&short, "/v1/tasks").await.must_be(Code::Unauthorized, "expired");

    let made = world.admin_post("/admin/keys", &json!({ "principal": "agent:bob" })).await;
    let (id, key) = (made["key_id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert_eq!(world.get(key, "/v1/tasks").await.status, 200);
    assert_eq!(world.mcp(key, "/mcp", "tools/list", &json!({})).await.status, 200);
    world.admin_post(&format!("/admin/keys/{id}/revoke"), &json!({})).await;
    world.get(key, "/v1/tasks").await.must_be(Code::Unauthorized, "revoked");
    world.mcp(key, "/mcp", "tools/list", &json!({})).await.must_be(Code::Unauthorized, "revoked, on MCP");

    let old = world.admin_post("/admin/keys", &json!({ "principal": "agent:carol" })).await;
    let path = format!("/admin/keys/{}/rotate", old["key_id"].as_str().unwrap());
    let new = world.admin_post(&path, &json!({ "overlap_seconds": 0 })).await;
    let (old, new) = (old["key"].as_str().unwrap(), new["key"].as_str().unwrap());
    assert_eq!(world.get(new, "/v1/tasks").await.status, 200);
    world.get(old, "/v1/tasks").await.must_be(Code::Unauthorized, "rotated");
}

#[tokio::test]
async fn an_mcp_client_is_shown_the_tools_its_scopes_allow() {
    let world = World::start().await;
    let agent = world.key(json!({ "principal": "agent:alice" })).await;
    let reader = world.key(json!({ "principal": "agent:reader", "scopes": ["tasks:read"] })).await;
    let worker = world.key(json!({ "principal": "worker:builder" })).await;
    let admin = |scope: &str| json!({ "principal": "human:chief", "role": "admin", "scopes": [scope] });
    let (auditor, chief) = (world.key(admin("admin:read")).await, world.key(admin("admin:write")).await);
    let registry = waybill_domains::registry();
    let named = |role: Role, scopes: &[Scope]| {
        let tools = registry.entries().map(|entry| entry.spec()).filter(|spec| spec.tool);
        let allowed = tools.filter(|spec| {
            let opens = |scope: &Scope| match scope {
                Scope::AdminWrite => true,
                Scope::AdminRead => spec.mode == Mode::Read,
                other => spec.scopes.contains(other),
            };
            spec.roles.contains(&role) && scopes.iter().any(opens)
        });
        // Without project roots the guard of repositories is installed by the command line alone.
        let offered =
            allowed.filter(|spec| spec.profile <= Profile::default() && !spec.name.ends_with("precommit_guard"));
        let mut names: Vec<_> = offered.map(|spec| registry.id(spec).into_owned()).collect();
        names.sort();
        names
    };
    let of_domain = |name: &String, domain: Option<&str>| {
        domain.is_none_or(|domain| registry.find(name).is_some_and(|entry| entry.spec().domain == domain))
    };
    let players = [
        (&agent, named(Role::Agent, Role::Agent.default_scopes())),
        (&reader, named(Role::Agent, &[Scope::TasksRead])),
        (&worker, named(Role::Worker, Role::Worker.default_scopes())),
        (&auditor, named(Role::Admin, &[Scope::AdminRead])),
        (&chief, named(Role::Admin, &[Scope::AdminWrite])),
    ];
    assert!(players[0].1.contains(&"create_task".to_owned()) && !players[0].1.contains(&"lease_next".to_owned()));
    assert!(players[2].1.contains(&"lease_next".to_owned()) && !players[2].1.contains(&"create_task".to_owned()));
    assert!(players[3].1.contains(&"get_task".to_owned()) && !players[3].1.contains(&"create_task".to_owned()));
    assert!(players[4].1.contains(&"lease_next".to_owned()) && players[4].1.contains(&"create_task".to_owned()));
    assert!(players[3].1.contains(&"peek_messages".to_owned()) && !players[0].1.contains(&"peek_messages".to_owned()));
    for (path, domain) in [("/mcp", None), ("/mcp/tasks", Some("tasks")), ("/mcp/queues", Some("queues"))] {
        for (key, expected) in &players {
            let mut shown = world.tools(key, path).await;
            shown.sort();
            let expected: Vec<_> = expected.iter().filter(|name| of_domain(name, domain)).cloned().collect();
            assert_eq!(shown, expected, "{path}");
        }
    }
    // Not shown is not yet refused: a call says what is missing.
    let params = json!({ "name": "asyncgate.create_task", "arguments": { "type": "echo" } });
    let refused = world.mcp(&reader, "/mcp", "tools/call", &params).await.json();
    assert_eq!(refused["result"]["structuredContent"]["required_scope"], "tasks:write", "{refused}");
    // Shown is allowed: an admin's scope stands for the one that is listed, where it may.
    let called = world.mcp(&chief, "/mcp", "tools/call", &params).await.json();
    assert!(called["result"]["structuredContent"]["task_id"].is_string(), "{called}");
    let refused = world.mcp(&auditor, "/mcp", "tools/call", &params).await.json();
    assert_eq!(refused["result"]["structuredContent"]["your_scopes"], "admin:read", "{refused}");
    let without_key = Reply::of(world.mcp_request("/mcp", "tools/list", &json!({}))).await;
    without_key.must_be(Code::Unauthorized, "MCP without a key");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_more_than_the_bound_is_told_to_come_back() {
    let world = World::with(
        Engine::Sqlite,
        "[doors]\nrequests_max = 2\nkey_share_percent = 100\ntenant_share_percent = 100\nadmin_places = 0\n",
        &[],
    )
    .await;
    let key = world.server.admin_key.clone();
    let task = world.task(&key).await;
    let waiting = || {
        let (http, url, key) =
            (world.http.clone(), world.url(&format!("/v1/tasks/{task}?wait_seconds=20")), key.clone());
        // The look below may hold one of the two places for a moment: then this one asks again.
        tokio::spawn(async move { while http.get(&url).bearer_auth(&key).send().await.unwrap().status() == 503 {} })
    };
    let waiters = [waiting(), waiting()];
    until("both places are taken", || async { world.get(&key, "/v1/tasks").await.status == 503 }).await;
    let reply = world.get(&key, "/v1/tasks").await;
    reply.must_be(Code::Overloaded, "a third request");
    assert_eq!(reply.header("retry-after"), Some("1"));
    for waiter in waiters {
        waiter.abort();
    }
    until("a place is free again", || async { world.get(&key, "/v1/tasks").await.status == 200 }).await;
}
