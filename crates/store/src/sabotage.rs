//! Harm on request, for the chaos harness: points at which the process kills itself, and bugs that are planted to see the
//! checks go red. It exists only with the feature `sabotage`, which nothing turns on by default (`cargo xtask tidy`);
//! a normal build does not even hold the names.
//!
//! `WAYBILL_KILL_AT=before_commit:17` kills at the 17th pass, `WAYBILL_PLANT=answer-before-commit` plants that bug, and
//! `WAYBILL_SLOW_DISK=10:8` has every commit of SQLite take 10 ms longer and hold 8 operations at most.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use waybill_kernel::{Code, Error, Result, Time};

use crate::migrate::{ROLE_APP, ROLE_SYSTEM};

const KILL_AT: &str = "WAYBILL_KILL_AT";
const PLANT: &str = "WAYBILL_PLANT";
const SLOW_DISK: &str = "WAYBILL_SLOW_DISK";

const POINTS: [&str; 18] = [
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
    // Of the mesh: between what the daemon has answered and what it has stored of the broker's answer.
    "daemon_accept_committed",
    "daemon_sent",
    "daemon_ack_received",
    "daemon_ack_stored",
    "daemon_inbox_committed",
    "broker_b0",
    "broker_b3_committed",
];

const PLANTS: [&str; 47] = [
    "answer-before-commit",
    "no-fsync",
    "fsync-ignored",
    "reopen-skipped",
    "mark-not-written",
    "mark-not-compared",
    "check-skipped",
    "ballast-kept",
    "wall-clock",
    "clock-leaps",
    "unknown-as-internal",
    "unknown-as-undone",
    "twin-made",
    "cancel-forgotten",
    "filters-dropped",
    "policies-evaded",
    "payload-emptied",
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
    "line-by-time",
    "group-let-go",
    "duplicate-forgotten",
    "handle-outlives-purge",
    "flight-early",
    "receive-uncounted",
    "delete-hollow",
    "throttle-budget-doubled",
    "mesh-answer-before-commit",
    "mesh-dedupe-outside",
    "mesh-b0-after-limiter",
    "mesh-id-freed",
    "mesh-requeue-frees-id",
    "mesh-inbox-unkeyed",
    "mesh-reencrypt",
    "archive-row-apart",
    "state-left-behind",
    "archive-readable",
    "recipients-apart",
];

/// A kill inside one long call of SQLite comes from another thread, up to this much later.
const WITHIN_US_MAX: u64 = 500;
/// How long a planted answer runs ahead of its commit.
const DAWDLE: Duration = Duration::from_millis(3);
/// Their batches are fewer, and only some are answered early: a kill has to fall into one of these.
const DAWDLE_OF_DAEMONS: Duration = Duration::from_millis(15);

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

/// How much longer a commit takes, and how many operations it holds at most.
fn slow_disk() -> Option<(Duration, usize)> {
    static DISK: OnceLock<Option<(Duration, usize)>> = OnceLock::new();
    let read = || {
        let text = std::env::var(SLOW_DISK).ok()?;
        let (delay, operations) = text.split_once(':')?;
        Some((Duration::from_millis(delay.parse().ok()?), operations.parse().ok()?))
    };
    *DISK.get_or_init(read)
}

pub(crate) fn commit_slowly() {
    if let Some((delay, _)) = slow_disk() {
        thread::sleep(delay);
    }
}

