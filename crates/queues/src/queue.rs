//! A queue as it is stored: its place in the catalog, and the part that holds its messages.

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::{Row, Topic, Tx, Value};

use crate::rules::attributes::Attributes;
use crate::rules::names::{queue_name, unknown_queue};

/// Numbers of messages in one part, as a power of two. At 10,000 messages a second they last for three and a half
/// years.
const NUMBER_BITS: u32 = 40;

/// The one part of a queue that is not split.
pub(crate) const ONLY_PARTITION: i64 = 0;

#[derive(Debug)]
pub(crate) struct Queue {
    pub attributes: Attributes,
    pub generation: i64,
    pub part: Part,
}

/// Where a queue's messages are, as the transaction has found it. `head`, `seen` and `mark` are ids of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub number: i64,
    /// Every message below has a flight or is gone.
    pub head: i64,
    pub seen: i64,
    pub mark: i64,
    pub mark_xact: i64,
    pub crowded: bool,
}

impl Queue {
    /// By the URL that a request names it by.
    pub(crate) async fn load(tx: &mut Tx<'_>, url: &str) -> Result<Self> {
        let name = queue_name(url)?;
        Self::find(tx, name).await?.ok_or_else(|| unknown_queue(name))
    }

    /// The first statement of every operation on messages: what [`crate::flights`] promises rests on it.
    pub(crate) async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<Self>> {
        const FIND: &str = "SELECT q.attributes, q.generation, p.part, p.head, p.seen, p.mark, p.mark_xact, p.crowded \
                            FROM queues q JOIN parts p ON p.tenant = $1 AND p.queue = q.name \
                            AND p.generation = q.generation AND p.partition = $3 WHERE q.tenant = $1 AND q.name = $2";
        let row = tx.query_opt(FIND, &[Value::from(name), ONLY_PARTITION.into()]).await?;
        row.as_ref().map(Self::from_row).transpose()
    }

    fn from_row(row: &Row) -> Result<Self> {
        Ok(Self {
            attributes: Attributes::from_stored(row.text(0)?)?,
            generation: row.int(1)?,
            part: Part::from_row(row, 2)?,
        })
    }

    /// A message that was sent at this time or before is kept no longer.
    pub(crate) fn kept_since(&self, now: Time) -> Time {
        let retention = i64::try_from(self.attributes.retention().as_micros()).unwrap_or(i64::MAX);
        Time::from_micros(now.micros().saturating_sub(retention))
    }
}

impl Part {
    fn from_row(row: &Row, from: usize) -> Result<Self> {
        let number = row.int(from)?;
        let id = |column: usize| Ok::<_, waybill_kernel::Error>((number << NUMBER_BITS) + row.int(column)?);
        Ok(Self {
            number,
            head: id(from + 1)?,
            seen: id(from + 2)?,
            mark: id(from + 3)?,
            mark_xact: row.int(from + 4)?,
            crowded: row.bool(from + 5)?,
        })
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

/// Woken whenever the queue has something to receive, or something that will be later.
pub(crate) fn topic(tenant: Tenant, name: &str) -> Topic {
    Topic::new("queue", tenant, name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let part = |number| Part { number, head: 0, seen: 0, mark: 0, mark_xact: 0, crowded: false };
        assert_eq!(part(7).end(), part(8).begin());
        assert!(part(7).holds(part(7).begin()) && !part(7).holds(part(7).end()) && !part(8).holds(part(8).begin() - 1));
        assert_eq!(part(7).number_of(part(7).begin() + 5), 5);
    }
}
