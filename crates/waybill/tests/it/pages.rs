//! By which names MCP may be called, and from which pages, by those who bring a good key.

use serde_json::json;

use crate::world::{Engine, Reply, World};

const PATHS: [&str; 3] = ["/mcp", "/mcp/tasks", "/mcp/queues"];

/// The status of a good request that carries these headers besides.
async fn status(world: &World, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = world.mcp_request(path, "tools/list", &json!({})).bearer_auth(&world.server.admin_key);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Reply::of(request).await.status
}

async fn must_be(world: &World, rows: &[(u16, &[(&str, &str)])]) {
    for path in PATHS {
        for (expected, headers) in rows {
            assert_eq!(status(world, path, headers).await, *expected, "{path} with {headers:?}");
        }
    }
}

#[tokio::test]
async fn a_key_does_not_make_up_for_a_foreign_host_or_page() {
    let world = World::start().await;
    must_be(
        &world,
        &[
            (200, &[]),
            (200, &[("Host", "localhost")]),
            (200, &[("Host", "[::1]:7700")]),
            (200, &[("Origin", "http://localhost:3000")]),
            (200, &[("Origin", "http://127.0.0.1")]),
            (403, &[("Origin", "https://localhost:3000")]),
            (403, &[("Origin", "http://evil.example")]),
            (403, &[("Origin", "http://localhost.evil.example:3000")]),
            (403, &[("Origin", "null")]),
            (403, &[("Origin", "localhost")]),
            (403, &[("Host", "evil.example")]),
            (403, &[("Host", "localhost.evil.example:7700")]),
            (403, &[("Host", "evil.example"), ("Origin", "http://localhost:3000")]),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_names_and_pages_that_are_set_take_the_place_of_the_usual_ones() {
    let settings = "[doors.mcp]\nallowed_hosts = ['waybill.example', 'waybill.internal:8443']\n\
                    allowed_origins = ['https://app.example:*', 'http://tool.example:3000']\n";
    let world = World::with(Engine::Sqlite, settings, &[]).await;
    let (host, page) = (("Host", "waybill.example"), ("Origin", "https://app.example"));
    must_be(
        &world,
        &[
            (200, &[host]),
            (200, &[("Host", "waybill.example:7700")]),
            (200, &[("Host", "waybill.internal:8443")]),
            (200, &[host, page]),
            (200, &[host, ("Origin", "http://tool.example:3000")]),
            (403, &[]),
            (403, &[page]),
            (403, &[("Host", "waybill.internal")]),
            (403, &[host, ("Origin", "http://app.example")]),
            (403, &[host, ("Origin", "http://tool.example:3001")]),
            (403, &[host, ("Origin", "http://localhost:3000")]),
            (403, &[host, ("Origin", "null")]),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_emptied_list_opens_nothing_and_a_star_opens_all() {
    let evil = [("Host", "evil.example"), ("Origin", "http://evil.example")];
    let emptied = World::with(Engine::Sqlite, "[doors.mcp]\nallowed_hosts = []\nallowed_origins = []\n", &[]).await;
    must_be(
        &emptied,
        &[(200, &[]), (403, &evil[..1]), (403, &evil[1..]), (403, &[("Origin", "http://localhost:3000")])],
    )
    .await;
    let open = World::with(Engine::Sqlite, "[doors.mcp]\nallowed_hosts = ['*']\nallowed_origins = ['*']\n", &[]).await;
    must_be(&open, &[(200, &[]), (200, &evil), (200, &[("Origin", "null")])]).await;
}
