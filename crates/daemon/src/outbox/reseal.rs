//! Reseal: keys are others now, of a recipient or of this member, and messages that were never sent get an envelope that is made
//! with them. One that may have been sent keeps its bytes: another envelope under the same id would be another message.

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use super::Parcel;
use super::rules::Digest;
use crate::directory::{MEMBERS_MAX, TOPICS_MAX};

/// As many as there can be keys for.
const DESTINATIONS_MAX: i64 = (MEMBERS_MAX + TOPICS_MAX) as i64;

/// A message that was never sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsent {
    pub id: i64,
    pub client_message_id: String,
    pub request_fingerprint: Digest,
    /// The plaintext request, JSON.
    pub request: String,
}

pub(super) struct ReadUnsent {
    pub(super) kind: String,
    pub(super) reference: String,
    /// A key's id: what is sealed for it is left out.
    pub(super) but_for: Option<String>,
    pub(super) after: i64,
    pub(super) limit: usize,
}

impl Work for ReadUnsent {
    type Output = Vec<Unsent>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Unsent>> {
        // An attempt that has begun either is inflight or has been counted.
        const READ: &str = "SELECT id, client_message_id, request_fingerprint, payload FROM outbox \
                            WHERE destination_kind = $1 AND destination_ref = $2 AND status IN ('pending', 'inflight') \
                            AND status = 'pending' AND attempts = 0 AND id > $3 AND ($5 IS NULL OR key_id IS NOT $5) \
                            ORDER BY id LIMIT $4";
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let but_for = Value::from(self.but_for.as_deref());
        let given = [Value::from(&self.kind), Value::from(&self.reference), self.after.into(), limit.into(), but_for];
        let rows = tx.query(READ, &given).await?;
        let read = rows.iter().map(|row| {
            Ok(Unsent {
                id: row.int(0)?,
                client_message_id: row.text(1)?.to_owned(),
                request_fingerprint: super::known::digest(row, 2)?,
                request: row.text(3)?.to_owned(),
            })
        });
        read.collect()
    }
}

/// The lines that are not empty: each has one head.
pub(super) struct Destinations;

impl Work for Destinations {
    type Output = Vec<(String, String)>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<(String, String)>> {
        const READ: &str = "SELECT destination_kind, destination_ref FROM outbox INDEXED BY outbox_heads \
                            WHERE is_head = 1 AND status IN ('pending', 'inflight') LIMIT $1";
        let rows = tx.query(READ, &[DESTINATIONS_MAX.into()]).await?;
        rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).collect()
    }
}

pub(super) struct Reseal {
    pub(super) id: i64,
    pub(super) parcel: Parcel,
}

impl Work for Reseal {
    type Output = bool;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<bool> {
        const RESEAL: &str = "UPDATE outbox SET envelope = $2, wire_fingerprint = $3, key_id = $4, epoch = $5 \
                              WHERE id = $1 AND status = 'pending' AND attempts = 0";
        let Parcel { envelope, wire_fingerprint, key_id, epoch, .. } = &self.parcel;
        let given = [
            self.id.into(),
            Value::from(envelope),
            Value::from(wire_fingerprint.as_slice()),
            Value::from(key_id.as_deref()),
            Value::from(*epoch),
        ];
        Ok(tx.execute(RESEAL, &given).await? == 1)
    }
}
