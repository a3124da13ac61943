//! Backup, restore and doctor as their users run them: beside a server, without one, and on what is left of one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::server::{self, Options, Server};

use crate::world::{Ended, Engine, Reply, World, program, until};

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The verdicts by the names of the checks, and the whole answer.
pub fn doctor(data: &Path, args: &[&str]) -> (BTreeMap<String, String>, Json, Ended) {
    let ended = program(&[&["doctor", "--json", "--data", text(data)], args].concat());
    let answer = ended.json();
    let mut verdicts = BTreeMap::new();
    for check in answer["checks"].as_array().unwrap() {
        let (name, verdict) = (check["check"].as_str().unwrap(), check["verdict"].as_str().unwrap());
        assert!(verdict == "ok" || verdict == "skipped" || check["cure"].is_string(), "no cure: {check}");
        // The worst of several of the same name counts.
        let kept = verdicts.entry(name.to_owned()).or_insert_with(|| verdict.to_owned());
        if verdict == "failed" || (verdict == "warning" && kept != "failed") {
            verdict.clone_into(kept);
        }
    }
    (verdicts, answer, ended)
}

/// What a check has found.
fn found<'a>(answer: &'a Json, name: &str) -> &'a str {
    let checks = answer["checks"].as_array().unwrap();
    checks.iter().find(|check| check["check"] == name).unwrap()["found"].as_str().unwrap()
}

/// Every file of the folder, with its content, its mode and its time.
pub fn everything(data: &Path) -> BTreeMap<String, (Vec<u8>, u32, std::time::SystemTime)> {
    let of = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let kept = entry.metadata().unwrap();
        let seen = (fs::read(entry.path()).unwrap(), kept.permissions().mode(), kept.modified().unwrap());
        (entry.file_name().into_string().unwrap(), seen)
    };
    fs::read_dir(data).unwrap().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_backed_up_beside_a_server_is_served_again_elsewhere_with_the_old_keys() {
    let world = World::start().await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let task = world.task(&alice).await;
    let home = tempfile::tempdir().unwrap();
    let (backup, data) = (home.path().join("backup"), home.path().join("restored/data"));
    let taken = program(&["backup", text(&backup), "--data", text(&world.server.data_dir), "--json"]);
    assert_eq!(taken.exit, 0, "{}", taken.stderr);
    let taken = taken.json();
    assert_eq!((&taken["rows"]["tasks"], &taken["backup"]), (&json!(1), &json!(text(&backup))));
    let later = world.task(&alice).await;

    let restored = program(&["restore", text(&backup), "--data", text(&data)]);
    assert_eq!((restored.exit, restored.stdout.trim()), (0, text(&data)), "{}", restored.stderr);
    let commit = taken["commit_seq"].to_string();
    for part in [commit.as_str(), "admin.key is not part of a backup", "waybill key create --data", "1 tasks"] {
        assert!(restored.stderr.contains(part), "{part} is not in: {}", restored.stderr);
    }
    let mode = |name: &str| data.join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("waybill.db"), mode("waybill.mark")), (0o700, 0o600, 0o600));
    assert!(!data.join("admin.key").exists());

    let server = Server::start(Options { data: Some(data.clone()), ..Options::default() }).unwrap();
    let get = |task: &str| {
        let url = format!("{}/v1/tasks/{task}", server.base_url);
        Reply::of(world.http.get(url).bearer_auth(&alice))
    };
    assert_eq!(get(&task).await.json()["status"], "queued", "with the key of before");
    assert_eq!(get(&later).await.status, 404, "made after the backup");
    drop(server);
    let made = program(&["key", "create", "--data", text(&data), "--principal", "human:me", "--role", "admin"]);
    assert_eq!(made.exit, 0, "{}", made.stderr);
    assert!(doctor(&data, &[]).1["ok"] == true, "{:?}", doctor(&data, &[]).1);
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_and_restores_that_cannot_be_made_are_refused_and_leave_nothing() {
    let mut world = World::start().await;
    let data = world.server.data_dir.clone();
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    let run = |args: &[&str]| program(&[args, &["--data", text(&data)]].concat());
    let people = run(&["backup", text(&backup)]);
    assert_eq!((people.exit, people.stdout.trim()), (0, text(&backup)), "{}", people.stderr);
    assert!(people.stderr.contains("waybill restore"), "{}", people.stderr);

    run(&["backup", text(&backup)]).must_be(Code::AlreadyExists, "a folder that exists");
    run(&["backup", text(&data.join("in"))]).must_be(Code::InvalidRequest, "inside the data folder");
    run(&["backup", text(&home.path().join("no/where"))]).must_be(Code::PathUnusable, "a folder in none");
    let empty = home.path().join("empty");
    let absent = program(&["backup", text(&home.path().join("b")), "--data", text(&empty)]);
    absent.must_be_cured(Code::NotFound, "Name the server's data folder with --data", "no database");
    assert!(!empty.exists() && !data.join("in").exists());

    let used = run(&["restore", text(&backup)]);
    used.must_be(Code::AlreadyExists, "a data folder in use");
    assert!(used.stderr.contains("--data"), "{}", used.stderr);
    let target = home.path().join("target");
    let restore = |from: &Path| program(&["restore", text(from), "--data", text(&target)]);
    restore(&home.path().join("nothing")).must_be(Code::DatabaseUnusable, "no backup");
    let file = File::options().write(true).open(backup.join("waybill.db")).unwrap();
    file.write_all_at(b"x", 5000).unwrap();
    restore(&backup).must_be(Code::DatabaseUnusable, "a changed backup");
    assert!(!target.exists(), "a restore that was refused has made a folder");
    fs::create_dir(&target).unwrap();
    restore(&backup).must_be(Code::DatabaseUnusable, "a changed backup, into an empty folder");
    assert!(!target.join("waybill.db").exists() && !target.join("waybill.mark").exists());
    assert_eq!(world.server.term().unwrap().code(), Some(0));
}