/// How many operations a commit holds at most, of as many as it otherwise would.
pub(crate) fn batch_max(usual: usize) -> usize {
    slow_disk().map_or(usual, |(_, operations)| operations.clamp(1, usual))
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
    if let Ok(text) = std::env::var(SLOW_DISK)
        && slow_disk().is_none()
    {
        return wrong(SLOW_DISK, &text);
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
pub fn point(name: &str) {
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

pub fn planted(name: &str) -> bool {
    debug_assert!(PLANTS.contains(&name), "{name}");
    plant().is_some_and(|planted| planted == name)
}

/// Whether this batch is answered before its commit. Under the mesh's name that is a daemon's bug, and only of some batches: who
/// is woken early finds nothing, and without a later wake nothing would ever be sent.
pub(crate) fn answers_early(store: &Path) -> bool {
    static BATCHES: AtomicU64 = AtomicU64::new(0);
    let is_outbox = || store.file_name().is_some_and(|name| name == "outbox.db");
    planted("answer-before-commit")
        || planted("mesh-answer-before-commit")
            && is_outbox()
            && is_one_of_some(BATCHES.fetch_add(1, Ordering::Relaxed))
}

/// Three of eight, in no order: every third would always be of one kind where accepting, claiming and settling take turns.
fn is_one_of_some(number: u64) -> bool {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61 < 3
}

pub(crate) fn dawdle() {
    thread::sleep(if planted("mesh-answer-before-commit") { DAWDLE_OF_DAEMONS } else { DAWDLE });
}

/// The machine's clock as it is, steps and all.
#[expect(clippy::disallowed_methods, reason = "the planted bug is to read it")]
pub(crate) fn wall() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Follows the wall clock wherever it leads, though never back.
pub(crate) fn leaping(now: Time) -> Time {
    static FURTHEST_US: AtomicI64 = AtomicI64::new(0);
    let now = now.max(wall()).micros();
    Time::from_micros(FURTHEST_US.fetch_max(now, Ordering::SeqCst).max(now))
}

/// Once per start, on the connection that writes.
pub(crate) fn after_migration(raw: &rusqlite::Connection) -> Result<()> {
    const TWIN: &str = "CREATE TEMP TRIGGER twin AFTER INSERT ON main.tasks BEGIN
        INSERT INTO tasks (tenant, task_id, status, type, payload, owner, requirements, needs, priority, attempt,
            max_attempts, retry_backoff_s, created_at, updated_at, next_eligible_at, held, assigned_receipt, instance,
            epoch, renewals, expiries, progress_receipts)
        VALUES (NEW.tenant, randomblob(16), NEW.status, NEW.type, '{}', NEW.owner, NEW.requirements, NEW.needs,
            NEW.priority, 0, NEW.max_attempts, NEW.retry_backoff_s, NEW.created_at, NEW.updated_at,
            NEW.next_eligible_at, NEW.held, NEW.assigned_receipt, NEW.instance, 0, 0, 0, 0); END";
    let text = match plant() {
        Some("twin-made") => TWIN,
        Some("cancel-forgotten") => "UPDATE tasks SET status = 'queued' WHERE status = 'canceled'",
        _ => return Ok(()),
    };
    raw.execute_batch(text).map_err(Error::internal)
}

/// What PostgreSQL is told without: the comparison of tenants, which leaves row-level security alone to hold them apart.
pub(crate) fn postgres_statement(text: &str) -> String {
    const COMPARED: &str = "tenant = $1";
    if !matches!(plant(), Some("filters-dropped" | "policies-evaded")) {
        return text.to_owned();
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(COMPARED) {
        let is_tenant = !after.starts_with(|next: char| next.is_ascii_digit());
        let table = before.rfind(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).map_or(0, |at| at + 1);
        kept.push_str(if is_tenant { &before[..table] } else { before });
        kept.push_str(if is_tenant { "$1 = $1" } else { COMPARED });
        rest = after;
    }
    kept + rest
}

/// A tenant's transactions run as the system, which sees every row.
pub(crate) fn scope(text: String) -> String {
    if plant() == Some("policies-evaded") { text.replace(ROLE_APP, ROLE_SYSTEM) } else { text }
}

/// Bugs in statements are planted on their way to SQLite, so that no domain carries a trace of them.
pub(crate) fn statement(text: String) -> String {
    let changes: &[(&str, &str)] = match plant() {
        Some("key-ignored") => &[("0, ?9, ?10, ?11, ?12, ?12", "0, ?9, ?10, NULL, ?12, ?12")],
        Some("payload-emptied") => &[("'queued', ?3, ?4,", "'queued', ?3, substr(?4, 1, 0) || '{}',")],
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
             RETURNING owner, assigned_receipt, attempt, epoch, type",
            " AND ?3 = ?3 AND ?4 = ?4 AND ?5 = ?5 AND status IN ('queued', 'leased', 'running') \
             RETURNING owner, assigned_receipt, attempt, epoch, type",
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
        // Those of one second the last first.
        Some("line-by-time") => &[(
            "AND l.grp = ?3 ORDER BY l.mid LIMIT",
            "AND l.grp = ?3 ORDER BY (SELECT m.sent_at / 1000000 FROM messages m WHERE m.mid = l.mid), l.mid DESC LIMIT",
        )],
        // What was received and has come back no longer stands before the others.
        Some("group-let-go") => {
            &[("AND l.grp = ?3 ORDER BY l.mid LIMIT", "AND l.grp = ?3 AND f.mid IS NULL ORDER BY l.mid LIMIT")]
        }
        Some("duplicate-forgotten") => &[(
            "WHERE fifo_duplicates.until <= ?4",
            "WHERE fifo_duplicates.until <= ?4 OR NOT EXISTS (SELECT 1 FROM messages m WHERE m.mid = fifo_duplicates.mid)",
        )],
        // The queue keeps its part and its generation, and what was sent before is passed over.
        Some("handle-outlives-purge") => &[
            (
                "UPDATE queues SET generation = ?3, purged_at",
                "UPDATE queues SET generation = generation + 0 * ?3, purged_at",
            ),
            ("UPDATE parts SET dead_at = ?4, drain_at = ?4", "UPDATE parts SET head = head + 1000000 + 0 * ?4"),
        ],
        Some("flight-early") => {
            &[("AND f.visible_at <= ?3 AND f.token", "AND f.visible_at <= ?3 + 600000 AND f.token")]
        }
        Some("receive-uncounted") => &[
            ("token = ?6, receives = receives + 1", "token = ?6, receives = max(receives, 1)"),
            ("receives = flights.receives + 1", "receives = max(flights.receives, 1)"),
        ],
        // What is done gets another id, and its own can be had again.
        Some("mesh-id-freed") => &[(
            "delivered_at = ?2, broker_message_id = ?3, history_id = ?4 WHERE id = ?1",
            "delivered_at = ?2, broker_message_id = ?3, history_id = ?4, \
             client_message_id = client_message_id || hex(randomblob(8)) WHERE id = ?1",
        )],
        // The row is gone, and its id with it.
        Some("mesh-requeue-frees-id") => &[(
            "UPDATE outbox SET status = 'aborted', is_head = 0, aborted_at = ?2, aborted_by = ?3, superseded_by = ?4 \
             WHERE id = ?1",
            "DELETE FROM outbox WHERE id = ?1 AND ?2 = ?2 AND ?3 = ?3 AND ?4 = ?4",
        )],
        // A repeat is taken in under an id of its own.
        Some("mesh-inbox-unkeyed") => &[(
            "sender_name, body, meta, priority, mentioned, received_at, reply_to_id) VALUES (?1, ?2,",
            "sender_name, body, meta, priority, mentioned, received_at, reply_to_id) VALUES (?1, CASE WHEN EXISTS \
             (SELECT 1 FROM inbox i WHERE i.client_message_id = ?2) THEN ?2 || hex(randomblob(8)) ELSE ?2 END,",
        )],
        // As another seal would be: another envelope, with another fingerprint.
        Some("mesh-reencrypt") => &[(
            "destination_ref, envelope, attempts, enqueued_at FROM outbox",
            "destination_ref, CASE WHEN attempts = 0 THEN envelope ELSE \
             replace(envelope, '\"priority\":\"next\"', '\"priority\":\"low\"') END, attempts, enqueued_at FROM outbox",
        )],
        // As a crash between the two would leave it: of some messages there is the id and nothing else.
        Some("mesh-dedupe-outside") => &[(
            "envelope, mentions, dedupe_until, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            "envelope, mentions, dedupe_until, created_at) \
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 WHERE abs(random()) % 40 <> 0",
        )],
        Some("delete-hollow") => &[(
            "DELETE FROM flights WHERE tenant = ?1 AND mid = ?2 AND token = ?3",
            "DELETE FROM flights WHERE tenant = ?1 AND mid = ?2 AND token = ?3 AND ?3 = 0",
        )],
        // As if they were written after the commit, by somebody who sometimes dies before.
        Some("archive-row-apart") => &[(
            "VALUES (?1, ?2, ?3, ?4, ?5, 'waiting', ?5)",
            "SELECT ?1, ?2, ?3, ?4, ?5, 'waiting', ?5 WHERE abs(random()) % 40 > 0",
        )],
        Some("recipients-apart") => &[(
            "created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            "created_at) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE abs(random()) % 40 > 0",
        )],
        // A state of a moment ago is written as if it were the newest.
        Some("state-left-behind") => &[(
            "AND (read_at IS NOT NULL OR ack_at IS NOT NULL) ORDER BY message",
            "AND (read_at IS NOT NULL OR ack_at IS NOT NULL) AND coalesce(ack_at, read_at) < \
             (SELECT max(coalesce(n.ack_at, n.read_at)) FROM mail_recipients n) - 300000 ORDER BY message",
        )],
        _ => &[],
    };
    changes.iter().fold(text, |text, (right, wrong)| text.replace(right, wrong))
}
