//! Taking messages: those whose time has come again, then those that were never received.
//!
//! A message that was received or is delayed has a flight; one without a flight is fresh. Fresh messages are looked
//! for from the part's `head` on, below which every message has a flight or is gone, so neither the backlog nor what
//! is in flight is walked through.
//!
//! # How far the head may move
//! On SQLite numbers are given out in the order of commits: the head moves past everything a look has seen. On
//! PostgreSQL a message with a lower number may be committed after one with a higher number, and behind the head
//! nobody would find it. So the head follows in three steps, each made by a later receive:
//!
//! 1. `seen` is above a number that was seen committed. Every lower number was drawn before.
//! 2. A transaction that has read `seen` and got its own number (xid) afterwards writes both down as `mark` and
//!    `mark_xact`. A send has its xid before it draws, so whoever has drawn a number below `mark` has an xid below
//!    `mark_xact`.
//! 3. When the store's horizon is not below `mark_xact`, all of those have ended: what is below `mark` is visible now or
//!    never will be, and the head moves up to the first message there that has no flight.

use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Row, Sql, Tx, Value};

use crate::ends::{End, by_ids, end, ids};
use crate::message::MessageId;
use crate::queue::Part;
use crate::rules::handle::Token;

/// What one receive may take, and how many ids a statement names.
pub(crate) const MESSAGES_MAX: usize = 10;
/// Received and not yet visible again, in one queue.
pub(crate) const IN_FLIGHT_MAX: i64 = 120_000;
/// Of so many messages taken one makes the receive count those in flight. Counting walks through all of them.
const COUNTED_OF: usize = 1_024;
/// Of so many fresh messages taken one makes the receive move the head, which on PostgreSQL takes three statements.
const HEAD_MOVED_OF: usize = 16;
/// Below this distance a move is not worth its write.
const HEAD_STEP: i64 = 16;
/// At this distance the next receive would pass over too many, and the head is moved in any case.
const HEAD_FAR: i64 = 512;
/// Times that a receive looks for fresh messages while others take what it has seen. Each of them is a message that somebody
/// else has got; who asks for one among many others who do loses every second look.
const LOOKS_MAX: usize = 64;
/// Expired messages that one statement deletes.
const EXPIRED_MAX: i64 = 256;

/// A message in the hands of this receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub mid: i64,
    pub receives: i64,
    pub first_at: Time,
}

/// One receive, and how far it has looked.
pub(crate) struct Takes {
    part: Part,
    now: Time,
    token: Token,
    visible_at: Time,
    /// All that were taken so far, and of these the fresh ones.
    taken: usize,
    fresh: usize,
    /// Above the last fresh message that was taken.
    after: Option<i64>,
    /// There was no further fresh message.
    exhausted: bool,
    /// In every look others were quicker: there may be more.
    outrun: bool,
    /// Above the last message that there is, if that was asked for.
    last: Option<i64>,
}

/// What this receive has taken and left visible is not taken again.
const DUE: &str = "WITH due (found) AS MATERIALIZED (SELECT f.mid FROM flights f WHERE f.tenant = $1 AND f.part = $2 \
                   AND f.visible_at <= $3 AND f.token IS DISTINCT FROM $6 ORDER BY f.visible_at LIMIT $4 \
                   FOR UPDATE SKIP LOCKED) \
                   UPDATE flights SET visible_at = $5, token_before = token, token = $6, receives = receives + 1, \
                   first_at = coalesce(first_at, $3), taken_at = $3 FROM due WHERE tenant = $1 AND mid = found \
                   RETURNING mid, receives, first_at";

/// Answers with each message found and, beside it, whether it was taken. On PostgreSQL another receive may have taken
/// it between the look and the lock.
const FRESH: Sql = Sql {
    sqlite: "INSERT INTO flights (mid, tenant, part, visible_at, token, receives, first_at, taken_at) \
             SELECT m.mid, $1, $2, $3, $4, 1, $5, $5 FROM messages m WHERE m.tenant = $1 AND m.mid >= $6 AND m.mid < $7 \
             AND NOT EXISTS (SELECT 1 FROM flights f WHERE f.tenant = $1 AND f.mid = m.mid) \
             ORDER BY m.mid LIMIT $8 RETURNING mid, mid",
    postgres: "WITH found AS MATERIALIZED (SELECT m.mid FROM messages m WHERE m.tenant = $1 AND m.mid >= $6 \
               AND m.mid < $7 AND NOT EXISTS (SELECT 1 FROM flights f WHERE f.tenant = $1 AND f.mid = m.mid) \
               ORDER BY m.mid LIMIT $8 FOR UPDATE SKIP LOCKED), \
               taken AS (INSERT INTO flights (mid, tenant, part, visible_at, token, receives, first_at, taken_at) \
               SELECT found.mid, $1, $2, $3, $4, 1, $5, $5 FROM found ON CONFLICT (mid) DO NOTHING RETURNING mid) \
               SELECT found.mid, taken.mid FROM found LEFT JOIN taken ON taken.mid = found.mid",
};

