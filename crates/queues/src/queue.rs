//! A queue as it is stored: its place in the catalog, and the parts that hold its messages, one for each partition. Almost
//! every queue has one.
//!
//! # The fence
//! A purge gives the queue other parts, and the end of a queue leaves it none. Whoever adds a message must not write into
//! a part that is dead by the time of the commit: the sender would have its answer and nobody the message. On SQLite
//! transactions come one after another. On PostgreSQL a sender takes a shared lock on the queue's name before it
//! reads the catalog, and a purge an exclusive one, both until their commit: what the sender reads stays true. The lock
//! is an advisory one, which writes nothing; a lock on the row would write it with every send. Its statement goes out
//! together with the one that reads. Those who receive, delete or change messages need no fence: they write only to
//! what they find, and a dead part is given to another queue only when nobody can hold it any more (sweeps/drain.rs).

use std::sync::Arc;

use waybill_kernel::{Error, Result, Tenant, Time};
use waybill_store::{Kind, Row, Sql, Statement, Topic, Tx, Value};

use crate::fifo;
use crate::rules::attributes::Attributes;
use crate::rules::handle::{self, Handle};
use crate::rules::names::{is_fifo, queue_name, unknown_queue};
use crate::rules::partitions;

/// Numbers of messages in one part, as a power of two. At 10,000 messages a second they last for three and a half
/// years.
const NUMBER_BITS: u32 = 40;

#[derive(Debug)]
pub(crate) struct Queue {
    pub name: String,
    pub attributes: Attributes,
    pub generation: i64,
    /// The generation that it was made with: another queue of the same name has another, and a purge changes nothing.
    pub incarnation: i64,
    /// Rises with each change of the attributes.
    pub version: i64,
    /// The last partition that groups are spread over.
    pub spread: i64,
    /// A bit for each partition that is in this store; None for all of them.
    pub here: Option<i64>,
    /// The one that the transaction has asked for, or the first of all.
    pub part: Part,
    /// The others, where all were asked for.
    pub more: Vec<Part>,
}

/// Where a queue's messages are, as the transaction has found it. `head`, `seen`, `mark` and `counted` are ids of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub number: i64,
    pub partition: i64,
    /// Every message below has a flight or is gone.
    pub head: i64,
    pub seen: i64,
    pub mark: i64,
    pub mark_xact: i64,
    pub crowded: bool,
    /// Messages below are in the part's total.
    pub counted: i64,
    /// There may be messages that are older than those before them.
    pub mixed: bool,
    /// When the first of its groups can be received, if that was asked for and it has any.
    pub ready_at: Option<Time>,
}

/// The incarnation of what is left in a store of a queue that has ended.
pub(crate) const ENDED: i64 = 0;

/// Standard queues, as those who send to them find them: all of their messages are in one part.
static STANDARD: Kind = Kind { tables: &["queues", "parts"] };

/// Ends with the transaction.
const SHARE: Sql =
    Sql { sqlite: "", postgres: "SELECT pg_advisory_xact_lock_shared(hashtextextended($2, $1)) IS NOT NULL" };
const EXCLUDE: Sql = Sql { sqlite: "", postgres: "SELECT pg_advisory_xact_lock(hashtextextended($2, $1)) IS NOT NULL" };

/// Where the columns of the part begin, and the one behind them.
const PART: usize = 5;
const VERSION: usize = PART + 10;

/// The first statement of every operation on messages: what [`crate::flights`] promises rests on it. `$ready` is when the
/// first group of a part can be received, or NULL.
macro_rules! find {
    ($ready:literal, $partition:literal) => {
        concat!(
            "SELECT q.attributes, q.generation, q.incarnation, q.spread, q.here, p.part, p.partition, p.head, p.seen, \
             p.mark, p.mark_xact, p.crowded, p.counted, p.mixed, ",
            $ready,
            ", q.version FROM queues q LEFT JOIN parts p ON p.tenant = $1 AND p.queue = q.name AND p.generation = q.generation",
            $partition
        )
    };
}

/// The part that a group's messages are in, by the hash of the group; or that of a partition, by its number.
const FIND_ROUTED: &str =
    find!("CAST(NULL AS BIGINT)", " AND p.partition = ($3 & q.spread) WHERE q.tenant = $1 AND q.name = $2");
const FIND_ALL: &str = find!("CAST(NULL AS BIGINT)", " WHERE q.tenant = $1 AND q.name = $2 ORDER BY p.partition");
const FIND_READY: &str = find!(
    "(SELECT g.ready_at FROM fifo_groups g WHERE g.tenant = $1 AND g.part = p.part ORDER BY g.ready_at LIMIT 1)",
    " WHERE q.tenant = $1 AND q.name = $2 ORDER BY p.partition"
);

impl Queue {
    /// By the URL that a request names it by, with all of its parts.
    pub(crate) async fn load(tx: &mut Tx<'_>, url: &str) -> Result<Self> {
        let name = queue_name(url)?;
        Self::find(tx, name).await?.ok_or_else(|| unknown_queue(name))
    }

    pub(crate) async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<Self>> {
        Self::from_rows(name, &tx.query(FIND_ALL, &[Value::from(name)]).await?)
    }

