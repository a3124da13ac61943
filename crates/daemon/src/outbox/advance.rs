//! Advance: the answers at hand are settled, their lines go on, and what may be sent next is in flight, all in one commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Work};

use super::claim::{self, Claimed};
use super::line;
use super::rules::{self, Settled};
use super::settle::{self, Ended, Headless, Terms};

pub(super) struct Advance {
    pub(super) ended: Vec<Ended>,
    /// How many more may be in flight once these are settled.
    pub(super) room: usize,
    pub(super) terms: Terms,
    pub(super) fence: Fence,
}

/// Whether the connection that this is for may still claim. One that was lost may have left an advance on its way: what that one
/// claimed after the reset would be in flight over no connection at all.
pub(super) struct Fence {
    resets: Arc<AtomicU64>,
    seen: u64,
}

impl Fence {
    pub(super) fn new(resets: &Arc<AtomicU64>) -> Self {
        Self { resets: Arc::clone(resets), seen: resets.load(Ordering::SeqCst) }
    }

    fn is_open(&self) -> bool {
        self.resets.load(Ordering::SeqCst) == self.seen
    }
}

impl Work for Advance {
    /// For each that has ended what it became; None for one that was not in flight.
    type Output = (Vec<Option<Settled>>, Claimed);

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        let mut settled = Vec::with_capacity(self.ended.len());
        let mut headless = Vec::new();
        for ended in &self.ended {
            let became = settle::settle(ctx, tx, ended, &self.terms).await?;
            settled.push(became.map(|(became, line)| {
                headless.extend(line);
                became
            }));
        }
        let room = if self.fence.is_open() { self.room } else { 0 };
        Ok((settled, self.claim(ctx, tx, headless, room).await?))
    }
}

impl Advance {
    /// First those that wait, then the successors of those that have just ended: where there are more destinations than places,
    /// none is passed over for ever.
    async fn claim(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, headless: Vec<Headless>, room: usize) -> Result<Claimed> {
        let max_age = self.terms.max_age;
        let mut flights = if room == 0 { Vec::new() } else { claim::due(ctx, tx, room, max_age).await? };
        let young_after = rules::too_old_until(max_age, ctx.now);
        for Headless { kind, reference } in &headless {
            if flights.len() < room
                && let Some(flight) = line::take_on(tx, kind, reference, ctx.now, young_after).await?
            {
                flights.push(flight);
                continue;
            }
            line::pass_on(tx, kind, reference).await?;
        }
        Ok(Claimed { flights, next_at: claim::next_at(tx).await? })
    }
}