const NEXT_DUE: &str = "SELECT f.visible_at FROM flights f WHERE f.tenant = $1 AND f.part = $2 AND f.visible_at > $3 \
                        ORDER BY f.visible_at LIMIT 1";

const LAST: &str = "SELECT m.mid FROM messages m WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid < $3 \
                    ORDER BY m.mid DESC LIMIT 1";

const FIRST_FRESH: &str = "SELECT m.mid FROM messages m WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid < $3 \
                           AND NOT EXISTS (SELECT 1 FROM flights f WHERE f.tenant = $1 AND f.mid = m.mid) \
                           ORDER BY m.mid LIMIT 1";

/// Only if nobody has moved the head since the row was read, and without waiting for whoever does.
macro_rules! move_head {
    ($xact:literal) => {
        concat!(
            "UPDATE parts SET head = $3, mark = seen, mark_xact = ",
            $xact,
            ", seen = $4 WHERE tenant = $1 AND part = (SELECT p.part FROM parts p WHERE p.tenant = $1 AND p.part = $2 \
             AND p.head = $5 AND p.seen = $6 AND p.mark_xact = $7 FOR UPDATE SKIP LOCKED)"
        )
    };
}

const MOVE_HEAD: Sql = Sql { sqlite: move_head!("0"), postgres: move_head!("pg_current_xact_id()::text::bigint") };

const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM flights f WHERE f.tenant = $1 AND f.part = $2 \
                     AND f.visible_at > $3 AND f.receives > 0 LIMIT $4) AS flying";
const SET_CROWDED: &str = "UPDATE parts SET crowded = $3 WHERE tenant = $1 AND part = $2";

/// Without body and attributes of large messages (`large.rs`). Ten that are not large are a whole answer.
const FETCH: &str = by_ids!(
    "SELECT mid, id, \
     CASE WHEN octet_length(body) + coalesce(octet_length(attributes), 0) <= 200000 THEN body END, md5, \
     CASE WHEN octet_length(body) + coalesce(octet_length(attributes), 0) <= 200000 THEN attributes END, \
     trace, sent_at, sender, grp, source, dedup, \
     CAST(octet_length(body) + coalesce(octet_length(attributes), 0) AS BIGINT) FROM messages"
);

/// A message as it was sent: what [`FETCH`] answers with.
pub(crate) struct Stored(Row);

impl Stored {
    pub(crate) fn mid(&self) -> Result<i64> {
        self.0.int(0)
    }

    pub(crate) fn id(&self) -> Result<MessageId> {
        MessageId::from_slice(self.0.bytes(1)?)
    }

    /// Body, and attributes as JSON; nothing of a large message, which is read when it has been taken (`large.rs`).
    pub(crate) fn contents(&self) -> Result<Option<(&str, Option<&str>)>> {
        self.0.text_opt(2)?.map(|body| Ok((body, self.0.text_opt(4)?))).transpose()
    }

    /// As much as an answer may hold of it.
    pub(crate) fn bytes(&self) -> Result<usize> {
        Ok(usize::try_from(self.0.int(11)?).unwrap_or(usize::MAX))
    }

    pub(crate) fn md5(&self) -> Result<&[u8]> {
        self.0.bytes(3)
    }

    pub(crate) fn trace(&self) -> Result<Option<&str>> {
        self.0.text_opt(5)
    }

    pub(crate) fn sent_at(&self) -> Result<Time> {
        self.0.time(6)
    }

    pub(crate) fn sender(&self) -> Result<&str> {
        self.0.text(7)
    }

    pub(crate) fn group(&self) -> Result<Option<&str>> {
        self.0.text_opt(8)
    }

    /// The queue that it came to the dead letters from.
    pub(crate) fn source(&self) -> Result<Option<&str>> {
        self.0.text_opt(9)
    }

    pub(crate) fn deduplication(&self) -> Result<Option<&str>> {
        self.0.text_opt(10)
    }
}

/// As if it had not been taken: whoever had it before may still end it. One that was never received before waits in front of
/// those that have no flight.
const GIVE_BACK: &str = by_ids!(
    "UPDATE flights SET visible_at = taken_at, token = token_before, receives = receives - 1, \
     first_at = CASE WHEN receives = 1 THEN NULL ELSE first_at END"
);

