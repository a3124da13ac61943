//! The archive of mail as an operator meets it: beside a running server, after a crash, deleted under it, and by `waybill mail reconcile`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::world::{Ended, Engine, World, program, until};

const PROJECT: &str = "/data/projects/backend";

async fn begin(world: &World) {
    world.admin_post("/v1/mail/projects", &json!({ "human_key": PROJECT })).await;
    for name in ["GreenCastle", "BlueLake"] {
        let agent = json!({ "project_key": PROJECT, "program": "x", "model": "y", "name": name });
        world.admin_post("/v1/mail/agents", &agent).await;
        let policy = json!({ "project_key": PROJECT, "agent_name": name, "policy": "open" });
        world.admin_post("/v1/mail/contacts/policy", &policy).await;
    }
}

fn letter(subject: &str) -> Json {
    json!({
        "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": subject, "body_md": "Hello.",
        "thread_id": "T-1",
    })
}

fn id_of(sent: &Json) -> i64 {
    sent["deliveries"][0]["payload"]["id"].as_i64().unwrap()
}

fn archive(world: &World) -> PathBuf {
    world.server.data_dir.join("mail-archive/default/data-projects-backend")
}

/// Of a server that is stopped.
fn reconcile(world: &World, mode: &str) -> Ended {
    reconcile_from(&world.server.data_dir, world, mode)
}

/// With another data folder, which PostgreSQL allows.
fn reconcile_from(data: &Path, world: &World, mode: &str) -> Ended {
    let mut words = vec!["mail", "reconcile", mode, "--json", "--data", data.to_str().unwrap()];
    if let Some(database) = &world.database {
        words.extend(["--store", database.url.as_str()]);
    }
    program(&words)
}

