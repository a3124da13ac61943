//! The line of each destination: who joins it at its end, and who is next when its head has ended.

use waybill_kernel::{Mode, Result, Time};
use waybill_store::{Ctx, Tx, Value, Work};

use super::claim::flight_columns;
use super::{Accept, Flight};

/// Where a new row stands in the line of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It may be sent.
    Head,
    Behind,
}

/// A pending row at the end of its line. None when the id is taken, and then nothing is written.
pub(super) async fn insert(ctx: &Ctx<'_>, tx: &mut Tx<'_>, accept: &Accept) -> Result<Option<Position>> {
    const INSERT: &str = "INSERT INTO outbox (client_message_id, request_fingerprint, wire_fingerprint, payload, envelope, \
                          destination_kind, destination_ref, key_id, epoch, enqueued_at, next_attempt_at, status, is_head) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, 'pending', \
                          NOT EXISTS (SELECT 1 FROM outbox o WHERE o.destination_kind = $6 AND o.destination_ref = $7 \
                          AND o.status IN ('pending', 'inflight'))) \
                          ON CONFLICT (client_message_id) DO NOTHING RETURNING is_head";
    let [a, b, c, d, e, f, g, h, i] = accept.values();
    let row = tx.query_opt(INSERT, &[a, b, c, d, e, f, g, h, i, ctx.now.into()]).await?;
    row.map(|row| Ok(if row.bool(0)? { Position::Head } else { Position::Behind })).transpose()
}

/// Of these destinations the one whose line is not empty; of several, where the newest message waits.
pub(super) struct Occupied {
    pub(super) kind: String,
    pub(super) references: Vec<String>,
}

impl Work for Occupied {
    type Output = Option<String>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<String>> {
        const LAST: &str = "SELECT max(id) FROM outbox WHERE destination_kind = $1 AND destination_ref = $2 \
                            AND status IN ('pending', 'inflight')";
        let mut newest: Option<(i64, &String)> = None;
        for reference in &self.references {
            let row = tx.query_opt(LAST, &[Value::from(&self.kind), Value::from(reference)]).await?;
            let last = row.map(|row| row.int_opt(0)).transpose()?.flatten();
            newest = newest.max(last.map(|id| (id, reference)));
        }
        Ok(newest.map(|(_, reference)| reference.clone()))
    }
}

/// The head of this destination has ended: the next one of its line is the head. The line may be empty.
pub(super) async fn pass_on(tx: &mut Tx<'_>, kind: &str, reference: &str) -> Result<()> {
    const PASS_ON: &str = "UPDATE outbox SET is_head = 1 WHERE id = (SELECT o.id FROM outbox o WHERE o.destination_kind = $1 \
                           AND o.destination_ref = $2 AND o.status IN ('pending', 'inflight') ORDER BY o.id LIMIT 1)";
    tx.execute(PASS_ON, &[Value::from(kind), Value::from(reference)]).await.map(drop)
}

/// As [`pass_on`], and the new head is in flight at once. None when it is not due, or older than `young_after`, or when the
/// line is empty: then nothing is written, and the line is still to be passed on.
pub(super) async fn take_on(
    tx: &mut Tx<'_>,
    kind: &str,
    reference: &str,
    now: Time,
    young_after: Time,
) -> Result<Option<Flight>> {
    const TAKE_ON: &str = concat!(
        "UPDATE outbox SET status = 'inflight', is_head = 1 WHERE id = (SELECT o.id FROM outbox o WHERE o.destination_kind = $1 \
         AND o.destination_ref = $2 AND o.status IN ('pending', 'inflight') ORDER BY o.id LIMIT 1) \
         AND status = 'pending' AND next_attempt_at <= $3 AND enqueued_at > $4 RETURNING ",
        flight_columns!()
    );
    let given = [Value::from(kind), Value::from(reference), now.into(), young_after.into()];
    tx.query_opt(TAKE_ON, &given).await?.map(|row| Flight::read(&row)).transpose()
}

/// A pending or inflight row ends as dead, and its line is passed on.
pub(super) async fn end_as_dead(
    tx: &mut Tx<'_>,
    id: i64,
    attempts: i64,
    kind: &str,
    reference: &str,
    reason: &str,
) -> Result<()> {
    end(tx, id, attempts, reason).await?;
    pass_on(tx, kind, reference).await
}

/// As [`end_as_dead`]; passing on the line is the caller's.
pub(super) async fn end(tx: &mut Tx<'_>, id: i64, attempts: i64, reason: &str) -> Result<()> {
    const END: &str = "UPDATE outbox SET status = 'dead', is_head = 0, attempts = $2, last_error = $3 WHERE id = $1";
    tx.execute(END, &[id.into(), attempts.into(), Value::from(reason)]).await.map(drop)
}
