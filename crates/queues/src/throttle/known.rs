//! What this process remembers of the queues that have a throttle. Of others it remembers nothing.
//!
//! A transaction reads the queue anyway, and tells whether what is remembered is true. A call that is let in is checked by its
//! own transaction; one that is turned away has none, so a refusal counts only when a transaction has confirmed the
//! memory a moment ago. Otherwise the call goes on, and its transaction says whether it is refused: after a change by
//! another process a queue is held to its old limit for no longer than [`TRUSTED`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use waybill_kernel::{Tenant, Time};

use super::bucket::IDLE;
use super::shards::Shards;
use crate::rules::throttle::Throttle;

/// How long a refusal may rest on what a transaction has seen.
pub(super) const TRUSTED: Duration = Duration::from_secs(1);
/// Queues that are remembered. One more takes the place of another, which is read again when it is used.
const QUEUES_MAX: usize = 1 << 20;

/// A queue as a transaction has found it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) tenant: Tenant,
    pub(super) queue: Arc<str>,
    /// The twelve digits of the tenant, for the figures.
    pub(super) account: Arc<str>,
    pub(super) incarnation: i64,
    pub(super) throttle: Throttle,
    /// A larger message is refused for nothing.
    pub(super) message_bytes_max: usize,
    /// In microseconds; 0 for never.
    confirmed_us: AtomicI64,
    /// Something else has taken its place. Nobody may build a bucket by it any more.
    retired: AtomicBool,
}

/// What a transaction found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Truth {
    pub(super) incarnation: i64,
    pub(super) throttle: Option<Throttle>,
    pub(super) message_bytes_max: usize,
}

impl Known {
    pub(super) fn new(tenant: Tenant, queue: &str, account: &str, truth: Truth, throttle: Throttle) -> Self {
        Self {
            tenant,
            queue: Arc::from(queue),
            account: Arc::from(account),
            incarnation: truth.incarnation,
            throttle,
            message_bytes_max: truth.message_bytes_max,
            confirmed_us: AtomicI64::new(0),
            retired: AtomicBool::new(false),
        }
    }

    pub(super) fn is(&self, truth: &Truth) -> bool {
        self.incarnation == truth.incarnation
            && truth.throttle == Some(self.throttle)
            && self.message_bytes_max == truth.message_bytes_max
    }

    /// By a transaction that began at `now` and after the memory was asked.
    pub(super) fn confirm(&self, now: Time) {
        self.confirmed_us.fetch_max(now.micros(), Ordering::Relaxed);
    }

    pub(super) fn is_trusted(&self, now: Time) -> bool {
        !self.is_retired() && now.since(self.confirmed_at()) <= TRUSTED
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn confirmed_at(&self) -> Time {
        Time::from_micros(self.confirmed_us.load(Ordering::Relaxed))
    }
}

#[derive(Default)]
pub(super) struct Memory(Shards<Arc<Known>>);

impl Memory {
    pub(super) fn find(&self, tenant: Tenant, queue: &str) -> Option<Arc<Known>> {
        self.0.look(tenant, queue, Arc::clone)
    }

    /// In the place of what is known of the queue, unless that is the same: of those who learn it at one moment the first
    /// is enough. Answers with what is known now.
    pub(super) fn keep(&self, known: Known, truth: &Truth) -> Arc<Known> {
        let (tenant, queue) = (known.tenant, Arc::clone(&known.queue));
        if self.0.names() >= QUEUES_MAX
            && let Some((tenant, queue, _)) = self.0.neighbours(tenant, &queue, 1).first()
        {
            self.forget(*tenant, queue);
        }
        self.0.change(tenant, &queue, |before| match before {
            Some(before) if before.is(truth) => (Some(Arc::clone(&before)), before),
            before => {
                retire(before);
                let known = Arc::new(known);
                (Some(Arc::clone(&known)), known)
            }
        })
    }

    pub(super) fn forget(&self, tenant: Tenant, queue: &Arc<str>) {
        self.0.change(tenant, queue, |before| {
            retire(before);
            (None, ())
        });
    }

    /// Of queues that nobody has used.
    pub(super) fn sweep(&self, now: Time) {
        let mut idle = Vec::new();
        self.0.each(|_, _, known| {
            if now.since(known.confirmed_at()) > IDLE {
                idle.push(Arc::clone(known));
            }
        });
        for known in idle {
            self.0.change(known.tenant, &known.queue, |there| match there {
                Some(there) if Arc::ptr_eq(&there, &known) => {
                    retire(Some(there));
                    (None, ())
                }
                other => (other, ()),
            });
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.names()
    }
}

fn retire(known: Option<Arc<Known>>) {
    if let Some(known) = known {
        known.retired.store(true, Ordering::Release);
    }
}