fn git(folder: &Path, args: &[&str]) -> String {
    let output =
        Command::new("git").current_dir(folder).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Nothing waits to be written, and nothing is missing.
async fn settled(world: &World) {
    until("the archive has everything", || async {
        let health = world.admin_post("/v1/mail/health", &json!({})).await;
        health["archive"]["wbq_depth"] == 0 && health["archive"]["needs_reindex_total"] == 0
    })
    .await;
}

#[tokio::test]
async fn rule_35_whoever_was_answered_is_in_the_archive_after_kills() {
    let mut world = World::start().await;
    begin(&world).await;
    let mut acknowledged = Vec::new();
    for round in 0..4 {
        let (client, url, key) = (world.http.clone(), world.url("/v1/mail/messages"), world.server.admin_key.clone());
        let sending = tokio::spawn(async move {
            let mut answered = Vec::new();
            for n in 0..10_000 {
                let subject = format!("round {round} note {n}");
                let sent = client.post(&url).bearer_auth(&key).json(&letter(&subject)).send().await;
                let Ok(answer) = sent else { break };
                let Ok(answer) = answer.json::<Json>().await else { break };
                answered.push(id_of(&answer));
            }
            answered
        });
        tokio::time::sleep(Duration::from_millis(300 + 130 * round)).await;
        world.server.kill9().unwrap();
        acknowledged.extend(sending.await.unwrap());
        world.server.restart().unwrap();
    }
    assert!(acknowledged.len() > 20, "{} calls were answered", acknowledged.len());
    settled(&world).await;
    world.server.term().unwrap();
    let ended = reconcile(&world, "--check");
    assert_eq!(ended.exit, 0, "{} {}", ended.stdout, ended.stderr);
    let git_dir = archive(&world).join("archive.git");
    git(&git_dir, &["fsck", "--full", "--strict", "--no-dangling"]);
    let files = git(&git_dir, &["ls-tree", "-r", "--name-only", "HEAD", "messages"]);
    for id in acknowledged {
        assert!(files.lines().any(|path| path.ends_with(&format!("__{id}.md"))), "message {id} is not in the archive");
    }
    let log = git(&git_dir, &["log", "--format=%s"]);
    let reads_well = |line: &str| {
        ["mail: ", "agent: ", "project: ", "batch: ", "state: ", "archive: "]
            .iter()
            .any(|start| line.starts_with(start))
    };
    assert!(log.lines().all(reads_well), "{log}");
}

#[tokio::test]
async fn an_archive_that_is_deleted_under_a_server_stops_no_call_and_comes_back() {
    let world = Arc::new(World::start().await);
    begin(&world).await;
    for n in 0..20 {
        world.admin_post("/v1/mail/messages", &letter(&format!("before {n}"))).await;
    }
    settled(&world).await;
    for name in ["wbq_drained_total", "lockfree_commits_total"] {
        assert!(world.counter(&format!("waybill_mail_{name}")).await > 0, "{name} has moved");
    }
    for name in ["commit_errors_total", "commit_sync_fallbacks_total"] {
        assert_eq!(world.counter(&format!("waybill_mail_{name}")).await, 0, "{name} has not");
    }
    for name in ["wbq_depth", "needs_reindex_total"] {
        until(name, || async {
            let shown = world.get(&world.server.admin_key, "/metrics").await.text;
            shown.contains(&format!("\nwaybill_mail_{name} 0\n"))
        })
        .await;
    }
    std::fs::remove_dir_all(world.server.data_dir.join("mail-archive")).unwrap();
    for n in 0..20 {
        world.admin_post("/v1/mail/messages", &letter(&format!("after {n}"))).await;
    }
    settled(&world).await;
    let mut world = Arc::into_inner(world).unwrap();
    world.server.term().unwrap();
    let ended = reconcile(&world, "--check");
    assert_eq!(ended.exit, 0, "{} {}", ended.stdout, ended.stderr);
}

/// Also where several servers could share the database.
const WRITES_ARCHIVE: &str = "[mail_archive]\nenabled = true\n";

async fn nothing_is_repaired_while_a_server_holds_the_folder(engine: Engine) {
    let mut world = World::with(engine, WRITES_ARCHIVE, &[]).await;
    begin(&world).await;
    world.admin_post("/v1/mail/messages", &letter("one")).await;
    settled(&world).await;
    let git_dir = archive(&world).join("archive.git");
    let head = || git(&git_dir, &["rev-parse", "HEAD"]);
    let before = head();
    for mode in ["--check", "--rebuild", "--reindex"] {
        let busy = reconcile(&world, mode);
        busy.must_be_cured(Code::DataFolderLocked, "Stop the server", &format!("{mode} beside a server"));
        // On the same database from a folder of one's own, where the archive would be another one.
        if world.database.is_some() {
            let elsewhere = tempfile::tempdir().unwrap();
            let busy = reconcile_from(elsewhere.path(), &world, mode);
            busy.must_be_cured(Code::DataFolderLocked, "Stop the server", &format!("{mode} from another folder"));
            assert!(!elsewhere.path().join("mail-archive").exists(), "{mode} wrote an archive");
        }
    }
    assert_eq!(head(), before, "nothing was written");
    // The server has lost nothing by it, and each of them works once it is gone.
    world.admin_post("/v1/mail/messages", &letter("two")).await;
    settled(&world).await;
    world.server.term().unwrap();
    for mode in ["--check", "--rebuild", "--reindex", "--check"] {
        let ended = reconcile(&world, mode);
        assert_eq!(ended.exit, 0, "{mode}: {} {}", ended.stdout, ended.stderr);
    }
}

#[tokio::test]
async fn rule_44_nothing_is_repaired_while_a_server_holds_the_folder_on_sqlite() {
    nothing_is_repaired_while_a_server_holds_the_folder(Engine::Sqlite).await;
}

#[tokio::test]
async fn rule_44_nothing_is_repaired_while_a_server_holds_the_folder_on_postgresql() {
    nothing_is_repaired_while_a_server_holds_the_folder(Engine::Postgres).await;
}

#[tokio::test]
async fn rule_40_and_41_reconcile_has_exit_codes_and_a_report() {
    let mut world = World::start().await;
    begin(&world).await;
    world.admin_post("/v1/mail/messages", &letter("one")).await;
    settled(&world).await;
    world.server.term().unwrap();
    assert_eq!(reconcile(&world, "--check").exit, 0);
    std::fs::remove_dir_all(archive(&world)).unwrap();
    let ended = reconcile(&world, "--check");
    assert_eq!(ended.exit, i32::from(Code::ChecksFailed.entry().exit), "{}", ended.stderr);
    let report = ended.json();
    assert_eq!(report["consistent"], false);
    assert!(report["missing"].as_i64().unwrap() >= 5, "{report}");
    assert!(!archive(&world).exists(), "a check makes nothing");
    let ended = reconcile(&world, "--rebuild");
    assert_eq!((ended.exit, &ended.json()["consistent"]), (0, &json!(true)), "{}", ended.stderr);
    assert_eq!(reconcile(&world, "--check").exit, 0);
    let again = reconcile(&world, "--rebuild").json();
    assert_eq!((&again["written"], &again["removed"]), (&json!(0), &json!(0)), "{again}");
    let neither = program(&["mail", "reconcile", "--check", "--rebuild"]);
    assert_eq!(neither.exit, 2, "{}", neither.stderr);
}

/// A folder has no room for such a name, so it ends with a digest from which the name cannot be read.
#[tokio::test]
async fn the_archive_of_a_tenant_with_a_long_name_is_read_back() {
    let mut world = World::start().await;
    let name = "Ж".repeat(60);
    world.admin_post("/admin/tenants", &json!({ "name": name })).await;
    let scopes = ["mail:read", "mail:write"];
    let key = world.key(json!({ "principal": "agent:alice", "tenant": name, "scopes": scopes })).await;
    for (path, input) in [
        ("/v1/mail/projects", json!({ "human_key": PROJECT })),
        ("/v1/mail/agents", json!({ "project_key": PROJECT, "program": "x", "model": "y", "name": "GreenCastle" })),
    ] {
        let made = world.post(&key, path, &input).await;
        assert!(made.status < 300, "{path}: {}", made.text);
    }
    world.server.term().unwrap();
    for mode in ["--rebuild", "--reindex"] {
        let ended = reconcile(&world, mode);
        assert_eq!(ended.exit, 0, "{mode}: {} {}", ended.stdout, ended.stderr);
    }
    let report = reconcile(&world, "--reindex").json();
    assert_eq!((&report["refused"], &report["agents"]["known"]), (&json!([]), &json!(1)), "{report}");
}
