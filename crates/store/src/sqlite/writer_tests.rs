//! The writer when its connection lets it down: what no file outside can be made to do.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};
use tempfile::TempDir;
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::{Clock, Code, Error, Result, Time};

use super::condition::Condition;
use super::writer::{Writer, WriterState};
use super::{Connection, Job, Options, ballast, checkpoint, mark, open, queue};
use crate::migrate;
use crate::turns::{Owned, Owner};

const START_US: i64 = 1_700_000_000_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// Adds a row, and may want it undone again.
struct Add {
    name: String,
    keep: bool,
    answer: Sender<Result<()>>,
}

impl Owned for Add {
    fn owner(&self) -> Owner {
        Owner { tenant: 0, line: 0 }
    }
}

impl Job for Add {
    fn is_abandoned(&self) -> bool {
        false
    }

    fn relieves(&self) -> bool {
        false
    }

    fn perform(&mut self, connection: &mut Connection, _: Time) -> bool {
        let insert = "INSERT INTO feeds (name, xact, seq, updated_at) VALUES (?1, 0, 0, 0)";
        connection.raw().execute(insert, [&self.name]).unwrap();
        self.keep
    }

    fn answer(self: Box<Self>) {
        let outcome = if self.keep { Ok(()) } else { Err(Error::invalid("Undone.")) };
        self.answer.send(outcome).unwrap();
    }

    fn fail(self: Box<Self>, error: Error) {
        self.answer.send(Err(error)).unwrap();
    }
}

struct Bench {
    folder: TempDir,
    options: Options,
    writer: Writer,
    condition: Arc<Condition>,
    wal: Arc<checkpoint::Wal>,
    mark: Arc<mark::Mark>,
}

impl Bench {
    /// `ahead`: so many more commits than the file has were acknowledged, as the writer remembers it.
    fn new(ahead: i64, spoil: impl FnOnce(&mut Connection)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::at(folder.path().join("waybill.db"));
        options.reopen_pause = Duration::from_millis(10);
        // Any log has outgrown it, should anybody look.
        (options.checkpoint_bytes, options.wal_bytes_max) = (1, 1);
        let tables = Arc::new(migrate::tenant_tables(crate::MIGRATIONS));
        let mut connection = open::write_connection(&options, Arc::clone(&tables)).unwrap();
        open::migrate(&mut connection, crate::MIGRATIONS).unwrap();
        let now = Time::from_micros(START_US);
        let meta = open::ensure_meta(&mut connection, now, &SeededEntropy::new(1)).unwrap();
        spoil(&mut connection);
        let condition = Arc::new(Condition::default());
        let wal = checkpoint::Wal::new(&options);
        let mark = Arc::new(mark::Mark::open(&mark::beside(&options.path), &meta).unwrap());
        let state = WriterState {
            tables,
            clock: Arc::new(Clock::new(ManualSource::at(START_US))),
            wal: Arc::clone(&wal),
            queue: Arc::new(queue::Queue::new(16)),
            condition: Arc::clone(&condition),
            mark: Arc::clone(&mark),
            ballast: ballast::Ballast::open(&options.path, 0).unwrap(),
            commit_seq: meta.commit_seq + ahead,
            options: options.clone(),
            runtime: None,
            stored: Arc::default(),
        };
        let writer = Writer::start(state, connection).unwrap();
        Self { folder, options, writer, condition, wal, mark }
    }

    fn submit(&self, name: &str, keep: bool) -> Result<Receiver<Result<()>>> {
        let (answer, answered) = channel();
        self.writer.submit(Box::new(Add { name: name.to_owned(), keep, answer }))?;
        Ok(answered)
    }

    fn add(&self, name: &str, keep: bool) -> Result<()> {
        self.submit(name, keep)?.recv_timeout(PATIENCE).unwrap()
    }

