//! `waybill receipts`: the chain checked at a server, written to a file, and checked again where there is no server.

use std::path::Path;

use serde_json::json;
use waybill_kernel::Code;

use crate::world::{Ended, Engine, World, program, until};

/// Sealed at once, or not while the test runs.
const SEALS: &str = "[tasks]\nchain_interval_s = 1\n";
const SEALS_LATER: &str = "[tasks]\nchain_interval_s = 100000\n";

fn receipts(world: &World, args: &[&str]) -> Ended {
    let url = world.url("");
    let reach = ["--url", &url, "--key", &world.server.admin_key];
    program(&[&["receipts"], args, &reach[..]].concat())
}

/// Three receipts of each.
async fn tasks(world: &World, count: usize) {
    let key = &world.server.admin_key;
    for _ in 0..count {
        let task = world.task(key).await;
        world.post(key, &format!("/v1/tasks/{task}/cancel"), &json!({})).await;
    }
}

async fn until_sealed(world: &World, count: u64) {
    until("everything is sealed", || async {
        let found = receipts(world, &["verify", "--json"]).json();
        assert_eq!(found["ok"], true, "{found}");
        found["receipts"].as_u64().unwrap() + found["unsealed"].as_u64().unwrap() == count && found["unsealed"] == 0
    })
    .await;
}

/// A file in which one line was changed.
fn altered(file: &Path, name: &str, change: impl Fn(Vec<String>) -> Vec<String>) -> String {
    let lines = std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect();
    let path = file.with_file_name(name);
    std::fs::write(&path, change(lines).join("\n") + "\n").unwrap();
    path.to_str().unwrap().to_owned()
}

async fn what_was_exported_is_verified_without_a_server(engine: Engine) {
    let world = World::with(engine, SEALS, &[]).await;
    tasks(&world, 3).await;
    until_sealed(&world, 9).await;
    let said = receipts(&world, &["verify"]);
    assert_eq!(said.exit, 0, "{}", said.stderr);
    assert!(said.stdout.contains("9 sealed receipts, 0 of them erased; the chain is whole."), "{}", said.stdout);
    assert!(!said.stdout.contains("not sealed"), "{}", said.stdout);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("receipts.jsonl");
    let text = file.to_str().unwrap();
    assert_eq!(receipts(&world, &["export", text]).exit, 0);
    let printed = receipts(&world, &["export"]);
    assert_eq!(printed.stdout, std::fs::read_to_string(&file).unwrap(), "the same to a file and to stdout");
    assert_eq!(printed.stdout.lines().count(), 10, "one line for each, and one for the end");

    let found = program(&["receipts", "verify", text, "--json"]);
    assert_eq!(found.exit, 0, "{}", found.stderr);
    let found = found.json();
    let head = found["head"].as_str().unwrap();
    assert_eq!((&found["ok"], &found["receipts"], &found["unsealed"]), (&json!(true), &json!(9), &json!(null)));
    // The chain goes on and still leads through the head of then.
    tasks(&world, 1).await;
    until_sealed(&world, 12).await;
    assert_eq!(receipts(&world, &["verify", "--head", head]).exit, 0);
    let elsewhere = "0".repeat(64);
    receipts(&world, &["verify", "--head", &elsewhere]).must_be(Code::ChainBroken, "another head");

    let bad = [
        altered(&file, "body", |lines| {
            lines.iter().map(|line| line.replacen("canceled_by", "canceled_bi", 1)).collect()
        }),
        altered(&file, "dropped", |lines| [&lines[..4], &lines[5..]].concat()),
        altered(&file, "swapped", |mut lines| {
            lines.swap(3, 4);
            lines
        }),
        altered(&file, "cut", |lines| lines[..9].to_vec()),
        altered(&file, "short", |lines| [&lines[..8], &lines[9..]].concat()),
    ];
    for path in bad {
        program(&["receipts", "verify", &path]).must_be(Code::ChainBroken, &path);
    }
    let garbage = altered(&file, "garbage", |_| vec!["{}".to_owned()]);
    let ended = program(&["receipts", "verify", &garbage]);
    ended.must_be_cured(Code::InvalidRequest, "Name a file that `waybill receipts export` has written", "no export");
    assert!(ended.stderr.contains("line 1 holds neither a receipt nor the end"), "{}", ended.stderr);
    program(&["receipts", "verify", "/no/such/file"]).must_be(Code::PathUnusable, "no file");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_exported_is_verified_without_a_server_on_sqlite() {
    what_was_exported_is_verified_without_a_server(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_exported_is_verified_without_a_server_on_postgresql() {
    what_was_exported_is_verified_without_a_server(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_sealed_yet_is_said() {
    let world = World::with(Engine::Sqlite, SEALS_LATER, &[]).await;
    // The first turn comes with the start.
    until("the sealer has had its turn", || async {
        let sweeps = world.get(&world.server.admin_key, "/admin/sweeps").await.json();
        let sealer =
            sweeps["sweeps"].as_array().unwrap().iter().find(|sweep| sweep["name"] == "receipts.chain").cloned();
        sealer.is_some_and(|sealer| sealer["last_finished_at"].is_string())
    })
    .await;
    tasks(&world, 1).await;
    let said = receipts(&world, &["verify"]);
    assert_eq!(said.exit, 0, "{}", said.stderr);
    assert!(said.stdout.contains("3 further receipts are not sealed yet"), "{}", said.stdout);
    assert!(said.stdout.contains("0 sealed receipts"), "{}", said.stdout);
    assert_eq!(receipts(&world, &["verify", "--json"]).json()["unsealed"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_no_chain() {
    let world = World::start().await;
    let agent = world.key(json!({ "principal": "agent:alice" })).await;
    let url = world.url("");
    for command in ["verify", "export"] {
        program(&["receipts", command, "--url", &url, "--key", &agent]).must_be(Code::Forbidden, command);
    }
}
