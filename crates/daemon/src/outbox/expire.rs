//! Expire: heads that are older than the broker's memory of ids are dead, whether or not the broker is there at the moment.

use std::time::Duration;

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Work};

use super::line;
use super::rules::{TOO_OLD, too_old_until};

/// Ended in one transaction.
const BATCH: i64 = 256;
/// Transactions of one sweep; what is left waits for the next.
pub(super) const ROUNDS_MAX: usize = 64;

pub(super) struct Expire {
    pub(super) max_age: Duration,
}

impl Work for Expire {
    /// How many have ended; the next of their lines may be as old.
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const OLD: &str = "SELECT id, attempts, destination_kind, destination_ref FROM outbox INDEXED BY outbox_heads \
                           WHERE is_head = 1 AND status = 'pending' AND enqueued_at <= $1 LIMIT $2";
        let before = too_old_until(self.max_age, ctx.now);
        let rows = tx.query(OLD, &[before.into(), BATCH.into()]).await?;
        for row in &rows {
            line::end_as_dead(tx, row.int(0)?, row.int(1)?, row.text(2)?, row.text(3)?, TOO_OLD).await?;
        }
        Ok(rows.len() as u64)
    }
}
