//! Backups taken under load, restored, spoiled, and taken where there is no room.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::safety::{self, Deployment, Manifest, Step, Watch};
use waybill_testkit::stores::{self, TestStore};

use super::disk_full::Disk;

/// Large enough that a copy takes several steps of 4 MiB.
const PAYLOAD_BYTES: usize = 40_000;
const TASKS_BEFORE: usize = 250;
const CLIENTS: usize = 3;
/// Writes that must be acknowledged while the copy is held open.
const WRITES_MEANWHILE: usize = 60;
const PATIENCE: Duration = Duration::from_secs(60);

fn now() -> Time {
    Time::from_micros(1_700_000_000_000_000)
}

fn take(source: &Path, destination: &Path, watch: &Watch) -> Result<Manifest> {
    safety::take(&Deployment::from(source), destination, None, "0.0.0-test", now(), watch)
}

fn restore(backup: &Path, folder: &Path) -> Result<safety::Restored> {
    let target = Deployment::from(folder.join("waybill.db").as_path());
    safety::restore(backup, &target, waybill_domains::migrations_of, &OsEntropy, &Watch::none())
}

/// A store with some tasks, and where its file is.
async fn filled(tasks: usize) -> (TestStore, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("waybill.db");
    let on = stores::open_sqlite_in(folder).await.unwrap();
    for number in 0..tasks {
        on.call(&on.admin, "create_task", json!({ "type": "t", "payload": format!("{number:0200}") })).await.unwrap();
    }
    (on, file)
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What one client was told, in order: each task's id, and whether its cancellation was answered.
type History = Vec<(String, bool)>;

/// Creates tasks and cancels every other one, until told to stop.
async fn client(
    on: Arc<TestStore>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    history: Arc<tokio::sync::Mutex<History>>,
) {
    let payload = "x".repeat(PAYLOAD_BYTES);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let made = on.call(&on.admin, "create_task", json!({ "type": "t", "payload": payload })).await.unwrap();
        let task_id = made.json["task_id"].as_str().unwrap().to_owned();
        history.lock().await.push((task_id.clone(), false));
        acknowledged.fetch_add(1, Ordering::Relaxed);
        if number % 2 == 0 {
            on.call(&on.admin, "cancel_task", json!({ "task_id": task_id })).await.unwrap();
            history.lock().await.last_mut().unwrap().1 = true;
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        number += 1;
    }
}

fn wait_for(acknowledged: &AtomicUsize, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while acknowledged.load(Ordering::Relaxed) < count {
        assert!(Instant::now() < deadline, "the clients came to a halt");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_is_the_database_as_of_one_commit() {
    let (on, file) = filled(0).await;
    let on = Arc::new(on);
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let histories: Vec<Arc<tokio::sync::Mutex<History>>> = (0..CLIENTS).map(|_| Arc::default()).collect();
    let clients: Vec<_> = histories
        .iter()
        .map(|history| {
            tokio::spawn(client(Arc::clone(&on), Arc::clone(&stop), Arc::clone(&acknowledged), Arc::clone(history)))
        })
        .collect();
    let counted = Arc::clone(&acknowledged);
    tokio::task::spawn_blocking(move || wait_for(&counted, TASKS_BEFORE)).await.unwrap();
    let mut before = Vec::new();
    for history in &histories {
        before.push(history.lock().await.clone());
    }

    let home = tempfile::tempdir().unwrap();
    let destination = home.path().join("backup");
    // The first look is taken with some of the pages copied and most not: there the copy is held until more was written.
    let (counted, held) = (Arc::clone(&acknowledged), Arc::new(AtomicBool::new(false)));
    let was_held = Arc::clone(&held);
    let watch = Watch::new(Arc::default(), move |step, _, _| {
        if step == Step::Copying && !held.swap(true, Ordering::Relaxed) {
            wait_for(&counted, counted.load(Ordering::Relaxed) + WRITES_MEANWHILE);
        }
    });
    let to = destination.clone();
    let manifest = tokio::task::spawn_blocking(move || take(&file, &to, &watch)).await.unwrap().unwrap();
    assert!(was_held.load(Ordering::Relaxed), "the copy was done in one step: nothing could happen meanwhile");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }

    let restored = tempfile::tempdir().unwrap();
    assert_eq!(restore(&destination, restored.path()).unwrap().manifest, manifest);
    let copy = stores::open_sqlite_in(restored).await.unwrap();
    is_one_commit(&copy).await;
    let mut left_out = 0;
    for (history, before) in histories.iter().zip(&before) {
        let history = history.lock().await.clone();
        left_out += is_a_prefix(&copy, &history, before).await;
    }
    assert!(left_out >= WRITES_MEANWHILE - CLIENTS, "only {left_out} later writes are not in it");
    assert_eq!(copy.count("SELECT count(*) FROM tasks").await.unwrap(), i64::try_from(manifest.rows["tasks"]).unwrap());
}

/// No transaction is there in part.
async fn is_one_commit(copy: &TestStore) {
    for (what, sql) in [
        (
            "receipts without their task",
            "SELECT count(*) FROM receipts r WHERE NOT EXISTS \
             (SELECT 1 FROM tasks t WHERE t.tenant = r.tenant AND t.task_id = r.task_id)",
        ),
        (
            "tasks without their first receipt",
            "SELECT count(*) FROM tasks t WHERE NOT EXISTS \
             (SELECT 1 FROM receipts r WHERE r.tenant = t.tenant AND r.receipt_id = t.assigned_receipt)",
        ),
        (
            "ended tasks without a terminal receipt",
            "SELECT count(*) FROM tasks t WHERE t.status = 'canceled' AND 1 <> \
             (SELECT count(*) FROM receipts r WHERE r.tenant = t.tenant AND r.task_id = t.task_id \
              AND r.receipt_type = 'task.canceled')",
        ),
        (
            "terminal receipts of tasks that have not ended",
            "SELECT count(*) FROM receipts r JOIN tasks t \
             ON t.tenant = r.tenant AND t.task_id = r.task_id \
             WHERE r.receipt_type = 'task.canceled' AND t.status <> 'canceled'",
        ),
        (
            "ended tasks without a result",
            "SELECT count(*) FROM tasks t WHERE t.status = 'canceled' AND NOT EXISTS \
             (SELECT 1 FROM results r WHERE r.tenant = t.tenant AND r.task_id = t.task_id)",
        ),
        (
            "links without both receipts",
            "SELECT count(*) FROM receipt_parents p WHERE 2 <> \
             (SELECT count(*) FROM receipts r WHERE r.tenant = p.tenant AND r.receipt_id IN (p.parent_id, p.child_id))",
        ),
        (
            "obligations that are open and ended",
            "SELECT count(*) FROM receipts r WHERE r.receipt_type = 'task.assigned' \
             AND r.open = (SELECT count(*) FROM receipt_parents p WHERE p.tenant = r.tenant AND p.parent_id = r.receipt_id \
              AND p.child_type = 'task.canceled')",
        ),
    ] {
        assert_eq!(copy.count(sql).await.unwrap(), 0, "{what}");
    }
}

/// What one client did is in the copy up to some point and not beyond, and that point is not before `before`'s end. How
/// many of its writes came later.
async fn is_a_prefix(copy: &TestStore, history: &History, before: &History) -> usize {
    let mut left_out = 0;
    for (at, (task_id, canceled)) in history.iter().enumerate() {
        let found = copy.call(&copy.admin, "get_task", json!({ "task_id": task_id })).await;
        let status = found.map(|task| task.json["status"].as_str().unwrap().to_owned());
        let writes = [status.is_ok(), status.is_ok_and(|status| status == "canceled")];
        for present in writes.into_iter().take(1 + usize::from(*canceled)) {
            assert!(!present || left_out == 0, "task {at} is in the copy, and an earlier write of its client is not");
            left_out += usize::from(!present);
        }
        if let Some((_, was_canceled)) = before.get(at) {
            assert!(
                writes[0] && (writes[1] || !was_canceled),
                "task {at} was acknowledged before and is not in the copy"
            );
        }
    }
    left_out
}

#[tokio::test]
async fn a_backup_is_private_complete_and_replaces_nothing() {
    let (on, file) = filled(5).await;
    let home = tempfile::tempdir().unwrap();
    let destination = home.path().join("backup");
    let manifest = take(&file, &destination, &Watch::none()).unwrap();
    assert_eq!(names(home.path()), ["backup"]);
    assert_eq!(names(&destination), ["manifest.json", "waybill.db"], "one file that needs no log beside it");
    assert_eq!(Manifest::read(&destination).unwrap(), manifest);
    assert_eq!((manifest.rows["tasks"], manifest.created_at), (5, now()));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&destination), mode(&destination.join("waybill.db"))), (0o700, 0o600));
    assert_eq!(mode(&destination.join("manifest.json")), 0o600);

    let code = |destination: &Path| take(&file, destination, &Watch::none()).unwrap_err().code();
    let kept = fs::read(destination.join("waybill.db")).unwrap();
    assert_eq!(code(&destination), Code::AlreadyExists);
    fs::create_dir(home.path().join("empty")).unwrap();
    assert_eq!(code(&home.path().join("empty")), Code::AlreadyExists, "even an empty folder is somebody's");
    assert_eq!(code(&file.parent().unwrap().join("backup")), Code::InvalidRequest, "inside the data folder");
    std::os::unix::fs::symlink(file.parent().unwrap(), home.path().join("link")).unwrap();
    assert_eq!(code(&home.path().join("link/backup")), Code::InvalidRequest, "inside it, by a link");
    assert_eq!(code(&home.path().join("nowhere/backup")), Code::PathUnusable);
    assert_eq!(code(Path::new("/")), Code::InvalidRequest);
    fs::create_dir(home.path().join("second.part")).unwrap();
    assert_eq!(code(&home.path().join("second")), Code::AlreadyExists, "another is under way");
    assert!(fs::read(destination.join("waybill.db")).unwrap() == kept);
    assert_eq!(names(file.parent().unwrap()).iter().filter(|name| name.contains("part")).count(), 0);

    let absent = take(&home.path().join("waybill.db"), &home.path().join("third"), &Watch::none()).unwrap_err();
    assert_eq!(absent.code(), Code::NotFound, "{absent}");
    on.call(&on.admin, "create_task", json!({ "type": "t" })).await.unwrap();
}

