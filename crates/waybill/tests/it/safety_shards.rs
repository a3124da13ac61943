//! Backup, restore and doctor of a deployment with several stores.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value as Json, json};
use tokio::task::JoinSet;
use waybill_kernel::Code;
use waybill_testkit::server::{Options, Server};

use crate::safety::{doctor, everything, text};
use crate::sqs::Client;
use crate::world::{Engine, World, config, program, until};

const SETTINGS: &str = "[shards]\na = \"sqlite:a.db\"\nb = \"sqlite:b.db\"\n\
                        [sqs]\nfifo_partition_map = [\"orders.fifo:4=a,b,home,a\"]\n";
/// One group for each of four partitions, in their order.
const GROUPS: [&str; 4] = ["user-1", "g1", "g0", "g3"];
const SENDERS: usize = 2;
const MESSAGES_BEFORE: usize = 60;

/// A server with two shards, and the URL of a queue that is on both and in home.
async fn started() -> (World, Client, String) {
    let world = World::with(Engine::Sqlite, SETTINGS, &[]).await;
    let client = Client::new(&world).await;
    let attributes = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true", "PartitionCount": "4" });
    let made = client.ok("CreateQueue", json!({ "QueueName": "orders.fifo", "Attributes": attributes })).await;
    let url = made["QueueUrl"].as_str().unwrap().to_owned();
    (world, client, url)
}

async fn send(client: &Client, url: &str, group: &str, body: &str) {
    client.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": body, "MessageGroupId": group })).await;
}

/// Receives and deletes until nothing more comes: how often each body was there.
async fn drained(client: &Client, url: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    loop {
        let answer = client.ok("ReceiveMessage", json!({ "QueueUrl": url, "MaxNumberOfMessages": 10 })).await;
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        if messages.is_empty() {
            return found;
        }
        for message in &messages {
            *found.entry(message["Body"].as_str().unwrap().to_owned()).or_default() += 1;
            client.ok("DeleteMessage", json!({ "QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"] })).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_beside_senders_is_served_again_with_every_message_once() {
    let (world, client, url) = started().await;
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(std::sync::Mutex::new(BTreeSet::new())));
    let mut senders = JoinSet::new();
    for sender in 0..SENDERS {
        let (client, url) = (client.clone(), url.clone());
        let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        senders.spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let body = format!("{sender} {number}");
                send(&client, &url, GROUPS[number % GROUPS.len()], &body).await;
                acknowledged.lock().unwrap().insert(body);
            }
        });
    }
    until("there are messages", || async { acknowledged.lock().unwrap().len() >= MESSAGES_BEFORE }).await;
    let before = acknowledged.lock().unwrap().clone();
    let (home, settings) = (tempfile::tempdir().unwrap(), config(SETTINGS));
    let (backup, data) = (home.path().join("backup"), home.path().join("data"));
    let source = world.server.data_dir.clone();
    let args =
        ["backup", text(&backup), "--with-keys", "--config", text(settings.path()), "--data", text(&source), "--json"];
    let args = args.map(str::to_owned);
    let taken = tokio::task::spawn_blocking(move || program(&args.each_ref().map(String::as_str))).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = senders.join_next().await {
        ended.unwrap();
    }
    assert_eq!(taken.exit, 0, "{}", taken.stderr);
    let shards = &taken.json()["shards"];
    assert_eq!((&shards[0]["name"], &shards[1]["name"], &shards[2]), (&json!("a"), &json!("b"), &Json::Null));

    let unnamed = program(&["restore", text(&backup), "--data", text(&data)]);
    unnamed.must_be_cured(Code::ConfigInvalid, "a = \"sqlite:a.db\"", "without the settings that name the shards");
    assert!(!data.exists(), "a restore that was refused has made a folder");
    let restored = program(&["restore", text(&backup), "--data", text(&data), "--config", text(settings.path())]);
    assert_eq!(restored.exit, 0, "{}", restored.stderr);
    assert!(restored.stderr.contains("a (commit ") && restored.stderr.contains("b (commit "), "{}", restored.stderr);
    let args = vec!["--config".to_owned(), text(settings.path()).to_owned()];
    let server = Server::start(Options { data: Some(data.clone()), args, ..Options::default() }).unwrap();
    let client = client.at(&server.sqs_url);
    let found = drained(&client, &url).await;
    for body in &before {
        assert_eq!(found.get(body), Some(&1), "{body}");
    }
    assert!(found.values().all(|count| *count == 1), "{found:?}");
    for group in GROUPS {
        send(&client, &url, group, "after").await;
    }
    drop(server);
    let (_, answer, ended) = doctor(&data, &["--config", text(settings.path())]);
    assert_eq!(ended.exit, 0, "{answer}");
}

