//! `PRAGMA quick_check` when the file is opened: before the program is ready if it can be done within the budget, else
//! in the background, where a finding stops writing.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::{ErrorCode, OpenFlags};
use waybill_kernel::{Code, Error, Result};

use super::condition::Condition;
use super::{Options, open};
#[cfg(feature = "sabotage")]
use crate::sabotage;

/// Between two looks at the clock: a few milliseconds of checking at most.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Sound,
    Damaged(String),
    /// It was told to stop before the end.
    Unfinished,
}

/// Checks until `enough` says so.
pub(super) fn quick_check(
    connection: &mut rusqlite::Connection,
    enough: impl FnMut() -> bool + Send + 'static,
) -> Verdict {
    if let Err(error) = connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(enough)) {
        return Verdict::Damaged(error.to_string());
    }
    // One finding is enough to refuse; listing all takes as long as the whole check.
    let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    let _ = connection.progress_handler(0, None::<fn() -> bool>);
    match found {
        Ok(text) if text == "ok" => Verdict::Sound,
        Ok(text) => Verdict::Damaged(text),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Verdict::Unfinished,
        Err(error) => Verdict::Damaged(error.to_string()),
    }
}

pub(super) fn within(connection: &mut rusqlite::Connection, budget: Duration) -> Verdict {
    #[cfg(feature = "sabotage")]
    if sabotage::planted("check-skipped") {
        return Verdict::Sound;
    }
    if budget.is_zero() {
        return Verdict::Unfinished;
    }
    let began = Instant::now();
    quick_check(connection, move || began.elapsed() >= budget)
}

/// What was found, and what to do about it.
pub(super) fn damaged(path: &Path, finding: &str) -> Error {
    let message = format!(
        "The database file {} is damaged: {}. Restore a backup; or run `waybill mail salvage`, which reads what can be read, takes \
         mail from its archive and keeps the damaged files; or move the file and its -wal away to start empty.",
        path.display(),
        finding.trim().replace('\n', " "),
    );
    Error::new(Code::DatabaseUnusable, message)
}

/// The rest of a check that took longer than start-up may: on a connection and a thread of its own.
pub(super) struct Checker {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Checker {
    pub(super) fn start(options: &Options, condition: &Arc<Condition>) -> Result<Self> {
        let mut connection = open::open(&options.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (path, stopped, condition) = (options.path.clone(), Arc::clone(&stop), Arc::clone(condition));
        condition.set_checking(true);
        let check = move || {
            let verdict = quick_check(&mut connection, move || stopped.load(Ordering::Relaxed));
            conclude(&path, &verdict, &condition);
        };
        let thread = thread::Builder::new().name("sqlite-check".to_owned()).spawn(check).map_err(Error::internal)?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn close(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn conclude(path: &Path, verdict: &Verdict, condition: &Condition) {
    match verdict {
        Verdict::Sound => tracing::info!("the check of the database found nothing wrong"),
        Verdict::Unfinished => {}
        Verdict::Damaged(finding) => {
            tracing::error!("writing stops for good: {}", damaged(path, finding).message());
            condition.set_damaged("The database is damaged and takes no more writes; the log says what to do.");
        }
    }
    condition.set_checking(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(rows: u32) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (a TEXT); CREATE INDEX i ON t (a)").unwrap();
        let mut insert = connection.prepare("INSERT INTO t VALUES (?1)").unwrap();
        for row in 0..rows {
            insert.execute([format!("{row:0200}")]).unwrap();
        }
        drop(insert);
        connection
    }

    #[test]
    fn a_small_file_is_checked_and_a_large_one_left_when_the_budget_ends() {
        assert_eq!(within(&mut database(10), Duration::from_secs(60)), Verdict::Sound);
        let mut large = database(20_000);
        assert_eq!(within(&mut large, Duration::from_nanos(1)), Verdict::Unfinished);
        assert_eq!(within(&mut large, Duration::ZERO), Verdict::Unfinished);
        assert_eq!(
            within(&mut large, Duration::from_secs(60)),
            Verdict::Sound,
            "the interruption leaves nothing behind"
        );
    }

    #[test]
    fn a_finding_in_the_background_stops_writing() {
        let condition = Condition::default();
        condition.set_checking(true);
        conclude(Path::new("waybill.db"), &Verdict::Damaged("row 1 missing from index i".to_owned()), &condition);
        assert!(!condition.is_checking());
        assert!(condition.trouble().unwrap().contains("damaged"));
        assert_eq!(condition.refusal(true).unwrap().code(), Code::StoreUnavailable);
    }
}
