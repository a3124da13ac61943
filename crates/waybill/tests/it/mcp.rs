//! MCP beyond tool calls: resources, profiles, instructions, on both revisions that the server speaks.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::world::{Engine, Reply, World};

/// The revision without a handshake: what it needs stands in every request.
async fn stateless(world: &World, key: &str, path: &str, method: &str, params: &Json) -> Json {
    const REVISION: &str = "2026-07-28";
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let name = params["uri"].as_str().or_else(|| params["name"].as_str()).unwrap_or_default().to_owned();
    let mut request = world
        .http
        .post(world.url(path))
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", REVISION)
        .header("Mcp-Method", method)
        .bearer_auth(key)
        .json(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
    if !name.is_empty() {
        request = request.header("Mcp-Name", name);
    }
    Reply::of(request).await.json()
}

/// Both revisions must say the same.
async fn ask(world: &World, key: &str, path: &str, method: &str, params: &Json) -> Json {
    let handshake = world.mcp(key, path, method, params).await.json();
    let stateless = stateless(world, key, path, method, params).await;
    for part in ["contents", "resources", "resourceTemplates", "tools"] {
        assert_eq!(handshake["result"][part], stateless["result"][part], "{method} {params}");
    }
    assert_eq!(handshake["error"]["data"], stateless["error"]["data"], "{method} {params}");
    handshake
}

fn templates(listed: &Json) -> Vec<&str> {
    let templates = listed["result"]["resourceTemplates"].as_array().unwrap_or_else(|| panic!("{listed}"));
    templates.iter().map(|template| template["uriTemplate"].as_str().unwrap()).collect()
}

async fn resources_are_reads(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let worker = world.key(json!({ "principal": "worker:builder" })).await;
    let task = world.task(&alice).await;

    for path in ["/mcp", "/mcp/tasks"] {
        let listed = ask(&world, &alice, path, "resources/list", &json!({})).await;
        assert_eq!(listed["result"]["resources"][0]["uri"], "resource://tasks", "{listed}");
        let listed = ask(&world, &alice, path, "resources/templates/list", &json!({})).await;
        assert!(templates(&listed).contains(&"resource://tasks/{task_id}"), "{listed}");
        for (uri, route) in [
            (format!("resource://tasks/{task}"), format!("/v1/tasks/{task}")),
            ("resource://tasks".to_owned(), "/v1/tasks".to_owned()),
            ("resource://tasks?status=queued&limit=1".to_owned(), "/v1/tasks?status=queued&limit=1".to_owned()),
        ] {
            let read = ask(&world, &alice, path, "resources/read", &json!({ "uri": uri })).await;
            let content = &read["result"]["contents"][0];
            assert_eq!((&content["uri"], &content["mimeType"]), (&json!(uri), &json!("application/json")), "{read}");
            let text = content["text"].as_str().unwrap_or_else(|| panic!("{read}"));
            assert_eq!(text, world.get(&alice, &route).await.text, "{uri}");
        }
    }
    refusals(&world, &alice, &worker, &task).await;
}

/// As REST refuses, with the same object.
async fn refusals(world: &World, alice: &str, worker: &str, task: &str) {
    let nobody = "019a8d5e-0000-7000-8000-000000000000";
    for (who, uri, route, number) in [
        (alice, format!("resource://tasks/{nobody}"), format!("/v1/tasks/{nobody}"), -32002),
        (alice, "resource://tasks/x".to_owned(), "/v1/tasks/x".to_owned(), -32602),
        (alice, "resource://tasks?limit=0".to_owned(), "/v1/tasks?limit=0".to_owned(), -32602),
        (worker, format!("resource://tasks/{task}"), format!("/v1/tasks/{task}"), Code::Forbidden.entry().mcp),
        (worker, "resource://tasks".to_owned(), "/v1/tasks".to_owned(), Code::Forbidden.entry().mcp),
    ] {
        let mut refused = ask(world, who, "/mcp", "resources/read", &json!({ "uri": uri })).await;
        assert_eq!(refused["error"]["code"], number, "{uri}: {refused}");
        let mut data = refused["error"]["data"].take();
        assert!(data["template"].take().as_str().unwrap().starts_with("resource://tasks"), "{uri}");
        data.as_object_mut().unwrap().shift_remove("template");
        assert_eq!(data, world.get(who, &route).await.json(), "{uri}");
    }
    for uri in ["resource://tasks?colour=blue", "resource://tasks?limit=1&limit=1"] {
        let refused = ask(world, alice, "/mcp", "resources/read", &json!({ "uri": uri })).await;
        assert_eq!(refused["error"]["data"]["error"], "invalid_request", "{refused}");
    }
    for uri in ["resource://nothing", "resource://tasks/", "file:///etc/passwd"] {
        let unknown = ask(world, alice, "/mcp", "resources/read", &json!({ "uri": uri })).await;
        assert_eq!(unknown["error"]["code"], -32002, "{uri}: {unknown}");
    }
    let unknown = stateless(world, alice, "/mcp", "resources/read", &json!({ "uri": "resource://nothing" })).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    // A worker is not shown the list that it may not read.
    let listed = ask(world, worker, "/mcp", "resources/list", &json!({})).await;
    assert_eq!(listed["result"]["resources"], json!([]), "{listed}");
}

#[tokio::test]
async fn a_resource_is_what_rest_reads_on_sqlite() {
    resources_are_reads(Engine::Sqlite).await;
}

#[tokio::test]
async fn a_resource_is_what_rest_reads_on_postgresql() {
    resources_are_reads(Engine::Postgres).await;
}

#[tokio::test]
async fn a_domain_without_resources_promises_none() {
    let world = World::start().await;
    let admin = &world.server.admin_key;
    let capabilities = async |path: &str| {
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let handshake = world.mcp(admin, path, "initialize", &hello).await.json();
        let discovered = stateless(&world, admin, path, "server/discover", &json!({})).await;
        assert_eq!(handshake["result"]["capabilities"], discovered["result"]["capabilities"], "{discovered}");
        assert_eq!(handshake["result"]["instructions"], discovered["result"]["instructions"], "{discovered}");
        handshake["result"].clone()
    };
    assert!(capabilities("/mcp").await["capabilities"]["resources"].is_object());
    assert!(capabilities("/mcp/tasks").await["capabilities"]["resources"].is_object());
    let queues = capabilities("/mcp/queues").await;
    assert_eq!(queues["capabilities"], json!({ "tools": {} }));
    for (method, params) in [
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "resource://tasks" })),
    ] {
        let unknown = world.mcp(admin, "/mcp/queues", method, &params).await.json();
        assert_eq!(unknown["error"]["code"], -32601, "{method}: {unknown}");
    }
}