    fn until(&self, what: &str, is_so: impl Fn(Option<String>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self.condition.trouble()) {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The names in the file, and how many commits it says it has seen.
    fn stored(&self) -> (Vec<String>, i64) {
        let raw = rusqlite::Connection::open(self.folder.path().join("waybill.db")).unwrap();
        let mut statement = raw.prepare("SELECT name FROM feeds ORDER BY name").unwrap();
        let names = statement.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap();
        (names, open::stored_meta(&raw).unwrap().unwrap().commit_seq)
    }
}

/// SQLite itself never fails to roll back for want of a disk; it is refused here.
fn no_rollback(connection: &mut Connection) {
    let refuse = |context: AuthContext<'_>| match context.action {
        AuthAction::Transaction { operation: TransactionOperation::Rollback } => Authorization::Deny,
        _ => Authorization::Allow,
    };
    connection.raw().authorizer(Some(refuse)).unwrap();
}

#[test]
fn a_rollback_that_fails_leaves_nothing_and_writing_goes_on_over_a_new_connection() {
    let bench = Bench::new(0, no_rollback);
    bench.add("before", true).unwrap();
    let told = bench.add("undone", false).unwrap_err();
    assert_eq!(told.code(), Code::Unavailable, "{told}");
    bench.until("writing goes on", |trouble| trouble.is_none());
    bench.add("after", true).unwrap();
    assert_eq!(bench.add("undone", false).unwrap_err().code(), Code::InvalidRequest, "this one can roll back");
    bench.writer.close();
    assert_eq!(bench.stored().0, ["after", "before"]);
}

#[test]
fn commits_that_are_gone_after_a_failure_stop_writing_for_good() {
    let bench = Bench::new(3, no_rollback);
    assert_eq!(bench.add("undone", false).unwrap_err().code(), Code::Unavailable);
    let lost = "lost 3 acknowledged commits";
    bench.until("it says so", |trouble| trouble.is_some_and(|why| why.contains(lost)));
    // Several times the pause between two attempts: it does not come back by trying.
    for _ in 0..10 {
        let refused = bench.submit("late", true).err().unwrap();
        assert_eq!(refused.code(), Code::StoreUnavailable);
        assert!(refused.message().contains(lost), "{refused}");
        std::thread::sleep(Duration::from_millis(10));
    }
    bench.writer.close();
    assert_eq!(bench.stored(), (Vec::new(), 0));
}

#[test]
fn a_read_that_lasts_does_not_hold_up_the_writer() {
    let bench = Bench::new(0, |_| {});
    bench.add("0", true).unwrap();
    let reader = rusqlite::Connection::open(bench.folder.path().join("waybill.db")).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = || reader.query_row("SELECT count(*) FROM feeds", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), 1);
    let checkpointer =
        checkpoint::Checkpointer::start(&bench.options, &bench.wal, &bench.mark, &bench.condition).unwrap();
    let deadline = Instant::now() + PATIENCE;
    for name in ["1", "2", "3", "4", "5", "6", "7", "8", "9"] {
        // Longer than the checkpointer's interval: by then it has found the log overgrown once more.
        std::thread::sleep(Duration::from_millis(110));
        bench.add(name, true).unwrap();
        assert!(Instant::now() < deadline, "the writer waits for the read at every turn");
    }
    assert_eq!(count(), 1, "the read has kept its snapshot");
    drop(reader);
    checkpointer.close();
    bench.writer.close();
    assert_eq!(bench.stored().1, 10);
}

#[test]
fn a_load_that_never_pauses_does_not_grow_the_log_for_ever() {
    /// A row and the number of the commit, each on a page of its own.
    const FRAMES_OF_ADD: u64 = 2;
    let bench = Bench::new(0, |_| {});
    let checkpointer =
        checkpoint::Checkpointer::start(&bench.options, &bench.wal, &bench.mark, &bench.condition).unwrap();
    // As many turns of the checkpointer as a load needs to be called a lasting one; a slow machine needs longer for them.
    let (began, mut added) = (Instant::now(), 0_u64);
    loop {
        bench.add(&added.to_string(), true).unwrap();
        added += 1;
        let (log, written) = (bench.wal.bytes(), added * FRAMES_OF_ADD * checkpoint::FRAME_BYTES);
        if began.elapsed() >= Duration::from_millis(1_500) && log < written / 2 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{added} commits have left a log of {log} bytes, of {written} written");
    }
    checkpointer.close();
    bench.writer.close();
}
