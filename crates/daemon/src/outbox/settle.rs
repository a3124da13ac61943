//! Settle: what the broker answered, or that it did not, becomes the row's state.

use std::time::Duration;

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use super::line;
use super::rules::{self, Backoff, Outcome, Settled};

pub(super) struct Settle {
    pub(super) id: i64,
    pub(super) outcome: Outcome,
    pub(super) max_age: Duration,
    pub(super) backoff: Backoff,
    /// Random, drawn before the transaction.
    pub(super) draw: u64,
}

impl Work for Settle {
    type Output = Option<Settled>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Settled>> {
        const READ: &str = "SELECT attempts, enqueued_at, destination_kind, destination_ref FROM outbox \
                            WHERE id = $1 AND status = 'inflight'";
        const DONE: &str = "UPDATE outbox SET status = 'done', is_head = 0, attempts = $2, last_error = NULL, \
                            delivered_at = $3, broker_message_id = $4, history_id = $5 WHERE id = $1";
        const AGAIN: &str = "UPDATE outbox SET status = 'pending', attempts = $2, last_error = $3, next_attempt_at = $4 \
                             WHERE id = $1";
        let Some(row) = tx.query_opt(READ, &[self.id.into()]).await? else { return Ok(None) };
        let attempts = row.int(0)?.saturating_add(1);
        let count = u32::try_from(attempts).unwrap_or(u32::MAX);
        let pause = self.backoff.pause(count, self.draw);
        let settled = rules::settle(self.outcome.clone(), count, row.time(1)?, self.max_age, ctx.now, pause);
        let (kind, reference) = (row.text(2)?, row.text(3)?);
        match &settled {
            Settled::Done { broker_message_id, history_id } => {
                let (id, history) = (Value::from(broker_message_id), Value::from(history_id.as_deref()));
                tx.execute(DONE, &[self.id.into(), attempts.into(), ctx.now.into(), id, history]).await?;
                line::pass_on(tx, kind, reference).await?;
            }
            Settled::Dead { reason } => line::end_as_dead(tx, self.id, attempts, kind, reference, reason).await?,
            // It stays the head: what was sent after it must not overtake it.
            Settled::Pending { reason, next_attempt_at } => {
                let again = [self.id.into(), attempts.into(), Value::from(reason), (*next_attempt_at).into()];
                tx.execute(AGAIN, &again).await?;
            }
        }
        Ok(Some(settled))
    }
}
