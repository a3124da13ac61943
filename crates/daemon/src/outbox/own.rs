//! Own: whose messages these are. A member that was minted anew, or that lived for one run only, cannot send what another has
//! sealed: its recipients would look for the wrong sender's key. Such messages are dead, and `requeue` seals them anew.

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

const OF_ANOTHER: &str = "sealed_by_another_member";

pub(super) struct Own(pub(super) String);

impl Work for Own {
    /// How many messages of another member have ended.
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const READ: &str = "SELECT member FROM outbox_owner WHERE id = 1";
        const WRITE: &str =
            "INSERT INTO outbox_owner (id, member) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET member = $1";
        const END: &str = "UPDATE outbox SET status = 'dead', is_head = 0, last_error = $1 \
                           WHERE status IN ('pending', 'inflight')";
        let owner = tx.query_opt(READ, &[]).await?;
        if owner.as_ref().map(|row| row.text(0)).transpose()? == Some(self.0.as_str()) {
            return Ok(0);
        }
        tx.execute(WRITE, &[Value::from(&self.0)]).await?;
        if owner.is_none() { Ok(0) } else { tx.execute(END, &[Value::from(OF_ANOTHER)]).await }
    }
}
