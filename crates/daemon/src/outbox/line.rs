//! The line of each destination: who joins it at its end, and who is next when its head has ended.

use waybill_kernel::Result;
use waybill_store::{Ctx, Tx, Value};

use super::Accept;

/// A pending row at the end of its line. False when the id is taken, and then nothing is written.
pub(super) async fn insert(ctx: &Ctx<'_>, tx: &mut Tx<'_>, accept: &Accept) -> Result<bool> {
    const INSERT: &str = "INSERT INTO outbox (client_message_id, request_fingerprint, wire_fingerprint, payload, envelope, \
                          destination_kind, destination_ref, key_id, epoch, enqueued_at, next_attempt_at, status, is_head) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, 'pending', \
                          NOT EXISTS (SELECT 1 FROM outbox o WHERE o.destination_kind = $6 AND o.destination_ref = $7 \
                          AND o.status IN ('pending', 'inflight'))) \
                          ON CONFLICT (client_message_id) DO NOTHING";
    let [a, b, c, d, e, f, g, h, i] = accept.values();
    Ok(tx.execute(INSERT, &[a, b, c, d, e, f, g, h, i, ctx.now.into()]).await? == 1)
}

/// The head of this destination has ended: the next one of its line is the head.
pub(super) async fn pass_on(tx: &mut Tx<'_>, kind: &str, reference: &str) -> Result<()> {
    const PASS_ON: &str = "UPDATE outbox SET is_head = 1 WHERE id = (SELECT o.id FROM outbox o WHERE o.destination_kind = $1 \
                           AND o.destination_ref = $2 AND o.status IN ('pending', 'inflight') ORDER BY o.id LIMIT 1)";
    tx.execute(PASS_ON, &[Value::from(kind), Value::from(reference)]).await.map(drop)
}

/// A pending or inflight row ends as dead.
pub(super) async fn end_as_dead(
    tx: &mut Tx<'_>,
    id: i64,
    attempts: i64,
    kind: &str,
    reference: &str,
    reason: &str,
) -> Result<()> {
    const END: &str = "UPDATE outbox SET status = 'dead', is_head = 0, attempts = $2, last_error = $3 WHERE id = $1";
    tx.execute(END, &[id.into(), attempts.into(), Value::from(reason)]).await?;
    pass_on(tx, kind, reference).await
}
