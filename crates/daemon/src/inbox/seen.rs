//! Ids of messages that the inbox has forgotten: what comes under one of them has been here, and is a repeat.

use waybill_kernel::{Mode, Result, Time};
use waybill_store::{Ctx, Tx, Value, Work};

/// Ids forgotten in one transaction.
pub(super) const BATCH: i64 = 2_000;
/// What an id takes in the file, with its index.
const ID_BYTES: u64 = 160;
/// Of the budget: messages are what the file is for.
const SHARE: u64 = 4;

/// How many ids may be kept in a file of this size.
pub(super) fn count_max(bytes_max: u64) -> i64 {
    i64::try_from(bytes_max / SHARE / ID_BYTES).unwrap_or(i64::MAX)
}

/// Whether a message with this id was here and was removed.
pub(super) async fn has(tx: &mut Tx<'_>, client_message_id: &str) -> Result<bool> {
    const FIND: &str = "SELECT id FROM inbox_seen WHERE client_message_id = $1";
    Ok(tx.query_opt(FIND, &[Value::from(client_message_id)]).await?.is_some())
}

/// In the transaction that removes the message.
pub(super) async fn keep(ctx: &Ctx<'_>, tx: &mut Tx<'_>, client_message_id: &str) -> Result<()> {
    const KEEP: &str = "INSERT INTO inbox_seen (client_message_id, removed_at) VALUES ($1, $2) \
                        ON CONFLICT (client_message_id) DO NOTHING";
    tx.execute(KEEP, &[Value::from(client_message_id), ctx.now.into()]).await.map(drop)
}

/// Forgets the oldest ids, at most [`BATCH`]: those from before a time, and those that are too many.
pub(super) struct Forget {
    pub(super) before: Time,
    pub(super) count_max: i64,
}

impl Work for Forget {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const NEWEST: &str = "SELECT max(id) FROM inbox_seen";
        // Only as many are looked at as may go, however many there are.
        const FORGET: &str = "DELETE FROM inbox_seen WHERE id IN (SELECT id FROM inbox_seen ORDER BY id LIMIT $1) \
                              AND (removed_at < $2 OR id <= $3)";
        let newest = tx.query_opt(NEWEST, &[]).await?.map(|row| row.int_opt(0)).transpose()?.flatten();
        let Some(newest) = newest else { return Ok(0) };
        let too_many = newest.saturating_sub(self.count_max);
        tx.execute(FORGET, &[BATCH.into(), self.before.into(), too_many.into()]).await
    }
}
