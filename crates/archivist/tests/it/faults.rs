//! What goes wrong with disks, repositories and processes, and that no tool notices.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::json;
use waybill_archivist::Settings;
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_04_an_archive_that_cannot_be_written_stops_no_tool,
    rule_30_critical_pressure_passes_rows_over_and_31_they_are_known,
    rule_32_after_all_tries_it_rests_and_a_later_commit_has_it_all,
    rule_39_the_probe_finds_what_is_missing_and_it_comes_back,
    an_archive_that_was_removed_is_written_again,
    an_archive_that_is_removed_while_it_is_written_again_is_whole_in_the_end,
    a_damaged_repository_begins_again_and_is_completed,
    rule_49_the_figures_of_the_contract_move,
    rule_33_locks_of_git_and_its_collections_harm_nothing,
    a_row_that_cannot_be_filed_stands_in_nobodys_way,
}

async fn rule_04_an_archive_that_cannot_be_written_stops_no_tool(on: TestStore) {
    let world = World::new(on).await;
    // A file where the root should be: nobody, not even root, can make a folder in it.
    fs::write(world.root(), "in the way").unwrap();
    let mut archivist = world.archivist(Settings { tries_max: 20, ..settings() });
    archivist.settle().await.unwrap();
    world.send("x", json!({})).await;
    archivist.settle().await.unwrap();
    let health = world.health_check().await;
    assert_eq!(health["archive"]["health_level"], "yellow", "{health}");
    assert!(health["archive"]["last_error"].is_string(), "{health}");
    fs::remove_file(world.root()).unwrap();
    while world.rows("waiting").await > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        archivist.settle().await.unwrap();
    }
    archivist.settle().await.unwrap();
    world.judge().await;
    let health = world.health_check().await;
    assert_eq!((health["status"].as_str(), health["archive"]["wbq_depth"].as_i64()), (Some("ok"), Some(0)), "{health}");
    assert!(health["archive"].get("last_error").is_none(), "{health}");
}

async fn rule_30_critical_pressure_passes_rows_over_and_31_they_are_known(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let full = Settings { disk_critical_mb: 1_000_000_000, ..settings() };
    let mut archivist = world.archivist(full.clone());
    let ids = [world.send("one", json!({})).await, world.send("two", json!({})).await];
    archivist.settle().await.unwrap();
    assert_eq!((world.rows("skipped").await, world.rows("waiting").await), (2, 0));
    let health = world.health_check().await;
    assert_eq!(health["archive"]["needs_reindex_total"], 2, "{health}");
    assert_eq!(
        (health["health_level"].as_str(), health["archive"]["disk_pressure"].as_str()),
        (Some("red"), Some("critical"))
    );
    // After a restart they are still known, and a check finds exactly them.
    drop(archivist);
    world.archivist(full).probe().await;
    let report = world.check().await;
    assert!(!report.consistent);
    let canonical: Vec<&str> =
        report.findings.iter().map(|found| found.path.as_str()).filter(|path| path.starts_with("messages/2")).collect();
    assert_eq!(canonical.len(), 2, "{report:?}");
    assert!(ids.iter().all(|id| canonical.iter().any(|path| path.ends_with(&format!("__{id}.md")))), "{canonical:?}");
    // With room again they are written, and health is green without a restart of anything else.
    world.settle().await;
    world.judge().await;
    let health = world.health_check().await;
    assert_eq!(
        (health["health_level"].as_str(), health["archive"]["needs_reindex_total"].as_i64()),
        (Some("green"), Some(0))
    );
}

