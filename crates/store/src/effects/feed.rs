//! Feeds: committed rows of an append-only table, each once and none skipped.
//!
//! How PostgreSQL counts: a row's number comes from a sequence when it is written, and it is seen when its transaction
//! commits, so a lower number may appear after a higher one was read. A feed therefore orders by `(xact, seq)` and gives
//! out only rows below the horizon, under which every transaction has ended. On SQLite commits come one after another
//! and every row is below it.
//!
//! The price is that rows are withheld while older transactions of the same database are open, for a few milliseconds as a
//! rule. A list is no feed but a state: it shows whatever is committed ([`Feed::read_all`]), and only a position that somebody
//! may keep to go on from later must be below the horizon. A list that gives out such positions says so
//! ([`crate::Operation::SETTLES`]) and waits for at most [`SETTLE_MAX`] until its caller's own writes are below it too.

use std::future::Future;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use waybill_kernel::{Code, Error, Mode, Result, Time, cursor};

use super::{Plan, Sweep};
use crate::{Ctx, Row, Store, Topic, Tx, Value, Work, metrics};

/// Rows in one page at most.
const PAGE_MAX: i64 = 1000;
/// What a sweep over a feed may take at once.
pub const PAGES: RangeInclusive<i64> = 1..=PAGE_MAX;
/// How long a call waits until what was committed before it is below the horizon, unless set otherwise.
pub const SETTLE_MAX: Duration = Duration::from_millis(100);

/// A position in a feed: everything up to and with this row has been given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    pub xact: i64,
    pub seq: i64,
}

impl Cursor {
    /// Before the first row of any table.
    pub const START: Cursor = Cursor { xact: 0, seq: 0 };

    /// For `Last-Event-ID` and the like. `scope` is what the position is only good with: the tenant, whose feed, which feed.
    pub fn to_text(self, scope: &[&[u8]]) -> String {
        cursor::encode(scope, &[self.xact.to_be_bytes(), self.seq.to_be_bytes()].concat())
    }

    pub fn from_text(scope: &[&[u8]], text: &str) -> Result<Self> {
        let refused = || Error::new(Code::InvalidCursor, Code::InvalidCursor.entry().title);
        let bytes = cursor::decode(scope, text)?;
        let (xact, seq) = bytes.split_first_chunk::<8>().ok_or_else(refused)?;
        let seq: [u8; 8] = seq.try_into().map_err(|_| refused())?;
        Ok(Self { xact: i64::from_be_bytes(*xact), seq: i64::from_be_bytes(seq) })
    }

    fn read(row: &Row) -> Result<Self> {
        Ok(Self { xact: row.int(0)?, seq: row.int(1)? })
    }
}

/// The statement of a feed, which stands beside the operation that reads it.
///
/// # Contract
/// Its first columns are `xact` and `seq`. Its first four parameters are the position to begin after (xact, seq), the horizon
/// and the number of rows, from `$1` on in the program's own work and from `$2` on in a tenant's transaction:
/// `… WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4`, by an index that ends in `(xact, seq)`.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    pub sql: &'static str,
}

#[derive(Debug)]
pub struct Page {
    pub rows: Vec<Row>,
    /// After the last row; where the page began when it is empty.
    pub next: Cursor,
    /// The page is full: there may be more at once.
    pub more: bool,
}

impl Feed {
    /// `further` follows the four parameters every feed has.
    pub async fn read(&self, tx: &mut Tx<'_>, after: Cursor, limit: i64, further: &[Value<'_>]) -> Result<Page> {
        let horizon = tx.horizon().await?;
        self.read_below(tx, horizon, after, limit, further).await
    }

    /// Everything that is committed by now: for lists, which are a state and read anew. Something older may still be added
    /// before a position in such a page.
    pub async fn read_all(&self, tx: &mut Tx<'_>, after: Cursor, limit: i64, further: &[Value<'_>]) -> Result<Page> {
        self.read_below(tx, i64::MAX, after, limit, further).await
    }

    /// As [`Self::read`], by a horizon that was asked for before.
    pub async fn read_below(
        &self,
        tx: &mut Tx<'_>,
        horizon: i64,
        after: Cursor,
        limit: i64,
        further: &[Value<'_>],
    ) -> Result<Page> {
        let limit = limit.clamp(1, PAGE_MAX);
        let mut params: Vec<Value<'_>> = [after.xact, after.seq, horizon, limit].into_iter().map(Value::from).collect();
        params.extend_from_slice(further);
        let rows = tx.query(self.sql, &params).await?;
        let mut next = after;
        for row in &rows {
            let at = Cursor::read(row)?;
            // A statement that forgets its order or its bounds would repeat rows or lose them for ever.
            if at <= next || at.xact >= horizon {
                return Err(Error::internal(format!("a feed gave {at:?} after {next:?}: {}", self.sql)));
            }
            next = at;
        }
        let more = rows.len() as i64 >= limit;
        Ok(Page { rows, next, more })
    }
}

