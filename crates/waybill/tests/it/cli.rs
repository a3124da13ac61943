//! The command line: the same command means the same whether a server runs or not, on either store.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::world::{Ended, Engine, World, program};

/// Where a command is to do its work.
struct Location {
    data: String,
    store: Option<String>,
}

impl Location {
    fn of(world: &World) -> Self {
        let store = world.database.as_ref().map(|database| database.url.clone());
        Self { data: world.server.data_dir.to_str().unwrap().to_owned(), store }
    }

    fn run(&self, args: &[&str]) -> Ended {
        let mut args = args.to_vec();
        args.extend(["--data", &self.data]);
        if let Some(store) = &self.store {
            args.extend(["--store", store]);
        }
        program(&args)
    }

    fn json(&self, args: &[&str]) -> Json {
        let ended = self.run(&[args, &["--json"]].concat());
        assert_eq!(ended.exit, 0, "{args:?}: {}", ended.stderr);
        ended.json()
    }
}

/// Everything an operator does with keys and tenants, and what it came to, without ids, secrets and times.
fn round(location: &Location) -> Vec<Json> {
    let mut seen = Vec::new();
    let mut note = |answer: &Json| seen.push(normal(answer));
    note(&location.json(&["tenant", "create", "acme", "--tier", "paid"]));
    note(&location.json(&["tenant", "list"]));
    let alice = location.json(&["key", "create", "--principal", "agent:alice", "--role", "agent"]);
    note(&alice);
    note(&location.json(&["key", "create", "--principal", "agent:bob", "--tenant", "acme", "--expires-in", "3600"]));
    let narrow =
        ["key", "create", "--principal", "worker:w", "--role", "worker", "--role", "agent", "--scope", "tasks:read"];
    note(&location.json(&narrow));
    let alice = alice["key_id"].as_str().unwrap();
    let successor = location.json(&["key", "rotate", alice, "--overlap", "0"]);
    note(&successor);
    let successor = successor["key_id"].as_str().unwrap();
    note(&location.json(&["key", "revoke", successor]));
    note(&location.json(&["key", "revoke", successor]));
    note(&location.json(&["key", "list"]));
    let refusals: [(&[&str], Code); 7] = [
        (&["tenant", "create", "acme"], Code::AlreadyExists),
        (&["tenant", "create", ""], Code::InvalidRequest),
        (&["key", "create", "--principal", "alice"], Code::InvalidRequest),
        (&["key", "create", "--principal", "agent:x", "--role", "king"], Code::InvalidRequest),
        (&["key", "create", "--principal", "agent:x", "--tenant", "nowhere"], Code::NotFound),
        (&["key", "revoke", "000000000000"], Code::NotFound),
        (&["key", "rotate", successor], Code::InvalidStateTransition),
    ];
    for (args, code) in refusals {
        let ended = location.run(args);
        ended.must_be(code, &format!("{args:?}"));
        assert_eq!(ended.stdout, "", "{args:?}: data goes to stdout, and there is none");
        note(&json!(ended.stderr));
    }
    seen
}

fn normal(value: &Json) -> Json {
    match value {
        Json::Object(fields) => {
            let hidden =
                |name: &str| name.ends_with("_at") || ["key", "key_id", "replaced_by", "tenant_id"].contains(&name);
            let field = |(name, value): (&String, &Json)| {
                let value = if hidden(name) { json!(!value.is_null()) } else { normal(value) };
                (name.clone(), value)
            };
            Json::Object(fields.iter().map(field).collect())
        }
        Json::Array(items) => {
            // Lists go by time, and every process without a server has a clock of its own.
            let mut items: Vec<Json> = items.iter().map(normal).collect();
            items.sort_by_key(Json::to_string);
            Json::Array(items)
        }
        other => other.clone(),
    }
}