async fn rule_32_after_all_tries_it_rests_and_a_later_commit_has_it_all(on: TestStore) {
    let world = World::new(on).await;
    fs::write(world.root(), "in the way").unwrap();
    let impatient = Settings { tries_max: 3, backoff_ms: 1, breaker_s: 1, ..settings() };
    let mut archivist = world.archivist(impatient);
    for _ in 0..3 {
        archivist.settle().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    archivist.settle().await.unwrap();
    assert_eq!(world.rows("waiting").await, 0, "while it rests rows are passed over");
    let passed = world.rows("skipped").await;
    assert!(passed > 0);
    let health = world.health_check().await;
    assert_eq!(
        (health["health_level"].as_str(), health["archive"]["needs_reindex_total"].as_i64()),
        (Some("red"), Some(passed))
    );
    fs::remove_file(world.root()).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    archivist.settle().await.unwrap();
    world.judge().await;
    assert_eq!(world.health_check().await["health_level"], "green");
}

async fn rule_39_the_probe_finds_what_is_missing_and_it_comes_back(on: TestStore) {
    let world = World::new(on).await;
    world.send("one", json!({})).await;
    world.send("two", json!({})).await;
    world.settle().await;
    let (path, _) = world.file(&["messages/2", "__one__"]);
    fs::remove_file(world.project().join("files").join(path)).unwrap();
    let mut archivist = world.archivist(settings());
    archivist.probe().await;
    let health = world.health_check().await;
    assert_eq!(health["archive"]["needs_reindex_total"], 1, "{health}");
    archivist.settle().await.unwrap();
    assert_eq!(world.health_check().await["archive"]["needs_reindex_total"], 0);
    world.judge().await;
    // What only waits to be written is not missing.
    world.send("three", json!({})).await;
    archivist.probe().await;
    assert_eq!(world.health_check().await["archive"]["needs_reindex_total"], 0);
}

async fn an_archive_that_was_removed_is_written_again(on: TestStore) {
    let world = World::new(on).await;
    for n in 0..30 {
        world.send(&format!("note {n}"), json!({ "thread_id": "T" })).await;
    }
    world.settle().await;
    world.judge().await;
    let files = world.files();
    fs::remove_dir_all(world.root()).unwrap();
    world.send("the next one", json!({})).await;
    world.settle().await;
    world.judge().await;
    let again = world.files();
    assert!(files.iter().all(|(path, content)| again.get(path) == Some(content)), "everything is as it was");
    assert_eq!(again.len(), files.len() + 3);
    assert!(!world.project().join("begun-again").exists());
}

async fn an_archive_that_is_removed_while_it_is_written_again_is_whole_in_the_end(on: TestStore) {
    let world = World::new(on).await;
    for n in 0..40 {
        world.send(&format!("note {n}"), json!({ "body_md": "x".repeat(20_000) })).await;
    }
    world.settle().await;
    fs::remove_dir_all(world.root()).unwrap();
    // Pieces of three messages: the walk takes several turns, and the archive goes in the middle of it.
    let small = Settings { window_bytes_max: 1 << 16, ..settings() };
    let mut archivist = world.archivist(small);
    world.send("the next one", json!({})).await;
    let root = world.root();
    let remover = std::thread::spawn(move || {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while files_of(&root).len() < 25 && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        // In one step, under the hands of whoever writes.
        fs::rename(&root, root.with_extension("gone")).unwrap();
    });
    archivist.settle().await.unwrap();
    remover.join().unwrap();
    // Whatever it was doing when the folder went: a later turn completes it.
    for _ in 0..5 {
        archivist.probe().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        archivist.settle().await.unwrap();
    }
    world.judge().await;
}

async fn a_damaged_repository_begins_again_and_is_completed(on: TestStore) {
    let world = World::new(on).await;
    for n in 0..10 {
        world.send(&format!("note {n}"), json!({})).await;
    }
    world.settle().await;
    world.archive.close();
    let packs = world.project().join("archive.git/objects/pack");
    for entry in fs::read_dir(&packs).unwrap().flatten() {
        let mut mode = entry.metadata().unwrap().permissions();
        mode.set_mode(0o600);
        fs::set_permissions(entry.path(), mode).unwrap();
        fs::write(entry.path(), b"rubbish").unwrap();
    }
    let (path, _) = world.file(&["messages/2", "__note-3__"]);
    fs::remove_file(world.project().join("files").join(path)).unwrap();
    assert_eq!(world.check().await.damaged, 1, "a check tells it and changes nothing");
    world.send("the next one", json!({})).await;
    world.settle().await;
    world.judge().await;
    let aside = fs::read_dir(world.project()).unwrap().flatten();
    let aside = aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("archive.git.aside-")).count();
    assert_eq!(aside, 1, "nothing is deleted");
}

