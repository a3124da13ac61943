//! How many messages a queue has.
//!
//! # Why nothing is counted by a send
//! A counter row would be locked by every send on PostgreSQL, and a row per send that is added up later would be a second
//! insert. But sent messages are rows with ascending numbers: they need only be counted once, later, by whoever passes.
//! So a part has a `total` of the messages below `counted`, and those from there on are counted when somebody asks. The
//! upkeep sweep moves `counted` forward.
//!
//! A message that ends takes itself off the total. On SQLite it knows whether it was in it. On PostgreSQL it cannot: the
//! sweep may be counting at this moment. It leaves a departure, a row with its id. A sum of one snapshot is then right
//! whatever is under way: the total, and the messages from `counted` on, less the departures below `counted`. When the
//! sweep counts the messages of a range it removes in the same statement, and so by the same snapshot, the departures of
//! that range: those messages are gone and were not counted. Departures below the range are subtracted.
//!
//! # How far `counted` may move
//! As the head (flights.rs): on PostgreSQL a lower number may be committed after a higher one. The sweep notes above the
//! last message it sees (`counting`), the next time its own number (`counting_xact`, which is above that of everybody who
//! has drawn a number below), and counts when the store's horizon has passed that.

use waybill_kernel::{Result, Time};
use waybill_store::{Sql, Tx, Value};

use crate::flights::IN_FLIGHT_MAX;
use crate::queue::{Part, is_alone};

/// Messages that are not in the total yet and are counted when somebody asks. Beyond it the figure is too low.
const YOUNG_MAX: i64 = 1_000_000;
/// Messages, and departures, that one statement of the sweep counts.
const FOLDED_MAX: i64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub visible: i64,
    /// Received, and not yet visible again.
    pub not_visible: i64,
    /// Never received, and not yet visible.
    pub delayed: i64,
}

/// One row for each partition, by one statement, so that all of it is of one snapshot.
const COUNT: &str = "SELECT p.total + (SELECT count(*) FROM (SELECT 1 FROM messages m WHERE m.tenant = $1 \
                     AND m.mid >= (p.part << 40) + p.counted AND m.mid < ((p.part + 1) << 40) LIMIT $4) AS young) \
                     - (SELECT count(*) FROM (SELECT 1 FROM departures d WHERE d.tenant = $1 \
                     AND d.mid >= (p.part << 40) AND d.mid < (p.part << 40) + p.counted LIMIT $4) AS gone), \
                     (SELECT count(*) FROM (SELECT 1 FROM flights f WHERE f.tenant = $1 AND f.part = p.part \
                     AND f.visible_at > $5 AND f.receives > 0 LIMIT $6) AS flying), \
                     (SELECT count(*) FROM (SELECT 1 FROM flights f WHERE f.tenant = $1 AND f.part = p.part \
                     AND f.visible_at > $5 AND f.receives = 0 LIMIT $6) AS delayed) \
                     FROM parts p WHERE p.tenant = $1 AND p.queue = $2 AND p.generation = $3";

impl Counts {
    pub(crate) const NONE: Self = Self { visible: 0, not_visible: 0, delayed: 0 };

    /// Of two stores together.
    pub(crate) fn and(self, more: Self) -> Self {
        Self {
            visible: self.visible + more.visible,
            not_visible: self.not_visible + more.not_visible,
            delayed: self.delayed + more.delayed,
        }
    }

    /// In the order in which they are shown.
    pub(crate) fn each(self) -> [i64; 3] {
        [self.visible, self.not_visible, self.delayed]
    }

    /// Of all partitions together.
    pub(crate) async fn of(tx: &mut Tx<'_>, queue: &str, generation: i64, now: Time) -> Result<Self> {
        let params = [Value::from(queue), generation.into(), YOUNG_MAX.into(), now.into(), IN_FLIGHT_MAX.into()];
        let mut all = Self::NONE;
        for row in &tx.query(COUNT, &params).await? {
            let (total, not_visible, delayed) = (row.int(0)?, row.int(1)?, row.int(2)?);
            all.visible += (total - not_visible - delayed).max(0);
            all.not_visible += not_visible;
            all.delayed += delayed;
        }
        Ok(all)
    }
}

/// What the sweep has found about a part. All but the last three are ids of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    /// Up to here messages may be counted once that is certain of them.
    pub counting: i64,
    pub newest: Option<i64>,
    /// Of the departures.
    pub first_gone: Option<i64>,
    pub counting_xact: i64,
    pub horizon: i64,
}

