//! What this process remembers of the queues that have a throttle. Of others it remembers nothing.
//!
//! A transaction reads the queue anyway, and tells whether what is remembered is true. A call that is let in is checked by its
//! own transaction; one that is turned away has none, so a refusal counts only when a transaction has confirmed the
//! memory a moment ago. Otherwise the call goes on, and its transaction says whether it is refused: after a change by
//! another process a queue is held to its old limit for no longer than [`TRUSTED`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use waybill_kernel::{Result, Tenant, Time};

use super::bucket::IDLE;
use super::shards::Shards;
use crate::rules::attributes::Attributes;
use crate::rules::throttle::Throttle;

/// How long a refusal may rest on what a transaction has seen.
pub(super) const TRUSTED: Duration = Duration::from_secs(1);
/// How long a reading that is older than what is remembered is taken for a late one: of a transaction that began before the
/// change, or of a store that has not followed it. One that comes for longer is what the database has, which may have lost
/// the change with its primary.
pub(super) const OUTRANKS: Duration = Duration::from_secs(60);
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
    /// The latest that it was found with.
    version: AtomicI64,
    pub(super) throttle: Throttle,
    /// A larger message is refused for nothing.
    pub(super) message_bytes_max: usize,
    learnt_at: Time,
    /// In microseconds; 0 for never.
    confirmed_us: AtomicI64,
    /// Something else has taken its place. Nobody may build a bucket by it any more.
    retired: AtomicBool,
}

/// What a transaction found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Truth {
    pub(super) incarnation: i64,
    /// Rises with each change of the attributes: of two readings the one with the higher incarnation and version is the
    /// later one. A purge changes neither.
    pub(super) version: i64,
    pub(super) throttle: Option<Throttle>,
    pub(super) message_bytes_max: usize,
    pub(super) read_at: Time,
}

impl Truth {
    pub(crate) fn new((incarnation, version): (i64, i64), attributes: &Attributes, read_at: Time) -> Result<Self> {
        let (throttle, message_bytes_max) = (Throttle::of(attributes)?, attributes.message_bytes_max());
        Ok(Self { incarnation, version, throttle, message_bytes_max, read_at })
    }
}

impl Known {
    pub(super) fn new(tenant: Tenant, queue: &str, account: &str, truth: Truth, throttle: Throttle) -> Self {
        Self {
            tenant,
            queue: Arc::from(queue),
            account: Arc::from(account),
            incarnation: truth.incarnation,
            version: AtomicI64::new(truth.version),
            throttle,
            message_bytes_max: truth.message_bytes_max,
            learnt_at: truth.read_at,
            confirmed_us: AtomicI64::new(0),
            retired: AtomicBool::new(false),
        }
    }

    pub(super) fn is(&self, truth: &Truth) -> bool {
        self.incarnation == truth.incarnation
            && truth.throttle == Some(self.throttle)
            && self.message_bytes_max == truth.message_bytes_max
    }

    /// Is the reading older than this, and may it be a late one?
    pub(super) fn outranks(&self, truth: &Truth) -> bool {
        let seen_at = self.learnt_at.max(self.confirmed_at());
        self.reading() > (truth.incarnation, truth.version) && truth.read_at.since(seen_at) <= OUTRANKS
    }

    pub(super) fn reading(&self) -> (i64, i64) {
        (self.incarnation, self.version.load(Ordering::Relaxed))
    }

    /// By a transaction that began after the memory was asked, and found the same.
    pub(super) fn confirm(&self, truth: &Truth) {
        self.version.fetch_max(truth.version, Ordering::Relaxed);
        self.confirmed_us.fetch_max(truth.read_at.micros(), Ordering::Relaxed);
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

    /// In the place of what is known of the queue, unless that is the same or later: of those who learn it at one moment the
    /// first is enough, and who learns what was true before learns nothing. Answers with what is known now.
    pub(super) fn keep(&self, known: Known, truth: &Truth) -> Arc<Known> {
        let (tenant, queue) = (known.tenant, Arc::clone(&known.queue));
        if self.0.names() >= QUEUES_MAX
            && let Some((tenant, queue, _)) = self.0.neighbours(tenant, &queue, 1).first()
        {
            self.forget(*tenant, queue);
        }
        self.0.change(tenant, &queue, |before| match before {
            Some(before) if before.is(truth) => {
                before.version.fetch_max(truth.version, Ordering::Relaxed);
                (Some(Arc::clone(&before)), before)
            }
            Some(before) if before.outranks(truth) => (Some(Arc::clone(&before)), before),
            before => {
                retire(before);
                let known = Arc::new(known);
                (Some(Arc::clone(&known)), known)
            }
        })
    }

    /// As `forget`, by a reading that the queue has no throttle. False where something later is known.
    pub(super) fn forget_by(&self, tenant: Tenant, queue: &Arc<str>, truth: &Truth) -> bool {
        self.0.change(tenant, queue, |before| match before {
            Some(before) if before.outranks(truth) => (Some(before), false),
            before => {
                retire(before);
                (None, true)
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
