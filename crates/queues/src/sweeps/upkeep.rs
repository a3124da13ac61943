//! Walks over the parts of living queues: deletes messages that are older than the queue keeps them, and brings totals
//! up to date. Each run begins where the one before has ended, and walks again where it has not come to the end of what is
//! too old, or is to be counted.
//!
//! Messages lie in the order in which they were sent, so the old ones are in front. Dead letters are the exception: they
//! keep the time at which they were first sent. A part that has any is also looked through page by page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{Cursor, Plan, Sweep, advance, position};
use waybill_store::{Ctx, Row, Tx, Value};

use crate::Settings;
use crate::counts::{self, Tally};
use crate::ends::{End, end};
use crate::queue::{Part, kept_since, topic};
use crate::rules::attributes::Attributes;
use crate::rules::names::is_fifo;
use crate::{fifo, flights};

/// Parts that one transaction looks at. Each may wake its queue, now and for later, and a transaction wakes 128 at most.
const PARTS_MAX: i64 = 64;
/// Messages of one part that are looked at together.
const PAGE_MAX: i64 = 256;
/// Pages of expired messages that one visit deletes.
const PAGES_MAX: usize = 4;
/// Messages that one transaction looks at before it leaves the rest to the next.
const MESSAGES_MAX: i64 = 2_048;

#[derive(Debug)]
pub struct Upkeep {
    interval: Duration,
    /// A visit of this walk has left messages that are too old, or to be counted: another walk follows at once.
    is_behind: AtomicBool,
}

impl Upkeep {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: Duration::from_secs(settings.sweep_interval_s.max(1)), is_behind: AtomicBool::new(false) }
    }
}

/// Beside each part the first message's time, the last message, the first departure. Free parts and dead ones belong to no
/// generation that a queue has.
const PARTS: &str = "SELECT p.part, p.tenant, p.counted, p.counting, p.counting_xact, p.mixed, p.swept, q.attributes, \
                     (SELECT m.sent_at FROM messages m WHERE m.mid >= (p.part << 40) AND m.mid < ((p.part + 1) << 40) \
                     ORDER BY m.mid LIMIT 1), \
                     (SELECT m.mid FROM messages m WHERE m.mid >= (p.part << 40) AND m.mid < ((p.part + 1) << 40) \
                     ORDER BY m.mid DESC LIMIT 1), \
                     (SELECT d.mid FROM departures d WHERE d.mid >= (p.part << 40) AND d.mid < ((p.part + 1) << 40) \
                     ORDER BY d.mid LIMIT 1), q.name \
                     FROM parts p JOIN queues q ON q.tenant = p.tenant AND q.name = p.queue \
                     AND q.generation = p.generation WHERE p.part > $1 ORDER BY p.part LIMIT $2";

impl Sweep for Upkeep {
    const NAME: &'static str = "queues.upkeep";

    fn plan(&self) -> Plan {
        Plan { batch: PARTS_MAX, ..Plan::every(self.interval) }
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        let from = position(tx, Self::NAME).await?;
        // Asked before the looks that follow, which then see whatever was committed below it.
        let horizon = tx.horizon().await?;
        let parts = tx.query(PARTS, &[from.seq.into(), limit.into()]).await?;
        let (mut to, mut looked_at) = (from, 0);
        for row in &parts {
            let visit = visit(ctx, tx, row, horizon).await?;
            looked_at += visit.looked_at;
            if visit.is_behind {
                self.is_behind.store(true, Ordering::Relaxed);
            }
            to = Cursor { xact: 0, seq: row.int(0)? };
            if looked_at >= MESSAGES_MAX {
                break;
            }
        }
        let is_at_end = parts.len() < usize::try_from(limit).unwrap_or(0) && looked_at < MESSAGES_MAX;
        if is_at_end {
            to = Cursor::START;
        }
        if to != from {
            advance(tx, Self::NAME, from, to, ctx.now).await?;
        }
        let is_over = is_at_end && !self.is_behind.swap(false, Ordering::Relaxed);
        Ok(if is_over { 0 } else { limit.unsigned_abs() })
    }
}

/// What one look at a part has done.
#[derive(Default)]
struct Visit {
    /// Messages that it had to look at.
    looked_at: i64,
    /// There may be more that are too old, or to be counted.
    is_behind: bool,
}

async fn visit(ctx: &Ctx<'_>, tx: &mut Tx<'_>, row: &Row, horizon: i64) -> Result<Visit> {
    let mut part = Part { number: row.int(0)?, mixed: row.bool(5)?, ..Part::default() };
    part.counted = part.begin() + row.int(2)?;
    let tenant = Tenant(row.int(1)?);
    let tx = &mut *tx.as_tenant(tenant);
    let attributes = Attributes::from_stored(row.text(7)?)?;
    let old =
        Old { part: &part, kept_since: kept_since(&attributes, ctx.now), now: ctx.now, tenant, queue: row.text(11)? };
    let mut visit = Visit::default();
    if row.time_opt(8)?.is_some_and(|oldest| oldest <= old.kept_since) {
        old.end_front(tx, &mut visit).await?;
    }
    if part.mixed && row.int_opt(9)?.is_some() {
        old.end_among(tx, row.int(6)?, &mut visit).await?;
    }
    let tally = Tally {
        counting: part.begin() + row.int(3)?,
        newest: row.int_opt(9)?,
        first_gone: row.int_opt(10)?,
        counting_xact: row.int(4)?,
        horizon,
    };
    // A queue may get and lose more between two runs than one step counts.
    visit.is_behind |= counts::fold(tx, &part, &tally).await?;
    Ok(visit)
}

