//! Deliveries that no key at hand opens: kept as they came, read again when a key arrives.

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub client_message_id: String,
    pub seq: i64,
    /// As it came, as JSON.
    pub delivery: Vec<u8>,
}

/// Keeps the first copy. One that was opened before is not held again, also when it was removed since.
pub(super) async fn hold(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    client_message_id: &str,
    seq: i64,
    delivery: &[u8],
    reason: &str,
) -> Result<()> {
    const HOLD: &str = "INSERT INTO inbox_sealed (client_message_id, seq, held_at, delivery, reason) \
                        SELECT $1, $2, $3, $4, $5 WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE client_message_id = $1) \
                        AND NOT EXISTS (SELECT 1 FROM inbox_seen WHERE client_message_id = $1) \
                        ON CONFLICT (client_message_id) DO NOTHING";
    let params =
        [Value::from(client_message_id), seq.into(), ctx.now.into(), Value::from(delivery), Value::from(reason)];
    tx.execute(HOLD, &params).await.map(drop)
}

/// A page in the order of sequence numbers.
pub(super) struct ReadHeld {
    pub(super) after: i64,
    pub(super) limit: i64,
}

impl Work for ReadHeld {
    type Output = Vec<Held>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Held>> {
        const READ: &str = "SELECT client_message_id, seq, delivery FROM inbox_sealed WHERE seq > $1 \
                            ORDER BY seq LIMIT $2";
        let rows = tx.query(READ, &[self.after.into(), self.limit.into()]).await?;
        rows.iter()
            .map(|row| {
                Ok(Held {
                    client_message_id: row.text(0)?.to_owned(),
                    seq: row.int(1)?,
                    delivery: row.bytes(2)?.to_vec(),
                })
            })
            .collect()
    }
}
