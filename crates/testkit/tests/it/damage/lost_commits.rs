//! Commits that are gone and files that are damaged: refused at start, with what was lost and the way out.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use waybill_domains::registry;
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::{Code, Error, Mode, Result};
use waybill_store::{Backend, Ctx, Health, SqliteOptions, Store, Tx, Work};
use waybill_testkit::stores;

const START_US: i64 = 1_700_000_000_000_000;

struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn of(&self, ending: &str) -> PathBuf {
        self.folder.path().join(format!("waybill.{ending}"))
    }

    async fn open_alone(&self, adjust: impl FnOnce(&mut SqliteOptions)) -> Result<Store> {
        let mut options = SqliteOptions::at(self.of("db"));
        adjust(&mut options);
        stores::open(Backend::Sqlite(options), &ManualSource::at(START_US)).await
    }

    /// With the default tenant, made by whoever is first.
    async fn open(&self) -> Result<Store> {
        let store = self.open_alone(|_| {}).await?;
        waybill_access::ensure_default_tenant(&store).await?;
        Ok(store)
    }

    async fn refused(&self) -> Error {
        let error = self.open().await.err().unwrap();
        assert_eq!(error.code(), Code::DatabaseUnusable, "{error}");
        error
    }

    /// As a crash at this moment would leave them: the log is not yet in the database.
    fn copy(&self) -> Self {
        let copy = Self::new();
        for ending in ["db", "db-wal", "mark"] {
            if self.of(ending).exists() {
                fs::copy(self.of(ending), copy.of(ending)).unwrap();
            }
        }
        copy
    }
}

async fn create_tasks(store: &Store, count: usize) {
    let admin = waybill_access::admin_caller(store).await.unwrap();
    for number in 0..count {
        let input = json!({ "type": "t", "payload": format!("{number:0500}") });
        registry().find("create_task").unwrap().call(&store.clone().into(), &admin, &input.to_string()).await.unwrap();
    }
}

fn close(store: Store) {
    std::thread::spawn(move || store.close()).join().unwrap();
}

/// The number of the newest commit.
struct Newest;

impl Work for Newest {
    type Output = i64;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<i64> {
        let row = tx.query_opt("SELECT commit_seq FROM meta WHERE id = 1", &[]).await?;
        row.ok_or_else(|| Error::internal("no meta"))?.int(0)
    }
}

/// The newest commit that the mark knows of: each of its two places holds a name, the database's id, and a number.
fn marked(mark: &Path) -> i64 {
    let bytes = fs::read(mark).unwrap();
    let offsets = [0, 4096].into_iter().filter(|at| bytes[*at..].starts_with(b"waymark1"));
    offsets.map(|at| i64::from_le_bytes(bytes[at + 24..at + 32].try_into().unwrap())).max().unwrap_or(0)
}

