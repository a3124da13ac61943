//! The archiver beside calls: windows, order, bounds, the end of a program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio_util::sync::CancellationToken;
use waybill_archive::repo::Archive;
use waybill_archivist::{Archivist, Settings};
use waybill_store::effects::{Holder, sweep_once};
use waybill_testkit::stores::{TestStore, readable};

use crate::support::*;

waybill_testkit::both! {
    rule_27_what_is_written_within_a_window_shares_a_commit,
    rule_28_one_at_a_time_writes_an_archive,
    rule_26_an_older_state_never_replaces_a_newer_one,
    windows_are_bounded_by_rows_and_by_bytes,
    rule_23_the_answer_waits_for_neither_file_nor_commit,
    rule_34_whoever_dies_with_a_window_has_it_written_by_another,
    rule_29_every_message_of_the_database_has_its_canonical_file,
    rule_46_nothing_is_lost_when_many_write,
    rule_47_gauges_return_to_nothing_and_health_to_green,
    a_reservation_that_was_forgotten_leaves_the_tree_and_stays_in_the_history,
    what_waits_is_written_before_the_end,
    rule_35_whoever_dies_before_the_record_writes_the_window_again,
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} took too long");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn rule_27_what_is_written_within_a_window_shares_a_commit(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let before = world.commits();
    let stopping = CancellationToken::new();
    let settings = Settings { window_ms: 500, ..settings() };
    let running = tokio::spawn(world.archivist(settings).run(stopping.clone()));
    for n in 0..100 {
        world.send(&format!("note {n}"), json!({})).await;
    }
    until("archiving", async || world.rows("waiting").await == 0).await;
    stopping.cancel();
    running.await.unwrap();
    let commits = world.commits() - before;
    assert!(commits <= 20, "{commits} commits for 100 messages");
    world.settle().await;
    world.judge().await;
    assert!(world.log().contains("messages"), "{}", world.log());
}

async fn rule_28_one_at_a_time_writes_an_archive(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    world.send("x", json!({})).await;
    // The first has the repository open, and with it the kernel's lock.
    let other = Arc::new(Archive::new(world.root(), settings().limits()));
    let second = || Archivist::new(world.on.store.clone(), Arc::clone(&other), settings(), world.health());
    second().settle().await.unwrap();
    assert_eq!(world.rows("waiting").await, 1, "the row waits for whoever may write");
    let health = world.health_check().await;
    assert_eq!(health["health_level"], "yellow", "{health}");
    world.archive.close();
    second().settle().await.unwrap();
    other.close();
    world.judge().await;
    assert_eq!(world.health_check().await["health_level"], "green");
}

async fn rule_26_an_older_state_never_replaces_a_newer_one(on: TestStore) {
    let world = World::new(on).await;
    for task in ["one", "two", "three"] {
        let again = json!({
            "project_key": HOME, "program": "claude-code", "model": "opus", "name": "GreenCastle", "task_description": task,
        });
        world.call(&world.alice, "register_agent", again).await;
    }
    // One row at a time: each of the three is written by itself.
    let slow = Settings { window_rows_max: 1, ..settings() };
    world.archivist(slow).settle().await.unwrap();
    assert_eq!(world.json(&["agents/GreenCastle/profile.json"])["task_description"], "three");
    world.judge().await;
}

async fn windows_are_bounded_by_rows_and_by_bytes(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let before = world.commits();
    for n in 0..8 {
        world.send(&format!("note {n}"), json!({ "body_md": "x".repeat(40_000) })).await;
    }
    let small = Settings { window_bytes_max: 1 << 16, ..settings() };
    world.archivist(small).settle().await.unwrap();
    assert_eq!(world.commits() - before, 8, "two of them do not fit into one window");
    for n in 0..8 {
        world.send(&format!("more {n}"), json!({})).await;
    }
    let before = world.commits();
    world.archivist(Settings { window_rows_max: 4, ..settings() }).settle().await.unwrap();
    assert_eq!(world.commits() - before, 2);
    world.settle().await;
    world.judge().await;
}

