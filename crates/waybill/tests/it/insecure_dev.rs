//! `--insecure-dev`: no key is asked for, so nobody but this machine's own programs may come near.

use serde_json::json;
use waybill_kernel::Code;

use crate::world::{Engine, Reply, World, program};

#[test]
fn it_is_refused_where_others_can_connect() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7700"] {
        let args = ["serve", "--insecure-dev", "--http", address, "--data", data.to_str().unwrap()];
        let ended = program(&args);
        ended.must_be(Code::ConfigInvalid, address);
        assert!(ended.stderr.contains(address), "{}", ended.stderr);
        assert!(!data.exists(), "a refused start has made the data folder");
    }
}

#[tokio::test]
async fn it_lets_this_machine_in_and_no_page_of_another() {
    let world = World::with(Engine::Sqlite, "", &["--insecure-dev"]).await;
    assert!(world.server.log().contains("--insecure-dev"), "nobody is warned");

    let made = Reply::of(world.http.post(world.url("/v1/tasks")).json(&json!({ "type": "echo" }))).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let list = json!({});
    let listed = Reply::of(world.mcp_request("/mcp", "tools/list", &list)).await;
    assert_eq!(listed.status, 200, "{}", listed.text);
    let port = world.address().rsplit_once(':').unwrap().1;
    for origin in ["http://localhost:3000".to_owned(), format!("http://127.0.0.1:{port}")] {
        for request in [world.http.get(world.url("/v1/tasks")), world.mcp_request("/mcp", "tools/list", &list)] {
            let reply = Reply::of(request.header("Origin", &origin)).await;
            assert_eq!(reply.status, 200, "{origin}: {}", reply.text);
        }
    }

    let foreign = [
        ("Origin", "http://evil.example"),
        ("Origin", "https://localhost.evil.example"),
        ("Origin", "http://127.0.0.1.evil.example:7700"),
        ("Origin", "null"),
        ("Host", "evil.example"),
        ("Host", "localhost.evil.example:7700"),
    ];
    for (name, value) in foreign {
        let rest = Reply::of(world.http.get(world.url("/v1/tasks")).header(name, value)).await;
        rest.must_be(Code::Forbidden, &format!("{name}: {value}"));
        for path in ["/mcp", "/mcp/tasks", "/mcp/queues"] {
            let mcp = Reply::of(world.mcp_request(path, "tools/list", &list).header(name, value)).await;
            assert_eq!(mcp.status, 403, "{path} with {name}: {value}: {}", mcp.text);
        }
    }
    // Whoever does bring a key is held to it.
    world.get("garbage", "/v1/tasks").await.must_be(Code::Unauthorized, "a bad key");
}
