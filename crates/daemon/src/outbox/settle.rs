//! Settle: what the broker answered, or that it did not, becomes the row's state.

use std::time::Duration;

use waybill_kernel::Result;
use waybill_store::{Ctx, Row, Tx, Value};

use super::line;
use super::rules::{self, Backoff, Outcome, Settled};

/// An attempt that has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) id: i64,
    pub(super) outcome: Outcome,
    /// Random, drawn before the transaction.
    pub(super) draw: u64,
}

/// By what it is decided how attempts go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) max_age: Duration,
    pub(super) backoff: Backoff,
}

/// A destination whose head has ended: who is next in it is to be said in the same transaction.
pub(super) struct Headless {
    pub(super) kind: String,
    pub(super) reference: String,
}

impl Headless {
    fn read(row: &Row, first: usize) -> Result<Self> {
        Ok(Self { kind: row.text(first)?.to_owned(), reference: row.text(first + 1)?.to_owned() })
    }
}

/// None when the row is not in flight: then nothing is written.
pub(super) async fn settle(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    ended: &Ended,
    terms: &Terms,
) -> Result<Option<(Settled, Option<Headless>)>> {
    const READ: &str = "SELECT attempts, enqueued_at, destination_kind, destination_ref FROM outbox \
                        WHERE id = $1 AND status = 'inflight'";
    const AGAIN: &str = "UPDATE outbox SET status = 'pending', attempts = $2, last_error = $3, next_attempt_at = $4 \
                         WHERE id = $1";
    if let Outcome::Delivered { broker_message_id, history_id } = &ended.outcome {
        return done(ctx, tx, ended.id, broker_message_id, history_id.as_deref()).await;
    }
    let Some(row) = tx.query_opt(READ, &[ended.id.into()]).await? else { return Ok(None) };
    let attempts = row.int(0)?.saturating_add(1);
    let count = u32::try_from(attempts).unwrap_or(u32::MAX);
    let pause = terms.backoff.pause(count, ended.draw);
    let settled = rules::settle(ended.outcome.clone(), count, row.time(1)?, terms.max_age, ctx.now, pause);
    match &settled {
        Settled::Done { broker_message_id, history_id } => {
            return done(ctx, tx, ended.id, broker_message_id, history_id.as_deref()).await;
        }
        Settled::Dead { reason } => line::end(tx, ended.id, attempts, reason).await?,
        // It stays the head: what was sent after it must not overtake it.
        Settled::Pending { reason, next_attempt_at } => {
            let again = [ended.id.into(), attempts.into(), Value::from(reason), (*next_attempt_at).into()];
            tx.execute(AGAIN, &again).await?;
            return Ok(Some((settled, None)));
        }
    }
    Ok(Some((settled, Some(Headless::read(&row, 2)?))))
}

/// However old it was and however often it was tried, so that one statement is enough.
async fn done(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    id: i64,
    broker_message_id: &str,
    history_id: Option<&str>,
) -> Result<Option<(Settled, Option<Headless>)>> {
    const DONE: &str = "UPDATE outbox SET status = 'done', is_head = 0, attempts = attempts + 1, last_error = NULL, \
                        delivered_at = $2, broker_message_id = $3, history_id = $4 WHERE id = $1 AND status = 'inflight' \
                        RETURNING destination_kind, destination_ref";
    let given = [id.into(), ctx.now.into(), Value::from(broker_message_id), Value::from(history_id)];
    let Some(row) = tx.query_opt(DONE, &given).await? else { return Ok(None) };
    let settled =
        Settled::Done { broker_message_id: broker_message_id.to_owned(), history_id: history_id.map(str::to_owned) };
    Ok(Some((settled, Some(Headless::read(&row, 0)?))))
}
