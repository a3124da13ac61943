//! The row that has an id, as the accept table needs it.

use waybill_kernel::{Error, Mode, Result};
use waybill_store::{Ctx, Row, Tx, Value, Work};

use super::rules::{Digest, Found, Status};

pub(super) struct Known(pub(super) String);

impl Work for Known {
    type Output = Option<Found>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Found>> {
        find(tx, &self.0).await
    }
}

pub(super) async fn find(tx: &mut Tx<'_>, client_message_id: &str) -> Result<Option<Found>> {
    const FIND: &str = "SELECT status, request_fingerprint, broker_message_id, history_id, last_error FROM outbox \
                        WHERE client_message_id = $1";
    let row = tx.query_opt(FIND, &[Value::from(client_message_id)]).await?;
    row.map(|row| {
        Ok(Found {
            status: Status::from_stored(row.text(0)?)?,
            request_fingerprint: digest(&row, 1)?,
            broker_message_id: owned(&row, 2)?,
            history_id: owned(&row, 3)?,
            last_error: owned(&row, 4)?,
        })
    })
    .transpose()
}

pub(super) fn digest(row: &Row, column: usize) -> Result<Digest> {
    row.bytes(column)?.try_into().map_err(|_| Error::internal("a stored fingerprint is not 32 bytes long"))
}

pub(super) fn owned(row: &Row, column: usize) -> Result<Option<String>> {
    Ok(row.text_opt(column)?.map(str::to_owned))
}