#[tokio::test]
async fn without_a_server_a_backup_leaves_the_folder_as_it_was() {
    let (on, file) = filled(5).await;
    let store = on.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let seen = || {
        names(file.parent().unwrap())
            .into_iter()
            .map(|name| {
                let bytes = fs::read(file.parent().unwrap().join(&name)).unwrap();
                (name, bytes)
            })
            .collect::<Vec<_>>()
    };
    let before = seen();
    let home = tempfile::tempdir().unwrap();
    take(&file, &home.path().join("backup"), &Watch::none()).unwrap();
    assert!(before == seen());
}

#[tokio::test]
async fn a_backup_that_is_stopped_leaves_nothing_behind() {
    let (_on, file) = filled(5).await;
    let home = tempfile::tempdir().unwrap();
    for last in [Step::Checking, Step::Hashing] {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let watch = Watch::new(stop, move |step, _, _| flag.store(step == last, Ordering::Relaxed));
        let error = take(&file, &home.path().join("backup"), &watch).unwrap_err();
        assert_eq!(error.code(), Code::Interrupted, "{last:?}: {error}");
        assert_eq!(names(home.path()), Vec::<String>::new(), "{last:?}");
    }
}

#[tokio::test]
async fn a_backup_without_room_says_so_and_leaves_nothing_behind() {
    let Some(disk) = Disk::mount(1 << 20) else { return };
    let (on, file) = filled(0).await;
    for _ in 0..60 {
        let payload = "x".repeat(PAYLOAD_BYTES);
        on.call(&on.admin, "create_task", json!({ "type": "t", "payload": payload })).await.unwrap();
    }
    let error = take(&file, &disk.path().join("backup"), &Watch::none()).unwrap_err();
    assert_eq!(error.code(), Code::StorageFull, "{error}");
    assert_eq!(names(disk.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_database_that_has_lost_commits_is_not_taken_for_a_whole_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("waybill.db");
    let on = stores::open_sqlite_in(folder).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    take(&file, &copy.path().join("older"), &Watch::none()).unwrap();
    for _ in 0..7 {
        on.call(&on.admin, "create_task", json!({ "type": "t" })).await.unwrap();
    }
    let store = on.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    fs::copy(copy.path().join("older/waybill.db"), &file).unwrap();
    let error = take(&file, &copy.path().join("newer"), &Watch::none()).unwrap_err();
    assert_eq!(error.code(), Code::DatabaseUnusable);
    assert!(error.message().contains("lost 7 commits"), "{error}");
    assert_eq!(names(copy.path()), ["older"]);
}

/// Only the whole check sees it: every page can be read, and an index does not agree with its table.
#[tokio::test]
async fn a_damaged_database_is_not_backed_up() {
    let (on, file) = filled(5).await;
    let key = "a key that no other task has";
    on.call(&on.admin, "create_task", json!({ "type": "t", "idempotency_key": key })).await.unwrap();
    let store = on.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let offsets: Vec<usize> =
        (0..bytes.len() - key.len()).filter(|at| bytes[*at..].starts_with(key.as_bytes())).collect();
    assert_eq!(offsets.len(), 2, "in the row and in the index");
    bytes[offsets[1] + key.len() - 1] ^= 1;
    fs::write(&file, bytes).unwrap();
    let home = tempfile::tempdir().unwrap();
    let error = take(&file, &home.path().join("backup"), &Watch::none()).unwrap_err();
    assert_eq!(error.code(), Code::DatabaseUnusable, "{error}");
    assert!(error.message().contains("The copy is not sound"), "{error}");
    assert_eq!(names(home.path()), Vec::<String>::new());
}

#[tokio::test]
async fn an_older_copy_under_the_newer_mark_is_refused_and_a_restored_one_is_taken() {
    let (on, file) = filled(3).await;
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    take(&file, &backup, &Watch::none()).unwrap();
    for _ in 0..4 {
        on.call(&on.admin, "create_task", json!({ "type": "t" })).await.unwrap();
    }
    let store = on.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();

    // Put back by hand, beside the mark of what was lost.
    let by_hand = tempfile::tempdir().unwrap();
    fs::copy(backup.join("waybill.db"), by_hand.path().join("waybill.db")).unwrap();
    fs::copy(file.with_extension("mark"), by_hand.path().join("waybill.mark")).unwrap();
    let error = stores::open_sqlite_in(by_hand).await.err().unwrap().to_string();
    assert!(error.contains("lost 4 commits"), "{error}");

    // Restored, and the mark of what was lost put beside it afterwards.
    let restored = tempfile::tempdir().unwrap();
    let outcome = restore(&backup, restored.path()).unwrap();
    assert_ne!(outcome.database_id, outcome.manifest.database_id);
    fs::copy(file.with_extension("mark"), restored.path().join("waybill.mark")).unwrap();
    let again = stores::open_sqlite_in(restored).await.unwrap();
    assert_eq!(again.count("SELECT count(*) FROM tasks").await.unwrap(), 3);

    // Its own mark guards it from the first start on: the backup's file cannot be slipped in under it.
    let guarded = tempfile::tempdir().unwrap();
    restore(&backup, guarded.path()).unwrap();
    let path = guarded.path().to_owned();
    let on = stores::open_sqlite_in(guarded).await.unwrap();
    let older = fs::read(path.join("waybill.db")).unwrap();
    on.call(&on.admin, "create_task", json!({ "type": "t" })).await.unwrap();
    let store = on.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    fs::write(path.join("waybill.db"), older).unwrap();
    let error = stores::open(
        waybill_store::Backend::Sqlite(waybill_store::SqliteOptions::at(path.join("waybill.db"))),
        &on.time,
    )
    .await;
    assert!(error.err().unwrap().message().contains("lost 1 commits"));
}

/// A fresh copy of the backup, changed by `spoil`, and what a restore of it says.
fn spoiled(backup: &Path, spoil: impl FnOnce(&Path)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    for name in ["waybill.db", "manifest.json"] {
        fs::copy(backup.join(name), folder.path().join(name)).unwrap();
    }
    spoil(folder.path());
    let target: TempDir = tempfile::tempdir().unwrap();
    let error = restore(folder.path(), target.path()).unwrap_err();
    assert_eq!(names(target.path()), Vec::<String>::new(), "{error}");
    error
}

#[tokio::test]
async fn a_backup_that_is_not_what_was_written_is_refused() {
    let (on, file) = filled(20).await;
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    take(&file, &backup, &Watch::none()).unwrap();
    let flip = |path: PathBuf, at: usize| {
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let bytes = usize::try_from(backup.join("waybill.db").metadata().unwrap().len()).unwrap();
    for at in [0, 24, 4096, bytes / 2, bytes - 1] {
        let error = spoiled(&backup, |folder| flip(folder.join("waybill.db"), at));
        assert!(error.message().contains("SHA-256"), "byte {at}: {error}");
    }
    let cut = |length: usize| {
        spoiled(&backup, |folder| {
            let mut content = fs::read(folder.join("waybill.db")).unwrap();
            content.resize(length, 0);
            fs::write(folder.join("waybill.db"), content).unwrap();
        })
    };
    for length in [0, bytes - 1, bytes + 1] {
        assert!(cut(length).message().contains("bytes where"), "{length}");
    }
    for name in ["waybill.db", "manifest.json"] {
        let error = spoiled(&backup, |folder| fs::remove_file(folder.join(name)).unwrap());
        assert!(error.code() == Code::DatabaseUnusable && error.message().contains(name), "{error}");
    }
    let manifest_bytes = usize::try_from(backup.join("manifest.json").metadata().unwrap().len()).unwrap();
    for at in 0..manifest_bytes {
        let error = spoiled(&backup, |folder| flip(folder.join("manifest.json"), at));
        assert_eq!(error.code(), Code::DatabaseUnusable, "byte {at}: {error}");
    }
    on.call(&on.admin, "create_task", json!({ "type": "t" })).await.unwrap();
    let other = home.path().join("other");
    take(&file, &other, &Watch::none()).unwrap();
    let error = spoiled(&backup, |folder| {
        fs::copy(other.join("manifest.json"), folder.join("manifest.json")).unwrap();
    });
    assert_eq!(error.code(), Code::DatabaseUnusable, "the manifest of another backup: {error}");
    restore(&backup, tempfile::tempdir().unwrap().path()).unwrap();
}

#[tokio::test]
async fn a_restore_replaces_nothing() {
    let (_on, file) = filled(1).await;
    let home = tempfile::tempdir().unwrap();
    let backup = home.path().join("backup");
    take(&file, &backup, &Watch::none()).unwrap();
    for name in ["waybill.db", "waybill.mark"] {
        let target = tempfile::tempdir().unwrap();
        fs::write(target.path().join(name), "mine").unwrap();
        assert_eq!(restore(&backup, target.path()).unwrap_err().code(), Code::AlreadyExists, "{name}");
        assert_eq!(fs::read(target.path().join(name)).unwrap(), b"mine");
        assert_eq!(names(target.path()), [name]);
    }
    let killed = tempfile::tempdir().unwrap();
    fs::write(killed.path().join("waybill.db.part"), "half").unwrap();
    restore(&backup, killed.path()).unwrap();
    assert_eq!(names(killed.path()), ["waybill.db", "waybill.mark"]);
}
