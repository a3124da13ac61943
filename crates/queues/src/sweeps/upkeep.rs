//! Walks over the parts of living queues: deletes messages that are older than the queue keeps them, and brings totals
//! up to date. Each run begins where the one before has ended.
//!
//! Messages lie in the order in which they were sent, so the old ones are in front. Dead letters are the exception: they
//! keep the time at which they were first sent. A part that has any is also looked through page by page.

use std::time::Duration;

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{Cursor, Plan, Sweep, advance, place};
use waybill_store::{Ctx, Row, Tx, Value};

use crate::Settings;
use crate::counts::{self, Tally};
use crate::ends::{End, end};
use crate::queue::{Part, kept_since};
use crate::rules::attributes::Attributes;

/// Parts that one transaction looks at.
const PARTS_MAX: i64 = 64;
/// Messages of one part that are looked at together.
const PAGE_MAX: i64 = 256;
/// Pages of expired messages that one visit deletes.
const PAGES_MAX: usize = 4;
/// Messages that one transaction looks at before it leaves the rest to the next.
const MESSAGES_MAX: i64 = 2_048;

#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    interval: Duration,
}

impl Upkeep {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: Duration::from_secs(settings.sweep_interval_s.max(1)) }
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
                     ORDER BY d.mid LIMIT 1) \
                     FROM parts p JOIN queues q ON q.tenant = p.tenant AND q.name = p.queue \
                     AND q.generation = p.generation WHERE p.part > $1 ORDER BY p.part LIMIT $2";

impl Sweep for Upkeep {
    const NAME: &'static str = "queues.upkeep";

    fn plan(&self) -> Plan {
        Plan { batch: PARTS_MAX, ..Plan::every(self.interval) }
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        let from = place(tx, Self::NAME).await?;
        // Asked before the looks that follow, which then see whatever was committed below it.
        let horizon = tx.horizon().await?;
        let parts = tx.query(PARTS, &[from.seq.into(), limit.into()]).await?;
        let (mut to, mut looked_at) = (from, 0);
        for row in &parts {
            looked_at += visit(ctx, tx, row, horizon).await?;
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
        Ok(if is_at_end { 0 } else { limit.unsigned_abs() })
    }
}

/// Answers with how many messages it had to look at.
async fn visit(ctx: &Ctx<'_>, tx: &mut Tx<'_>, row: &Row, horizon: i64) -> Result<i64> {
    let mut part = Part { number: row.int(0)?, mixed: row.bool(5)?, ..Part::default() };
    part.counted = part.begin() + row.int(2)?;
    let tx = &mut *tx.as_tenant(Tenant(row.int(1)?));
    let attributes = Attributes::from_stored(row.text(7)?)?;
    let kept_since = kept_since(&attributes, ctx.now);
    let mut looked_at = 0;
    if row.time_opt(8)?.is_some_and(|oldest| oldest <= kept_since) {
        looked_at += end_front(tx, &part, kept_since).await?;
    }
    if part.mixed && row.int_opt(9)?.is_some() {
        looked_at += end_among(tx, &part, row.int(6)?, kept_since).await?;
    }
    let tally = Tally {
        counting: part.begin() + row.int(3)?,
        newest: row.int_opt(9)?,
        first_gone: row.int_opt(10)?,
        counting_xact: row.int(4)?,
        horizon,
    };
    counts::fold(tx, &part, &tally).await?;
    Ok(looked_at)
}

/// Page by page from the front, for as long as a page has something that is too old.
async fn end_front(tx: &mut Tx<'_>, part: &Part, kept_since: Time) -> Result<i64> {
    let (mut from, mut looked_at) = (part.begin(), 0);
    for _ in 0..PAGES_MAX {
        let page = Page::read(tx, part, from, kept_since).await?;
        looked_at += page.messages;
        let Some(last) = page.last.filter(|_| page.has_expired) else { break };
        page.end_expired(tx, part, kept_since).await?;
        from = last + 1;
    }
    Ok(looked_at)
}

/// One page, from where the visit before has ended.
async fn end_among(tx: &mut Tx<'_>, part: &Part, swept: i64, kept_since: Time) -> Result<i64> {
    const SWEPT: &str = "UPDATE parts SET swept = $3 WHERE tenant = $1 AND part = $2";
    let page = Page::read(tx, part, part.begin() + swept, kept_since).await?;
    if page.has_expired {
        page.end_expired(tx, part, kept_since).await?;
    }
    let next = page.last.filter(|_| page.messages >= PAGE_MAX).map_or(0, |last| part.number_of(last) + 1);
    if next != swept {
        tx.execute(SWEPT, &[part.number.into(), next.into()]).await?;
    }
    Ok(page.messages)
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

impl Page {
    async fn read(tx: &mut Tx<'_>, part: &Part, from: i64, kept_since: Time) -> Result<Self> {
        const READ: &str = "SELECT count(*), max(page.mid), min(page.sent_at) FROM (SELECT m.mid, m.sent_at \
                            FROM messages m WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid < $3 ORDER BY m.mid LIMIT $4) \
                            AS page";
        let row = tx.query_opt(READ, &[from.into(), part.end().into(), PAGE_MAX.into()]).await?;
        let Some(row) = row else { return Ok(Self { from, last: None, messages: 0, has_expired: false }) };
        let has_expired = row.time_opt(2)?.is_some_and(|oldest| oldest <= kept_since);
        Ok(Self { from, last: row.int_opt(1)?, messages: row.int(0)?, has_expired })
    }

    async fn end_expired(&self, tx: &mut Tx<'_>, part: &Part, kept_since: Time) -> Result<()> {
        let params = [self.from.into(), Value::from(self.last), kept_since.into()];
        tx.execute(FLIGHTS, &params).await?;
        MESSAGES.run(tx, part, &params).await
    }
}