/// It is written now and then, by a thread of its own.
async fn let_the_mark_be_written(files: &Files, store: &Store) {
    let newest = store.system().run(Newest).await.unwrap();
    let began = Instant::now();
    while marked(&files.of("mark")) < newest {
        assert!(began.elapsed() < Duration::from_secs(60), "the mark is never written");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[tokio::test]
async fn a_log_that_lost_its_end_is_refused_with_the_number_of_missing_commits() {
    let files = Files::new();
    let store = files.open().await.unwrap();
    create_tasks(&store, 20).await;
    let_the_mark_be_written(&files, &store).await;

    let whole = files.copy();
    close(whole.open().await.unwrap());

    let wal_bytes = files.of("db-wal").metadata().unwrap().len();
    let cut = files.copy();
    File::options().write(true).open(cut.of("db-wal")).unwrap().set_len(wal_bytes - 100).unwrap();
    let error = cut.refused().await;
    assert!(error.message().contains("lost 1 commits"), "{error}");

    let flipped = files.copy();
    // Among the tasks: the tables that stand before them in the log are in the database already.
    flip(&flipped.of("db-wal"), wal_bytes - wal_bytes / 10);
    let error = flipped.refused().await;
    assert!(error.message().contains(&flipped.of("mark").display().to_string()), "{error}");
    // The refusal has changed nothing: what stands behind the damage is still there for those who can read it.
    assert_eq!(flipped.of("db-wal").metadata().unwrap().len(), wal_bytes);
    flipped.refused().await;
    // The way out that accepts the loss.
    fs::remove_file(flipped.of("mark")).unwrap();
    close(flipped.open().await.unwrap());
    close(store);
}

#[tokio::test]
async fn a_young_database_whose_log_is_damaged_at_its_beginning_is_not_taken_for_a_new_one() {
    let files = Files::new();
    let store = files.open().await.unwrap();
    create_tasks(&store, 3).await;
    let_the_mark_be_written(&files, &store).await;
    let hurt = files.copy();
    close(store);
    // Within the first frame of the log, before which there is nothing.
    flip(&hurt.of("db-wal"), 100);
    let refused = hurt.refused().await.to_string();
    assert!(refused.contains("has lost") && refused.contains("newest is 0"), "{refused}");
    assert!(hurt.refused().await.to_string().contains("has lost"), "it is taken for a new one at the second start");
    fs::remove_file(hurt.of("mark")).unwrap();
    close(hurt.open().await.unwrap());
}

#[tokio::test]
async fn an_older_copy_is_refused_until_its_mark_is_deleted() {
    let files = Files::new();
    let store = files.open().await.unwrap();
    close(store);
    let older = files.copy();
    let store = files.open().await.unwrap();
    create_tasks(&store, 7).await;
    close(store);
    fs::copy(older.of("db"), files.of("db")).unwrap();

    let error = files.refused().await;
    assert!(error.message().contains("lost 7 commits"), "{error}");
    fs::remove_file(files.of("mark")).unwrap();
    close(files.open().await.unwrap());
}

#[tokio::test]
async fn a_mark_that_says_nothing_refuses_nothing() {
    let files = Files::new();
    let store = files.open().await.unwrap();
    create_tasks(&store, 3).await;
    close(store);
    fs::write(files.of("mark"), [9; 8192]).unwrap();
    close(files.open().await.unwrap());
    // Another database's, of many more commits.
    let other = Files::new();
    let store = other.open().await.unwrap();
    create_tasks(&store, 9).await;
    close(store);
    fs::copy(other.of("mark"), files.of("mark")).unwrap();
    close(files.open().await.unwrap());
}

/// Writes over pages behind those that are read at every start: rows of tables and indexes.
async fn damaged() -> Files {
    let files = Files::new();
    let store = files.open().await.unwrap();
    create_tasks(&store, 300).await;
    close(store);
    let file = File::options().write(true).open(files.of("db")).unwrap();
    let among_rows = files.of("db").metadata().unwrap().len() / 4096 * 3 / 4 * 4096;
    file.write_all_at(&[0xa5; 8 * 4096], among_rows).unwrap();
    files
}

#[tokio::test]
async fn a_damaged_database_is_refused_with_the_finding_and_the_way_out() {
    let files = damaged().await;
    let before = fs::read(files.of("db")).unwrap();
    let error = files.refused().await;
    for part in ["damaged", "Restore a backup", &files.of("db").display().to_string()] {
        assert!(error.message().contains(part), "{part} is not in: {error}");
    }
    assert!(before == fs::read(files.of("db")).unwrap(), "the refusal has changed the file");
}

/// When the background check has ended.
async fn checked(store: &Store) -> Health {
    for _ in 0..3_000 {
        let health = store.system().probe().await;
        if !health.checking {
            return health;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the check never ends");
}

#[tokio::test]
async fn damage_found_after_the_budget_stops_writing() {
    let files = damaged().await;
    let store = files.open_alone(|options| options.check_budget = Duration::ZERO).await.unwrap();
    let health = checked(&store).await;
    assert!(!health.writable);
    assert!(health.detail.unwrap().contains("damaged"));
    let caller = waybill_access::admin_caller(&store).await.unwrap();
    let answer = registry().find("create_task").unwrap().call(&store.clone().into(), &caller, r#"{"type":"t"}"#).await;
    assert_eq!(answer.err().unwrap().code(), Code::StoreUnavailable);
    close(store);
}

#[tokio::test]
async fn a_sound_database_is_checked_in_the_background_too() {
    let files = Files::new();
    let store = files.open_alone(|options| options.check_budget = Duration::ZERO).await.unwrap();
    assert!(checked(&store).await.writable);
    close(store);
}
