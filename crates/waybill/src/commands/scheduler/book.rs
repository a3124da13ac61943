//! The scheduler's file: its schedules, and the changes that wait for the server's word.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use waybill_client::LeaseRef;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, Result};
use waybill_store::safety;

use super::definition::Definition;
use crate::data;

const VERSION: i64 = 3;

/// The longest a schedule is put off at a time.
const PUT_OFF_S_MAX: i64 = 30;

const TABLES: &str = "
    CREATE TABLE schedules (
        schedule_id     TEXT PRIMARY KEY,
        definition      TEXT NOT NULL,
        enabled         INTEGER NOT NULL,
        -- Intervals are counted from here.
        anchor_s        INTEGER NOT NULL,
        -- Runs up to here have been dealt with: fired, skipped, or passed while paused.
        handled_until_s INTEGER NOT NULL,
        -- NULL when nothing is to come.
        next_run_s      INTEGER,
        last_run_s      INTEGER,
        last_status     TEXT
    ) STRICT;
    CREATE INDEX schedules_due ON schedules (next_run_s) WHERE enabled = 1 AND next_run_s IS NOT NULL;
    -- A change that was promised to the server but not yet confirmed by it.
    CREATE TABLE changes (
        task_id   TEXT PRIMARY KEY,
        lease_id  TEXT NOT NULL,
        worker_id TEXT,
        change    TEXT NOT NULL,
        result    TEXT NOT NULL
    ) STRICT;
    PRAGMA user_version = 1;
";

/// Whose tasks it fires; NULL in what an older version has written.
const OWNERS: &str = "ALTER TABLE schedules ADD COLUMN owner TEXT; PRAGMA user_version = 2;";

/// Not to be looked at before; NULL unless something held it up. Which runs are due or were missed stays as it is.
const PUT_OFF: &str = "
    ALTER TABLE schedules ADD COLUMN put_off_until_s INTEGER;
    DROP INDEX schedules_due;
    CREATE INDEX schedules_due ON schedules (coalesce(put_off_until_s, next_run_s))
        WHERE enabled = 1 AND next_run_s IS NOT NULL;
    PRAGMA user_version = 3;
";

const COLUMNS: &str =
    "schedule_id, definition, enabled, anchor_s, handled_until_s, next_run_s, last_run_s, last_status, owner";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Schedule {
    pub schedule_id: String,
    pub definition: Definition,
    pub enabled: bool,
    pub anchor_s: i64,
    pub handled_until_s: i64,
    pub next_run_s: Option<i64>,
    pub last_run_s: Option<i64>,
    pub last_status: Option<String>,
    /// Who asked for it and owns what it fires.
    #[serde(default)]
    pub owner: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Create(Box<Schedule>),
    Pause { schedule_id: String },
    Resume { schedule_id: String, handled_until_s: i64, next_run_s: Option<i64> },
    Delete { schedule_id: String },
}

/// A change with what it needs to be confirmed.
#[derive(Clone, Debug)]
pub struct Promised {
    pub lease: LeaseRef,
    pub change: Change,
    pub result: Json,
}

#[derive(Clone)]
pub struct Book(Arc<Mutex<Connection>>);

