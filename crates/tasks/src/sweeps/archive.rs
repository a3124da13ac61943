//! The archive: receipts that nobody waits for any more leave the ledger's table, and a pointer says where they are. Nothing
//! is deleted and nothing rewritten; an open obligation stays, however old it is.
//!
//! The sweep walks the ledger in its own order, from where it was the last time up to what is too young, and then begins
//! anew. What it could move is gone by then, so a walk passes what is old and still in use, not history. No index is
//! needed for it, which every create would have to write.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use waybill_kernel::{Error, Result, Time};
use waybill_store::effects::{Cursor, Effect, Feed, Plan, Sweep, advance, position};
use waybill_store::{Ctx, Row, Sql, Statement, Tx, Value};

use super::Seal;
use crate::Settings;
use crate::metrics;
use crate::receipts::ReceiptId;
use crate::settings::seconds_of;

#[derive(Debug)]
pub struct Archive {
    interval_s: i64,
    batch: i64,
    keep: Keep,
    /// By the latest batch, told to the metrics once it is committed.
    moved: AtomicU64,
}

impl Archive {
    pub fn new(settings: &Settings) -> Self {
        metrics::describe();
        let after = seconds_of(settings.archive_after_s);
        let keep = Keep { discharged: after, longest: seconds_of(settings.archive_after_s_max).max(after) };
        let (interval_s, batch) = (settings.archive_interval_s, settings.archive_batch);
        Self { interval_s, batch, keep, moved: AtomicU64::new(0) }
    }
}

impl Sweep for Archive {
    const NAME: &'static str = "receipts.archive";

    fn plan(&self) -> Plan {
        Plan { batch: self.batch, ..Plan::every(seconds_of(self.interval_s.max(1))) }
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        // A link is made from the receipt where it stands: what is not sealed yet stays.
        let sealed = position(tx, Seal::NAME).await?;
        let newest = newest(tx).await?;
        let from = position(tx, Self::NAME).await?;
        let page = IN_ORDER.read(tx, from, limit, &[]).await?;
        let (mut to, mut seen, mut moved) = (Cursor::START, 0, 0);
        for row in &page.rows {
            let at = Cursor { xact: row.int(0)?, seq: row.int(1)? };
            let receipt = Facts::read(row)?;
            if at > sealed || self.keep.is_young(&receipt, ctx.now) {
                break;
            }
            if at.seq < newest && self.keep.is_over(&receipt, ctx.now) {
                archive(ctx, tx, row.int(2)?, ReceiptId::from_slice(row.bytes(3)?)?).await?;
                moved += 1;
            }
            (to, seen) = (at, seen + 1);
        }
        // The walk has come to its end; the next one begins at the beginning.
        if seen < limit {
            to = Cursor::START;
        }
        if to != from {
            advance(tx, Self::NAME, from, to, ctx.now).await?;
        }
        self.moved.store(moved, Ordering::Relaxed);
        Ok(u64::try_from(seen).unwrap_or(0))
    }

    fn committed(&self) {
        let moved = self.moved.load(Ordering::Relaxed);
        if moved > 0 {
            ::metrics::counter!(metrics::RECEIPTS_ARCHIVED).increment(moved);
        }
    }
}

/// As many rows as a feed gives out at once; more would be cut, and a cut page looks like the last one.
pub(crate) const BATCHES: RangeInclusive<i64> = 1..=1_000;

/// With each receipt, what has become of its task: when it ended, and whether its obligation is still open.
const IN_ORDER: Feed = Feed {
    sql: "SELECT xact, seq, tenant, receipt_id, created_at, open, \
          (SELECT t.task_id FROM tasks t WHERE t.tenant = receipts.tenant AND t.task_id = receipts.task_id), \
          (SELECT s.completed_at FROM results s WHERE s.tenant = receipts.tenant AND s.task_id = receipts.task_id), \
          (SELECT a.open FROM tasks t JOIN receipts a ON a.tenant = t.tenant AND a.receipt_id = t.assigned_receipt \
           WHERE t.tenant = receipts.tenant AND t.task_id = receipts.task_id) \
          FROM receipts WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4",
};

/// The newest receipt of all tenants, which stays. SQLite numbers rows from the largest number there is: were the newest
/// gone, the next receipt would get its number, and feeds that have passed it would never see that one.
async fn newest(tx: &mut Tx<'_>) -> Result<i64> {
    const NEWEST: Sql = Sql {
        sqlite: "SELECT max(seq) FROM receipts",
        postgres: "SELECT seq FROM receipts ORDER BY xact DESC, seq DESC LIMIT 1",
    };
    tx.query_opt(tx.text(NEWEST), &[]).await?.map_or(Ok(None), |row| row.int_opt(0)).map(|newest| newest.unwrap_or(0))
}

/// How long a receipt stays in the ledger.
#[derive(Clone, Copy, Debug)]
struct Keep {
    /// After the end of a task whose obligation has ended.
    discharged: Duration,
    /// At the longest, unless it is open or its task is not over.
    longest: Duration,
}

