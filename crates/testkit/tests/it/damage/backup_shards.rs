//! Backups of several stores: taken while messages move between them, restored, spoiled, and put together wrongly.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinSet;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Error, Result, Time};
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::shards::{OnShards, check_placement, tend_once};
use waybill_queues::{PartitionMap, Settings};
use waybill_store::safety::{self, Deployment, Manifest, Restored, ShardFile, Step, Watch};
use waybill_store::{Flow, Operation, Reply};
use waybill_testkit::stores::{self, TestStore, readable};

use super::backup::names;

const ORDERS: &str = "orders.fifo";
const DEAD: &str = "dead.fifo";
const SHARDS: &[&str] = &["a", "b"];
/// One group for each of four partitions, in their order.
const GROUPS: [&str; 4] = ["user-1", "g1", "g0", "g3"];
/// Dead letters of the four groups go from a to home, from b to a, from home to b, and from a to b.
const MAP: &[&str] = &["orders.fifo:4=a,b,home,a", "dead.fifo:4=home,a,b,b"];
const SENDERS: usize = 3;
/// Messages before the first backup.
const MESSAGES_BEFORE: usize = 200;
/// Backups that are taken under the same load.
const BACKUPS: usize = 4;

fn settings() -> Settings {
    Settings { partition_map: PartitionMap::parse(MAP).unwrap(), ..Settings::default() }
}

fn deployment(folder: &Path) -> Deployment {
    let shard = |name: &&str| ShardFile { name: (*name).to_owned(), path: folder.join(format!("{name}.db")) };
    Deployment {
        home: folder.join("waybill.db"),
        shards: SHARDS.iter().map(shard).collect(),
        placed: Some(waybill_queues::shards::PLACED.sqlite),
    }
}

fn take(folder: &Path, destination: &Path) -> Result<Manifest> {
    take_watched(&deployment(folder), destination, &Watch::none())
}

fn take_watched(files: &Deployment, destination: &Path, watch: &Watch) -> Result<Manifest> {
    safety::take(files, destination, None, "0.0.0-test", Time::from_micros(1_700_000_000_000_000), watch)
}

fn restore(backup: &Path, folder: &Path) -> Result<Restored> {
    restore_watched(backup, folder, &Watch::none())
}

fn restore_watched(backup: &Path, folder: &Path, watch: &Watch) -> Result<Restored> {
    safety::restore(backup, &deployment(folder), waybill_domains::migrations_of, &OsEntropy, watch)
}

fn url(name: &str) -> String {
    format!("http://localhost:9324/000000000000/{name}")
}

async fn ok<O: OnShards>(on: &TestStore, operation: O) -> <O as Operation>::Output {
    let answered = operation.dispatch(&Flow::new(&on.admin, &on.stores)).await.map_err(readable).unwrap();
    match answered.0 {
        Reply::Done(answer) | Reply::Replay(answer) | Reply::Empty { answer, .. } => answer,
    }
}

fn message(group: &str, text: &str) -> SendMessage {
    SendMessage {
        queue_url: url(ORDERS),
        message_body: text.to_owned(),
        message_group_id: Some(group.to_owned()),
        ..SendMessage::default()
    }
}

async fn make_queue(on: &TestStore, name: &str, more: &[(&str, &str)]) {
    let usual = [("FifoQueue", "true"), ("ContentBasedDeduplication", "true"), ("PartitionCount", "4")];
    let attributes = usual.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    ok(on, CreateQueue { queue_name: name.to_owned(), attributes: attributes.collect(), ..CreateQueue::default() })
        .await;
}

