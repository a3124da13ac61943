//! Accept: a message gets its row, or the row that has its id says what the request means.

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use super::line::{self, Position};
use super::rules::{self, Digest, Verdict};
use super::{Parcel, known, no_room};

/// A request that was validated, fingerprinted and sealed: nothing slow is left for the transaction.
#[derive(Clone, Debug)]
pub struct Accept {
    pub client_message_id: String,
    pub request_fingerprint: Digest,
    /// The plaintext request, JSON.
    pub request: String,
    pub parcel: Parcel,
}

impl Accept {
    pub(super) fn bytes(&self) -> u64 {
        (self.request.len() + self.parcel.envelope.len()) as u64
    }
}

pub(super) struct Write {
    pub(super) accept: Accept,
    /// There is no room for another row.
    pub(super) refuses_new: bool,
}

impl Work for Write {
    /// And whether there is something to send that was not there before: a new row, which nobody in its line goes before.
    type Output = (Verdict, bool);

    fn mode(&self) -> Mode {
        Mode::Write
    }

    /// The last room of a full disk is for what settles and ends messages.
    fn relieves(&self) -> bool {
        false
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<(Verdict, bool)> {
        let accept = &self.accept;
        // First the INSERT: most ids are new, and those then cost one statement.
        if !self.refuses_new
            && let Some(position) = line::insert(ctx, tx, accept).await?
        {
            return Ok((Verdict::Insert, position == Position::Head));
        }
        let found = known::find(tx, &accept.client_message_id).await?;
        match rules::accept(found, &accept.request_fingerprint) {
            Verdict::Insert => Err(no_room()),
            verdict => Ok((verdict, false)),
        }
    }
}

impl Accept {
    pub(super) fn values(&self) -> [Value<'_>; 9] {
        let Parcel { envelope, wire_fingerprint, destination_kind, destination_ref, key_id, epoch } = &self.parcel;
        [
            Value::from(&self.client_message_id),
            Value::from(self.request_fingerprint.as_slice()),
            Value::from(wire_fingerprint.as_slice()),
            Value::from(&self.request),
            Value::from(envelope),
            Value::from(destination_kind),
            Value::from(destination_ref),
            Value::from(key_id.as_deref()),
            Value::from(*epoch),
        ]
    }
}
