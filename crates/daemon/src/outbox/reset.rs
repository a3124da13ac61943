//! Reset: what was in flight when the process ended, or when the connection was lost, is pending again.

use std::time::Duration;

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Work};

pub(super) struct Reset {
    pub(super) pause: Duration,
}

impl Work for Reset {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const RETURN: &str = "UPDATE outbox SET status = 'pending', attempts = attempts + 1, next_attempt_at = $1, \
                              last_error = 'interrupted' WHERE status = 'inflight'";
        // A pause from before the restart says nothing about the broker of now, unless the broker has asked for it itself: who
        // was told to slow down (429) and comes back at once is refused again, with everybody else who does.
        const HASTEN: &str = "UPDATE outbox INDEXED BY outbox_heads SET next_attempt_at = $1 \
                              WHERE is_head = 1 AND status = 'pending' AND next_attempt_at > $1 \
                              AND (last_error IS NULL OR last_error NOT LIKE '429 %')";
        let soon = ctx.now.after(self.pause);
        let returned = tx.execute(RETURN, &[soon.into()]).await?;
        tx.execute(HASTEN, &[soon.into()]).await?;
        Ok(returned)
    }
}
