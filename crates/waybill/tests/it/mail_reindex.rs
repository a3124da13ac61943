//! Mail from archives, and databases that come back from damage, through the program.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::world::{Ended, Engine, World, program};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The sample of the Python server, unpacked from `../shared/samples` beside the repository; None where there is none.
#[expect(clippy::print_stderr, reason = "who reads the run is told what was skipped")]
fn sample() -> Option<(tempfile::TempDir, PathBuf)> {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/samples/agent-mail-python.tar.xz");
    if !packed.exists() {
        assert!(std::env::var_os("CI").is_none(), "there is no sample of an existing archive at {}", packed.display());
        eprintln!("skipped: there is no sample of an existing archive");
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let unpacked = Command::new("tar").arg("xf").arg(&packed).arg("-C").arg(temp.path()).status().unwrap();
    assert!(unpacked.success());
    let root = temp.path().join("agent-mail-python/archive");
    Some((temp, root))
}

fn json_of(ended: &Ended) -> Json {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{} {}", ended.stdout, ended.stderr))
}

/// Overwrites the first page of a table or an index, so that nothing below it can be reached.
fn damage(data: &Path, name: &str) {
    let path = data.join("waybill.db");
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let page: i64 =
        raw.query_row("SELECT rootpage FROM sqlite_master WHERE name = ?1", [name], |row| row.get(0)).unwrap();
    let size: i64 = raw.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    drop(raw);
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![0xEE; usize::try_from(size).unwrap()], u64::try_from((page - 1) * size).unwrap()).unwrap();
}

/// The flags that name a store other than the one in the data folder.
fn stored_at(store: Option<&str>) -> Vec<&str> {
    store.map(|store| vec!["--store", store]).unwrap_or_default()
}

fn inbox(data: &Path, agent: &str) -> Vec<i64> {
    inbox_of(data, None, agent)
}