/// Of the first fresh ones, those that are older than they are kept. The others are not even locked: whoever looks for
/// messages at this moment would pass over them.
macro_rules! expired {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            "expired (found) AS MATERIALIZED (SELECT m.mid FROM messages m WHERE m.tenant = $1 AND m.sent_at <= $5 \
             AND m.mid IN (SELECT n.mid FROM messages n WHERE n.tenant = $1 AND n.mid >= $2 AND n.mid < $3 \
             AND NOT EXISTS (SELECT 1 FROM flights f WHERE f.tenant = $1 AND f.mid = n.mid) \
             ORDER BY n.mid LIMIT $4) FOR UPDATE SKIP LOCKED)",
            $after
        )
    };
}

const END_EXPIRED: End = end!(
    expired!("WITH ", " "),
    expired!("", ", "),
    "DELETE FROM messages WHERE tenant = $1 AND mid IN (SELECT found FROM expired)"
);

impl Takes {
    pub(crate) fn new(part: Part, now: Time, token: Token, visible_at: Time) -> Self {
        Self {
            part,
            now,
            token,
            visible_at,
            taken: 0,
            fresh: 0,
            after: None,
            exhausted: false,
            outrun: false,
            last: None,
        }
    }

    /// Refuses when the queue has too many messages in flight.
    pub(crate) async fn refuse_crowd(&self, tx: &mut Tx<'_>) -> Result<()> {
        if self.is_full(tx).await? {
            let message = format!("The queue has {IN_FLIGHT_MAX} messages in flight, and may not have more.");
            return Err(Error::new(Code::OverLimit, message));
        }
        Ok(())
    }

    /// Whether the queue has as many messages in flight as it may have. Counted only while it was found so.
    pub(crate) async fn is_full(&self, tx: &mut Tx<'_>) -> Result<bool> {
        if !self.part.crowded || self.is_crowded(tx).await? {
            return Ok(self.part.crowded);
        }
        tx.execute(SET_CROWDED, &[self.part.number.into(), false.into()]).await?;
        Ok(false)
    }

    /// Up to `wanted` messages. What was taken before by this receive is not taken again.
    pub(crate) async fn take(&mut self, tx: &mut Tx<'_>, wanted: usize) -> Result<Vec<Taken>> {
        let mut taken = self.take_due(tx, wanted).await?;
        if taken.len() < wanted {
            let missing = wanted - taken.len();
            taken.extend(self.take_fresh(tx, missing).await?);
        }
        self.taken += taken.len();
        Ok(taken)
    }

    async fn take_due(&self, tx: &mut Tx<'_>, wanted: usize) -> Result<Vec<Taken>> {
        let params = [
            self.part.number.into(),
            self.now.into(),
            Value::from(wanted as i64),
            self.visible_at.into(),
            Value::from(&self.token[..]),
        ];
        let rows = tx.query(DUE, &params).await?;
        let taken = |row: &Row| Ok(Taken { mid: row.int(0)?, receives: row.int(1)?, first_at: row.time(2)? });
        rows.iter().map(taken).collect()
    }

    /// Whoever loses a message to another looks again: there may be others that neither has seen.
    async fn take_fresh(&mut self, tx: &mut Tx<'_>, wanted: usize) -> Result<Vec<Taken>> {
        let mut taken = Vec::new();
        for _ in 0..LOOKS_MAX {
            let limit = wanted - taken.len();
            let params = [
                self.part.number.into(),
                self.visible_at.into(),
                Value::from(&self.token[..]),
                self.now.into(),
                self.part.head.into(),
                self.part.end().into(),
                Value::from(limit as i64),
            ];
            let rows = tx.query(tx.text(FRESH), &params).await?;
            let before = taken.len();
            for row in &rows {
                let Some(mid) = row.int_opt(1)? else { continue };
                taken.push(Taken { mid, receives: 1, first_at: self.now });
            }
            self.exhausted = rows.len() < limit;
            let lost = rows.len() - (taken.len() - before);
            self.outrun = lost > 0;
            if !self.outrun {
                break;
            }
        }
        self.fresh += taken.len();
        self.after = taken.iter().map(|taken| taken.mid + 1).chain(self.after).max();
        Ok(taken)
    }

    /// What was taken, as it was sent. A message that is gone has no row.
    pub(crate) async fn fetch(&self, tx: &mut Tx<'_>, taken: &[Taken]) -> Result<Vec<Stored>> {
        let rows = tx.query(FETCH, &ids(taken.iter().map(|taken| taken.mid))).await?;
        Ok(rows.into_iter().map(Stored).collect())
    }

    pub(crate) fn part(&self) -> &Part {
        &self.part
    }

    /// Was there something that only others were quick enough for?
    pub(crate) fn was_outrun(&self) -> bool {
        self.outrun
    }