/// What decides about a receipt.
#[derive(Clone, Copy, Debug)]
struct Facts {
    open: bool,
    created_at: Time,
    task: Task,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    None,
    Live,
    Ended { at: Time, discharged: bool },
}

impl Facts {
    fn read(row: &Row) -> Result<Self> {
        let task = match (row.bytes_opt(6)?, row.time_opt(7)?) {
            (None, _) => Task::None,
            (Some(_), None) => Task::Live,
            // One whose obligation is in the archive has none that is open.
            (Some(_), Some(at)) => Task::Ended { at, discharged: row.int_opt(8)? != Some(1) },
        };
        Ok(Self { open: row.bool(5)?, created_at: row.time(4)?, task })
    }
}

impl Keep {
    /// Too young, whatever it is, and so is everything behind it.
    fn is_young(&self, receipt: &Facts, now: Time) -> bool {
        now.since(receipt.created_at) < self.discharged
    }

    fn is_over(&self, receipt: &Facts, now: Time) -> bool {
        if receipt.open {
            return false;
        }
        match receipt.task {
            Task::Live => false,
            Task::None => now.since(receipt.created_at) >= self.longest,
            Task::Ended { at, discharged } => now.since(at) >= if discharged { self.discharged } else { self.longest },
        }
    }
}

/// Moves one receipt. The row that is deleted is the row that is kept, with whatever was changed about it meanwhile.
async fn archive(ctx: &Ctx<'_>, tx: &mut Tx<'_>, tenant: i64, id: ReceiptId) -> Result<()> {
    const TAKE: &str = "DELETE FROM receipts WHERE tenant = $1 AND receipt_id = $2 AND open = 0 \
        RETURNING xact, seq, receipt_type, sender, addressee, task_id, lease_id, schedule_id, parents, body, instance, \
        created_at, delivered_at";
    const KEEP: &str = "INSERT INTO archived_receipts (tenant, xact, seq, receipt_id, receipt_type, sender, addressee, \
        task_id, lease_id, schedule_id, parents, body, instance, created_at, delivered_at, archived_at) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
    const POINT: &str = "INSERT INTO receipt_archive (tenant, receipt_id, xact, seq) VALUES ($1, $2, $3, $4)";
    // The row has its parents itself, and the archive finds a task's receipts by the task.
    const UNLINK: &str = "DELETE FROM receipt_parents WHERE tenant = $1 AND parent_id = $2 AND child_id = $3";
    // Nobody counts any more how often a stranger came with a lease of it.
    const FORGET: &str = "DELETE FROM lease_misuses WHERE tenant = $1 AND task_id = $2";
    let (tenant, id) = (Value::from(tenant), Value::from(id.as_bytes()));
    let row = tx.query_opt(TAKE, &[tenant, id]).await?;
    let row = row.ok_or_else(|| Error::internal("a receipt that was to be archived is gone or open"))?;
    let (xact, seq) = (Value::from(row.int(0)?), Value::from(row.int(1)?));
    let parents = row.bytes(8)?;
    let kept = vec![
        tenant,
        xact,
        seq,
        id,
        Value::from(row.text(2)?),
        Value::from(row.text(3)?),
        Value::from(row.text(4)?),
        Value::from(row.bytes_opt(5)?),
        Value::from(row.bytes_opt(6)?),
        Value::from(row.text_opt(7)?),
        Value::from(parents),
        Value::from(row.text(9)?),
        Value::from(row.text(10)?),
        Value::from(row.time(11)?),
        Value::from(row.time_opt(12)?),
        Value::from(ctx.now),
    ];
    let mut statements: Vec<Statement<'_>> = vec![(KEEP, kept), (POINT, vec![tenant, id, xact, seq])];
    statements.extend(parents.chunks(16).map(|parent| (UNLINK, vec![tenant, Value::from(parent), id])));
    statements.extend(row.bytes_opt(5)?.map(|task| (FORGET, vec![tenant, Value::from(task)])));
    tx.execute_together(&statements).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn what_is_open_or_in_work_stays_and_the_rest_goes_by_its_age() {
        let keep = Keep { discharged: 7 * DAY, longest: 30 * DAY };
        let at = |days: u32| Time::EPOCH.after(days * DAY);
        let ended = |day, discharged| Task::Ended { at: at(day), discharged };
        for (open, task, now, over) in [
            (false, ended(1, true), 7, false),
            (false, ended(1, true), 8, true),
            (true, ended(1, true), 1000, false),
            (false, ended(1, false), 30, false),
            (false, ended(1, false), 31, true),
            (true, ended(1, false), 1000, false),
            (false, Task::Live, 1000, false),
            (false, Task::None, 29, false),
            (false, Task::None, 30, true),
            (true, Task::None, 1000, false),
        ] {
            let receipt = Facts { open, created_at: Time::EPOCH, task };
            assert_eq!(keep.is_over(&receipt, at(now)), over, "{receipt:?} on day {now}");
        }
    }
}
