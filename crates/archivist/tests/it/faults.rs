//! What goes wrong with disks, repositories and processes, and that no tool notices.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::json;
use waybill_archive::repo::ProjectKey;
use waybill_archivist::Settings;
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_04_an_archive_that_cannot_be_written_stops_no_tool,
    rule_30_critical_pressure_passes_rows_over_and_raises_the_mark,
    rule_30_an_open_breaker_passes_rows_over_and_raises_the_mark,
    rule_31_what_was_passed_over_is_known_after_a_restart,
    rule_32_after_all_tries_it_rests_and_a_later_commit_has_it_all,
    rule_39_the_probe_finds_what_is_missing_and_it_comes_back,
    an_archive_that_was_removed_is_written_again,
    an_archive_that_is_removed_while_it_is_written_again_is_whole_in_the_end,
    a_damaged_repository_begins_again_and_is_completed,
    rule_49_the_figures_of_the_contract_move,
    rule_33_locks_of_git_and_its_collections_harm_nothing,
    a_row_that_cannot_be_filed_stands_in_nobodys_way,
    what_is_broken_for_one_tenant_is_told_to_no_other,
    a_project_that_rests_keeps_no_places,
    many_projects_that_rest_keep_no_places,
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

fn full() -> Settings {
    Settings { disk_critical_mb: 1_000_000_000, ..settings() }
}

/// A file where the project's folder should be: nobody can make a folder of it.
fn break_project(world: &World, tenant: &str, slug: &str) {
    let folder = ProjectKey::new(tenant, slug).below(&world.root());
    fs::create_dir_all(folder.parent().unwrap()).unwrap();
    fs::write(folder, "in the way").unwrap();
}

async fn rule_30_critical_pressure_passes_rows_over_and_raises_the_mark(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let files = world.files();
    let mut archivist = world.archivist(full());
    for (n, subject) in ["one", "two"].into_iter().enumerate() {
        let passed_over = figure("wbq_fallbacks_total");
        world.send(subject, json!({})).await;
        archivist.settle().await.unwrap();
        let mark = n + 1;
        assert_eq!((world.rows("skipped").await, world.rows("waiting").await), (mark as i64, 0));
        assert_eq!(figure("wbq_fallbacks_total") - passed_over, 1.0);
        assert_eq!(figure("needs_reindex_total"), mark as f64);
        let health = world.health_check().await;
        assert_eq!(health["archive"]["needs_reindex_total"], mark, "{health}");
        assert_eq!(
            (health["health_level"].as_str(), health["archive"]["disk_pressure"].as_str()),
            (Some("red"), Some("critical"))
        );
    }
    assert_eq!(world.files(), files, "nothing was written");
}

async fn rule_30_an_open_breaker_passes_rows_over_and_raises_the_mark(on: TestStore) {
    let world = World::new(on).await;
    break_project(&world, "default", SLUG);
    let mut archivist = world.archivist(Settings { tries_max: 1, breaker_s: 600, ..settings() });
    archivist.settle().await.unwrap();
    let before = world.rows("skipped").await;
    world.send("one", json!({})).await;
    archivist.settle().await.unwrap();
    assert_eq!((world.rows("skipped").await, world.rows("waiting").await), (before + 1, 0));
    let health = world.health_check().await;
    assert_eq!(
        (health["health_level"].as_str(), health["archive"]["needs_reindex_total"].as_i64()),
        (Some("red"), Some(before + 1)),
        "{health}"
    );
}