impl Book {
    pub fn open(path: &Path) -> Result<Self> {
        let unusable = |why: String| {
            let message = format!("The scheduler's file {} cannot be used: {why}.", path.display());
            let cure = "Check that you may write it and its folder; a file that is damaged or something else is left as it is: \
                        choose another with --file.";
            Error::new(Code::DataFolderUnusable, message).with_cure(cure)
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            data::create_folder(folder).map_err(|error| unusable(error.to_string()))?;
        }
        safety::create_private(path).map_err(|error| unusable(error.to_string()))?;
        let connection = Self::prepare(path).map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                let message = format!("The scheduler's file {} is in use by another scheduler.", path.display());
                Error::new(Code::DataFolderLocked, message)
                    .with_cure("Stop that scheduler, or choose another file with --file.")
            }
            _ => unusable(error.to_string()),
        })?;
        let version: i64 = connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(|error| unusable(error.to_string()))?;
        if version > VERSION {
            let message = format!("{} was written by a newer version of the scheduler.", path.display());
            return Err(Error::new(Code::SchemaTooNew, message));
        }
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Exclusive from the first access on: two schedulers on one file would undo each other's records.
    fn prepare(path: &Path) -> rusqlite::Result<Connection> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(Duration::ZERO)?;
        connection
            .execute_batch("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let version: i64 = tx.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version == 0 {
            tx.execute_batch(TABLES)?;
        }
        if version < 2 {
            tx.execute_batch(OWNERS)?;
        }
        if version < 3 {
            tx.execute_batch(PUT_OFF)?;
        }
        tx.commit()?;
        Ok(connection)
    }

    /// One transaction, off the runtime's threads.
    async fn transact<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let book = Arc::clone(&self.0);
        let worked = tokio::task::spawn_blocking(move || {
            let mut connection = book.lock().unwrap_or_else(PoisonError::into_inner);
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let worked = work(&tx)?;
            tx.commit()?;
            Ok::<_, rusqlite::Error>(worked)
        });
        worked.await.map_err(Error::internal)?.map_err(|error| match &error {
            // The trouble of one row and not of the file.
            rusqlite::Error::FromSqlConversionFailure(..) => Error::internal(error),
            _ => Error::new(Code::StoreUnavailable, "The scheduler's file cannot be written or read.").because(error),
        })
    }

    pub async fn schedule(&self, schedule_id: &str) -> Result<Option<Schedule>> {
        let id = schedule_id.to_owned();
        let sql = format!("SELECT {COLUMNS} FROM schedules WHERE schedule_id = ?1");
        self.transact(move |tx| tx.query_row(&sql, [id], read_schedule).optional()).await
    }

    /// Enabled schedules with a run not after `now_s` that are not put off, the longest waiting first. Only their ids: one
    /// that cannot be read must not hide the others.
    pub async fn due(&self, now_s: i64, max: usize) -> Result<Vec<String>> {
        const DUE: &str = "SELECT schedule_id FROM schedules
             WHERE enabled = 1 AND next_run_s IS NOT NULL AND coalesce(put_off_until_s, next_run_s) <= ?1
             ORDER BY coalesce(put_off_until_s, next_run_s) LIMIT ?2";
        self.transact(move |tx| {
            let mut statement = tx.prepare_cached(DUE)?;
            let rows = statement.query_map(params![now_s, max as i64], |row| row.get::<_, String>(0))?;
            rows.collect()
        })
        .await
    }

    /// When a schedule is to be looked at next: the next run of all, or the end of being put off.
    pub async fn next_look_s(&self) -> Result<Option<i64>> {
        const NEXT: &str = "SELECT min(coalesce(put_off_until_s, next_run_s)) FROM schedules
             WHERE enabled = 1 AND next_run_s IS NOT NULL";
        self.transact(move |tx| tx.query_row(NEXT, [], |row| row.get(0))).await
    }

    /// Its run could not be dealt with: it waits as long again as it has waited already, and lets others go first. Says
    /// nothing of a schedule that has no run by now.
    pub async fn put_off(&self, schedule_id: &str, now_s: i64) -> Result<()> {
        let id = schedule_id.to_owned();
        self.transact(move |tx| {
            tx.execute(
                "UPDATE schedules SET put_off_until_s = ?2 + min(max(?2 - next_run_s, 1), ?3)
                 WHERE schedule_id = ?1 AND next_run_s <= ?2",
                params![id, now_s, PUT_OFF_S_MAX],
            )
        })
        .await
        .map(drop)
    }

    /// A run has been dealt with. Says nothing of a schedule that is gone or was moved past the run meanwhile.
    pub async fn record(&self, schedule_id: &str, run_s: i64, next_run_s: Option<i64>, status: String) -> Result<()> {
        let id = schedule_id.to_owned();
        self.transact(move |tx| {
            tx.execute(
                "UPDATE schedules SET handled_until_s = ?2, last_run_s = ?2, next_run_s = ?3, last_status = ?4,
                                      put_off_until_s = NULL
                 WHERE schedule_id = ?1 AND handled_until_s < ?2",
                params![id, run_s, next_run_s, status],
            )
        })
        .await
        .map(drop)
    }

    /// Written before the server is told, so that a crash in between loses nothing. A second lease of the same task
    /// takes the place of the first.
    pub async fn promise(&self, promised: Promised) -> Result<()> {
        let change = serde_json::to_string(&promised.change).map_err(Error::internal)?;
        self.transact(move |tx| {
            let lease = promised.lease;
            tx.execute(
                "INSERT OR REPLACE INTO changes (task_id, lease_id, worker_id, change, result) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    lease.task_id.to_string(),
                    lease.lease_id.to_string(),
                    lease.worker_id,
                    change,
                    promised.result.to_string()
                ],
            )
        })
        .await
        .map(drop)
    }

    pub async fn promises(&self) -> Result<Vec<Promised>> {
        self.transact(|tx| {
            let mut statement =
                tx.prepare_cached("SELECT task_id, lease_id, worker_id, change, result FROM changes")?;
            statement.query_map([], read_promised)?.collect()
        })
        .await
    }

    /// The server has it on record: now it counts.
    pub async fn apply(&self, promised: Promised) -> Result<()> {
        self.transact(move |tx| {
            apply(tx, promised.change)?;
            forget(tx, promised.lease.task_id)
        })
        .await
    }

    /// The server did not take it: it never was.
    pub async fn forget(&self, task_id: Uuid) -> Result<()> {
        self.transact(move |tx| forget(tx, task_id)).await
    }
}