/// Two partitioned queues over home and two shards. Whatever is received from the first for a second time is a dead letter.
async fn opened() -> (TestStore, PathBuf) {
    let on = stores::open_sqlite_set(settings()).await.unwrap().with_shards(SHARDS).await.unwrap();
    make_queue(&on, DEAD, &[]).await;
    let policy =
        format!(r#"{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:{DEAD}","maxReceiveCount":1}}"#);
    make_queue(&on, ORDERS, &[("VisibilityTimeout", "0"), ("RedrivePolicy", &policy)]).await;
    let folder = on.file().unwrap().parent().unwrap().to_owned();
    (on, folder)
}

/// A deployment with a message in every partition.
async fn filled() -> (TestStore, PathBuf) {
    let (on, folder) = opened().await;
    for group in GROUPS {
        ok(&on, message(group, &format!("{group} m"))).await;
    }
    (on, folder)
}

async fn close(on: &TestStore) {
    let stores = on.stores.clone();
    tokio::task::spawn_blocking(move || stores.close()).await.unwrap();
}

/// What is in a folder after a start, as a server makes it.
async fn started(folder: TempDir) -> TestStore {
    let on = stores::open_sqlite_in(folder).await.unwrap().with_shards(SHARDS).await.unwrap();
    // A message that somebody was about to carry is taken up again after a pause.
    on.time.pass(Duration::from_secs(60));
    check_placement(&on.stores).await.map_err(readable).unwrap();
    while tend_once(&on.stores).await.map_err(readable).unwrap() > 0 {}
    on
}

/// How often each message is there, in any store.
async fn bodies(on: &TestStore) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for row in &on.rows("SELECT body FROM messages").await.unwrap() {
        *found.entry(row.text(0).unwrap().to_owned()).or_default() += 1;
    }
    found
}

