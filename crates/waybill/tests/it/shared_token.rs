//! A token that clients share instead of having keys, as those of before there were keys do.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::server::{Options, Server};

use crate::world::{Engine, Reply, World, program};

const TOKEN: &str = "correct-horse-battery-staple";

#[tokio::test]
async fn r53_its_bearer_acts_as_whomever_it_names_and_administers_nothing() {
    let world = World::with(Engine::Sqlite, &format!("shared_token = \"{TOKEN}\"\n"), &[]).await;
    assert!(world.server.log().contains("shared token") && !world.server.log().contains(TOKEN));
    let made = world.post(TOKEN, "/v1/tasks", &json!({ "type": "echo", "created_by": "agent:alice" })).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let task_id = made.json()["task_id"].clone();
    let unnamed = world.task(TOKEN).await;
    let shown = async |id: &str| world.get(TOKEN, &format!("/v1/tasks/{id}")).await.json();
    assert_eq!(shown(task_id.as_str().unwrap()).await["created_by"]["principal_id"], "alice");
    assert_eq!(shown(&unnamed).await["created_by"]["principal_id"], "shared");

    let claim = json!({ "worker_id": "w1", "max_tasks": 2 });
    let leased = world.post(TOKEN, "/v1/leases/claim", &claim).await.json()["tasks"].clone();
    assert_eq!(leased.as_array().unwrap().len(), 2, "{leased}");
    let done =
        |worker: &str| json!({ "worker_id": worker, "lease_id": leased[0]["lease_id"], "artifacts": { "url": "x" } });
    let complete = format!("/v1/tasks/{}/complete", leased[0]["task_id"].as_str().unwrap());
    world.post(TOKEN, &complete, &done("w2")).await.must_be(Code::LeaseInvalidOrExpired, "another's lease");
    assert_eq!(world.post(TOKEN, &complete, &done("w1")).await.status, 200);

    // It is of the default tenant alone, and no operator's.
    for (path, input) in
        [("/admin/keys", json!({ "principal": "agent:eve" })), ("/admin/tenants", json!({ "name": "x" }))]
    {
        world.post(TOKEN, path, &input).await.must_be(Code::Forbidden, path);
    }
    for path in ["/admin/keys", "/admin/sweeps", "/metrics", "/v1/receipts/archive"] {
        world.get(TOKEN, path).await.must_be(Code::Forbidden, path);
    }
    let tools = world.mcp(TOKEN, "/mcp", "tools/list", &json!({})).await;
    assert_eq!(tools.status, 200, "{}", tools.text);

    // Keys go on working, and nothing but the token is the token.
    assert_eq!(world.get(&world.server.admin_key, "/admin/keys").await.status, 200);
    for other in [&TOKEN[1..], &TOKEN[..TOKEN.len() - 1], &TOKEN.to_uppercase(), "x"] {
        world.get(other, "/v1/tasks").await.must_be(Code::Unauthorized, other);
    }
    Reply::of(world.http.get(world.url("/v1/tasks"))).await.must_be(Code::Unauthorized, "no token");
}

#[tokio::test]
async fn it_is_taken_from_where_servers_of_asyncgate_have_it_unless_that_is_a_key() {
    let options =
        |token: &str| Options { env: vec![("ASYNCGATE_API_KEY".to_owned(), token.to_owned())], ..Options::default() };
    let http = waybill_guard::client().no_proxy().build().unwrap();
    let create = async |server: &Server, key: &str| -> (u16, Json) {
        let request =
            http.post(format!("{}/v1/tasks", server.base_url)).bearer_auth(key).json(&json!({ "type": "echo" }));
        let reply = Reply::of(request).await;
        (reply.status, reply.json())
    };
    let server = Server::start(options(TOKEN)).unwrap();
    assert_eq!(create(&server, TOKEN).await.0, 201);
    let key = "aga_0123456789ab_whatever_a_worker_has_there";
    let server = Server::start(options(key)).unwrap();
    assert!(!server.log().contains("shared token"), "{}", server.log());
    assert_eq!(create(&server, key).await.0, 401);
}

#[test]
fn it_is_refused_where_others_can_connect() {
    let folder = tempfile::tempdir().unwrap();
    let file = crate::world::config(&format!("shared_token = \"{TOKEN}\"\n"));
    let data = folder.path().join("data");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7700"] {
        let (data, file) = (data.to_str().unwrap(), file.path().to_str().unwrap());
        let ended = program(&["serve", "--config", file, "--http", address, "--data", data]);
        ended.must_be(Code::ConfigInvalid, address);
        assert!(ended.stderr.contains(address) && !ended.stderr.contains(TOKEN), "{}", ended.stderr);
    }
    assert!(!data.exists(), "a refused start has made the data folder");
}