    /// For whoever receives: of a FIFO queue the parts know when they have something to give.
    pub(crate) async fn load_to_receive(tx: &mut Tx<'_>, url: &str) -> Result<Self> {
        let name = queue_name(url)?;
        let sql = if is_fifo(name) { FIND_READY } else { FIND_ALL };
        let rows = tx.query(sql, &[Value::from(name)]).await?;
        Self::from_rows(name, &rows)?.ok_or_else(|| unknown_queue(name))
    }

    /// For whoever shows a handle, with the part that it is about. Without one that can be read, or with one of a partition
    /// that the queue does not have, it is another part, and [`Queue::check_handle`] refuses it: what is wrong with the
    /// queue is said before what is wrong with the handle, and what it costs is paid.
    pub(crate) async fn load_for_handle(tx: &mut Tx<'_>, url: &str, handle: Option<&Handle>) -> Result<Self> {
        let name = queue_name(url)?;
        let partition = handle.and_then(|handle| handle.partition).map_or(0, i64::from);
        let row = tx.query_opt(FIND_ROUTED, &[Value::from(name), partition.into()]).await?;
        Self::from_row(name, &row.ok_or_else(|| unknown_queue(name))?)
    }

    /// By the URL that a request names it by, for whoever adds a message of a group to it: with the part of that group,
    /// and until the transaction ends nobody purges or deletes the queue.
    pub(crate) async fn load_for_message(tx: &mut Tx<'_>, url: &str, group: Option<&str>) -> Result<Arc<Self>> {
        let name = queue_name(url)?;
        if let Some(queue) = tx.remembered(&STANDARD, name) {
            return Ok(queue);
        }
        // A standard queue has groups, too, and one partition.
        let hash = partitions::hash(group.unwrap_or_default());
        let found = Self::fenced(tx, name, (FIND_ROUTED, vec![Value::from(name), hash.into()])).await?;
        let row = found.first().ok_or_else(|| unknown_queue(name))?;
        Ok(Self::from_row(name, row)?.remembered_by(tx))
    }

    /// As `load_for_message`, for messages of any groups.
    pub(crate) async fn load_for_messages(tx: &mut Tx<'_>, url: &str) -> Result<Arc<Self>> {
        let name = queue_name(url)?;
        if let Some(queue) = tx.remembered(&STANDARD, name) {
            return Ok(queue);
        }
        let queue = Self::find_for_messages(tx, name).await?.ok_or_else(|| unknown_queue(name))?;
        Ok(queue.remembered_by(tx))
    }

    /// A send to a FIFO queue changes its part, so that nothing of it would be remembered for long.
    fn remembered_by(self, tx: &mut Tx<'_>) -> Arc<Self> {
        let queue = Arc::new(self);
        if !queue.is_fifo() {
            tx.remember(&STANDARD, &queue.name, &queue);
        }
        queue
    }

    /// As `find`, and until the transaction ends nobody purges or deletes the queue.
    pub(crate) async fn find_for_messages(tx: &mut Tx<'_>, name: &str) -> Result<Option<Self>> {
        Self::from_rows(name, &Self::fenced(tx, name, (FIND_ALL, vec![Value::from(name)])).await?)
    }

    async fn fenced(tx: &mut Tx<'_>, name: &str, find: Statement<'_>) -> Result<Vec<Row>> {
        let share = tx.text(SHARE);
        if share.is_empty() {
            return tx.query(find.0, &find.1).await;
        }
        let mut answers = tx.query_all(&[(share, vec![Value::from(name)]), find]).await?;
        Ok(answers.pop().unwrap_or_default())
    }

    /// Waits for those who are adding messages, and keeps others from it until the transaction ends.
    pub(crate) async fn exclude_senders(tx: &mut Tx<'_>, name: &str) -> Result<()> {
        match tx.text(EXCLUDE) {
            "" => Ok(()),
            exclude => tx.query(exclude, &[Value::from(name)]).await.map(drop),
        }
    }

    fn from_rows(name: &str, rows: &[Row]) -> Result<Option<Self>> {
        let Some((first, others)) = rows.split_first() else { return Ok(None) };
        if first.int(2)? == ENDED {
            return Ok(None);
        }
        let mut queue = Self::from_row(name, first)?;
        queue.more = others.iter().map(|row| Part::from_row(row, PART)).collect::<Result<_>>()?;
        if rows.len() != partitions::of(queue.spread, queue.here).count().max(1) {
            return Err(no_part(name));
        }
        Ok(Some(queue))
    }

    fn from_row(name: &str, row: &Row) -> Result<Self> {
        if row.int(2)? == ENDED {
            return Err(unknown_queue(name));
        }
        let here = row.int_opt(4)?;
        let part = match row.int_opt(PART)? {
            Some(_) => Part::from_row(row, PART)?,
            // All of it is in other stores.
            None if here == Some(0) => Part::NOWHERE,
            None => return Err(no_part(name)),
        };
        Ok(Self {
            name: name.to_owned(),
            attributes: Attributes::from_stored(row.text(0)?)?,
            generation: row.int(1)?,
            incarnation: row.int(2)?,
            version: row.int(VERSION)?,
            spread: row.int(3)?,
            here,
            part,
            more: Vec::new(),
        })
    }