/// What keeps every store writing: senders, a receiver whose second look makes dead letters, one who carries them, and one
/// who changes the queue.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<tokio::sync::Mutex<BTreeSet<String>>>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(on: &Arc<TestStore>) -> Self {
        let mut load = Self { stop: Arc::default(), acknowledged: Arc::default(), tasks: JoinSet::new() };
        for sender in 0..SENDERS {
            let (on, stop, acknowledged) = (Arc::clone(on), Arc::clone(&load.stop), Arc::clone(&load.acknowledged));
            load.tasks.spawn(async move {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let (group, text) = (GROUPS[number % GROUPS.len()], format!("{sender} {number}"));
                    ok(&on, message(group, &text)).await;
                    acknowledged.lock().await.insert(text);
                    number += 1;
                }
            });
        }
        load.repeat(on, |on| async move {
            ok(&on, ReceiveMessage { queue_url: url(ORDERS), max_number_of_messages: Some(10), ..Default::default() })
                .await;
        });
        load.repeat(on, |on| async move {
            tend_once(&on.stores).await.map_err(readable).unwrap();
            tokio::task::yield_now().await;
        });
        let changes = Arc::new(AtomicUsize::new(0));
        load.repeat(on, move |on| {
            let wait = changes.fetch_add(1, Ordering::Relaxed) % 3;
            async move {
                let attributes = [
                    ("DelaySeconds".to_owned(), "0".to_owned()),
                    ("ReceiveMessageWaitTimeSeconds".to_owned(), wait.to_string()),
                ];
                ok(&on, SetQueueAttributes { queue_url: url(DEAD), attributes: attributes.into() }).await;
            }
        });
        load
    }

    fn repeat<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        on: &Arc<TestStore>,
        work: impl Fn(Arc<TestStore>) -> F + Send + Sync + 'static,
    ) {
        let (on, stop) = (Arc::clone(on), Arc::clone(&self.stop));
        self.tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                work(Arc::clone(&on)).await;
            }
        });
    }

    async fn acknowledged(&self) -> BTreeSet<String> {
        self.acknowledged.lock().await.clone()
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_has_every_message_once_wherever_it_was_going() {
    let (on, folder) = opened().await;
    let on = Arc::new(on);
    let load = Load::start(&on);
    let home = tempfile::tempdir().unwrap();
    let mut taken = Vec::new();
    for number in 0..BACKUPS {
        let enough = MESSAGES_BEFORE * (number + 1);
        while load.acknowledged().await.len() < enough {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = load.acknowledged().await;
        let (from, to) = (folder.clone(), home.path().join(number.to_string()));
        let destination = to.clone();
        tokio::task::spawn_blocking(move || take(&from, &destination)).await.unwrap().unwrap();
        taken.push((to, before));
    }
    load.end().await;

    let mut moved = 0;
    for (backup, before) in taken {
        let target = tempfile::tempdir().unwrap();
        let manifest = restore(&backup, target.path()).unwrap().manifest;
        moved += manifest.rows["transfers"] + manifest.shards.iter().map(|shard| shard.rows["transfers"]).sum::<u64>();
        let copy = started(target).await;
        let found = bodies(&copy).await;
        for text in &before {
            assert_eq!(found.get(text), Some(&1), "{text}, which was acknowledged before {}", backup.display());
        }
        let twice: Vec<_> = found.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "{twice:?} in {}", backup.display());
        assert_eq!(copy.count("SELECT count(*) FROM transfers").await.unwrap(), 0, "all have arrived");
        assert_eq!(copy.count("SELECT count(*) FROM shard_changes").await.unwrap(), 0, "all have followed");
        // Whatever was being changed, every partition takes messages.
        for group in GROUPS {
            ok(&copy, message(group, "after")).await;
        }
    }
    println!("{moved} messages were on their way in the backups");
}

#[tokio::test]
async fn one_manifest_has_all_stores_and_each_gets_an_id_of_its_own() {
    let (on, folder) = filled().await;
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    let manifest = take(&folder, &backup).unwrap();
    assert_eq!(names(&backup), ["manifest.json", "shard-a.db", "shard-b.db", "waybill.db"]);
    assert_eq!(Manifest::read(&backup).unwrap(), manifest);
    let shards: Vec<_> =
        manifest.shards.iter().map(|shard| (&*shard.name, &*shard.file, shard.rows["messages"])).collect();
    assert_eq!((shards, manifest.rows["messages"]), (vec![("a", "a.db", 2), ("b", "b.db", 1)], 1));
    close(&on).await;

    let target = tempfile::tempdir().unwrap();
    restore(&backup, target.path()).unwrap();
    let expected = ["a.db", "a.mark", "b.db", "b.mark", "waybill.db", "waybill.mark"];
    assert_eq!(names(target.path()), expected, "and nothing that says it is unfinished");
    let copy = started(target).await;
    assert_eq!(bodies(&copy).await.values().copied().collect::<Vec<_>>(), [1; 4]);
    let ids = copy.rows("SELECT database_id FROM meta").await.unwrap();
    let old = on_disk_ids(&manifest);
    for row in &ids {
        assert!(!old.contains(&waybill_kernel::hex::encode(row.bytes(0).unwrap())), "an id of before");
    }
    // Home knows its shards by their new ids: two that are swapped are refused.
    close(&copy).await;
    let folder = copy.file().unwrap().parent().unwrap().to_owned();
    for (from, to) in
        [("a.db", "x"), ("b.db", "a.db"), ("x", "b.db"), ("a.mark", "x"), ("b.mark", "a.mark"), ("x", "b.mark")]
    {
        fs::rename(folder.join(from), folder.join(to)).unwrap();
    }
    let error = take(&folder, &home.path().join("swapped")).unwrap_err();
    assert_eq!(error.code(), Code::ConfigInvalid);
    assert!(error.message().contains("The shard a is another database"), "{error}");
    assert_eq!(names(home.path()), ["backup"]);
}

fn on_disk_ids(manifest: &Manifest) -> Vec<String> {
    let shards = manifest.shards.iter().map(|shard| shard.database_id.clone());
    std::iter::once(manifest.database_id.clone()).chain(shards).collect()
}

#[tokio::test]
async fn a_backup_that_would_lack_a_store_is_not_taken() {
    let (on, folder) = filled().await;
    let home = tempfile::tempdir().unwrap();
    let refused = |files: &Deployment| take_watched(files, &home.path().join("backup"), &Watch::none()).unwrap_err();
    let unnamed = refused(&Deployment { shards: Vec::new(), ..deployment(&folder) });
    assert_eq!(unnamed.code(), Code::ConfigInvalid);
    assert!(
        unnamed.message().contains("partitions on the shard a") && unnamed.cure().contains("--config"),
        "{unnamed}"
    );
    close(&on).await;
    fs::rename(folder.join("b.db"), folder.join("elsewhere.db")).unwrap();
    let gone = refused(&deployment(&folder));
    assert_eq!(gone.code(), Code::NotFound);
    assert!(gone.message().contains("The shard b has no file"), "{gone}");
    // One that no server has met yet is nothing to be missed.
    fs::rename(folder.join("elsewhere.db"), folder.join("b.db")).unwrap();
    let mut more = deployment(&folder);
    more.shards.push(ShardFile { name: "new".to_owned(), path: folder.join("new.db") });
    let manifest = take_watched(&more, &home.path().join("backup"), &Watch::none()).unwrap();
    assert_eq!(manifest.shards.len(), 2);
}

#[tokio::test]
async fn without_a_server_a_backup_of_all_stores_leaves_the_folder_as_it_was() {
    let (on, folder) = filled().await;
    close(&on).await;
    let seen = || {
        let read = |name: String| (name.clone(), fs::read(folder.join(name)).unwrap());
        names(&folder).into_iter().map(read).collect::<Vec<_>>()
    };
    let before = seen();
    let home = tempfile::tempdir().unwrap();
    take(&folder, &home.path().join("backup")).unwrap();
    let after = seen();
    assert_eq!(names(&folder), before.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    assert!(before == after);
}

/// A fresh copy of the backup, changed by `spoil`, and what a restore of it says. Nothing is written by it.
fn spoiled(backup: &Path, spoil: impl FnOnce(&Path)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    for name in names(backup) {
        fs::copy(backup.join(&name), folder.path().join(&name)).unwrap();
    }
    spoil(folder.path());
    let target = tempfile::tempdir().unwrap();
    let error = restore(folder.path(), target.path()).unwrap_err();
    assert_eq!(names(target.path()), Vec::<String>::new(), "{error}");
    error
}

#[tokio::test]
async fn all_files_are_restored_or_none() {
    let (_on, folder) = filled().await;
    let home = tempfile::tempdir().unwrap();
    let (backup, other) = (home.path().join("backup"), home.path().join("other"));
    take(&folder, &backup).unwrap();
    take(&folder, &other).unwrap();
    for name in ["waybill.db", "shard-a.db", "shard-b.db"] {
        let missing = spoiled(&backup, |folder| fs::remove_file(folder.join(name)).unwrap());
        assert!(missing.code() == Code::DatabaseUnusable && missing.message().contains(name), "{missing}");
        let altered = spoiled(&backup, |folder| {
            let mut bytes = fs::read(folder.join(name)).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(folder.join(name), bytes).unwrap();
        });
        assert!(altered.message().contains(name) && altered.message().contains("SHA-256"), "{altered}");
    }
    // Two that changed places are as sound as before, and not what was written under their names.
    let swapped = spoiled(&backup, |folder| {
        fs::rename(folder.join("shard-a.db"), folder.join("x")).unwrap();
        fs::rename(folder.join("shard-b.db"), folder.join("shard-a.db")).unwrap();
        fs::rename(folder.join("x"), folder.join("shard-b.db")).unwrap();
    });
    assert_eq!(swapped.code(), Code::DatabaseUnusable, "{swapped}");
    let length = fs::metadata(backup.join("manifest.json")).unwrap().len();
    for at in (0..usize::try_from(length).unwrap()).step_by(61) {
        let error = spoiled(&backup, |folder| {
            let mut bytes = fs::read(folder.join("manifest.json")).unwrap();
            bytes[at] ^= 1;
            fs::write(folder.join("manifest.json"), bytes).unwrap();
        });
        assert_eq!(error.code(), Code::DatabaseUnusable, "byte {at}: {error}");
    }
    for name in ["waybill.db", "a.db", "b.mark"] {
        let target = tempfile::tempdir().unwrap();
        fs::write(target.path().join(name), "mine").unwrap();
        assert_eq!(restore(&backup, target.path()).unwrap_err().code(), Code::AlreadyExists, "{name}");
        assert_eq!(
            (names(target.path()), fs::read(target.path().join(name)).unwrap()),
            (vec![name.to_owned()], b"mine".to_vec())
        );
    }
}

#[tokio::test]
async fn a_restore_needs_a_place_for_every_shard() {
    let (_on, folder) = filled().await;
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    take(&folder, &backup).unwrap();
    let target = tempfile::tempdir().unwrap();
    let mut files = deployment(target.path());
    files.shards.remove(1);
    let error =
        safety::restore(&backup, &files, waybill_domains::migrations_of, &OsEntropy, &Watch::none()).unwrap_err();
    assert_eq!(error.code(), Code::ConfigInvalid);
    assert!(
        error.message().contains("the shard b") && error.cure().contains("b = \"sqlite:b.db\""),
        "{error} {}",
        error.cure()
    );
    assert_eq!(names(target.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_restore_that_was_killed_is_known_and_made_again() {
    let (_on, folder) = filled().await;
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    take(&folder, &backup).unwrap();
    // As a kill leaves it: some have their names, others not, one is half a copy.
    let target = tempfile::tempdir().unwrap();
    restore(&backup, target.path()).unwrap();
    fs::write(target.path().join(safety::UNFINISHED), "").unwrap();
    fs::rename(target.path().join("waybill.db"), target.path().join("waybill.db.part")).unwrap();
    fs::remove_file(target.path().join("waybill.mark")).unwrap();
    fs::write(target.path().join("a.db"), "half").unwrap();
    restore(&backup, target.path()).unwrap();
    assert_eq!(names(target.path()), ["a.db", "a.mark", "b.db", "b.mark", "waybill.db", "waybill.mark"]);
    assert_eq!(bodies(&started(target).await).await.len(), 4);

    // Until the first name is given the word that it is unfinished lies there; one that is stopped leaves nothing.
    for last in [Step::Copying, Step::Checking] {
        let (target, stop) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
        let (flag, word) = (Arc::clone(&stop), target.path().join(safety::UNFINISHED));
        let was_there = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&was_there);
        let watch = Watch::new(stop, move |step, _, _| {
            seen.store(word.exists(), Ordering::Relaxed);
            flag.store(step == last, Ordering::Relaxed);
        });
        let error = restore_watched(&backup, target.path(), &watch).unwrap_err();
        assert_eq!((error.code(), was_there.load(Ordering::Relaxed)), (Code::Interrupted, true), "{last:?}");
        assert_eq!(names(target.path()), Vec::<String>::new(), "{last:?}");
    }
}

#[tokio::test]
async fn progress_is_told_of_all_files_together() {
    let (_on, folder) = filled().await;
    let home = tempfile::tempdir().unwrap();
    let manifest = take(&folder, &home.path().join("first")).unwrap();
    let bytes: u64 = manifest.files.iter().map(|piece| piece.bytes).sum();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let watch = Watch::new(Arc::default(), move |step, done, total| {
        if step == Step::Hashing {
            heard.lock().unwrap().push((done, total));
        }
    });
    take_watched(&deployment(&folder), &home.path().join("second"), &watch).unwrap();
    let told = told.lock().unwrap();
    assert!(told.is_sorted() && told.iter().all(|(_, total)| *total == bytes), "{told:?} of {bytes}");
    assert_eq!(told.last(), Some(&(bytes, bytes)));
}
