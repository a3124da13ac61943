//! Deletes what purges and deleted queues have left behind and what FIFO queues need not remember any more, and makes the
//! numbers of empty parts free.
//!
//! # When a number is free
//! No sender writes into a dead part (the fence in queue.rs). A receive that has found the part alive may still be about
//! to write a flight for a message there, and must not meet another queue's messages under the same number. So an
//! empty part rests for longer than any transaction lives: the store ends those that are idle or wait for longer than
//! its statement timeout, ten seconds unless it is set otherwise. Then it is looked at once more, and is free.

use std::time::Duration;

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Tx, Value};

use crate::Settings;
use crate::queue::Part;
use crate::shards::{forget_arrivals, forget_refused};

/// From the end of a part to the first moment at which it can be free.
const REST: Duration = Duration::from_secs(3_600);
/// Parts that one batch looks at.
const PARTS_MAX: i64 = 16;

/// Dead parts are emptied, a bounded number of rows at a time.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    interval: Duration,
}

impl Drain {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: Duration::from_secs(settings.sweep_interval_s.max(1)) }
    }
}

impl Sweep for Drain {
    const NAME: &'static str = "queues.drain";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const DUE: &str = "SELECT tenant, part, dead_at FROM parts WHERE drain_at <= $1 ORDER BY drain_at LIMIT $2";
        let parts = tx.query(DUE, &[ctx.now.into(), PARTS_MAX.into()]).await?;
        // Each has its own share: a part with millions of rows does not keep the others waiting.
        let share = (limit / (parts.len() as i64).max(1)).max(1);
        let (mut deleted, mut is_more) = (0, parts.len() as i64 >= PARTS_MAX);
        for row in &parts {
            let tx = &mut *tx.as_tenant(Tenant(row.int(0)?));
            let part = Part { number: row.int(1)?, ..Part::default() };
            let some = empty(tx, &part, share).await?;
            deleted += some;
            if some >= share {
                is_more = true;
            } else {
                lay_to_rest(ctx, tx, &part, row.time(2)?).await?;
            }
        }
        if deleted < limit {
            deleted += forget(ctx, tx, limit - deleted).await?;
        }
        // Those that were found empty are some progress too: behind them there may be others.
        Ok(if is_more { limit } else { deleted }.unsigned_abs())
    }
}

/// Deletes rows of the part and answers with how many. Flights go first, as with everybody who takes both.
async fn empty(tx: &mut Tx<'_>, part: &Part, limit: i64) -> Result<i64> {
    const FLIGHTS: &str = "DELETE FROM flights WHERE tenant = $1 AND mid IN (SELECT f.mid FROM flights f \
                           WHERE f.tenant = $1 AND f.mid >= $2 AND f.mid < $3 ORDER BY f.mid LIMIT $4)";
    const MESSAGES: &str = "DELETE FROM messages WHERE tenant = $1 AND mid IN (SELECT m.mid FROM messages m \
                            WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid < $3 ORDER BY m.mid LIMIT $4)";
    const DEPARTURES: &str = "DELETE FROM departures WHERE tenant = $1 AND mid IN (SELECT d.mid FROM departures d \
                              WHERE d.tenant = $1 AND d.mid >= $2 AND d.mid < $3 ORDER BY d.mid LIMIT $4)";
    // What was on its way to another store: with the part's number its messages' numbers come again.
    const TRANSFERS: &str = "DELETE FROM transfers WHERE tenant = $1 AND mid IN (SELECT t.mid FROM transfers t \
                             WHERE t.tenant = $1 AND t.mid >= $2 AND t.mid < $3 ORDER BY t.mid LIMIT $4)";
    const LINES: &str = "DELETE FROM fifo_lines WHERE tenant = $1 AND part = $2 AND (grp, mid) IN (SELECT l.grp, l.mid \
                         FROM fifo_lines l WHERE l.tenant = $1 AND l.part = $2 LIMIT $3)";
    const GROUPS: &str = "DELETE FROM fifo_groups WHERE tenant = $1 AND part = $2 AND grp IN (SELECT g.grp \
                          FROM fifo_groups g WHERE g.tenant = $1 AND g.part = $2 LIMIT $3)";
    const DUPLICATES: &str = "DELETE FROM fifo_duplicates WHERE tenant = $1 AND part = $2 AND (scope, dedup) IN \
                              (SELECT d.scope, d.dedup FROM fifo_duplicates d WHERE d.tenant = $1 AND d.part = $2 LIMIT $3)";
    const ATTEMPTS: &str = "DELETE FROM fifo_attempts WHERE tenant = $1 AND part = $2 AND attempt IN (SELECT a.attempt \
                            FROM fifo_attempts a WHERE a.tenant = $1 AND a.part = $2 LIMIT $3)";
    let mut deleted = 0;
    for (sql, is_by_id) in [
        (FLIGHTS, true),
        (TRANSFERS, true),
        (MESSAGES, true),
        (DEPARTURES, true),
        (LINES, false),
        (GROUPS, false),
        (DUPLICATES, false),
        (ATTEMPTS, false),
    ] {
        let left = Value::from(limit - deleted);
        let params = match is_by_id {
            true => vec![part.begin().into(), part.end().into(), left],
            false => vec![part.number.into(), left],
        };
        deleted += i64::try_from(tx.execute(sql, &params).await?).unwrap_or(i64::MAX);
        if deleted >= limit {
            break;
        }
    }
    Ok(deleted)
}