async fn rule_46_nothing_is_lost_when_many_write(on: TestStore) {
    let world = Arc::new(World::new(on).await);
    let stopping = CancellationToken::new();
    let running = tokio::spawn(world.archivist(settings()).run(stopping.clone()));
    let mut senders = Vec::new();
    for sender in 0..20 {
        let world = Arc::clone(&world);
        senders.push(tokio::spawn(async move {
            for n in 0..100 {
                world.send(&format!("from {sender} number {n}"), json!({ "thread_id": format!("T-{sender}") })).await;
            }
        }));
    }
    for sender in senders {
        sender.await.unwrap();
    }
    stopping.cancel();
    running.await.unwrap();
    world.settle().await;
    world.judge().await;
    let canonical = world.files().keys().filter(|path| path.starts_with("messages/2")).count();
    assert_eq!(canonical, 2_000);
}

/// After the last row was written: git finds nothing wrong, the tree is the files, and each row of a message has the file that is
/// named after it, in the project that it was sent in.
async fn rule_29_every_message_of_the_database_has_its_canonical_file(on: TestStore) {
    let world = World::new(on).await;
    world.agent(&world.bob, OTHER, "RedStone").await;
    let running_settings = Settings { window_ms: 5, ..settings() };
    let stopping = CancellationToken::new();
    let running = tokio::spawn(world.archivist(running_settings).run(stopping.clone()));
    for n in 0..60 {
        let id = world.send(&format!("note {n}"), json!({ "thread_id": format!("T-{}", n % 7) })).await;
        let of = json!({ "project_key": HOME, "agent_name": "BlueLake", "message_id": id });
        world.call(&world.bob, "mark_message_read", of).await;
    }
    let ask = json!({ "project_key": OTHER, "from_agent": "RedStone", "to_agent": "GreenCastle", "to_project": HOME });
    world.call(&world.bob, "request_contact", ask).await;
    stopping.cancel();
    running.await.unwrap();
    world.judge().await;
    let sql = "SELECT m.message, p.slug FROM mail_messages m JOIN mail_projects p ON p.project = m.project ORDER BY m.message";
    let messages = world.on.rows(sql).await.unwrap();
    assert_eq!(messages.len(), 61);
    for row in messages {
        let (id, slug) = (row.int(0).unwrap(), row.text(1).unwrap());
        let project = waybill_archive::repo::ProjectKey::new("default", slug).below(&world.root());
        let (files, end) = (files_of(&project.join("files")), format!("__{id}.md"));
        let canonical: Vec<&String> =
            files.keys().filter(|path| path.starts_with("messages/2") && path.ends_with(&end)).collect();
        assert_eq!(canonical.len(), 1, "message {id} of {slug}: {canonical:?}");
        let text = waybill_archive::layout::Message::read(files[canonical[0]].as_bytes()).unwrap();
        assert_eq!(text.id, id);
    }
}

async fn what_waits_is_written_before_the_end(on: TestStore) {
    let world = World::new(on).await;
    let slow = Settings { window_ms: 10_000, changes_ms: 600_000, ..settings() };
    let stopping = CancellationToken::new();
    let running = tokio::spawn(world.archivist(slow).run(stopping.clone()));
    world.send("the last one", json!({})).await;
    stopping.cancel();
    running.await.unwrap();
    world.judge().await;
}

async fn rule_35_whoever_dies_before_the_record_writes_the_window_again(on: TestStore) {
    let world = World::new(on).await;
    world.send("x", json!({ "thread_id": "T" })).await;
    world.settle().await;
    let commits = world.commits();
    // As if the process had died between the commit of the archive and that of the database.
    world
        .on
        .write(
            "INSERT INTO mail_archive_rows (tenant, project, kind, ref, at, state, next_at) \
             SELECT tenant, project, 'message', message, created_at, 'waiting', created_at FROM mail_messages",
        )
        .await
        .unwrap();
    world.on.write("UPDATE mail_changes SET archived = 0, archived_until = 0").await.unwrap();
    world.archive.close();
    world.settle().await;
    assert_eq!(world.commits(), commits, "what is there is not written twice");
    world.judge().await;
}