/// `$5` and `$6` are for PostgreSQL alone.
macro_rules! fold {
    ($before:literal, $less:literal) => {
        concat!(
            $before,
            "UPDATE parts SET total = total + (SELECT count(*) FROM messages m WHERE m.tenant = $1 AND m.mid >= $3 \
             AND m.mid < $4)",
            $less,
            ", counted = $7 WHERE tenant = $1 AND part = $2"
        )
    };
}

const FOLD: Sql = Sql {
    sqlite: fold!("", ""),
    postgres: fold!(
        "WITH earlier AS (DELETE FROM departures WHERE tenant = $1 AND mid IN (SELECT d.mid FROM departures d \
         WHERE d.tenant = $1 AND d.mid >= $5 AND d.mid < $3 ORDER BY d.mid LIMIT $6) RETURNING mid), \
         within AS (DELETE FROM departures WHERE tenant = $1 AND mid >= $3 AND mid < $4 RETURNING mid) ",
        " - (SELECT count(*) FROM earlier)"
    ),
};
const NTH_MESSAGE: &str = "SELECT m.mid FROM messages m WHERE m.tenant = $1 AND m.mid >= $2 AND m.mid < $3 \
                           ORDER BY m.mid LIMIT 1 OFFSET $4";
const NTH_GONE: &str = "SELECT d.mid FROM departures d WHERE d.tenant = $1 AND d.mid >= $2 AND d.mid < $3 \
                        ORDER BY d.mid LIMIT 1 OFFSET $4";
const NOTE: &str = "UPDATE parts SET counting = $3, counting_xact = 0 WHERE tenant = $1 AND part = $2";
const STAMP: Sql = Sql {
    sqlite: "",
    postgres: "UPDATE parts SET counting_xact = pg_current_xact_id()::text::bigint WHERE tenant = $1 AND part = $2",
};

/// One step forward, if there is one to make. True when it has left more than one step counts.
pub(crate) async fn fold(tx: &mut Tx<'_>, part: &Part, tally: &Tally) -> Result<bool> {
    let above = tally.newest.map_or(part.counted, |newest| newest + 1).max(part.counted);
    if is_alone(tx) {
        return if above > part.counted { Ok(fold_to(tx, part, above).await?.is_more) } else { Ok(false) };
    }
    let mut folded = Folded { to: part.counted, is_more: false };
    let is_certain = tally.counting_xact > 0 && tally.counting_xact <= tally.horizon;
    if tally.counting > part.counted && is_certain {
        folded = fold_to(tx, part, tally.counting).await?;
    } else if tally.first_gone.is_some_and(|gone| gone < part.counted) {
        folded = fold_to(tx, part, part.counted).await?;
    }
    if folded.to >= tally.counting {
        if above > folded.to {
            tx.execute(NOTE, &[part.number.into(), part.number_of(above).into()]).await?;
        }
    } else if tally.counting_xact == 0 {
        tx.execute(tx.text(STAMP), &[part.number.into()]).await?;
    }
    Ok(folded.is_more)
}

/// How far one step has come, and whether it had to leave something.
struct Folded {
    to: i64,
    is_more: bool,
}

async fn fold_to(tx: &mut Tx<'_>, part: &Part, to: i64) -> Result<Folded> {
    let range = |from: i64, to: i64| vec![Value::from(from), Value::from(to), Value::from(FOLDED_MAX)];
    // What has gone below is taken off, as many at a time.
    let beyond = [
        (NTH_MESSAGE, range(part.counted, to)),
        (NTH_GONE, range(part.counted, to)),
        (NTH_GONE, range(part.begin(), part.counted)),
    ];
    let found = tx.query_all(&beyond).await?;
    let mut folded = Folded { to, is_more: found.iter().any(|rows| !rows.is_empty()) };
    for row in found.iter().take(2).filter_map(|rows| rows.first()) {
        folded.to = folded.to.min(row.int(0)?);
    }
    let params = [
        part.number.into(),
        part.counted.into(),
        Value::from(folded.to),
        part.begin().into(),
        FOLDED_MAX.into(),
        part.number_of(folded.to).into(),
    ];
    tx.execute(tx.text(FOLD), &params).await?;
    Ok(folded)
}