/// What follows a feed and writes: its position moves in the transaction of what it writes, so each row has its effect once.
///
/// It runs as a sweep ([`Follow`]), with a sweep's lease, fence, budget and metrics.
pub trait Effect: Send + Sync + 'static {
    /// The key of its position and of its sweep.
    const NAME: &'static str;
    const FEED: Feed;

    fn plan(&self) -> Plan;

    /// The contract of [`crate::Operation`] holds: no effect but through `tx`, and it may be run again.
    fn apply(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, rows: &[Row]) -> impl Future<Output = Result<()>> + Send;

    /// After the commit of a batch, as [`Sweep::committed`]. Not every batch has rows.
    fn committed(&self) {}

    /// As [`Sweep::topic`].
    fn topic(&self) -> Option<Topic> {
        None
    }
}

/// The sweep that runs an effect over its feed.
#[derive(Clone, Copy, Debug)]
pub struct Follow<E>(pub E);

impl<E: Effect> Sweep for Follow<E> {
    const NAME: &'static str = E::NAME;

    fn plan(&self) -> Plan {
        let plan = self.0.plan();
        // A page that is cut to size must still count as full.
        Plan { batch: plan.batch.min(PAGE_MAX), ..plan }
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        let from = position(tx, E::NAME).await?;
        let page = E::FEED.read(tx, from, limit, &[]).await?;
        if !page.rows.is_empty() {
            self.0.apply(ctx, tx, &page.rows).await?;
            advance(tx, E::NAME, from, page.next, ctx.now).await?;
        }
        Ok(page.rows.len() as u64)
    }

    fn committed(&self) {
        self.0.committed();
    }

    fn topic(&self) -> Option<Topic> {
        self.0.topic()
    }
}

/// How far the effect of this name has come.
pub async fn position(tx: &mut Tx<'_>, name: &'static str) -> Result<Cursor> {
    let row = tx.query_opt("SELECT xact, seq FROM feeds WHERE name = $1", &[Value::from(name)]).await?;
    row.as_ref().map_or(Ok(Cursor::START), Cursor::read)
}

/// Guarded by the position it began from: of two that read the same rows one fails, and all it wrote with it.
pub async fn advance(tx: &mut Tx<'_>, name: &'static str, from: Cursor, to: Cursor, now: Time) -> Result<()> {
    const ADVANCE: &str = "INSERT INTO feeds (name, xact, seq, updated_at) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (name) DO UPDATE SET xact = excluded.xact, seq = excluded.seq, updated_at = excluded.updated_at \
        WHERE feeds.xact = $5 AND feeds.seq = $6";
    let params = [
        Value::from(name),
        Value::from(to.xact),
        Value::from(to.seq),
        Value::from(now),
        Value::from(from.xact),
        Value::from(from.seq),
    ];
    match tx.execute(ADVANCE, &params).await? {
        1 => Ok(()),
        _ => Err(Error::internal(format!("the feed {name} was moved from {from:?} by somebody else"))),
    }
}

/// Waits until everything committed before the call is below the horizon, [`SETTLE_MAX`] at most. On SQLite it is at once.
pub(crate) async fn settle(store: &Store) -> Result<()> {
    if !store.is_postgres() {
        return Ok(());
    }
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    let (mut horizon, ceiling) = store.system().run(Bounds).await?;
    let most = store.settle_max();
    while horizon < ceiling && began.elapsed() < most {
        tokio::time::sleep(pause.min(most.saturating_sub(began.elapsed()))).await;
        pause *= 2;
        (horizon, _) = store.system().run(Bounds).await?;
    }
    ::metrics::histogram!(metrics::FEED_SETTLE).record(began.elapsed().as_secs_f64());
    if horizon < ceiling {
        ::metrics::counter!(metrics::FEED_UNSETTLED).increment(1);
    }
    Ok(())
}

/// The horizon, and the first number that no transaction has yet: everything committed is below that one.
struct Bounds;

impl Work for Bounds {
    type Output = (i64, i64);

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<(i64, i64)> {
        let (horizon, ceiling) = tx.bounds().await?;
        ::metrics::gauge!(metrics::FEED_LAG).set(ceiling.saturating_sub(horizon) as f64);
        Ok((horizon, ceiling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_from_its_text_in_its_own_scope_only() {
        let scope: &[&[u8]] = &[b"receipts", b"tenant 1", b"agent:alice"];
        for position in [Cursor::START, Cursor { xact: 7, seq: 42 }, Cursor { xact: i64::MAX, seq: i64::MAX }] {
            let text = position.to_text(scope);
            assert_eq!(Cursor::from_text(scope, &text).unwrap(), position);
            let other = Cursor::from_text(&[b"receipts", b"tenant 1", b"agent:bob"], &text);
            assert_eq!(other.unwrap_err().code(), Code::InvalidCursor);
        }
    }

    #[test]
    fn garbage_is_no_position() {
        let scope: &[&[u8]] = &[b"receipts"];
        let good = Cursor { xact: 7, seq: 42 }.to_text(scope);
        let (short, long) = (cursor::encode(scope, &[0; 15]), cursor::encode(scope, &[0; 17]));
        for text in ["", "0", "7-42", "é", "zz", &good[2..], &format!("{good}00"), &short, &long] {
            assert_eq!(Cursor::from_text(scope, text).unwrap_err().code(), Code::InvalidCursor, "{text:?}");
        }
    }
}
