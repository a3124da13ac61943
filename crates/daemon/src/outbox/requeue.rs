//! Requeue: an operator's way out for a message that is dead or stuck. The old id stays taken; a new row has a fresh one.

use serde::Serialize;
use waybill_kernel::{Code, Error, Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use super::rules::Status;
use super::{Accept, line};

#[derive(Clone, Debug)]
pub struct Requeue {
    pub client_message_id: String,
    /// Under its own id, with the same payload or another, sealed anew.
    pub replacement: Accept,
    /// Who asked for it.
    pub operator: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requeued {
    pub client_message_id: String,
    pub superseded: String,
    /// What the operator should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<&'static str>,
}

const MAY_BE_DELIVERED: &str =
    "The message was pending and may have been sent: the broker may hold its old id, so a copy can be delivered.";

impl Work for Requeue {
    type Output = Requeued;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    fn relieves(&self) -> bool {
        false
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Requeued> {
        const READ: &str =
            "SELECT id, status, destination_kind, destination_ref FROM outbox WHERE client_message_id = $1";
        const NEW_ID: &str = "SELECT id FROM outbox WHERE client_message_id = $1";
        const ABORT: &str = "UPDATE outbox SET status = 'aborted', is_head = 0, aborted_at = $2, aborted_by = $3, \
                             superseded_by = $4 WHERE id = $1";
        let row = tx.query_opt(READ, &[Value::from(&self.client_message_id)]).await?;
        let row = row.ok_or_else(|| Error::not_found("message in the outbox"))?;
        let status = Status::from_stored(row.text(1)?)?;
        let warning = match status {
            Status::Dead => None,
            Status::Pending => Some(MAY_BE_DELIVERED),
            Status::Inflight | Status::Done | Status::Aborted => return Err(not_requeueable(status)),
        };
        let new_id = &self.replacement.client_message_id;
        if line::insert(ctx, tx, &self.replacement).await?.is_none() {
            let message = format!("The id {new_id} is taken: ids of the outbox are never released.");
            return Err(Error::new(Code::AlreadyExists, message).with_cure("Choose another, or use --auto."));
        }
        let new = tx.query_opt(NEW_ID, &[Value::from(new_id)]).await?;
        let new = new.ok_or_else(|| Error::internal("a row that was just written is not there"))?.int(0)?;
        let aborted = [row.int(0)?.into(), ctx.now.into(), Value::from(&self.operator), new.into()];
        tx.execute(ABORT, &aborted).await?;
        if status == Status::Pending {
            line::pass_on(tx, row.text(2)?, row.text(3)?).await?;
        }
        Ok(Requeued { client_message_id: new_id.clone(), superseded: self.client_message_id.clone(), warning })
    }
}

pub(crate) fn not_requeueable(status: Status) -> Error {
    let message =
        format!("The message is {}, and requeue works on messages that are dead or pending.", status.as_str());
    Error::new(Code::NotRequeueable, message).with("status", status.as_str())
}
