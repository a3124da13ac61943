//! Check and rebuild.

use std::fs;

use serde_json::json;
use waybill_archivist::reconcile::{self, What};
use waybill_testkit::stores::{TestStore, readable};

use crate::support::*;

waybill_testkit::both! {
    rule_40_a_check_finds_both_directions_and_changes_nothing,
    rule_41_after_a_rebuild_a_check_is_clean_and_a_second_one_writes_nothing,
    rule_41_a_rebuild_replaces_a_repository_that_has_lost_something,
    rule_43_an_archive_built_from_nothing_is_the_one_that_grew,
    what_cannot_be_filed_is_told_and_stays_known,
}

async fn filled(on: TestStore) -> World {
    let world = World::new(on).await;
    for n in 0..5 {
        let id = world.send(&format!("note {n}"), json!({ "thread_id": "T-1", "ack_required": true })).await;
        let of = json!({ "project_key": HOME, "agent_name": "BlueLake", "message_id": id });
        world.call(&world.bob, "acknowledge_message", of).await;
    }
    let file = json!({ "name": "a.txt", "content_base64": "aGVsbG8gd29ybGQ=", "media_type": "text/plain" });
    world.send("With a file", json!({ "attachments": [file] })).await;
    let reserve = json!({ "project_key": HOME, "agent_name": "BlueLake", "paths": ["src/a.rs", "src/b.rs"] });
    world.call(&world.bob, "file_reservation_paths", reserve).await;
    let release = json!({ "project_key": HOME, "agent_name": "BlueLake", "paths": ["src/a.rs"] });
    world.call(&world.bob, "release_file_reservations", release).await;
    world.call(&world.alice, "ensure_product", json!({ "product_key": "shop" })).await;
    world.settle().await;
    world.judge().await;
    world
}

fn found(report: &reconcile::Report, what: What) -> Vec<&str> {
    report.findings.iter().filter(|one| one.what == what).map(|one| one.path.as_str()).collect()
}

/// A message that lost its file, one that lost its row, and a file that somebody has edited.
async fn broken(world: &World) -> (String, String, String) {
    let (missing, _) = world.file(&["messages/2", "__note-1__"]);
    let (edited, _) = world.file(&["agents/BlueLake/profile.json"]);
    let (extra, _) = world.file(&["messages/2", "__note-2__"]);
    let files = world.project().join("files");
    fs::remove_file(files.join(&missing)).unwrap();
    fs::write(files.join(&edited), "{}").unwrap();
    let id = extra.rsplit_once("__").unwrap().1.trim_end_matches(".md").to_owned();
    for table in ["mail_recipients", "mail_messages"] {
        world.on.write(&format!("DELETE FROM {table} WHERE message = {id}")).await.unwrap();
    }
    (missing, edited, extra)
}

async fn rule_40_a_check_finds_both_directions_and_changes_nothing(on: TestStore) {
    let world = filled(on).await;
    let (missing, edited, extra) = broken(&world).await;
    let before = (world.files(), world.commits());
    world.archive.close();
    let report = world.check().await;
    assert!(!report.consistent);
    assert!(found(&report, What::Extra).contains(&extra.as_str()), "{report:?}");
    let apart = found(&report, What::FileApart);
    assert!(apart.contains(&missing.as_str()) && apart.contains(&edited.as_str()), "{report:?}");
    assert!(
        found(&report, What::Different).iter().any(|path| path.contains("messages/threads")),
        "the digest had the message"
    );
    assert_eq!((world.files(), world.commits()), before, "a check changes nothing");
    assert!(!world.root().join("default/nothing").exists());
    // A message whose file was never written.
    world.send("new", json!({})).await;
    let report = world.check().await;
    assert!(found(&report, What::Missing).iter().any(|path| path.contains("__new__")), "{report:?}");
    // An archive of a project that the database does not have.
    fs::create_dir_all(world.root().join("default/stranger/archive.git")).unwrap();
    assert_eq!(world.check().await.unknown_projects, ["default/stranger"]);
}