fn apply(tx: &Transaction<'_>, change: Change) -> rusqlite::Result<()> {
    match change {
        Change::Create(schedule) => {
            let definition = json_text(&schedule.definition)?;
            let sql = format!(
                "INSERT INTO schedules ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (schedule_id) DO NOTHING"
            );
            tx.execute(
                &sql,
                params![
                    schedule.schedule_id,
                    definition,
                    schedule.enabled,
                    schedule.anchor_s,
                    schedule.handled_until_s,
                    schedule.next_run_s,
                    schedule.last_run_s,
                    schedule.last_status,
                    schedule.owner
                ],
            )
        }
        Change::Pause { schedule_id } => {
            tx.execute("UPDATE schedules SET enabled = 0 WHERE schedule_id = ?1", [schedule_id])
        }
        // Only what was paused: a running one must not lose a run that is due.
        Change::Resume { schedule_id, handled_until_s, next_run_s } => tx.execute(
            "UPDATE schedules SET enabled = 1, handled_until_s = max(handled_until_s, ?2), next_run_s = ?3,
                                  put_off_until_s = NULL
             WHERE schedule_id = ?1 AND enabled = 0",
            params![schedule_id, handled_until_s, next_run_s],
        ),
        Change::Delete { schedule_id } => tx.execute("DELETE FROM schedules WHERE schedule_id = ?1", [schedule_id]),
    }
    .map(drop)
}

fn forget(tx: &Transaction<'_>, task_id: Uuid) -> rusqlite::Result<()> {
    tx.execute("DELETE FROM changes WHERE task_id = ?1", [task_id.to_string()]).map(drop)
}

fn read_schedule(row: &Row<'_>) -> rusqlite::Result<Schedule> {
    Ok(Schedule {
        schedule_id: row.get(0)?,
        definition: parsed(1, &row.get::<_, String>(1)?)?,
        enabled: row.get(2)?,
        anchor_s: row.get(3)?,
        handled_until_s: row.get(4)?,
        next_run_s: row.get(5)?,
        last_run_s: row.get(6)?,
        last_status: row.get(7)?,
        owner: row.get(8)?,
    })
}

fn read_promised(row: &Row<'_>) -> rusqlite::Result<Promised> {
    let id = |column: usize| -> rusqlite::Result<Uuid> {
        let text: String = row.get(column)?;
        Uuid::parse_str(&text).map_err(|error| unreadable(column, error))
    };
    Ok(Promised {
        lease: LeaseRef { task_id: id(0)?, lease_id: id(1)?, worker_id: row.get(2)? },
        change: parsed(3, &row.get::<_, String>(3)?)?,
        result: parsed(4, &row.get::<_, String>(4)?)?,
    })
}