/// Every write takes five milliseconds, so that the copy is under way for ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_backup_without_a_trace() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: there is no strace to slow a copy down");
        return;
    }
    let world = World::start().await;
    for _ in 0..80 {
        let body = json!({ "type": "t", "payload": "x".repeat(100_000) });
        assert_eq!(world.post(&world.server.admin_key, "/v1/tasks", &body).await.status, 201);
    }
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    let slow = ["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_exit=5000"];
    let mut command = Command::new("strace");
    command.args(slow).arg(server::binary()).args(["backup", text(&backup), "--data", text(&world.server.data_dir)]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_begun = || async { home.path().join("backup.part/waybill.db").metadata().is_ok_and(|copy| copy.len() > 0) };
    until("the copy is under way", is_begun).await;
    assert!(Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap().success());
    let ended = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(i32::from(Code::Interrupted.entry().exit)), "{said}");
    assert!(said.contains("[interrupted]"), "{said}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "something was left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_is_left_to_its_own_tools() {
    const PASSWORD: &str = "hunter2-canary";
    let home = tempfile::tempdir().unwrap();
    let store = format!("postgres://waybill:{PASSWORD}@db.example:6432/ledger");
    for (command, tools) in [("backup", ["pg_dump", "pg_basebackup"]), ("restore", ["pg_restore", "createdb"])] {
        let path = home.path().join("backup");
        let ended = program(&[command, text(&path), "--store", &store, "--data", text(&home.path().join("data"))]);
        ended.must_be(Code::UnsupportedStore, command);
        let said = &ended.stderr;
        assert!(tools.iter().all(|tool| said.contains(tool)), "{said}");
        assert!(said.contains("--host=db.example --port=6432") && said.contains("ledger"), "{said}");
        assert!(!said.contains(PASSWORD), "it tells the password");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_the_server_writes_is_its_owners_alone() {
    let world = World::start().await;
    world.task(&world.server.admin_key).await;
    let files = everything(&world.server.data_dir);
    let expected = ["waybill.db", "waybill.db-wal", "waybill.db-shm", "waybill.mark", "waybill.ballast"];
    for expected in expected.into_iter().chain(["admin.key", "server.key"]) {
        assert!(files.contains_key(expected), "there is no {expected}");
    }
    for (name, (_, mode, _)) in files {
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_deployment_passes_with_and_without_its_server_and_nothing_is_changed() {
    let mut world = World::start().await;
    world.task(&world.server.admin_key).await;
    let data = world.server.data_dir.clone();
    let (verdicts, answer, ended) = doctor(&data, &[]);
    assert_eq!((ended.exit, &answer["ok"]), (0, &json!(true)), "{answer}");
    for check in
        ["data folder", "admin key", "lock", "server", "sqlite", "integrity", "commits", "schema", "ledger", "clock"]
    {
        assert_eq!(verdicts[check], "ok", "{check}: {answer}");
    }
    assert!(found(&answer, "lock").contains(&world.server.pid.to_string()));
    let table = program(&["doctor", "--quick", "--data", text(&data)]);
    assert_eq!(table.exit, 0, "{}", table.stderr);
    assert!(
        table.stdout.contains("integrity") && table.stderr.contains("0 failed"),
        "{}{}",
        table.stdout,
        table.stderr
    );

    // As a crash leaves it, with a log; then as a stop leaves it, without one.
    for kill in [true, false] {
        if kill {
            world.server.kill9().unwrap()
        } else {
            assert!(world.server.term().unwrap().success())
        }
        assert_eq!(data.join("waybill.db-wal").metadata().is_ok_and(|log| log.len() > 0), kill);
        let before = everything(&data);
        let (verdicts, answer, ended) = doctor(&data, &[]);
        assert_eq!((ended.exit, verdicts["server"].as_str()), (0, "skipped"), "{answer}");
        assert_eq!(verdicts["commits"], "ok", "{answer}");
        let after = everything(&data);
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        for (name, kept) in before {
            assert!(kept == after[&name], "{name} was changed");
        }
        world.server.restart().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_folder_is_found_and_named() {
    let mut world = World::start().await;
    let data = world.server.data_dir.clone();
    let (database, home) = (data.join("waybill.db"), tempfile::tempdir().unwrap());
    let older = home.path().join("older");
    assert_eq!(program(&["backup", text(&older), "--data", text(&data)]).exit, 0);
    for _ in 0..150 {
        world.task(&world.server.admin_key).await;
    }
    assert!(world.server.term().unwrap().success());
    let sound = fs::read(&database).unwrap();
    let fails = |check: &str, part: &str| {
        let (verdicts, answer, ended) = doctor(&data, &[]);
        ended.must_be(Code::ChecksFailed, check);
        assert!(ended.stderr.contains(check), "{}", ended.stderr);
        assert_eq!((verdicts[check].as_str(), &answer["ok"]), ("failed", &json!(false)), "{answer}");
        assert!(found(&answer, check).contains(part), "{part}: {answer}");
    };

    fs::copy(older.join("waybill.db"), &database).unwrap();
    fails("commits", "commits are missing");

    let mut torn = sound.clone();
    let middle = torn.len() / 2 / 4096 * 4096;
    torn[middle..middle + 4 * 4096].fill(0xa5);
    fs::write(&database, &torn).unwrap();
    fails("integrity", "");
    fs::write(&database, "no database at all".repeat(1000)).unwrap();
    fails("integrity", "not a database");
    fs::write(&database, &sound[..sound.len() / 2]).unwrap();
    fails("integrity", "");
    fs::write(&database, &sound).unwrap();
    fs::set_permissions(data.join("admin.key"), fs::Permissions::from_mode(0o644)).unwrap();
    fails("admin key", "644");
    fs::set_permissions(data.join("admin.key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let (verdicts, answer, ended) = doctor(&data, &[]);
    assert_eq!((ended.exit, verdicts["data folder"].as_str()), (0, "warning"), "{answer}");
    let schedules = data.join("scheduler.db");
    fs::write(&schedules, "").unwrap();
    fs::set_permissions(&schedules, fs::Permissions::from_mode(0o644)).unwrap();
    let (verdicts, answer, _) = doctor(&data, &[]);
    assert_eq!(verdicts["files"], "warning", "{answer}");
    assert!(found(&answer, "files").ends_with("scheduler.db"), "{answer}");

    let nowhere = doctor(&home.path().join("nowhere"), &[]);
    nowhere.2.must_be(Code::ChecksFailed, "no folder");
    assert!(!home.path().join("nowhere").exists());
    let clash = crate::world::config("[doors]\nbody_bytes_max = 1000\n");
    let (verdicts, answer, _) = doctor(&data, &["--config", text(clash.path())]);
    assert_eq!(verdicts["settings"], "warning", "{answer}");
    let wrong = crate::world::config("colour = 1\n");
    let (verdicts, answer, _) = doctor(&data, &["--config", text(wrong.path())]);
    assert_eq!(verdicts["settings"], "failed", "{answer}");
}

/// Each harm to the same sound file. No page is damaged by it and no index: only the rows contradict each other.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_contradict_each_other_are_named() {
    let mut world = World::start().await;
    let key = world.server.admin_key.clone();
    let over = world.task(&key).await;
    world.task(&key).await;
    assert_eq!(world.post(&key, &format!("/v1/tasks/{over}/cancel"), &json!({})).await.status, 200);
    assert!(world.server.term().unwrap().success());
    let data = world.server.data_dir.clone();
    let database = data.join("waybill.db");
    let sound = fs::read(&database).unwrap();
    let no_result = format!("1 ended tasks without their result ({over})");
    let no_receipt = format!("1 ended tasks without the receipt of their end ({over})");
    let harms: [(&str, &[&str]); 6] = [
        (
            "UPDATE receipts SET open = 1 WHERE receipt_type = 'task.assigned' AND open = 0",
            &["1 obligations that are open although they have ended ("],
        ),
        (
            "UPDATE receipts SET open = 0 WHERE open = 1",
            &["1 obligations that are not open although nothing has ended them ("],
        ),
        (
            "DELETE FROM receipt_parents WHERE child_type = 'task.canceled'",
            &["1 receipts without the link to their parent ("],
        ),
        ("DELETE FROM results", &[&no_result]),
        (
            "DELETE FROM receipts WHERE receipt_type = 'task.canceled'",
            &[&no_receipt, "1 links whose parent is nowhere (", "1 links whose child is nowhere ("],
        ),
        (
            "DELETE FROM receipts WHERE receipt_type = 'task.assigned' AND open = 0",
            &["1 links whose parent is nowhere ("],
        ),
    ];
    for (harm, findings) in harms {
        let connection = rusqlite::Connection::open(&database).unwrap();
        assert_eq!(connection.execute(harm, []).unwrap(), 1, "{harm}");
        connection.close().unwrap();
        let (verdicts, answer, ended) = doctor(&data, &[]);
        ended.must_be(Code::ChecksFailed, harm);
        assert_eq!((verdicts["ledger"].as_str(), verdicts["integrity"].as_str()), ("failed", "ok"), "{harm}: {answer}");
        let text = found(&answer, "ledger");
        assert_eq!(text.split("; ").count(), findings.len(), "{harm}: {text}");
        for finding in findings {
            assert!(text.contains(finding), "{harm}: {finding} is not in: {text}");
        }
        fs::write(&database, &sound).unwrap();
    }
    let (verdicts, answer, _) = doctor(&data, &["--quick"]);
    assert_eq!(verdicts["ledger"], "ok", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_is_archived_in_part_is_in_order_until_the_archive_is_lost() {
    let settings = "[tasks]\nchain_interval_s = 1\narchive_interval_s = 1\narchive_after_s = 0\n";
    let mut world = World::with(Engine::Sqlite, settings, &[]).await;
    let (key, data) = (world.server.admin_key.clone(), world.server.data_dir.clone());
    for _ in 0..3 {
        let task = world.task(&key).await;
        assert_eq!(world.post(&key, &format!("/v1/tasks/{task}/cancel"), &json!({})).await.status, 200);
    }
    world.task(&key).await;
    until("receipts are in the archive", || async {
        let archived = world.get(&key, "/v1/receipts/archive").await.json();
        archived["receipts"].as_array().unwrap().len() == 9
    })
    .await;
    assert_eq!(doctor(&data, &[]).0["ledger"], "ok", "beside the server");
    assert!(world.server.term().unwrap().success());
    let (verdicts, answer, _) = doctor(&data, &[]);
    assert_eq!(verdicts["ledger"], "ok", "{answer}");

    let connection = rusqlite::Connection::open(data.join("waybill.db")).unwrap();
    assert_eq!(connection.execute("DELETE FROM receipt_archive", []).unwrap(), 9);
    connection.close().unwrap();
    let (verdicts, answer, _) = doctor(&data, &[]);
    assert_eq!(verdicts["ledger"], "failed", "{answer}");
    assert!(found(&answer, "ledger").contains("3 ended tasks without the receipt of their end"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stuck_is_told_of() {
    let world = World::start().await;
    world.server.signal("STOP").unwrap();
    let (verdicts, answer, ended) = doctor(&world.server.data_dir, &["--quick"]);
    world.server.signal("CONT").unwrap();
    ended.must_be(Code::ChecksFailed, "a server that does not answer");
    assert_eq!((verdicts["server"].as_str(), verdicts["integrity"].as_str()), ("failed", "ok"), "{answer}");
    assert!(found(&answer, "server").contains("does not answer"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_deployment_is_examined_too() {
    let world = World::with(Engine::Postgres, "", &[]).await;
    let database = world.database.as_ref().unwrap();
    let data = world.server.data_dir.clone();
    let (verdicts, answer, ended) = doctor(&data, &["--store", &database.url]);
    assert_eq!(ended.exit, 0, "{answer}");
    let expected =
        ["postgresql", "server", "schema", "row-level security", "connections", "ledger", "sweeps", "jobs", "clock"];
    for check in expected {
        assert_eq!(verdicts[check], "ok", "{check}: {answer}");
    }
    assert!(["ok", "warning"].contains(&verdicts["open writes"].as_str()), "other tests write as well: {answer}");
    // The tests' cluster runs without fsync, which is what a deployment must be warned of.
    assert_eq!(verdicts["durability"], "warning", "{answer}");
    assert!(found(&answer, "durability").contains("DANGER"), "{answer}");

    let client = database.connect().await.unwrap();
    for (harm, cure) in [
        ("ALTER TABLE tasks DISABLE ROW LEVEL SECURITY", "ALTER TABLE tasks ENABLE ROW LEVEL SECURITY"),
        ("ALTER TABLE tasks NO FORCE ROW LEVEL SECURITY", "ALTER TABLE tasks FORCE ROW LEVEL SECURITY"),
        ("CREATE POLICY leak ON tasks TO waybill_app USING (true)", "DROP POLICY leak ON tasks"),
        ("GRANT SELECT ON meta TO waybill_app", "REVOKE SELECT ON meta FROM waybill_app"),
    ] {
        client.batch_execute(harm).await.unwrap();
        let (verdicts, answer, ended) = doctor(&data, &["--store", &database.url]);
        ended.must_be(Code::ChecksFailed, harm);
        assert_eq!(verdicts["row-level security"], "failed", "{harm}: {answer}");
        client.batch_execute(cure).await.unwrap();
    }
    world.task(&world.server.admin_key).await;
    client.batch_execute("UPDATE receipts SET open = 0 WHERE open = 1").await.unwrap();
    let (verdicts, answer, ended) = doctor(&data, &["--store", &database.url]);
    ended.must_be(Code::ChecksFailed, "an obligation that nothing has ended");
    assert_eq!(verdicts["ledger"], "failed", "{answer}");
    assert!(found(&answer, "ledger").starts_with("1 obligations that are not open although"), "{answer}");
    let away = doctor(&data, &["--store", "postgres://waybill:hunter2@127.0.0.1:1/waybill"]);
    away.2.must_be(Code::ChecksFailed, "no server");
    assert!(!format!("{}{}", away.2.stdout, away.2.stderr).contains("hunter2"));
}
