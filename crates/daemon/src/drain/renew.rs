//! A message that the broker has refused because its topic's epoch has ended is sealed anew with the present key.
//!
//! The refusal is certain: it came after the broker had looked for the id and found nothing. So nothing of the message is stored
//! there, and a new envelope under its id is no second message.

use waybill_kernel::{Error, Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use crate::link::Parts;
use crate::outbox::{Outcome, Parcel};
use crate::seal::Draft;

/// What to settle the row with: it stays in the outbox, with an envelope of the present epoch where there is one.
pub(super) async fn renew(parts: &Parts, row: i64, topic: &str) -> Result<Outcome> {
    let store = parts.outbox.store();
    let failed = |reason: &str| Outcome::Failed { reason: reason.to_owned(), retry_after: None };
    let Some((id, request)) = store.system().run(ReadRequest(row)).await? else {
        return Ok(failed("epoch_unknown"));
    };
    let draft: Draft = serde_json::from_str(&request).map_err(Error::internal)?;
    parts.refresh.notify_one();
    match parts.sealer.seal(&id, &draft) {
        Ok(parcel) => {
            store.system().run(Renew { row, parcel }).await?;
            Ok(failed("epoch_unknown, sealed anew"))
        }
        Err(error) => {
            tracing::info!(topic, %error, "a message waits for its topic's key");
            Ok(failed("epoch_unknown"))
        }
    }
}

struct ReadRequest(i64);

impl Work for ReadRequest {
    /// The id and what was asked for under it.
    type Output = Option<(String, String)>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<(String, String)>> {
        const READ: &str = "SELECT client_message_id, payload FROM outbox WHERE id = $1 AND status = 'inflight' \
                            AND payload IS NOT NULL";
        let row = tx.query_opt(READ, &[self.0.into()]).await?;
        row.map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).transpose()
    }
}

struct Renew {
    row: i64,
    parcel: Parcel,
}

impl Work for Renew {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const RENEW: &str = "UPDATE outbox SET envelope = $2, wire_fingerprint = $3, key_id = $4, epoch = $5 \
                             WHERE id = $1 AND status = 'inflight'";
        let Parcel { envelope, wire_fingerprint, key_id, epoch, .. } = &self.parcel;
        let given = [
            self.row.into(),
            Value::from(envelope),
            Value::from(wire_fingerprint.as_slice()),
            Value::from(key_id.as_deref()),
            Value::from(*epoch),
        ];
        tx.execute(RENEW, &given).await.map(drop)
    }
}