async fn rule_31_what_was_passed_over_is_known_after_a_restart(on: TestStore) {
    let world = World::new(on).await;
    world.send("zero", json!({})).await;
    world.settle().await;
    let mut archivist = world.archivist(full());
    let ids = [world.send("one", json!({})).await, world.send("two", json!({})).await];
    archivist.settle().await.unwrap();
    drop(archivist);
    // The next process knows them by their rows, and a check finds exactly them.
    world.archivist(full()).probe().await;
    assert_eq!(world.health_check().await["archive"]["needs_reindex_total"], 2);
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
    let (given_up, tries) = (figure("commit_errors_total"), figure("wbq_errors_total"));
    break_project(&world, "default", SLUG);
    let impatient = Settings { tries_max: 3, backoff_ms: 1, breaker_s: 1, ..settings() };
    let mut archivist = world.archivist(impatient);
    for _ in 0..3 {
        archivist.settle().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    archivist.settle().await.unwrap();
    assert_eq!(figure("wbq_errors_total") - tries, 3.0, "each try is counted");
    assert_eq!(figure("commit_errors_total") - given_up, 1.0, "and once that it was given up");
    assert_eq!(world.rows("waiting").await, 0, "while it rests rows are passed over");
    let passed = world.rows("skipped").await;
    assert!(passed > 0);
    let health = world.health_check().await;
    assert_eq!(
        (health["health_level"].as_str(), health["archive"]["needs_reindex_total"].as_i64()),
        (Some("red"), Some(passed))
    );
    fs::remove_file(world.project()).unwrap();
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

async fn what_is_broken_for_one_tenant_is_told_to_no_other(on: TestStore) {
    let world = World::new(on).await;
    let stranger = world.on.tenant("acme").await.unwrap();
    world.agent(&stranger, "/data/projects/secret", "RedStone").await;
    break_project(&world, "acme", "data-projects-secret");
    let mut archivist = world.archivist(Settings { tries_max: 1, breaker_s: 600, ..settings() });
    archivist.settle().await.unwrap();
    world.send("one", json!({})).await;
    archivist.settle().await.unwrap();
    let health = world.health_check().await;
    assert_eq!((health["status"].as_str(), health["health_level"].as_str()), (Some("ok"), Some("green")), "{health}");
    assert!(health["archive"].get("last_error").is_none(), "{health}");
    let locks = world.call(&world.alice, "get_locks", json!({})).await;
    assert_eq!((&locks["projects_failing"], &locks["projects_resting"]), (&json!(0), &json!(0)), "{locks}");
    // Whose it is learns that it is broken, and nothing about the server's folders.
    let health = world.call(&stranger, "health_check", json!({})).await;
    assert_eq!(health["health_level"], "red", "{health}");
    let error = health["archive"]["last_error"].as_str().unwrap();
    for part in ["/", "secret", "acme", "root"] {
        assert!(!error.contains(part), "{error} names {part}");
    }
    let locks = world.call(&stranger, "get_locks", json!({})).await;
    assert_eq!((&locks["projects_failing"], &locks["projects_resting"]), (&json!(1), &json!(1)), "{locks}");
    // What the probe misses of one is not missing for the other.
    let (path, _) = world.file(&["messages/2", "__one__"]);
    fs::remove_file(world.project().join("files").join(path)).unwrap();
    let before = world.call(&stranger, "health_check", json!({})).await["archive"]["needs_reindex_total"].clone();
    archivist.probe().await;
    assert_eq!(world.health_check().await["archive"]["needs_reindex_total"], 1);
    assert_eq!(world.call(&stranger, "health_check", json!({})).await["archive"]["needs_reindex_total"], before);
}

/// As many changed agents as a look ever took, all of a project that cannot be written, and all changed before the one of another.
async fn a_project_that_rests_keeps_no_places(on: TestStore) {
    let world = World::new(on).await;
    world.agent(&world.bob, OTHER, "RedStone").await;
    world.settle().await;
    world.archive.close();
    fs::remove_dir_all(world.project()).unwrap();
    break_project(&world, "default", SLUG);
    for many in [
        "INSERT INTO mail_agents (tenant, project, name, name_key, program, model, task, policy, attachments_policy, principal, \
         token, created_at, active_at) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) \
         SELECT a.tenant, a.project, 'Agent' || n.i, 'agent' || n.i, 'p', 'm', '', 'auto', 'auto', a.principal, a.token, \
         a.created_at, a.active_at FROM mail_agents a, n WHERE a.name = 'BlueLake'",
        "INSERT INTO mail_changes (tenant, project, agent, changes, changed_at) \
         SELECT tenant, project, agent, 1, created_at FROM mail_agents WHERE name LIKE 'Agent%'",
    ] {
        world.on.write(many).await.unwrap();
    }
    let policy = json!({ "project_key": OTHER, "agent_name": "RedStone", "policy": "contacts_only" });
    world.on.time.pass(Duration::from_secs(20));
    world.call(&world.bob, "set_contact_policy", policy).await;
    let mut archivist = world.archivist(Settings { tries_max: 1, breaker_s: 600, ..settings() });
    archivist.settle().await.unwrap();
    let left = "SELECT p.human_key, count(*) FROM mail_changes c JOIN mail_projects p ON p.project = c.project \
                WHERE c.changes > c.archived GROUP BY p.human_key";
    let left = world.on.rows(left).await.unwrap();
    let left: Vec<_> = left.iter().map(|row| (row.text(0).unwrap(), row.int(1).unwrap())).collect();
    assert_eq!(left, [(HOME, 300)], "the other project's were written");
    let state = ProjectKey::new("default", OTHER_SLUG).below(&world.root()).join("files/agents/RedStone/state.json");
    assert!(fs::read_to_string(state).unwrap().contains("contacts_only"));
    // How long they wait is told, though no row waits.
    let health = world.health_check().await;
    assert!(health["archive"]["lag_seconds"].as_i64().unwrap() >= 20, "{health}");
    assert!(figure("archive_lag_seconds") >= 20.0);
}

/// More projects than a look takes, each of which fails; the one behind them has its turn.
async fn many_projects_that_rest_keep_no_places(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    let sql = "INSERT INTO mail_projects (tenant, slug, human_key, digest, created_at) \
               WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) \
               SELECT p.tenant, 'broken-' || n.i, '/broken/' || n.i, {digest}, p.created_at FROM mail_projects p, n";
    let digest = if world.on.store.is_postgres() { "int4send(n.i)" } else { "CAST(n.i AS BLOB)" };
    world.on.write(&sql.replace("{digest}", digest)).await.unwrap();
    for n in 1..=300 {
        break_project(&world, "default", &format!("broken-{n}"));
    }
    let rows = "INSERT INTO mail_archive_rows (tenant, project, kind, ref, at, state, next_at) \
                SELECT tenant, project, 'project', project, created_at, 'waiting', created_at FROM mail_projects \
                WHERE slug LIKE 'broken-%'";
    world.on.write(rows).await.unwrap();
    world.agent(&world.bob, OTHER, "RedStone").await;
    let mut archivist = world.archivist(Settings { tries_max: 1, breaker_s: 600, ..settings() });
    archivist.settle().await.unwrap();
    archivist.settle().await.unwrap();
    assert_eq!((world.rows("waiting").await, world.rows("skipped").await), (0, 300));
    let profile =
        ProjectKey::new("default", OTHER_SLUG).below(&world.root()).join("files/agents/RedStone/profile.json");
    assert!(profile.is_file());
    // And what comes later is found at once.
    world.send("one", json!({})).await;
    archivist.settle().await.unwrap();
    world.file(&["messages/2", "__one__"]);
}