fn parsed<T: serde::de::DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable(column, error))
}

fn unreadable(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

fn json_text(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn schedule(id: &str) -> Schedule {
        let payload =
            json!({"name": "n", "mode": "interval", "interval_seconds": 60, "task_template": {"type": "echo"}});
        let (definition, next) = Definition::read(&payload, 1_000).unwrap();
        Schedule {
            schedule_id: id.to_owned(),
            definition,
            enabled: true,
            anchor_s: 1_000,
            handled_until_s: 1_000,
            next_run_s: Some(next),
            last_run_s: None,
            last_status: None,
            owner: Some("agent:alice".to_owned()),
        }
    }

    fn promised(change: Change) -> Promised {
        let lease = LeaseRef { worker_id: Some("w".to_owned()), task_id: Uuid::nil(), lease_id: Uuid::nil() };
        Promised { lease, change, result: json!({"ok": true}) }
    }

    async fn apply(book: &Book, change: Change) {
        book.promise(promised(change.clone())).await.unwrap();
        book.apply(promised(change)).await.unwrap();
    }

    #[tokio::test]
    async fn a_promise_survives_a_restart_and_changes_nothing_until_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/scheduler.db");
        let book = Book::open(&path).unwrap();
        book.promise(promised(Change::Create(Box::new(schedule("s"))))).await.unwrap();
        assert_eq!(Book::open(&path).err().unwrap().code(), Code::DataFolderLocked);
        drop(book);

        let book = Book::open(&path).unwrap();
        assert!(book.schedule("s").await.unwrap().is_none() && book.due(9_999, 9).await.unwrap().is_empty());
        let mut promises = book.promises().await.unwrap();
        assert_eq!((promises.len(), &promises[0].result), (1, &json!({"ok": true})));
        book.apply(promises.remove(0)).await.unwrap();
        assert!(book.schedule("s").await.unwrap().is_some() && book.promises().await.unwrap().is_empty());
        book.promise(promised(Change::Delete { schedule_id: "s".to_owned() })).await.unwrap();
        book.forget(Uuid::nil()).await.unwrap();
        assert!(book.schedule("s").await.unwrap().is_some() && book.promises().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_file_and_its_folder_are_their_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep");
        let book = Book::open(&deep.join("scheduler.db")).unwrap();
        apply(&book, Change::Create(Box::new(schedule("s")))).await;
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&deep), 0o700);
        for name in ["scheduler.db", "scheduler.db-wal"] {
            assert_eq!(mode(&deep.join(name)), 0o600, "{name}");
        }
    }

    #[tokio::test]
    async fn records_only_go_forwards_and_pauses_hide_a_schedule() {
        let folder = tempfile::tempdir().unwrap();
        let book = Book::open(&folder.path().join("s.db")).unwrap();
        apply(&book, Change::Create(Box::new(schedule("s")))).await;
        assert_eq!(book.due(1_059, 9).await.unwrap().len(), 0);
        assert_eq!(book.due(1_060, 9).await.unwrap().len(), 1);
        book.record("s", 1_120, Some(1_180), "fired".to_owned()).await.unwrap();
        book.record("s", 1_060, Some(1_120), "late".to_owned()).await.unwrap();
        let now = book.schedule("s").await.unwrap().unwrap();
        assert_eq!(
            (now.handled_until_s, now.next_run_s, now.last_status.as_deref()),
            (1_120, Some(1_180), Some("fired"))
        );
        assert_eq!(book.next_look_s().await.unwrap(), Some(1_180));

        apply(&book, Change::Pause { schedule_id: "s".to_owned() }).await;
        assert_eq!((book.next_look_s().await.unwrap(), book.due(9_999, 9).await.unwrap().len()), (None, 0));
        let resume = Change::Resume { schedule_id: "s".to_owned(), handled_until_s: 5_000, next_run_s: Some(5_020) };
        apply(&book, resume.clone()).await;
        assert_eq!(book.next_look_s().await.unwrap(), Some(5_020));
        book.record("s", 5_020, Some(5_080), "fired".to_owned()).await.unwrap();
        apply(&book, resume).await;
        assert_eq!(book.next_look_s().await.unwrap(), Some(5_080), "a schedule that runs was resumed again");
        apply(&book, Change::Delete { schedule_id: "s".to_owned() }).await;
        assert!(book.schedule("s").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn one_that_is_put_off_lets_others_go_first_and_keeps_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let book = Book::open(&folder.path().join("s.db")).unwrap();
        apply(&book, Change::Create(Box::new(schedule("a")))).await;
        apply(&book, Change::Create(Box::new(Schedule { next_run_s: Some(1_070), ..schedule("b") }))).await;
        assert_eq!(book.due(1_075, 1).await.unwrap(), ["a"]);
        book.put_off("a", 1_060).await.unwrap();
        assert_eq!(book.next_look_s().await.unwrap(), Some(1_061), "the first time it is not for long");
        book.put_off("a", 1_075).await.unwrap();
        assert_eq!(book.due(1_089, 9).await.unwrap(), ["b"]);
        assert_eq!(book.due(1_090, 9).await.unwrap(), ["b", "a"], "as long again as it has waited");
        book.put_off("a", 9_000).await.unwrap();
        assert_eq!(book.due(9_029, 9).await.unwrap(), ["b"]);
        assert_eq!(book.due(9_030, 9).await.unwrap(), ["b", "a"], "never for longer than that");
        let a = book.schedule("a").await.unwrap().unwrap();
        assert_eq!(
            (a.handled_until_s, a.next_run_s, a.last_run_s),
            (1_000, Some(1_060), None),
            "nothing is dealt with"
        );

        book.record("a", 1_060, Some(1_120), "fired".to_owned()).await.unwrap();
        book.put_off("a", 1_119).await.unwrap();
        assert_eq!(book.due(1_120, 9).await.unwrap(), ["b", "a"], "a run that is to come was put off");
        book.put_off("a", 2_000).await.unwrap();
        apply(&book, Change::Pause { schedule_id: "a".to_owned() }).await;
        let (schedule_id, next_run_s) = ("a".to_owned(), Some(2_005));
        apply(&book, Change::Resume { schedule_id, handled_until_s: 2_000, next_run_s }).await;
        assert_eq!(book.due(2_005, 9).await.unwrap(), ["b", "a"], "a resumed one begins anew");
    }

    #[tokio::test]
    async fn one_that_cannot_be_read_is_named_and_is_not_the_files_trouble() {
        let folder = tempfile::tempdir().unwrap();
        let book = Book::open(&folder.path().join("s.db")).unwrap();
        for id in ["a", "b"] {
            apply(&book, Change::Create(Box::new(schedule(id)))).await;
        }
        let damage = "UPDATE schedules SET definition = '{}' WHERE schedule_id = 'a'";
        book.transact(move |tx| tx.execute(damage, [])).await.unwrap();
        assert_eq!(book.due(1_060, 9).await.unwrap().len(), 2);
        assert_eq!(book.schedule("a").await.unwrap_err().code(), Code::Internal);
        assert!(book.schedule("b").await.unwrap().is_some());
        book.put_off("a", 1_060).await.unwrap();
        assert_eq!(book.due(1_060, 9).await.unwrap(), ["b"]);
    }

    #[tokio::test]
    async fn the_file_of_an_older_version_keeps_its_schedules() {
        for steps in [&[TABLES][..], &[TABLES, OWNERS][..]] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s.db");
            let old = Connection::open(&path).unwrap();
            for step in steps {
                old.execute_batch(step).unwrap();
            }
            old.execute(
                "INSERT INTO schedules (schedule_id, definition, enabled, anchor_s, handled_until_s, next_run_s)
                 VALUES ('s', ?1, 1, 1000, 1000, 1060)",
                [json_text(&schedule("s").definition).unwrap()],
            )
            .unwrap();
            drop(old);
            for opening in 1..=2 {
                let book = Book::open(&path).unwrap();
                assert_eq!(book.due(1_100, 9).await.unwrap(), ["s"], "{} steps, opening {opening}", steps.len());
                assert!(book.schedule("s").await.unwrap().is_some_and(|schedule| schedule.owner.is_none()));
                book.put_off("s", 1_060).await.unwrap();
            }
        }
    }
}
