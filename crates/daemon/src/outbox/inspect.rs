//! Inspect: one message with everything its row has, and the chain of those it replaced and was replaced by.

use serde::Serialize;
use waybill_kernel::{Error, Json, Mode, Result, Time, hex};
use waybill_store::{Ctx, Row, Tx, Value, Work};

use super::known::owned;
use super::list::{SUMMARY_COLUMNS, Summary};

/// Requeues in a row that are shown, to each side.
const CHAIN_MAX: i64 = 100;

#[derive(Clone, Debug, Serialize)]
pub struct Inspected {
    #[serde(flatten)]
    pub summary: Summary,
    pub request_fingerprint: String,
    pub wire_fingerprint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// The plaintext request. None once pruned.
    pub payload: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aborted_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aborted_by: Option<String>,
    /// The id of the message that took its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Chain {
    pub message: Inspected,
    /// From the first to the last, the message itself among them.
    pub chain: Vec<Inspected>,
}

pub(super) struct Inspect(pub(super) String);

impl Work for Inspect {
    type Output = Chain;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Chain> {
        const CHAIN: &str = "WITH RECURSIVE \
                             earlier (id, steps) AS (SELECT id, 0 FROM outbox WHERE client_message_id = $1 UNION ALL \
                               SELECT o.id, e.steps + 1 FROM outbox o JOIN earlier e ON o.superseded_by = e.id \
                               WHERE o.superseded_by IS NOT NULL AND e.steps < $2), \
                             later (id, steps) AS (SELECT id, 0 FROM outbox WHERE client_message_id = $1 UNION ALL \
                               SELECT o.superseded_by, l.steps + 1 FROM outbox o JOIN later l ON o.id = l.id \
                               WHERE o.superseded_by IS NOT NULL AND l.steps < $2) \
                             SELECT o.client_message_id, o.status, o.destination_kind, o.destination_ref, o.enqueued_at, \
                               o.attempts, o.next_attempt_at, o.last_error, o.delivered_at, o.broker_message_id, o.history_id, \
                               o.request_fingerprint, o.wire_fingerprint, o.key_id, o.epoch, o.payload, o.aborted_at, \
                               o.aborted_by, s.client_message_id \
                             FROM outbox o LEFT JOIN outbox s ON s.id = o.superseded_by \
                             WHERE o.id IN (SELECT id FROM earlier UNION SELECT id FROM later) ORDER BY o.id";
        let rows = tx.query(CHAIN, &[Value::from(&self.0), CHAIN_MAX.into()]).await?;
        let chain = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        let own = chain.iter().find(|message| message.summary.client_message_id == self.0);
        let message = own.cloned().ok_or_else(|| Error::not_found("message in the outbox"))?;
        Ok(Chain { message, chain })
    }
}

fn read(row: &Row) -> Result<Inspected> {
    let at = SUMMARY_COLUMNS;
    Ok(Inspected {
        summary: Summary::read(row)?,
        request_fingerprint: hex::encode(row.bytes(at)?),
        wire_fingerprint: hex::encode(row.bytes(at + 1)?),
        key_id: owned(row, at + 2)?,
        epoch: row.int_opt(at + 3)?,
        payload: row.text_opt(at + 4)?.map(Json::from_stored).transpose()?,
        aborted_at: row.time_opt(at + 5)?,
        aborted_by: owned(row, at + 6)?,
        superseded_by: owned(row, at + 7)?,
    })
}