    /// Those that were asked for and are in this store.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.part).filter(|part| part.number != Part::NOWHERE.number).chain(&self.more)
    }

    /// Are some of its partitions in other stores than this?
    pub(crate) fn is_spread(&self) -> bool {
        self.here.is_some()
    }

    /// Is the partition of a group in this store, as far as its parts were asked for?
    pub(crate) fn has_here(&self, group: &str) -> bool {
        self.part_for(group).is_ok()
    }

    /// The part that messages of a group go to.
    pub(crate) fn part_for(&self, group: &str) -> Result<&Part> {
        let partition = partitions::route(group, self.spread);
        self.parts().find(|part| part.partition == partition).ok_or_else(|| no_part(&self.name))
    }

    pub(crate) fn part_of(&self, mid: i64) -> Option<&Part> {
        self.parts().find(|part| part.holds(mid))
    }

    /// What a handle of one of its messages says, and what its messages are counted by. None where all are in one line.
    pub(crate) fn partition_of(&self, mid: i64) -> Option<u32> {
        let part = self.part_of(mid).filter(|_| self.attributes.is_partitioned())?;
        u32::try_from(part.partition).ok()
    }

    /// The number that clients know a message of a FIFO queue by.
    pub(crate) fn sequence_of(&self, mid: i64) -> Option<String> {
        let part = self.part_of(mid).filter(|_| self.is_fifo())?;
        Some(fifo::sequence(self.generation, part.number_of(mid)))
    }

    pub(crate) fn is_fifo(&self) -> bool {
        is_fifo(&self.name)
    }

    /// Refuses a handle of another queue, or of before a purge.
    pub(crate) fn check_handle(&self, handle: &Handle) -> Result<()> {
        let is_known = self.part_of(handle.mid).is_some() && handle.partition == self.partition_of(handle.mid);
        let is_ours = handle.generation == self.generation && is_known;
        if is_ours { Ok(()) } else { Err(handle::invalid()) }
    }

    /// A message that was sent at this time or before is kept no longer.
    pub(crate) fn kept_since(&self, now: Time) -> Time {
        kept_since(&self.attributes, now)
    }
}

pub(crate) fn kept_since(attributes: &Attributes, now: Time) -> Time {
    let retention = i64::try_from(attributes.retention().as_micros()).unwrap_or(i64::MAX);
    Time::from_micros(now.micros().saturating_sub(retention))
}

impl Part {
    /// Holds no message that there can be.
    const NOWHERE: Self = Self {
        number: -1,
        partition: -1,
        head: 0,
        seen: 0,
        mark: 0,
        mark_xact: 0,
        crowded: false,
        counted: 0,
        mixed: false,
        ready_at: None,
    };

    fn from_row(row: &Row, from: usize) -> Result<Self> {
        let number = row.int(from)?;
        let id = |column: usize| Ok::<_, Error>((number << NUMBER_BITS) + row.int(column)?);
        Ok(Self {
            number,
            partition: row.int(from + 1)?,
            head: id(from + 2)?,
            seen: id(from + 3)?,
            mark: id(from + 4)?,
            mark_xact: row.int(from + 5)?,
            crowded: row.bool(from + 6)?,
            counted: id(from + 7)?,
            mixed: row.bool(from + 8)?,
            ready_at: row.time_opt(from + 9)?,
        })
    }

    /// The lowest id that the next message may get where numbers of messages that are gone come again: below the head
    /// nobody would look for it, and below `counted` nobody would count it.
    pub(crate) fn floor(&self) -> i64 {
        self.head.max(self.counted)
    }

    /// The lowest id that a message of it can have.
    pub(crate) fn begin(&self) -> i64 {
        self.number << NUMBER_BITS
    }

    /// Above the highest.
    pub(crate) fn end(&self) -> i64 {
        (self.number + 1) << NUMBER_BITS
    }

    /// As the columns have it.
    pub(crate) fn number_of(&self, mid: i64) -> i64 {
        mid - self.begin()
    }

    pub(crate) fn holds(&self, mid: i64) -> bool {
        (self.begin()..self.end()).contains(&mid)
    }
}

/// A queue whose messages nobody knows the place of: never taken for one that is empty.
fn no_part(name: &str) -> Error {
    Error::internal(format!("the queue {name} lacks the part of a partition"))
}

/// Is this transaction the only one that writes, as on SQLite?
pub(crate) fn is_alone(tx: &Tx<'_>) -> bool {
    tx.text(SHARE).is_empty()
}

/// Woken whenever the queue has something to receive, or something that will be later.
pub(crate) fn topic(tenant: Tenant, name: &str) -> Topic {
    Topic::new("queue", tenant, name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let part = |number| Part { number, ..Part::default() };
        assert_eq!(part(7).end(), part(8).begin());
        assert!(part(7).holds(part(7).begin()) && !part(7).holds(part(7).end()) && !part(8).holds(part(8).begin() - 1));
        assert_eq!(part(7).number_of(part(7).begin() + 5), 5);
    }
}