    /// Makes messages visible again as if they had not been taken.
    pub(crate) async fn give_back(&self, tx: &mut Tx<'_>, mids: &[i64]) -> Result<()> {
        if mids.is_empty() {
            return Ok(());
        }
        tx.execute(GIVE_BACK, &ids(mids.iter().copied())).await.map(drop)
    }

    /// Makes room in front of a backlog that nobody has received in time.
    pub(crate) async fn end_expired(&self, tx: &mut Tx<'_>, kept_since: Time) -> Result<()> {
        let params = [self.part.head.into(), self.part.end().into(), Value::from(EXPIRED_MAX), kept_since.into()];
        END_EXPIRED.run(tx, &self.part, &params).await
    }

    /// When the next message that is not visible now will be. Asked when there was nothing to take.
    pub(crate) async fn next_due(&mut self, tx: &mut Tx<'_>) -> Result<Option<Time>> {
        let due = (NEXT_DUE, vec![self.part.number.into(), self.now.into()]);
        let last = (LAST, vec![self.part.head.into(), self.part.end().into()]);
        let mut answers = tx.query_all(&[due, last]).await?.into_iter();
        let (due, last) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        self.last = last.first().map(|row| row.int(0)).transpose()?.map(|last| last + 1);
        due.first().map(|row| row.time(0)).transpose()
    }

    /// Now and then: moves the head, and counts what is in flight.
    pub(crate) async fn tidy(&self, tx: &mut Tx<'_>) -> Result<()> {
        let is_far = self.after.max(self.last).is_some_and(|seen| seen - self.part.head >= HEAD_FAR);
        if is_far || falls(self.token[15], self.token[14], HEAD_MOVED_OF, self.fresh.max(1)) {
            self.move_head(tx).await?;
        }
        self.look_at_crowd(tx, self.taken).await
    }

    /// Now and then, the more often the more messages were taken: counts what is in flight.
    pub(crate) async fn look_at_crowd(&self, tx: &mut Tx<'_>, taken: usize) -> Result<()> {
        let counts = falls(self.token[13], self.token[12], COUNTED_OF, taken);
        if counts && !self.part.crowded && self.is_crowded(tx).await? {
            tx.execute(SET_CROWDED, &[self.part.number.into(), true.into()]).await?;
        }
        Ok(())
    }

    async fn move_head(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Part { number, head, seen, mark, mark_xact, .. } = self.part;
        let end = self.part.end();
        let target = match self.last {
            // Everything that there is has a flight, those after the last one taken as well.
            None if self.exhausted => {
                let row = tx.query_opt(LAST, &[head.into(), end.into()]).await?;
                row.map(|row| row.int(0)).transpose()?.map(|last| last + 1).max(self.after)
            }
            last => last.max(self.after),
        };
        let Some(target) = target.filter(|target| target - head >= HEAD_STEP) else { return Ok(()) };
        // Asked before the look that follows, which then sees whatever was committed below it.
        let horizon = tx.horizon().await?;
        if mark_xact > horizon {
            return Ok(());
        }
        let safe = if horizon == i64::MAX { target } else { mark.min(target).max(head) };
        let first_fresh = tx.query_opt(FIRST_FRESH, &[head.into(), safe.into()]).await?;
        let moved = first_fresh.map(|row| row.int(0)).transpose()?.unwrap_or(safe);
        let params = [
            number.into(),
            self.part.number_of(moved).into(),
            Value::from(self.part.number_of(target.max(seen))),
            self.part.number_of(head).into(),
            self.part.number_of(seen).into(),
            mark_xact.into(),
        ];
        tx.execute(tx.text(MOVE_HEAD), &params).await.map(drop)
    }

    async fn is_crowded(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let params = [self.part.number.into(), self.now.into(), Value::from(IN_FLIGHT_MAX)];
        let row = tx.query_opt(COUNT, &params).await?;
        Ok(row.map_or(Ok(0), |row| row.int(0))? >= IN_FLIGHT_MAX)
    }
}

/// Chance from two random bytes: true in `share` of `of` cases.
fn falls(low: u8, high: u8, of: usize, share: usize) -> bool {
    usize::from(u16::from_be_bytes([high, low])) % of < share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_falls_as_often_as_it_should() {
        let cases = || (0..=u8::MAX).flat_map(|high| (0..=u8::MAX).map(move |low| (low, high)));
        for (of, share) in [(16, 1), (16, 10), (16, 16), (1_024, 10), (1_024, 0)] {
            let fell = cases().filter(|(low, high)| falls(*low, *high, of, share)).count();
            assert_eq!(fell * of, 65_536 * share, "{share} of {of}");
        }
    }
}
