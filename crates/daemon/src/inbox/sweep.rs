//! What the inbox forgets: messages that are too old, and the oldest when the file is larger than it may be. Their ids stay for
//! longer ([`super::seen`]).

use waybill_kernel::{Mode, Result, Time};
use waybill_store::{Ctx, Store, Tx, Value, Work};

use super::seen;
use crate::config::Inbox as Settings;

/// Messages removed in one transaction: arrivals wait for at most that.
const BATCH: i64 = 500;
/// Batches of one run; what is left is for the next.
const BATCHES_MAX: usize = 10_000;
/// Of the budget, for what cannot be opened. Any member can send what no key opens, and messages are what the file is for.
const HELD_SHARE: u64 = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub too_old: u64,
    /// Removed although they were young enough, because the file was too large.
    pub over_budget: u64,
}

pub(super) async fn prune(store: &Store, settings: &Settings) -> Result<Pruned> {
    let mut pruned = Pruned::default();
    let system = store.system();
    let before = ago(store.now(), settings.keep_ms);
    system.run(ForgetHeld { before }).await?;
    let forget_before = ago(store.now(), settings.seen_keep_ms);
    for _ in 0..BATCHES_MAX {
        let forget = seen::Forget { before: forget_before, count_max: seen::count_max(settings.bytes_max) };
        if system.run(forget).await? < seen::BATCH as u64 {
            break;
        }
    }
    for _ in 0..BATCHES_MAX {
        let removed = system.run(Remove { before: Some(before) }).await?;
        pruned.too_old += removed;
        if removed < BATCH as u64 {
            break;
        }
    }
    if system.run(Measure).await? > settings.bytes_max {
        forget_excess(store, settings).await?;
    }
    for _ in 0..BATCHES_MAX {
        if system.run(Measure).await? <= settings.bytes_max {
            break;
        }
        let removed = system.run(Remove { before: None }).await?;
        pruned.over_budget += removed;
        if removed == 0 {
            break;
        }
    }
    if pruned.over_budget > 0 {
        tracing::warn!(
            inbox.removed = pruned.over_budget,
            "the inbox was larger than its budget: its oldest messages were removed"
        );
    }
    Ok(pruned)
}

/// Held messages beyond their part of a file that is too large, the oldest first.
async fn forget_excess(store: &Store, settings: &Settings) -> Result<()> {
    let system = store.system();
    let mut excess = system.run(MeasureHeld).await?.saturating_sub(settings.bytes_max / HELD_SHARE);
    if excess == 0 {
        return Ok(());
    }
    tracing::warn!(
        inbox.held_bytes = excess,
        "messages that cannot be opened take too much of the inbox: the oldest of them are removed"
    );
    for _ in 0..BATCHES_MAX {
        let freed = system.run(ForgetOldestHeld { bytes: excess }).await?;
        excess = excess.saturating_sub(freed);
        if freed == 0 || excess == 0 {
            break;
        }
    }
    Ok(())
}

fn ago(now: Time, time_ms: u64) -> Time {
    let time_us = i64::try_from(time_ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    Time::from_micros(now.micros().saturating_sub(time_us))
}

/// Removes the oldest messages, at most [`BATCH`]; with a time only those from before it.
struct Remove {
    before: Option<Time>,
}

impl Work for Remove {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const OLDEST: &str = "SELECT id, client_message_id FROM inbox WHERE received_at < $1 \
                              ORDER BY received_at, id LIMIT $2";
        const FORGET_WORDS: &str = "DELETE FROM inbox_fts WHERE rowid = $1";
        const FORGET: &str = "DELETE FROM inbox WHERE id = $1";
        let before = self.before.unwrap_or(Time::from_micros(i64::MAX));
        let rows = tx.query(OLDEST, &[before.into(), BATCH.into()]).await?;
        for row in &rows {
            let id = row.int(0)?;
            seen::keep(ctx, tx, row.text(1)?).await?;
            tx.execute(FORGET_WORDS, &[id.into()]).await?;
            tx.execute(FORGET, &[id.into()]).await?;
        }
        Ok(rows.len() as u64)
    }
}

struct ForgetHeld {
    before: Time,
}

impl Work for ForgetHeld {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const FORGET: &str = "DELETE FROM inbox_sealed WHERE held_at < $1";
        tx.execute(FORGET, &[Value::from(self.before)]).await.map(drop)
    }
}

struct MeasureHeld;

impl Work for MeasureHeld {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const BYTES: &str = "SELECT coalesce(sum(length(delivery)), 0) FROM inbox_sealed";
        let row = tx.query_opt(BYTES, &[]).await?;
        Ok(row.map_or(Ok(0), |row| row.int(0))?.try_into().unwrap_or(0))
    }
}

/// Removes so many bytes of held messages, in at most [`BATCH`] of them.
struct ForgetOldestHeld {
    bytes: u64,
}

impl Work for ForgetOldestHeld {
    /// Bytes that were removed.
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const OLDEST: &str = "SELECT client_message_id, length(delivery) FROM inbox_sealed ORDER BY held_at LIMIT $1";
        const FORGET: &str = "DELETE FROM inbox_sealed WHERE client_message_id = $1";
        let mut freed = 0_u64;
        for row in tx.query(OLDEST, &[BATCH.into()]).await? {
            if freed >= self.bytes {
                break;
            }
            tx.execute(FORGET, &[Value::from(row.text(0)?)]).await?;
            freed += u64::try_from(row.int(1)?).unwrap_or(0);
        }
        Ok(freed)
    }
}

/// Bytes of the file that hold something: pages that were freed are used again before it grows.
pub(super) struct Measure;

impl Work for Measure {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const BYTES: &str = "SELECT (page_count - freelist_count) * page_size \
                             FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()";
        let row = tx.query_opt(BYTES, &[]).await?;
        Ok(row.map_or(Ok(0), |row| row.int(0))?.try_into().unwrap_or(0))
    }
}
