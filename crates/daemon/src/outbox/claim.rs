//! Claim: the heads that are due become inflight. From this commit on nobody can say that they were never sent.

use std::time::Duration;

use waybill_kernel::{Result, Time};
use waybill_store::{Ctx, Row, Tx};

use super::line;
use super::rules::{TOO_OLD, is_too_old};

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    pub id: i64,
    pub client_message_id: String,
    pub destination_kind: String,
    pub destination_ref: String,
    /// JSON, to be sent as it is.
    pub envelope: String,
    /// Those that have ended without an answer.
    pub attempts: u32,
    pub enqueued_at: Time,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    pub flights: Vec<Flight>,
    /// When the next one is due that was not taken now.
    pub next_at: Option<Time>,
}

/// What [`Flight::read`] reads, in its order.
macro_rules! flight_columns {
    () => {
        "id, client_message_id, destination_kind, destination_ref, envelope, attempts, enqueued_at"
    };
}

pub(super) use flight_columns;

impl Flight {
    pub(super) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            id: row.int(0)?,
            client_message_id: row.text(1)?.to_owned(),
            destination_kind: row.text(2)?.to_owned(),
            destination_ref: row.text(3)?.to_owned(),
            envelope: row.text(4)?.to_owned(),
            attempts: u32::try_from(row.int(5)?).unwrap_or(u32::MAX),
            enqueued_at: row.time(6)?,
        })
    }
}

/// The heads that are due, those that have waited longest first. What is too old among them ends.
pub(super) async fn due(ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: usize, max_age: Duration) -> Result<Vec<Flight>> {
    const DUE: &str = concat!(
        "SELECT ",
        flight_columns!(),
        " FROM outbox INDEXED BY outbox_heads WHERE is_head = 1 AND status = 'pending' AND next_attempt_at <= $1 \
         ORDER BY next_attempt_at LIMIT $2"
    );
    const START: &str = "UPDATE outbox SET status = 'inflight' WHERE id = $1 AND status = 'pending'";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut flights = Vec::new();
    for row in tx.query(DUE, &[ctx.now.into(), limit.into()]).await? {
        let flight = Flight::read(&row)?;
        if is_too_old(flight.enqueued_at, max_age, ctx.now) {
            let Flight { id, destination_kind, destination_ref, .. } = &flight;
            line::end_as_dead(tx, *id, row.int(5)?, destination_kind, destination_ref, TOO_OLD).await?;
            continue;
        }
        tx.execute(START, &[flight.id.into()]).await?;
        flights.push(flight);
    }
    Ok(flights)
}

/// When the next head is due, of those that wait.
pub(super) async fn next_at(tx: &mut Tx<'_>) -> Result<Option<Time>> {
    const NEXT: &str =
        "SELECT min(next_attempt_at) FROM outbox INDEXED BY outbox_heads WHERE is_head = 1 AND status = 'pending'";
    tx.query_opt(NEXT, &[]).await?.map_or(Ok(None), |row| row.time_opt(0))
}