/// What a part holds that is older than it is kept.
struct Old<'a> {
    part: &'a Part,
    kept_since: Time,
    now: Time,
    tenant: Tenant,
    queue: &'a str,
}

/// Some messages in their order.
struct Page {
    from: i64,
    last: Option<i64>,
    messages: i64,
    has_expired: bool,
}

/// A message in flight goes with its flight, unless somebody is about to receive, change or delete it.
const FLIGHTS: &str = "DELETE FROM flights WHERE tenant = $1 AND mid IN (SELECT f.mid FROM flights f \
                       WHERE f.tenant = $1 AND f.mid >= $2 AND f.mid <= $3 AND EXISTS (SELECT 1 FROM messages m \
                       WHERE m.tenant = $1 AND m.mid = f.mid AND m.sent_at <= $4) FOR UPDATE SKIP LOCKED)";
const MESSAGES: End = end!(
    "DELETE FROM messages WHERE tenant = $1 AND mid IN (SELECT m.mid FROM messages m WHERE m.tenant = $1 \
     AND m.mid >= $2 AND m.mid <= $3 AND m.sent_at <= $4 AND NOT EXISTS (SELECT 1 FROM flights f \
     WHERE f.tenant = $1 AND f.mid = m.mid) FOR UPDATE SKIP LOCKED)"
);
const EXPIRED: &str = "SELECT m.mid FROM messages m WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid <= $3 \
                       AND m.sent_at <= $4 ORDER BY m.mid LIMIT $5";

impl Old<'_> {
    /// Page by page from the front, for as long as a page has something that is too old.
    async fn end_front(&self, tx: &mut Tx<'_>, visit: &mut Visit) -> Result<()> {
        let mut from = self.part.begin();
        for _ in 0..PAGES_MAX {
            let page = self.page(tx, from).await?;
            visit.looked_at += page.messages;
            let Some(last) = page.last.filter(|_| page.has_expired) else { return Ok(()) };
            self.end(tx, &page).await?;
            from = last + 1;
        }
        visit.is_behind = true;
        Ok(())
    }

    /// One page, from where the visit before has ended.
    async fn end_among(&self, tx: &mut Tx<'_>, swept: i64, visit: &mut Visit) -> Result<()> {
        const SWEPT: &str = "UPDATE parts SET swept = $3 WHERE tenant = $1 AND part = $2";
        let page = self.page(tx, self.part.begin() + swept).await?;
        if page.has_expired {
            self.end(tx, &page).await?;
        }
        let next = page.last.filter(|_| page.messages >= PAGE_MAX).map_or(0, |last| self.part.number_of(last) + 1);
        if next != swept {
            tx.execute(SWEPT, &[self.part.number.into(), next.into()]).await?;
        }
        visit.looked_at += page.messages;
        visit.is_behind |= page.has_expired && next > 0;
        Ok(())
    }

    async fn page(&self, tx: &mut Tx<'_>, from: i64) -> Result<Page> {
        const READ: &str = "SELECT count(*), max(page.mid), min(page.sent_at) FROM (SELECT m.mid, m.sent_at \
                            FROM messages m WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid < $3 ORDER BY m.mid LIMIT $4) \
                            AS page";
        let row = tx.query_opt(READ, &[from.into(), self.part.end().into(), PAGE_MAX.into()]).await?;
        let Some(row) = row else { return Ok(Page { from, last: None, messages: 0, has_expired: false }) };
        let has_expired = row.time_opt(2)?.is_some_and(|oldest| oldest <= self.kept_since);
        Ok(Page { from, last: row.int_opt(1)?, messages: row.int(0)?, has_expired })
    }

    async fn end(&self, tx: &mut Tx<'_>, page: &Page) -> Result<()> {
        if is_fifo(self.queue) {
            return self.end_in_groups(tx, page).await;
        }
        let params = [page.from.into(), Value::from(page.last), self.kept_since.into()];
        tx.execute(FLIGHTS, &params).await?;
        MESSAGES.run(tx, self.part, &params).await
    }

    /// Of a FIFO queue: what stood behind them can be received. A group that somebody else holds at this moment is left to a
    /// later walk: this one has rows of others in hand, and whoever holds the group may be waiting for them.
    async fn end_in_groups(&self, tx: &mut Tx<'_>, page: &Page) -> Result<()> {
        let (some, mut from) = (Value::from(flights::MESSAGES_MAX as i64), page.from);
        loop {
            let params = [from.into(), Value::from(page.last), self.kept_since.into(), some];
            let rows = tx.query(EXPIRED, &params).await?;
            let mids = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<i64>>>()?;
            let Some(last) = mids.last() else { return Ok(()) };
            from = last + 1;
            let members = fifo::groups_of(tx, &mids).await?;
            let members = fifo::hold_free(tx, self.part, members).await?;
            fifo::end(tx, self.part, &members).await?;
            let settled = fifo::settle(tx, self.part, &members, self.now).await?;
            settled.announce(tx, topic(self.tenant, self.queue), self.now);
        }
    }
}