fn inbox_of(data: &Path, store: Option<&str>, agent: &str) -> Vec<i64> {
    let flags =
        ["mail", "inbox", "--project", "/data/projects/backend", "--agent", agent, "--json", "--data", text(data)];
    let ended = program(&[&flags[..], &stored_at(store)[..]].concat());
    assert_eq!(ended.exit, 0, "{}", ended.stderr);
    let answer = json_of(&ended);
    let list = answer["result"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let mut ids: Vec<i64> = list.iter().map(|one| one["id"].as_i64().unwrap()).collect();
    ids.sort_unstable();
    ids
}

fn search(data: &Path, words: &str) -> Json {
    search_of(data, None, words)
}

fn search_of(data: &Path, store: Option<&str>, words: &str) -> Json {
    let flags = ["mail", "search", words, "--project", "/data/projects/backend", "--json", "--data", text(data)];
    let ended = program(&[&flags[..], &stored_at(store)[..]].concat());
    assert_eq!(ended.exit, 0, "{}", ended.stderr);
    json_of(&ended)["result"][0]["id"].clone()
}

async fn an_archive_is_taken_over_while_no_server_runs(engine: Engine) {
    let Some((_temp, root)) = sample() else { return };
    let mut world = World::with(engine, "[mail_archive]\nenabled = true\n", &[]).await;
    let data = world.server.data_dir.clone();
    let store = world.database.as_ref().map(|database| database.url.clone());
    let import_into = |data: &Path, more: &[&str]| {
        let from = ["mail", "reindex", "--from", text(&root), "--data", text(data), "--json"];
        program(&[&from[..], &stored_at(store.as_deref())[..], more].concat())
    };
    let import = |more: &[&str]| import_into(&data, more);
    import(&[]).must_be_cured(Code::DataFolderLocked, "Stop the server", "a server that runs");
    if store.is_some() {
        let elsewhere = tempfile::tempdir().unwrap();
        let busy = import_into(elsewhere.path(), &[]);
        busy.must_be_cured(Code::DataFolderLocked, "Stop the server", "a server that runs on another folder");
    }
    assert_eq!(world.server.term().unwrap().code(), Some(0));
    let nowhere = program(&["mail", "reindex", "--from", text(&root.join("none")), "--data", text(&data)]);
    nowhere.must_be(Code::PathUnusable, "no such archive");
    import(&["--tenant", "nobody"]).must_be(Code::NotFound, "no such tenant");
    import(&["--principal", "no principal"]).must_be(Code::InvalidRequest, "no principal");

    let ended = import(&["--principal", "agent:mover"]);
    assert_eq!(ended.exit, 0, "{}", ended.stderr);
    let report = json_of(&ended);
    let written = |what: &str| report[what]["written"].as_u64().unwrap();
    assert_eq!(["projects", "agents", "messages", "reservations"].map(written), [2, 4, 17, 3]);
    assert_eq!(report["refused"], json!([]));
    assert_eq!(inbox_of(&data, store.as_deref(), "RedStone"), [1, 2, 5, 8, 11, 14]);
    assert_eq!(search_of(&data, store.as_deref(), "umlaute"), 1);
    let again = json_of(&import(&[]));
    assert_eq!((again["messages"]["written"].clone(), again["messages"]["known"].clone()), (json!(0), json!(17)));

    // Some that is refused is told by the exit code as well.
    let broken = root.join("projects/data-projects-backend/messages/2026/11/t__x__99.md");
    std::fs::write(broken, "broken").unwrap();
    import(&[]).must_be_cured(Code::ChecksFailed, "run it again", "a broken file");
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_44_an_archive_is_taken_over_while_no_server_runs_on_sqlite() {
    an_archive_is_taken_over_while_no_server_runs(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_44_an_archive_is_taken_over_while_no_server_runs_on_postgresql() {
    an_archive_is_taken_over_while_no_server_runs(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_37_and_38_a_damaged_database_is_not_served_and_is_mended_with_the_originals_kept() {
    let Some((_temp, root)) = sample() else { return };
    let mut world = World::start().await;
    let data = world.server.data_dir.clone();
    let task = world.task(&world.server.admin_key.clone()).await;
    let salvage = |more: &[&str]| program(&[&["mail", "salvage", "--data", text(&data), "--json"], more].concat());
    salvage(&[]).must_be(Code::DataFolderLocked, "a server that runs");
    assert_eq!(world.server.term().unwrap().code(), Some(0));
    assert_eq!(program(&["mail", "reindex", "--from", text(&root), "--data", text(&data)]).exit, 0);
    let sound = salvage(&[]);
    assert_eq!((sound.exit, json_of(&sound)), (0, json!({ "damaged": false })), "{}", sound.stderr);

    damage(&data, "mail_inbox");
    let before = std::fs::read(data.join("waybill.db")).unwrap();
    // Rule 37: it is not served, and what to do is named.
    let refused = program(&["serve", "--data", text(&data), "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
    refused.must_be(Code::DatabaseUnusable, "a damaged database");
    assert!(refused.stderr.contains("waybill mail salvage"), "{}", refused.stderr);
    assert_eq!(std::fs::read(data.join("waybill.db")).unwrap(), before, "nothing is changed by a start");

    let ended = salvage(&[]);
    assert_eq!(ended.exit, 0, "{} {}", ended.stdout, ended.stderr);
    let report = json_of(&ended);
    // VACUUM copies an index page by page where it can, and so does not get past this one; every row is read all the same.
    assert_eq!((report["damaged"].clone(), report["salvaged"]["way"].clone()), (json!(true), json!("rows")));
    let tables = report["salvaged"]["tables"].as_array().unwrap();
    assert!(!tables.is_empty() && tables.iter().all(|table| table["damage"].is_null()), "{report}");
    let kept = Path::new(report["salvaged"]["quarantine"].as_str().unwrap()).join("waybill.db");
    assert_eq!(std::fs::read(kept).unwrap(), before, "the original is kept as it was");
    assert_eq!(inbox(&data, "RedStone"), [1, 2, 5, 8, 11, 14]);
    assert_eq!(search(&data, "umlaute"), 1);
    world.server.restart().unwrap();
    let found = world.get(&world.server.admin_key, &format!("/v1/tasks/{task}")).await;
    assert_eq!(found.status, 200, "what is no mail is there as well: {}", found.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_38_messages_that_cannot_be_read_come_back_from_the_archive() {
    let Some((_temp, root)) = sample() else { return };
    let mut world = World::start().await;
    let data = world.server.data_dir.clone();
    assert_eq!(world.server.term().unwrap().code(), Some(0));
    assert_eq!(program(&["mail", "reindex", "--from", text(&root), "--data", text(&data)]).exit, 0);
    let read =
        ["mail", "read", "1", "--project", "/data/projects/backend", "--agent", "RedStone", "--data", text(&data)];
    assert_eq!(program(&read).exit, 0);
    damage(&data, "mail_messages");
    let ended = program(&["mail", "salvage", "--from", text(&root), "--data", text(&data), "--json"]);
    ended.must_be_cured(Code::ChecksFailed, "quarantine", "tables that lack rows");
    let report = json_of(&ended);
    assert_eq!(report["salvaged"]["way"], "rows");
    let lacking: Vec<&str> = report["salvaged"]["tables"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|table| table.get("damage").is_some())
        .map(|table| table["table"].as_str().unwrap())
        .collect();
    assert_eq!(lacking, ["mail_messages"]);
    assert_eq!(report["reindexed"]["messages"]["written"], 17);
    assert_eq!(inbox(&data, "RedStone"), [1, 2, 5, 8, 11, 14]);
    assert_eq!(search(&data, "umlaute"), 1);
    let unread = [
        "mail",
        "inbox",
        "--unread",
        "--project",
        "/data/projects/backend",
        "--agent",
        "RedStone",
        "--json",
        "--data",
        text(&data),
    ];
    assert!(!program(&unread).stdout.contains("Plan: tests"), "what was read is known still");

    // What no archive has is given up only when that is said.
    damage(&data, "api_keys");
    let before = std::fs::read(data.join("waybill.db")).unwrap();
    let salvage = |more: &[&str]| program(&[&["mail", "salvage", "--data", text(&data), "--json"], more].concat());
    salvage(&[]).must_be_cured(Code::DatabaseUnusable, "--lossy", "keys that cannot be read");
    assert_eq!(std::fs::read(data.join("waybill.db")).unwrap(), before);
    salvage(&["--lossy"]).must_be_cured(Code::ChecksFailed, "quarantine", "without the keys");
    assert_eq!(inbox(&data, "RedStone"), [1, 2, 5, 8, 11, 14]);
}

/// A server that was stopped, and its data folder, with one letter in it.
async fn stopped_with_a_letter() -> (World, PathBuf) {
    let mut world = World::start().await;
    let data = world.server.data_dir.clone();
    assert_eq!(world.server.term().unwrap().code(), Some(0));
    let mail = |args: &[&str]| {
        let place = ["--project", "/data/projects/backend", "--json", "--data", text(&data)];
        let ended = program(&[&["mail"], args, &place].concat());
        assert_eq!(ended.exit, 0, "{args:?}: {}", ended.stderr);
        json_of(&ended)
    };
    let name = mail(&["register"])["name"].as_str().unwrap().to_owned();
    mail(&["send", "--agent", &name, "--to", &name, "--subject", "Note", "About umlaute."]);
    (world, data)
}

/// It has to follow: nothing else tells it of messages that came from another.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_salvaged_from_another_archive_waits_to_be_archived_here() {
    let (_world, data) = stopped_with_a_letter().await;
    let reconcile = |mode: &str| json_of(&program(&["mail", "reconcile", mode, "--json", "--data", text(&data)]));
    assert_eq!(reconcile("--rebuild")["consistent"], true);
    assert_eq!(reconcile("--check")["waiting_rows"], 0);
    let other = data.join("other-archive");
    std::fs::rename(data.join("mail-archive"), &other).unwrap();
    damage(&data, "mail_messages");
    let ended = program(&["mail", "salvage", "--from", text(&other), "--data", text(&data), "--json"]);
    ended.must_be_cured(Code::ChecksFailed, "quarantine", "a table that lacks rows");
    assert_eq!(json_of(&ended)["reindexed"]["messages"]["written"], 1);
    let report = reconcile("--check");
    assert!(report["waiting_rows"].as_u64().unwrap() > 0, "{report}");
}

/// The salvaged database is sound by then, so only the mark in the data folder tells the next run that something is left to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_salvage_that_cannot_read_the_archive_indexes_the_words_and_goes_on_when_it_is_run_again() {
    let (_world, data) = stopped_with_a_letter().await;
    damage(&data, "mail_inbox");

    // A link in the place of the folder of projects: no part of such an archive can be read.
    let broken = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(broken.path(), broken.path().join("projects")).unwrap();
    let salvage = |more: &[&str]| program(&[&["mail", "salvage", "--data", text(&data), "--json"], more].concat());
    salvage(&["--from", text(broken.path())]).must_be(Code::PathUnusable, "an archive that is a link");
    let mark = data.join("salvage.unfinished");
    assert!(mark.exists());
    assert_eq!(search(&data, "umlaute"), 1, "what was salvaged is found");

    let again = salvage(&[]);
    assert_eq!(again.exit, 0, "{}", again.stderr);
    assert!(again.stderr.contains("not come to its end"), "{}", again.stderr);
    let report = json_of(&again);
    assert_eq!((report["damaged"].clone(), report["salvaged"]["way"].clone()), (json!(true), json!("rows")));
    assert!(Path::new(report["salvaged"]["quarantine"].as_str().unwrap()).join("waybill.db").exists());
    assert!(!mark.exists());
    assert_eq!(search(&data, "umlaute"), 1);
    assert_eq!(json_of(&salvage(&[])), json!({ "damaged": false }));
}
