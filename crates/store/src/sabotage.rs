//! Harm on request, for the chaos harness: points at which the process kills itself, and bugs that are planted to see the
//! checks go red. It exists only with the feature `sabotage`, which nothing turns on by default (`cargo xtask tidy`);
//! a normal build does not even hold the names.
//!
//! `WAYBILL_KILL_AT=before_commit:17` kills at the 17th pass, `WAYBILL_PLANT=answer-before-commit` plants that bug.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use waybill_kernel::{Code, Error, Result, Time};

const KILL_AT: &str = "WAYBILL_KILL_AT";
const PLANT: &str = "WAYBILL_PLANT";

const POINTS: [&str; 11] = [
    "after_verify",
    "after_migrate",
    "in_transaction",
    "before_commit",
    "after_commit_before_reply",
    "half_answered",
    "before_mark",
    "after_mark",
    "in_checkpoint",
    "in_close",
    "in_reopen",
];

const PLANTS: [&str; 20] = [
    "answer-before-commit",
    "no-fsync",
    "fsync-ignored",
    "reopen-skipped",
    "mark-not-written",
    "mark-not-compared",
    "check-skipped",
    "ballast-kept",
    "wall-clock",
    "key-ignored",
    "retry-mints",
    "unguarded-update",
    "tenant-dropped",
    "result-missing",
    "attempt-on-expiry",
    "complete-unguarded",
    "parents-dropped",
    "expiry-early",
    "expired-kept",
    "obligation-kept",
];

/// A kill inside one long call of SQLite comes from another thread, up to this much later.
const WITHIN_US_MAX: u64 = 500;
/// How long a planted answer runs ahead of its commit.
const DAWDLE: Duration = Duration::from_millis(3);

struct Kill {
    point: String,
    at: u64,
    passed: AtomicU64,
}

fn kill_at() -> Option<&'static Kill> {
    static KILL: OnceLock<Option<Kill>> = OnceLock::new();
    let read = || {
        let text = std::env::var(KILL_AT).ok()?;
        let (point, at) = text.split_once(':')?;
        Some(Kill { point: point.to_owned(), at: at.parse().ok()?, passed: AtomicU64::new(0) })
    };
    KILL.get_or_init(read).as_ref()
}

fn plant() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(PLANT).ok()).as_deref()
}

/// A name that stands for nothing would make a harmless run look like a passed one.
pub(crate) fn begin() -> Result<()> {
    let wrong = |name: &str, what: &str| {
        Err(Error::new(Code::ConfigInvalid, format!("{name} asks for {what:?}, which this build does not know.")))
    };
    if let Ok(text) = std::env::var(KILL_AT)
        && !kill_at().is_some_and(|kill| POINTS.contains(&kill.point.as_str()))
    {
        return wrong(KILL_AT, &text);
    }
    if let Some(name) = plant().filter(|name| !PLANTS.contains(name)) {
        return wrong(PLANT, name);
    }
    tracing::warn!(kill_at = kill_at().map(|kill| kill.point.as_str()), plant = plant(), "this build sabotages itself");
    Ok(())
}

/// True at the pass that was asked for.
fn strikes(point: &str) -> Option<u64> {
    debug_assert!(POINTS.contains(&point), "{point}");
    let kill = kill_at().filter(|kill| kill.point == point)?;
    let pass = kill.passed.fetch_add(1, Ordering::SeqCst) + 1;
    (pass == kill.at).then_some(pass)
}

/// Ends the process here, as the kernel would, when this point was asked for.
pub(crate) fn point(name: &str) {
    if strikes(name).is_some() {
        kill();
    }
}

/// Ends it within what follows.
pub(crate) fn point_within(name: &str) {
    if let Some(pass) = strikes(name) {
        let later = Duration::from_micros(pass * 397 % WITHIN_US_MAX);
        thread::spawn(move || {
            thread::sleep(later);
            kill();
        });
    }
}

fn kill() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

pub(crate) fn planted(name: &str) -> bool {
    debug_assert!(PLANTS.contains(&name), "{name}");
    plant() == Some(name)
}

pub(crate) fn dawdle() {
    thread::sleep(DAWDLE);
}

/// The machine's clock as it is, steps and all.
#[expect(clippy::disallowed_methods, reason = "the planted bug is to read it")]
pub(crate) fn wall() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Bugs in statements are planted on their way to SQLite, so that no domain carries a trace of them.
pub(crate) fn statement(text: String) -> String {
    let changes: &[(&str, &str)] = match plant() {
        Some("key-ignored") => &[("0, ?9, ?10, ?11, ?12, ?12", "0, ?9, ?10, NULL, ?12, ?12")],
        Some("retry-mints") => {
            &[("SELECT task_id, status, created_at FROM tasks", "SELECT randomblob(16), status, created_at FROM tasks")]
        }
        Some("unguarded-update") => &[
            (" AND status IN ('queued', 'leased', 'running')", ""),
            ("INSERT INTO results", "INSERT OR REPLACE INTO results"),
            (" AND open > 0", ""),
        ],
        Some("tenant-dropped") => &[("t.tenant = ?1", "?1 = ?1")],
        Some("result-missing") => {
            &[("VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6)", "SELECT ?1, ?2, ?3, ?4, 1, ?5, ?6 WHERE ?3 <> 'canceled'")]
        }
        Some("attempt-on-expiry") => &[("expiries = expiries + 1", "expiries = expiries + 1, attempt = attempt + 1")],
        Some("complete-unguarded") => &[(
            " AND lease_id = ?3 AND worker = ?4 AND lease_expires_at > ?5 AND status IN ('leased', 'running') \
             RETURNING owner, assigned_receipt, attempt, epoch, created_at, type",
            " AND ?3 = ?3 AND ?4 = ?4 AND ?5 = ?5 AND status IN ('queued', 'leased', 'running') \
             RETURNING owner, assigned_receipt, attempt, epoch, created_at, type",
        )],
        Some("parents-dropped") => &[(
            "open, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9,",
            "open, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
             CASE WHEN ?3 IN ('task.completed', 'task.failed', 'task.canceled') THEN x'' ELSE ?9 END,",
        )],
        Some("expiry-early") => &[
            ("lease_expires_at <= ?2 ORDER BY", "lease_expires_at <= ?2 + 600000 ORDER BY"),
            ("AND lease_expires_at <= ?4", "AND lease_expires_at <= ?4 + 600000"),
        ],
        Some("expired-kept") => &[("AND lease_expires_at <= ?2 ORDER BY", "AND ?2 = 0 ORDER BY")],
        Some("obligation-kept") => &[("UPDATE receipts SET open = 0", "UPDATE receipts SET open = 1")],
        _ => &[],
    };
    changes.iter().fold(text, |text, (right, wrong)| text.replace(right, wrong))
}