/// What FIFO queues remember for five minutes, when those are over.
async fn forget(ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<i64> {
    // Materialized, or PostgreSQL may look once per row, find others each time, and delete more than it should.
    const DUPLICATES: &str = "WITH old AS MATERIALIZED (SELECT d.tenant, d.part, d.scope, d.dedup FROM fifo_duplicates d \
                              WHERE d.until <= $1 ORDER BY d.until LIMIT $2 FOR UPDATE SKIP LOCKED) \
                              DELETE FROM fifo_duplicates WHERE (tenant, part, scope, dedup) IN \
                              (SELECT old.tenant, old.part, old.scope, old.dedup FROM old)";
    const ATTEMPTS: &str = "WITH old AS MATERIALIZED (SELECT a.tenant, a.part, a.attempt FROM fifo_attempts a \
                            WHERE a.until <= $1 ORDER BY a.until LIMIT $2 FOR UPDATE SKIP LOCKED) \
                            DELETE FROM fifo_attempts WHERE (tenant, part, attempt) IN \
                            (SELECT old.tenant, old.part, old.attempt FROM old)";
    // In a store beside home: what is left of queues that have ended, when nobody can be late any more.
    const ENDED: &str = "DELETE FROM queues WHERE (tenant, name) IN (SELECT q.tenant, q.name FROM queues q \
                         WHERE q.incarnation = 0 AND q.modified_at <= $1 ORDER BY q.modified_at LIMIT $2)";
    let rest = i64::try_from(REST.as_micros()).unwrap_or(i64::MAX);
    let long_ago = Time::from_micros(ctx.now.micros().saturating_sub(rest));
    let mut deleted = 0;
    for (sql, until) in [(DUPLICATES, ctx.now), (ATTEMPTS, ctx.now), (ENDED, long_ago)] {
        let params = [until.into(), Value::from(limit - deleted)];
        deleted += i64::try_from(tx.execute(sql, &params).await?).unwrap_or(i64::MAX);
    }
    deleted += i64::try_from(forget_arrivals(tx, ctx.now, limit - deleted).await?).unwrap_or(i64::MAX);
    let refused = forget_refused(tx, limit - deleted).await?;
    Ok(deleted + i64::try_from(refused).unwrap_or(i64::MAX))
}

/// The part is empty: it rests, and after that it is free.
async fn lay_to_rest(ctx: &Ctx<'_>, tx: &mut Tx<'_>, part: &Part, dead_at: Time) -> Result<()> {
    const REST_UNTIL: &str = "UPDATE parts SET drain_at = $3 WHERE tenant = $1 AND part = $2";
    const FREE: &str = "UPDATE parts SET queue = NULL, generation = 0, head = 0, seen = 0, mark = 0, mark_xact = 0, \
                        crowded = 0, total = 0, counted = 0, counting = 0, counting_xact = 0, mixed = 0, swept = 0, next = 0, \
                        dead_at = NULL, drain_at = NULL WHERE tenant = $1 AND part = $2";
    let until = dead_at.after(REST);
    match until > ctx.now {
        true => tx.execute(REST_UNTIL, &[part.number.into(), until.into()]).await.map(drop),
        false => tx.execute(FREE, &[part.number.into()]).await.map(drop),
    }
}
