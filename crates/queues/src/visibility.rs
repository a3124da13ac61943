//! Putting off, or bringing forward, when a message in flight is visible again.

use std::time::Duration;

use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Row, Statement, Tx, Value};

use crate::ends::{by_ids, ids};
use crate::fifo;
use crate::queue::{Part, Queue};
use crate::rules::handle::{self, Handle};
use crate::rules::{check_range, missing};

/// From its receive on a message stays invisible for at most twelve hours, however often that is put off.
pub(crate) const VISIBILITY_S_MAX: i64 = 43_200;

const FLIGHTS: &str = by_ids!("SELECT mid, token, visible_at, taken_at FROM flights");
/// Guarded: on PostgreSQL another may have received the message since it was looked at.
const CHANGE: &str =
    "UPDATE flights SET visible_at = $4 WHERE tenant = $1 AND mid = $2 AND token = $3 AND visible_at > $5";

/// A change that was asked for, as far as the request alone tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub handle: Handle,
    pub timeout_s: i64,
}

impl Wish {
    pub(crate) fn checked(receipt_handle: &str, timeout_s: Option<i64>) -> Result<Self> {
        let timeout_s = timeout_s.ok_or_else(|| missing("VisibilityTimeout"))?;
        check_range("VisibilityTimeout", timeout_s, 0, VISIBILITY_S_MAX)?;
        Ok(Self { handle: Handle::decode(receipt_handle)?, timeout_s })
    }
}

/// A wish that can be granted unless another transaction is quicker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    handle: Handle,
    pub visible_at: Time,
    now: Time,
    /// Somebody who waits has to look earlier than was thought.
    pub sooner: bool,
}

impl Change {
    pub(crate) fn statement(&self) -> Statement<'_> {
        let token = Value::from(&self.handle.token[..]);
        (CHANGE, vec![self.handle.mid.into(), token, self.visible_at.into(), self.now.into()])
    }

    pub(crate) fn is_of(&self, mid: i64) -> bool {
        self.handle.mid == mid
    }
}

/// The groups of messages of a FIFO queue, held until the transaction ends, each with its part. Other queues have none.
pub(crate) async fn hold_groups<'q>(tx: &mut Tx<'_>, queue: &'q Queue, mids: &[i64]) -> Result<Vec<HeldGroups<'q>>> {
    let mut held = Vec::new();
    // In the order of partitions, as everybody locks groups.
    for part in queue.parts().filter(|_| queue.is_fifo()) {
        let own: Vec<i64> = mids.iter().copied().filter(|mid| part.holds(*mid)).collect();
        if !own.is_empty() {
            let members = fifo::groups_of(tx, &own).await?;
            fifo::hold(tx, part, &members).await?;
            held.push((part, members));
        }
    }
    Ok(held)
}

/// A part, and groups of it with some of their messages.
pub(crate) type HeldGroups<'q> = (&'q Part, Vec<(String, i64)>);

/// To be done when flights of their messages were changed.
pub(crate) async fn settle_groups(tx: &mut Tx<'_>, held: &[HeldGroups<'_>], now: Time) -> Result<()> {
    for (part, members) in held {
        fifo::settle(tx, part, members, now).await?;
    }
    Ok(())
}

/// The flights of up to ten messages.
pub(crate) async fn flights(tx: &mut Tx<'_>, mids: impl Iterator<Item = i64>) -> Result<Vec<Row>> {
    tx.query(FLIGHTS, &ids(mids)).await
}

pub(crate) fn decide(queue: &Queue, flights: &[Row], wish: &Wish, now: Time) -> Result<Change> {
    let Wish { handle, timeout_s } = *wish;
    queue.check_handle(&handle)?;
    let mut flight = None;
    for row in flights {
        if row.int(0)? == handle.mid && row.bytes_opt(1)? == Some(&handle.token[..]) {
            flight = Some((row.time(2)?, row.time(3)?));
        }
    }
    let (before, taken_at) = flight.ok_or_else(handle::invalid)?;
    if before <= now {
        return Err(Error::new(Code::MessageNotInflight, Code::MessageNotInflight.entry().title));
    }
    let visible_at = now.after(Duration::from_secs(timeout_s.unsigned_abs()));
    if visible_at > taken_at.after(Duration::from_secs(VISIBILITY_S_MAX.unsigned_abs())) {
        let message = format!(
            "VisibilityTimeout would keep the message invisible for more than {VISIBILITY_S_MAX} seconds from its receive."
        );
        return Err(Error::invalid(message));
    }
    Ok(Change { handle, visible_at, now, sooner: visible_at < before })
}