async fn same_with_and_without_a_server(engine: Engine) {
    let running = World::with(engine, "", &[]).await;
    let mut stopped = World::with(engine, "", &[]).await;
    assert!(stopped.server.term().unwrap().success());
    let with = round(&Location::of(&running));
    let without = round(&Location::of(&stopped));
    for (with, without) in with.iter().zip(&without) {
        assert_eq!(with, without, "{engine:?}: with a server on the left, without one on the right");
    }
    assert_eq!(with.len(), without.len());

    let made = Location::of(&stopped).json(&["key", "create", "--principal", "agent:dora"]);
    stopped.server.restart().unwrap();
    let key = made["key"].as_str().unwrap();
    assert_eq!(stopped.get(key, "/v1/tasks").await.status, 200, "a key made without the server opens it");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_tenants_are_the_same_with_and_without_a_server_on_sqlite() {
    same_with_and_without_a_server(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_tenants_are_the_same_with_and_without_a_server_on_postgresql() {
    same_with_and_without_a_server(Engine::Postgres).await;
}

#[tokio::test]
async fn people_get_tables_and_programs_get_json() {
    let world = World::start().await;
    let location = Location::of(&world);
    let made = location.run(&["key", "create", "--principal", "agent:alice"]);
    let key = made.stdout.trim();
    assert!(key.starts_with("aga_") && made.stdout.lines().count() == 1, "{}", made.stdout);
    assert!(made.stderr.contains("agent:alice") && !made.stderr.contains(key), "{}", made.stderr);
    assert_eq!(world.get(key, "/v1/tasks").await.status, 200);

    let listed = location.run(&["key", "list"]);
    assert!(listed.stdout.contains("principal") && listed.stdout.contains("agent:alice"), "{}", listed.stdout);
    assert!(!listed.stdout.contains(&key[16..48]), "a list shows a secret");
    let tenants = location.run(&["tenant", "list"]);
    assert!(tenants.stdout.contains("default") && tenants.stdout.contains("unlimited"), "{}", tenants.stdout);
    let json = location.json(&["key", "create", "--principal", "agent:bob", "--role", "agent"]);
    assert!(json["key_id"].is_string() && json["key"].is_string(), "{json}");

    let url = world.url("");
    let elsewhere = tempfile::tempdir().unwrap();
    let data = elsewhere.path().to_str().unwrap();
    let remote = program(&["key", "list", "--json", "--data", data, "--url", &url, "--key", &world.server.admin_key]);
    assert_eq!(remote.exit, 0, "{}", remote.stderr);
    assert_eq!(remote.json()["keys"].as_array().unwrap().len(), 3);
    assert!(!Path::new(data).join("waybill.db").exists(), "a client of a server has made a database");
    let refused = program(&["key", "list", "--data", data, "--url", &url, "--key", key]);
    refused.must_be(Code::Forbidden, "an agent's key");
    program(&["key", "list", "--data", data, "--url", &url]).must_be(Code::Unauthorized, "no key");
    let nobody = program(&["key", "list", "--data", data, "--url", "http://127.0.0.1:1", "--key", key]);
    nobody.must_be(Code::ServerUnreachable, "nobody there");
    program(&["mcp", "--data", data]).must_be(Code::ServerUnreachable, "stdio without a server");
}

/// Least of all one in which everything is in order because there is nothing.
#[test]
fn a_command_makes_no_deployment_where_there_is_none() {
    let home = tempfile::tempdir().unwrap();
    let (mistyped, empty) = (home.path().join("mistyped"), home.path().join("empty"));
    let file = home.path().join("receipts.jsonl");
    std::fs::create_dir(&empty).unwrap();
    let commands: [&[&str]; 10] = [
        &["key", "list"],
        &["key", "create", "--principal", "agent:alice"],
        &["key", "rotate", "000000000000"],
        &["key", "revoke", "000000000000"],
        &["tenant", "list"],
        &["tenant", "create", "acme"],
        &["sweeps"],
        &["receipts", "verify"],
        &["receipts", "export"],
        &["receipts", "export", file.to_str().unwrap()],
    ];
    for data in [mistyped.to_str().unwrap(), empty.to_str().unwrap()] {
        let said = format!("There is no database in {data}; the first `waybill serve` makes one.");
        for command in commands {
            let ended = program(&[command, &["--data", data]].concat());
            ended.must_be(Code::DataFolderUnusable, &format!("{command:?}"));
            assert!(ended.stderr.contains(&said), "{command:?}: {}", ended.stderr);
            assert_eq!(ended.stdout, "", "{command:?}");
        }
        program(&["mcp", "--data", data]).must_be(Code::ServerUnreachable, "stdio without a server");
    }
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "something was left in the folder");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "something was left beside it");
}

#[tokio::test]
async fn sweeps_are_shown_as_soon_as_the_server_has_run_them() {
    let mut world = World::start().await;
    let location = Location::of(&world);
    let ran = async {
        while location.json(&["sweeps"])["sweeps"][0]["name"] != "keys.ended" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ran).await.unwrap();
    let table = location.run(&["sweeps"]);
    assert!(table.stdout.contains("keys.ended") && table.stdout.contains("lag_ms"), "{}", table.stdout);
    assert!(world.server.term().unwrap().success(), "a server with sweeps stops in order");
    assert_eq!(location.json(&["sweeps"])["sweeps"][0]["failures"], 0, "and its sweeps are shown without it");
}

#[test]
fn the_bare_program_and_a_wrong_word_show_how_it_is_used() {
    let bare = program(&[]);
    assert!(format!("{}{}", bare.stdout, bare.stderr).contains("Usage: waybill <COMMAND>"), "{}", bare.stderr);
    for command in ["serve", "key", "tenant", "sweeps", "backup", "restore", "doctor", "mcp", "completions"] {
        assert!(format!("{}{}", bare.stdout, bare.stderr).contains(command), "{command} is not shown");
    }
    let wrong = program(&["sreve"]);
    assert_eq!(wrong.exit, 2);
    assert!(wrong.stderr.contains("serve"), "no suggestion: {}", wrong.stderr);
    let version = program(&["--version"]);
    assert_eq!((version.exit, version.stdout.trim()), (0, concat!("waybill ", env!("CARGO_PKG_VERSION"))));
    for shell in ["bash", "zsh", "fish"] {
        let script = program(&["completions", shell]);
        assert_eq!(script.exit, 0);
        assert!(script.stdout.contains("insecure-dev") && script.stdout.contains("rotate"), "{shell}");
    }
}

/// Whoever listens where a server is said to be: it was asked nothing if nobody has come.
fn was_left_alone(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folders_key_goes_to_the_folders_server_and_to_nobody_else() {
    let mut world = World::start().await;
    let location = Location::of(&world);
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = format!("http://{}", stranger.local_addr().unwrap());
    let port = world.address().rsplit_once(':').unwrap().1;
    for command in [&["key", "list"][..], &["tenant", "list"], &["sweeps"], &["receipts", "verify"]] {
        let ended = location.run(&[command, &["--url", &elsewhere]].concat());
        ended.must_be(Code::Unauthorized, &format!("{command:?}"));
        assert!(ended.stderr.contains("only for the server that runs on that folder"), "{}", ended.stderr);
        for own in [world.url(""), world.url("/"), format!("http://localhost:{port}")] {
            let ended = location.run(&[command, &["--url", &own]].concat());
            assert_eq!(ended.exit, 0, "{command:?} at {own}: {}", ended.stderr);
        }
    }

    // A server that was killed has left its address, where somebody else may listen by now; and the folder is in use.
    world.server.kill9().unwrap();
    let left = world.server.data_dir.join("server.json");
    let mut running: Json = serde_json::from_slice(&std::fs::read(&left).unwrap()).unwrap();
    running["http"] = json!(stranger.local_addr().unwrap().to_string());
    std::fs::write(&left, running.to_string()).unwrap();
    let lock = File::options().write(true).truncate(true).open(world.server.data_dir.join("waybill.lock")).unwrap();
    lock.lock().unwrap();
    writeln!(&lock, "{}", std::process::id()).unwrap();
    location.run(&["key", "list"]).must_be(Code::DataFolderLocked, "a folder in use");
    location.run(&["key", "list", "--url", &elsewhere]).must_be(Code::Unauthorized, "an address that was left");
    assert!(was_left_alone(&stranger), "a stranger was shown the folder's key");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_client_acts_under_a_key_of_its_own() {
    let world = World::start().await;
    let location = Location::of(&world);
    let url = world.url("");
    for args in [&["mcp"][..], &["mcp", "--url", &url]] {
        let ended = location.run(args);
        ended.must_be(Code::Unauthorized, &format!("{args:?}"));
        assert!(ended.stderr.contains("under a key of its own"), "{}", ended.stderr);
    }
    let key = world.key(json!({ "principal": "agent:alice" })).await;
    let ended = location.run(&["mcp", "--key", &key]);
    assert_eq!(ended.exit, 0, "{}", ended.stderr);

    let open = World::with(Engine::Sqlite, "", &["--insecure-dev"]).await;
    let ended = Location::of(&open).run(&["mcp"]);
    assert_eq!(ended.exit, 0, "a server that asks for no key: {}", ended.stderr);
}