async fn rule_41_after_a_rebuild_a_check_is_clean_and_a_second_one_writes_nothing(on: TestStore) {
    let world = filled(on).await;
    let (missing, _, extra) = broken(&world).await;
    let rebuild = async || reconcile::rebuild(&world.on.store, &world.archive, |_| {}).await.map_err(readable).unwrap();
    let untouched = world.project().join("files").join(world.file(&["messages/2", "__note-3__"]).0);
    let before = fs::metadata(&untouched).unwrap().modified().unwrap();
    let report = rebuild().await;
    assert!(report.consistent && report.written > 0 && report.removed > 0, "{report:?}");
    assert!(world.check().await.consistent);
    world.judge().await;
    assert!(world.files().contains_key(&missing) && !world.files().contains_key(&extra));
    assert_eq!(fs::metadata(&untouched).unwrap().modified().unwrap(), before, "a good file is not touched");
    let commits = world.commits();
    let again = rebuild().await;
    assert_eq!((again.written, again.removed, world.commits()), (0, 0, commits));
    // Also what waited, and what was passed over.
    world.send("new", json!({})).await;
    world.on.write("UPDATE mail_archive_rows SET state = 'skipped'").await.unwrap();
    assert_eq!(rebuild().await.waiting_rows, 1);
    assert_eq!(world.rows("skipped").await, 0);
    assert!(world.check().await.consistent);
}

async fn rule_41_a_rebuild_replaces_a_repository_that_has_lost_something(on: TestStore) {
    let world = filled(on).await;
    let rebuild = async || reconcile::rebuild(&world.on.store, &world.archive, |_| {}).await.map_err(readable).unwrap();
    let rebuilt = async || {
        assert!(rebuild().await.consistent);
        world.judge().await;
        let again = rebuild().await;
        assert_eq!((again.written, again.removed), (0, 0));
    };
    // The content of a file, which nothing needs that writes further ones.
    world.spoil("HEAD:agents/BlueLake/profile.json");
    let report = world.check().await;
    assert_eq!((report.consistent, report.damaged), (false, 1), "{report:?}");
    rebuilt().await;
    // All of it, and beside it a file of a reservation that no row stands for.
    world.archive.close();
    let extra = world.project().join("files/file_reservations/0/id-99.json");
    fs::remove_dir_all(world.project().join("archive.git")).unwrap();
    fs::write(&extra, "{}").unwrap();
    rebuilt().await;
    assert!(!extra.exists());
}

async fn rule_43_an_archive_built_from_nothing_is_the_one_that_grew(on: TestStore) {
    let world = filled(on).await;
    let grown = files_of(&world.root().join("default"));
    let of_files = |all: &std::collections::BTreeMap<String, String>| {
        all.iter()
            .filter(|(path, _)| path.contains("/files/"))
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect::<Vec<_>>()
    };
    world.archive.close();
    fs::remove_dir_all(world.root()).unwrap();
    let report = reconcile::rebuild(&world.on.store, &world.archive, |_| {}).await.map_err(readable).unwrap();
    assert!(report.consistent, "{report:?}");
    assert_eq!(of_files(&files_of(&world.root().join("default"))), of_files(&grown));
    world.judge().await;
}

async fn what_cannot_be_filed_is_told_and_stays_known(on: TestStore) {
    let world = filled(on).await;
    let bad = world.send("bad", json!({})).await;
    let at = async |sql: String| world.on.write(&sql).await.unwrap();
    // A time that no calendar has.
    at(format!("UPDATE mail_messages SET created_at = {} WHERE message = {bad}", i64::MAX / 2)).await;
    world.send("good", json!({})).await;
    world.settle().await;
    assert_eq!(world.rows("failed").await, 1);
    let title = format!("message {bad}");
    let report = world.check().await;
    assert_eq!((report.consistent, report.unfileable), (false, 1), "{report:?}");
    assert_eq!(found(&report, What::Unfileable), [title.as_str()]);
    let rebuild = async || reconcile::rebuild(&world.on.store, &world.archive, |_| {}).await.map_err(readable).unwrap();
    let report = rebuild().await;
    assert_eq!((report.consistent, report.unfileable), (false, 1), "{report:?}");
    assert_eq!(world.rows("failed").await, 1, "it is not forgotten");
    assert_eq!(world.health_check().await["archive"]["needs_reindex_total"], 1);
    // Once it can be filed it is, and the row that was set aside goes.
    at(format!("UPDATE mail_messages SET created_at = 1767225600000000 WHERE message = {bad}")).await;
    assert!(rebuild().await.consistent);
    assert_eq!(world.rows("failed").await, 0);
    world.judge().await;
}