/// The checks of one store, by their names.
fn of_store<'a>(answer: &'a Json, store: &str) -> BTreeMap<&'a str, &'a str> {
    let checks = answer["checks"].as_array().unwrap().iter().filter(|check| check["store"] == store);
    checks.map(|check| (check["check"].as_str().unwrap(), check["verdict"].as_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_looks_at_every_store_by_its_name() {
    let (mut world, client, url) = started().await;
    for group in GROUPS {
        send(&client, &url, group, "m").await;
    }
    let (data, settings) = (world.server.data_dir.clone(), config(SETTINGS));
    let args = ["--config", text(settings.path())];
    for runs in [true, false] {
        if !runs {
            assert!(world.server.term().unwrap().success());
        }
        let before = (!runs).then(|| everything(&data));
        let (_, answer, ended) = doctor(&data, &args);
        assert_eq!(ended.exit, 0, "{answer}");
        for store in ["a", "b"] {
            let checks = of_store(&answer, store);
            for check in ["integrity", "schema", "commits", "clock", "sweeps", "shards", "fences"] {
                assert!(["ok", "skipped"].contains(&checks[check]), "{check} of {store}: {answer}");
            }
            assert!(!checks.contains_key("ledger"), "there is none in a shard: {answer}");
        }
        assert_eq!(of_store(&answer, "home")["ledger"], "ok", "{answer}");
        assert!(before.is_none_or(|before| before == everything(&data)), "something was changed");
    }
    let fails = |check: &str, store: &str, part: &str| {
        let (_, answer, ended) = doctor(&data, &args);
        ended.must_be(Code::ChecksFailed, check);
        assert_eq!(of_store(&answer, store)[check], "failed", "{check}: {answer}");
        assert!(ended.stderr.contains(&format!("{check} of {store}")), "{}", ended.stderr);
        assert!(answer.to_string().contains(part), "{part}: {answer}");
    };
    let swap = || {
        for (from, to) in
            [("a.db", "x"), ("b.db", "a.db"), ("x", "b.db"), ("a.mark", "x"), ("b.mark", "a.mark"), ("x", "b.mark")]
        {
            fs::rename(data.join(from), data.join(to)).unwrap();
        }
    };
    swap();
    fails("shards", "a", "it is the database of b");
    swap();
    let sound = fs::read(data.join("b.db")).unwrap();
    let mut torn = sound.clone();
    let middle = torn.len() / 2 / 4096 * 4096;
    torn[middle..middle + 4 * 4096].fill(0xa5);
    fs::write(data.join("b.db"), &torn).unwrap();
    fails("integrity", "b", "");
    fs::write(data.join("b.db"), &sound).unwrap();
    fs::rename(data.join("b.db"), data.join("x")).unwrap();
    fails("shards", "b", "home knows it, and it cannot be read");
    fs::rename(data.join("x"), data.join("b.db")).unwrap();
    // Home was put back without the others.
    let database = rusqlite::Connection::open(data.join("waybill.db")).unwrap();
    assert_eq!(database.execute("UPDATE queues SET generation = generation - 1", []).unwrap(), 1);
    database.close().unwrap();
    fails("fences", "a", "ahead of home, so that every call about them is refused: orders.fifo");

    let (verdicts, answer, ended) = doctor(&data, &[]);
    ended.must_be(Code::ChecksFailed, "without the settings that name the shards");
    assert_eq!(verdicts["shards"], "failed", "{answer}");
    let home = tempfile::tempdir().unwrap();
    let unnamed = program(&["backup", text(&home.path().join("backup")), "--data", text(&data)]);
    unnamed.must_be_cured(Code::ConfigInvalid, "--config", "a backup of home alone");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_whose_restore_was_killed_is_not_served_until_it_is_restored() {
    let (world, client, url) = started().await;
    send(&client, &url, "g1", "m").await;
    let (home, settings) = (tempfile::tempdir().unwrap(), config(SETTINGS));
    let (backup, data) = (home.path().join("backup"), home.path().join("data"));
    let named = ["--config", text(settings.path())];
    let run = |args: &[&str], data: &Path| program(&[args, &["--data", text(data)], &named].concat());
    let taken = run(&["backup", text(&backup), "--with-keys"], &world.server.data_dir);
    assert_eq!(taken.exit, 0, "{}", taken.stderr);
    assert!(taken.stderr.contains("All stores are of the same instant: home, a (commit "), "{}", taken.stderr);
    assert_eq!(run(&["restore", text(&backup)], &data).exit, 0);
    // As a kill leaves it: home has no name yet.
    fs::write(data.join("restore.unfinished"), "").unwrap();
    fs::rename(data.join("waybill.db"), data.join("waybill.db.part")).unwrap();
    fs::remove_file(data.join("waybill.mark")).unwrap();

    let refused = run(&["serve", "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0"], &data);
    refused.must_be_cured(Code::DataFolderUnusable, "Run `waybill restore` again", "an unfinished restore");
    assert!(!data.join("waybill.db").exists());
    let (verdicts, answer, _) = doctor(&data, &named);
    assert_eq!(verdicts["restore"], "failed", "{answer}");
    fs::write(data.join("mine.db"), "mine").unwrap();
    run(&["restore", text(&backup)], &data).must_be(Code::AlreadyExists, "what is not a restore's own");
    fs::remove_file(data.join("mine.db")).unwrap();
    let again = run(&["restore", text(&backup)], &data);
    assert_eq!(again.exit, 0, "{}", again.stderr);
    let args = named.map(str::to_owned).to_vec();
    let server = Server::start(Options { data: Some(data.clone()), args, ..Options::default() }).unwrap();
    assert_eq!(drained(&client.at(&server.sqs_url), &url).await, BTreeMap::from([("m".to_owned(), 1)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_on_postgresql_are_left_to_its_own_tools() {
    const PASSWORD: &str = "hunter2-canary";
    let settings =
        format!("[shards]\na = \"sqlite:a.db\"\nfar = \"postgres://waybill:{PASSWORD}@db2.example:6432/far\"\n");
    let (home, settings) = (tempfile::tempdir().unwrap(), config(&settings));
    let path = home.path().join("backup");
    let run = |more: &[&str]| {
        let args = ["backup", text(&path), "--config", text(settings.path()), "--data", text(home.path())];
        let ended = program(&[&args, more].concat());
        ended.must_be(Code::UnsupportedStore, "a shard on PostgreSQL");
        assert!(!ended.stderr.contains(PASSWORD), "it tells the password");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        ended.stderr
    };
    let said = run(&[]);
    for part in ["for far `pg_dump --host=db2.example --port=6432", "Stop the server", "the whole data folder"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    let said = run(&["--store", "postgres://waybill@db.example/ledger"]);
    assert!(said.contains("Its shards (a, far) must be of the same instant"), "{said}");
}
