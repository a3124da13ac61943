//! Holding a queue to its own budget: token buckets per queue, as its `Throttle…` attributes say.
//!
//! A call is charged once, before its first transaction, by what this process remembers of the queue: a refused call costs
//! no transaction, and nothing is read for one that is let in. The transaction, which reads the queue anyway, checks
//! that the memory was true ([`Ticket::settle`]). If not, the call is admitted anew by what was found, and only then
//! writes. The first call to a throttled queue after a start is such a one.
//!
//! Buckets live in this process and in no database: after a restart they are full. [`Limiter::take`] is the one place
//! that would ask another store for tokens, and is never inside a transaction.

mod bucket;
mod buckets;
mod figures;
mod known;
mod shards;
#[cfg(test)]
mod tests;
mod ticket;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use waybill_kernel::{Caller, Error, Tenant, Time};
use waybill_store::Ctx;

use buckets::{Buckets, Decision};
use figures::Figures;
pub(crate) use known::Truth;
use known::{Known, Memory};
pub(crate) use ticket::Ask;
pub use ticket::Ticket;

use crate::rules::names::account_of;
use crate::rules::throttle::{Action, Rate};

/// Between two looks for buckets that nobody uses.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The buckets of one process, and what it remembers of throttled queues. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    memory: Memory,
    buckets: Buckets,
    figures: Figures,
}

impl Default for Limiter {
    fn default() -> Self {
        Figures::describe();
        let (memory, buckets, figures) = (Memory::default(), Buckets::default(), Figures::default());
        Self(Arc::new(Inner { memory, buckets, figures }))
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Limiter")
    }
}

impl Limiter {
    /// The process's own where the store was opened without: a queue with a throttle is never without a limiter.
    pub(crate) fn of<'a>(ctx: &'a Ctx<'_>) -> &'a Self {
        ctx.settings_if_given().unwrap_or_else(|| Self::usual())
    }

    pub(crate) fn of_settings(settings: &waybill_store::Settings) -> &Self {
        settings.find().unwrap_or_else(|| Self::usual())
    }

    fn usual() -> &'static Self {
        static USUAL: LazyLock<Limiter> = LazyLock::new(Limiter::default);
        &USUAL
    }

    fn known(&self, tenant: Tenant, queue: &str) -> Option<Arc<Known>> {
        self.0.memory.find(tenant, queue)
    }

    /// A transaction found the queue to be otherwise than remembered. Buckets that do not fit it are dropped, unless what is
    /// remembered is later: stores that follow a change one after another would fill the buckets in turn.
    fn learn(&self, caller: &Caller, queue: &str, truth: Truth) {
        match truth.throttle {
            None => {
                let queue = Arc::from(queue);
                if self.0.memory.forget_by(caller.tenant, &queue, &truth) {
                    self.0.buckets.drop_queue(caller.tenant, &queue);
                }
            }
            Some(throttle) => {
                let known = Known::new(caller.tenant, queue, &account_of(caller), truth, throttle);
                let known = self.0.memory.keep(known, &truth);
                self.0.buckets.drop_unfit(&known);
            }
        }
    }

    /// The queue was given another throttle, and that is committed: its next call finds full buckets. Whoever has read it
    /// before does not bring the old ones back.
    pub(crate) fn changed(&self, caller: &Caller, queue: &str, truth: Truth) {
        let reading = (truth.incarnation, truth.version);
        // Somebody was quicker to find out: what is full has been so since.
        if self.known(caller.tenant, queue).is_some_and(|known| known.reading() >= reading) {
            return;
        }
        self.forget(caller.tenant, queue);
        self.learn(caller, queue, truth);
    }

    /// The queue was made or deleted, and that is committed: what was known of it is not true any more, and its next call
    /// finds full buckets.
    pub(crate) fn forget(&self, tenant: Tenant, queue: &str) {
        let queue = Arc::from(queue);
        // In this order: who still holds the memory builds no bucket after this one is dropped.
        self.0.memory.forget(tenant, &queue);
        self.0.buckets.drop_queue(tenant, &queue);
    }

    async fn take(&self, known: &Known, bucket: (Action, Rate), tokens: u32, now: Time) -> Decision {
        self.0.buckets.take(known, bucket, tokens, now)
    }

    fn refusal(&self, known: &Known, action: Action, retry_after_s: u64) -> Error {
        self.0.figures.refused(known, action);
        ticket::throttling(&known.queue, action, retry_after_s)
    }

    /// Removes what nobody has used for an hour.
    pub(crate) fn sweep(&self, now: Time) {
        self.0.memory.sweep(now);
        let removed = self.0.buckets.sweep(now);
        if removed > 0 {
            tracing::debug!(removed, "throttle buckets that nobody has used were removed");
        }
    }

    /// What the buckets have left, in the text that Prometheus reads.
    pub fn write_figures(&self, text: &mut String) {
        self.0.figures.write(self.0.buckets.readings(), text);
    }
}
