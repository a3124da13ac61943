//! Claim: the heads that are due become inflight. From this commit on nobody can say that they were never sent.

use std::time::Duration;

use waybill_kernel::{Mode, Result, Time};
use waybill_store::{Ctx, Tx, Work};

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

pub(super) struct Claim {
    pub(super) limit: usize,
    pub(super) max_age: Duration,
}

impl Work for Claim {
    type Output = Claimed;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Claimed> {
        const DUE: &str = "SELECT id, client_message_id, destination_kind, destination_ref, envelope, attempts, enqueued_at \
                           FROM outbox INDEXED BY outbox_heads WHERE is_head = 1 AND status = 'pending' AND next_attempt_at <= $1 \
                           ORDER BY next_attempt_at LIMIT $2";
        const START: &str = "UPDATE outbox SET status = 'inflight' WHERE id = $1 AND status = 'pending'";
        const NEXT: &str =
            "SELECT min(next_attempt_at) FROM outbox INDEXED BY outbox_heads WHERE is_head = 1 AND status = 'pending'";
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let mut claimed = Claimed::default();
        for row in tx.query(DUE, &[ctx.now.into(), limit.into()]).await? {
            let flight = Flight {
                id: row.int(0)?,
                client_message_id: row.text(1)?.to_owned(),
                destination_kind: row.text(2)?.to_owned(),
                destination_ref: row.text(3)?.to_owned(),
                envelope: row.text(4)?.to_owned(),
                attempts: u32::try_from(row.int(5)?).unwrap_or(u32::MAX),
                enqueued_at: row.time(6)?,
            };
            if is_too_old(flight.enqueued_at, self.max_age, ctx.now) {
                let Flight { id, destination_kind, destination_ref, .. } = &flight;
                line::end_as_dead(tx, *id, row.int(5)?, destination_kind, destination_ref, TOO_OLD).await?;
                continue;
            }
            tx.execute(START, &[flight.id.into()]).await?;
            claimed.flights.push(flight);
        }
        claimed.next_at = tx.query_opt(NEXT, &[]).await?.map(|row| row.time_opt(0)).transpose()?.flatten();
        Ok(claimed)
    }
}
