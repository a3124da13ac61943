//! A queue as it is stored: its place in the catalog, and the part that holds its messages.
//!
//! # The fence
//! A purge gives the queue another part, and the end of a queue leaves it none. Whoever adds a message must not write into
//! a part that is dead by the time of the commit: the sender would have its answer and nobody the message. On SQLite
//! transactions come one after another. On PostgreSQL a sender takes a shared lock on the queue's name before it
//! reads the catalog, and a purge an exclusive one, both until their commit: what the sender reads stays true. The lock
//! is an advisory one, which writes nothing; a lock on the row would write it with every send. Its statement goes out
//! together with the one that reads. Those who receive, delete or change messages need no fence: they write only to
//! what they find, and a dead part is given to another queue only when nobody can hold it any more (sweeps/drain.rs).

use waybill_kernel::{Error, Result, Tenant, Time};
use waybill_store::{Row, Sql, Topic, Tx, Value};

use crate::rules::attributes::Attributes;
use crate::rules::handle::{self, Handle};
use crate::rules::names::{queue_name, unknown_queue};

/// Numbers of messages in one part, as a power of two. At 10,000 messages a second they last for three and a half
/// years.
const NUMBER_BITS: u32 = 40;

/// The one part of a queue that is not split.
pub(crate) const ONLY_PARTITION: i64 = 0;

#[derive(Debug)]
pub(crate) struct Queue {
    pub name: String,
    pub attributes: Attributes,
    pub generation: i64,
    pub part: Part,
}

/// Where a queue's messages are, as the transaction has found it. `head`, `seen`, `mark` and `counted` are ids of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub number: i64,
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
}

/// Ends with the transaction.
const SHARE: Sql =
    Sql { sqlite: "", postgres: "SELECT pg_advisory_xact_lock_shared(hashtextextended($2, $1)) IS NOT NULL" };
const EXCLUDE: Sql = Sql { sqlite: "", postgres: "SELECT pg_advisory_xact_lock(hashtextextended($2, $1)) IS NOT NULL" };

/// The first statement of every operation on messages: what [`crate::flights`] promises rests on it.
const FIND: &str = "SELECT q.attributes, q.generation, p.part, p.head, p.seen, p.mark, p.mark_xact, p.crowded, p.counted, \
                    p.mixed FROM queues q JOIN parts p ON p.tenant = $1 AND p.queue = q.name \
                    AND p.generation = q.generation AND p.partition = $3 WHERE q.tenant = $1 AND q.name = $2";

impl Queue {
    /// By the URL that a request names it by.
    pub(crate) async fn load(tx: &mut Tx<'_>, url: &str) -> Result<Self> {
        let name = queue_name(url)?;
        Self::find(tx, name).await?.ok_or_else(|| unknown_queue(name))
    }

    pub(crate) async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<Self>> {
        let row = tx.query_opt(FIND, &[Value::from(name), ONLY_PARTITION.into()]).await?;
        row.as_ref().map(|row| Self::from_row(name, row)).transpose()
    }

    /// By the URL that a request names it by, for whoever adds messages to it.
    pub(crate) async fn load_for_messages(tx: &mut Tx<'_>, url: &str) -> Result<Self> {
        let name = queue_name(url)?;
        Self::find_for_messages(tx, name).await?.ok_or_else(|| unknown_queue(name))
    }

    /// As `find`, and until the transaction ends nobody purges or deletes the queue.
    pub(crate) async fn find_for_messages(tx: &mut Tx<'_>, name: &str) -> Result<Option<Self>> {
        let share = tx.text(SHARE);
        if share.is_empty() {
            return Self::find(tx, name).await;
        }
        let find = (FIND, vec![Value::from(name), ONLY_PARTITION.into()]);
        let answers = tx.query_all(&[(share, vec![Value::from(name)]), find]).await?;
        let row = answers.last().and_then(|rows| rows.first());
        row.map(|row| Self::from_row(name, row)).transpose()
    }

    /// Waits for those who are adding messages, and keeps others from it until the transaction ends.
    pub(crate) async fn exclude_senders(tx: &mut Tx<'_>, name: &str) -> Result<()> {
        match tx.text(EXCLUDE) {
            "" => Ok(()),
            exclude => tx.query(exclude, &[Value::from(name)]).await.map(drop),
        }
    }

    fn from_row(name: &str, row: &Row) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            attributes: Attributes::from_stored(row.text(0)?)?,
            generation: row.int(1)?,
            part: Part::from_row(row, 2)?,
        })
    }

    /// Refuses a handle of another queue, or of before a purge.
    pub(crate) fn check_handle(&self, handle: &Handle) -> Result<()> {
        let is_ours = handle.generation == self.generation && self.part.holds(handle.mid);
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
    fn from_row(row: &Row, from: usize) -> Result<Self> {
        let number = row.int(from)?;
        let id = |column: usize| Ok::<_, Error>((number << NUMBER_BITS) + row.int(column)?);
        Ok(Self {
            number,
            head: id(from + 1)?,
            seen: id(from + 2)?,
            mark: id(from + 3)?,
            mark_xact: row.int(from + 4)?,
            crowded: row.bool(from + 5)?,
            counted: id(from + 6)?,
            mixed: row.bool(from + 7)?,
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