#[tokio::test]
async fn instructions_are_those_of_the_domains_that_the_caller_may_use() {
    let world = World::start().await;
    let admin = world.server.admin_key.clone();
    let alice = world.key(json!({ "principal": "agent:alice", "scopes": ["tasks:read", "tasks:write"] })).await;
    let instructions = async |key: &str, path: &str| {
        let described = stateless(&world, key, path, "server/discover", &json!({})).await;
        described["result"]["instructions"].as_str().unwrap_or_else(|| panic!("{described}")).to_owned()
    };
    let all = instructions(&admin, "/mcp").await;
    assert!(all.contains("`asyncgate.create_task`") && all.contains("`asyncgate.peek_messages`"), "{all}");
    assert!(!all.contains('{'), "a name was not found: {all}");
    let own = instructions(&alice, "/mcp").await;
    assert!(own.contains("`asyncgate.create_task`") && !own.contains("peek_messages"), "{own}");
    assert!(!instructions(&admin, "/mcp/queues").await.contains("create_task"));
}

#[tokio::test]
async fn a_profile_comes_by_setting_or_by_url_and_an_unknown_one_is_refused() {
    let world = World::with(Engine::Sqlite, "[doors.mcp.profiles]\ntasks = \"minimal\"\n", &[]).await;
    let admin = &world.server.admin_key;
    let all = world.tools(admin, "/mcp/tasks").await;
    assert_eq!(all, world.tools(admin, "/mcp/tasks?profile=full").await, "all tools of tasks are in every profile");
    for path in ["/mcp/tasks?profile=tiny", "/mcp?profile=", "/mcp?profile=core&profile=core"] {
        let refused = world.mcp(admin, path, "tools/list", &json!({})).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
        let refused = refused.json();
        assert_eq!(refused["error"]["code"], -32602, "{path}: {refused}");
        assert_eq!(refused["error"]["data"]["error"], "invalid_request", "{path}: {refused}");
    }
    let advice = world.mcp(admin, "/mcp?profile=tiny", "tools/list", &json!({})).await.json();
    assert!(advice["error"]["data"]["help"].as_str().unwrap().contains("?profile=minimal"), "{advice}");
}

/// The output of a tool is in its answer twice, and as text with every quote of it escaped.
#[tokio::test]
async fn there_is_room_for_a_page_and_a_claim_of_large_tasks() {
    let world = World::start().await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let worker = world.key(json!({ "principal": "worker:builder" })).await;
    let task = json!({ "type": "work", "payload": "\"".repeat(500_000) });
    for _ in 0..9 {
        let made = world.post(&alice, "/v1/tasks", &task).await;
        assert_eq!(made.status, 201, "{}", made.text);
    }
    for (key, name, arguments) in
        [(&alice, "asyncgate.list_tasks", json!({})), (&worker, "asyncgate.lease_next", json!({ "max_tasks": 100 }))]
    {
        let call = json!({ "name": name, "arguments": arguments });
        let reply = world.mcp(key, "/mcp/tasks", "tools/call", &call).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text);
        let answer = reply.json();
        let tasks = answer["result"]["structuredContent"]["tasks"].as_array().map_or(0, Vec::len);
        assert!((4..9).contains(&tasks), "{name}: {tasks} tasks");
    }
}