async fn rule_33_locks_of_git_and_its_collections_harm_nothing(on: TestStore) {
    let world = World::new(on).await;
    world.send("one", json!({})).await;
    world.settle().await;
    let git_dir = world.project().join("archive.git");
    fs::write(git_dir.join("index.lock"), "").unwrap();
    world.send("two", json!({})).await;
    world.settle().await;
    git(&git_dir, &["gc", "--quiet"]);
    world.send("three", json!({})).await;
    world.settle().await;
    git(&git_dir, &["gc", "--quiet", "--aggressive", "--prune=now"]);
    world.send("four", json!({})).await;
    world.settle().await;
    world.judge().await;
}

async fn a_row_that_cannot_be_filed_stands_in_nobodys_way(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let bad = world.send("bad", json!({})).await;
    // A time that no calendar has.
    world
        .on
        .write(&format!("UPDATE mail_messages SET created_at = {} WHERE message = {bad}", i64::MAX / 2))
        .await
        .unwrap();
    world.send("good", json!({})).await;
    world.settle().await;
    world.file(&["messages/2", "__good__"]);
    assert_eq!((world.rows("failed").await, world.rows("waiting").await), (1, 0));
    let health = world.health_check().await;
    assert_eq!(
        (health["health_level"].as_str(), health["archive"]["needs_reindex_total"].as_i64()),
        (Some("yellow"), Some(1)),
        "{health}"
    );
}

/// The six of the contract, each where it should move: pressure, failed commits, a thread that died, a file that is missing.
async fn rule_49_the_figures_of_the_contract_move(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let names = ["wbq_errors_total", "commit_errors_total", "commit_sync_fallbacks_total"];
    let before = names.map(figure);
    // Pressure.
    world.send("one", json!({})).await;
    world.archivist(Settings { disk_critical_mb: 1_000_000_000, ..settings() }).settle().await.unwrap();
    assert_eq!((figure("wbq_depth"), figure("needs_reindex_total")), (1.0, 1.0));
    // A folder that cannot be written.
    world.archive.close();
    fs::rename(world.root(), world.folder.path().join("away")).unwrap();
    fs::write(world.root(), "in the way").unwrap();
    let mut archivist = world.archivist(Settings { tries_max: 1, breaker_s: 60, ..settings() });
    archivist.settle().await.unwrap();
    fs::remove_file(world.root()).unwrap();
    fs::rename(world.folder.path().join("away"), world.root()).unwrap();
    // A thread that dies.
    let deaths = std::sync::atomic::AtomicU32::new(0);
    let dying = move || {
        if deaths.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            panic!("this thread dies, as the test wants");
        }
    };
    world.archivist(settings()).watched(dying).settle().await.unwrap();
    for (name, before) in names.into_iter().zip(before) {
        assert!(figure(name) > before, "{name}");
    }
    let archive = world.health_check().await["archive"].clone();
    assert_eq!(archive["commit_pending_requests"], 0, "{archive}");
    assert!(archive["commit_errors_total"].as_u64().is_some_and(|errors| errors > 0), "{archive}");
    assert_eq!(figure("wbq_depth"), 0.0);
    // A file that is missing.
    let (path, _) = world.file(&["messages/2", "__one__"]);
    fs::remove_file(world.project().join("files").join(path)).unwrap();
    world.archivist(settings()).probe().await;
    assert_eq!(figure("needs_reindex_total"), 1.0);
    // Opened after the recorder, which the case's own store was not.
    let late = waybill_testkit::stores::open_sqlite().await.unwrap();
    late.count("SELECT count(*) FROM mail_messages").await.unwrap();
    let waited = rendered().lines().filter(|line| line.starts_with("waybill_pool_acquire_latency_us")).count();
    assert!(waited > 0, "waits for the database are told");
}