/// Nobody writes the archive: every call is answered all the same, and what it has to write waits in the order of commits.
async fn rule_23_the_answer_waits_for_neither_file_nor_commit(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let (commits, files) = (world.commits(), world.files().len());
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(world.send(&format!("note {n}"), json!({})).await);
        let read = json!({ "project_key": HOME, "agent_name": "BlueLake", "message_id": ids[n] });
        world.call(&world.bob, "mark_message_read", read).await;
    }
    assert_eq!((world.commits(), world.files().len()), (commits, files), "nothing was written");
    let rows = world.on.rows("SELECT ref FROM mail_archive_rows ORDER BY xact, row").await.unwrap();
    let waiting: Vec<i64> = rows.iter().map(|row| row.int(0).unwrap()).collect();
    assert_eq!(waiting, ids);
    world.settle().await;
    world.judge().await;
}

async fn rule_34_whoever_dies_with_a_window_has_it_written_by_another(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let before = figure("commit_sync_fallbacks_total");
    world.send("one", json!({})).await;
    let deaths = std::sync::atomic::AtomicU32::new(0);
    let dying = move || {
        if deaths.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            panic!("this thread dies, as the test wants");
        }
    };
    world.archivist(settings()).watched(dying).settle().await.map_err(readable).unwrap();
    assert_eq!(figure("commit_sync_fallbacks_total") - before, 1.0);
    world.judge().await;
    assert!(world.file(&["messages/2", "__one__"]).1.contains("Hello."));
}

async fn rule_47_gauges_return_to_nothing_and_health_to_green(on: TestStore) {
    let world = World::new(on).await;
    let full = Settings { disk_critical_mb: 1_000_000_000, ..settings() };
    let mut archivist = world.archivist(full);
    world.send("one", json!({})).await;
    archivist.settle().await.map_err(readable).unwrap();
    assert_eq!(world.health_check().await["health_level"], "red");
    assert!(figure("wbq_depth") > 0.0 && figure("needs_reindex_total") > 0.0);
    drop(archivist);
    world.settle().await;
    let health = world.health_check().await;
    assert_eq!((health["status"].as_str(), health["health_level"].as_str()), (Some("ok"), Some("green")), "{health}");
    assert_eq!(world.on.store.pool().active, 0);
    for gauge in ["wbq_depth", "needs_reindex_total", "commit_pending_requests"] {
        assert_eq!(figure(gauge), 0.0, "{gauge}");
    }
}

async fn a_reservation_that_was_forgotten_leaves_the_tree_and_stays_in_the_history(on: TestStore) {
    let world = World::new(on).await;
    let reserve =
        |path: &str| json!({ "project_key": HOME, "agent_name": "BlueLake", "paths": [path], "ttl_seconds": 60 });
    world.call(&world.bob, "file_reservation_paths", reserve("src/old.rs")).await;
    world.call(&world.bob, "file_reservation_paths", reserve("src/new.rs")).await;
    world.settle().await;
    let (path, _) = world.file(&["file_reservations/", "id-1"]);
    world.on.time.pass(Duration::from_secs(31 * 86_400));
    let sweep = waybill_mail::sweeps::OldReservations::new(&waybill_mail::Settings::default());
    let done = sweep_once(&world.on.store, &Arc::new(sweep), Holder::new(&world.on.store)).await;
    assert_eq!(done.map_err(readable).unwrap().rows, 1);
    assert_eq!(world.on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 1, "the newest one stays");
    world.settle().await;
    world.judge().await;
    assert!(!world.files().contains_key(&path));
    let kept = git(&world.project().join("archive.git"), &["log", "--all", "--format=%H", "--", &path]);
    assert_eq!(kept.lines().count(), 2, "written once and removed once");
}
