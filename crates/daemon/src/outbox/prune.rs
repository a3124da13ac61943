//! Prune: the payloads of messages that were delivered long ago give their room back. Their ids stay.

use std::time::Duration;

use serde::Serialize;
use waybill_kernel::{Mode, Result, Time};
use waybill_store::{Ctx, Store, Tx, Work};

/// Rows looked at in one transaction.
const BATCH: i64 = 4_096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Messages whose payload was removed, or would be.
    pub messages: u64,
    /// Characters of those payloads.
    pub payload_chars: u64,
    pub confirmed: bool,
}

/// Several transactions when there is much, so that nobody's accept waits long.
pub(super) async fn prune(store: &Store, older_than: Duration, confirm: bool) -> Result<Pruned> {
    let age_us = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
    let before = Time::from_micros(store.now().micros().saturating_sub(age_us));
    let mut pruned = Pruned { confirmed: confirm, ..Pruned::default() };
    let mut after = Some(0);
    while let Some(id) = after {
        let turn = store.system().run(Prune { before, after: id, confirm }).await?;
        pruned.messages += turn.messages;
        pruned.payload_chars += turn.payload_chars;
        after = turn.next;
    }
    Ok(pruned)
}

struct Prune {
    before: Time,
    after: i64,
    confirm: bool,
}

struct Turn {
    messages: u64,
    payload_chars: u64,
    /// The last row that was looked at, unless there are no more.
    next: Option<i64>,
}

impl Work for Prune {
    type Output = Turn;

    fn mode(&self) -> Mode {
        if self.confirm { Mode::Write } else { Mode::Read }
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Turn> {
        const LAST: &str = "SELECT max(id) FROM outbox";
        // `+` keeps it from the index on the status: rows are looked at in the order of ids, so many at a time.
        const READ: &str = "SELECT id, length(envelope) + coalesce(length(payload), 0) FROM outbox \
                            WHERE id > $1 AND id <= $2 AND +status = 'done' AND envelope IS NOT NULL AND delivered_at <= $3";
        const EMPTY: &str = "UPDATE outbox SET payload = NULL, envelope = NULL WHERE id = $1";
        let last = tx.query_opt(LAST, &[]).await?.map(|row| row.int_opt(0)).transpose()?.flatten().unwrap_or(0);
        let until = self.after + BATCH;
        let rows = tx.query(READ, &[self.after.into(), until.into(), self.before.into()]).await?;
        let mut turn = Turn { messages: rows.len() as u64, payload_chars: 0, next: (until < last).then_some(until) };
        for row in &rows {
            turn.payload_chars += u64::try_from(row.int(1)?).unwrap_or(0);
            if self.confirm {
                tx.execute(EMPTY, &[row.int(0)?.into()]).await?;
            }
        }
        Ok(turn)
    }
}
