//! What one running server remembers beside its settings: since when it runs, and whom it has seen.
//!
//! A principal that only reads is remembered here and written down later, so that a read costs no commit; and so is a
//! worker that uses a lease it does not have, whose call is refused and leaves nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use waybill_kernel::id::Uuid;
use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::{Ctx, Statement, Store, Tx, Value, Work};

use crate::misuse::{self, Misuses, Pair};

/// Principals remembered between two flushes. Of further ones the last contact is not noted; nothing depends on it.
const SEEN_MAX: usize = 10_000;
/// Principals written in one transaction.
const BATCH_MAX: usize = 300;
/// Statements sent at once.
const STATEMENTS_MAX: usize = 25;

/// Cheap to clone; all clones remember together.
#[derive(Clone, Debug)]
pub struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    seen: Mutex<HashMap<(Tenant, String), Seen>>,
    misuses: Mutex<Misuses>,
}

/// Contacts that are not written down yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub first: Time,
    pub last: Time,
}

impl Default for Process {
    fn default() -> Self {
        Self(Arc::new(Inner { started: Instant::now(), seen: Mutex::default(), misuses: Mutex::default() }))
    }
}

impl Process {
    pub(crate) fn uptime_s(&self) -> u64 {
        self.0.started.elapsed().as_secs()
    }

    /// Safe to repeat, as a run of an operation may be.
    pub(crate) fn saw(&self, tenant: Tenant, principal: &str, now: Time) {
        let mut remembered = self.lock();
        if let Some(seen) = remembered.get_mut(&(tenant, principal.to_owned())) {
            seen.last = now.max(seen.last);
        } else if remembered.len() < SEEN_MAX {
            remembered.insert((tenant, principal.to_owned()), Seen { first: now, last: now });
        }
    }

    /// What is known of a principal beside what is written down.
    pub(crate) fn seen(&self, tenant: Tenant, principal: &str) -> Option<Seen> {
        self.lock().get(&(tenant, principal.to_owned())).copied()
    }

    /// A worker used a lease of the task that it does not have. `call` is the same when the call is run again.
    pub(crate) fn misused(&self, pair: Pair, call: Uuid) {
        self.misuses().add(pair, call);
    }

    fn misuses(&self) -> MutexGuard<'_, Misuses> {
        self.0.misuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what was remembered since the last time. What could not be written is kept for the next time.
    pub async fn flush(&self, store: &Store) -> Result<()> {
        let seen = self.flush_seen(store).await;
        self.flush_misuses(store).await.and(seen)
    }

    async fn flush_misuses(&self, store: &Store) -> Result<()> {
        let taken = self.misuses().take();
        let mut outcome = Ok(());
        for batch in taken.chunks(misuse::BATCH_MAX) {
            if outcome.is_ok() {
                outcome = store.system().run(misuse::Count(batch.to_vec())).await;
            }
            if outcome.is_err() {
                for (pair, calls) in batch {
                    calls.iter().for_each(|call| self.misused(pair.clone(), *call));
                }
            }
        }
        outcome
    }

    async fn flush_seen(&self, store: &Store) -> Result<()> {
        let seen: Vec<_> = self.lock().iter().map(|(who, seen)| (who.clone(), *seen)).collect();
        for batch in seen.chunks(BATCH_MAX) {
            store.system().run(Contacts(batch.to_vec())).await?;
            // Only now: until it is written down, nobody else knows of it. Who came again meanwhile is written once more.
            let mut remembered = self.lock();
            for (who, written) in batch {
                if remembered.get(who) == Some(written) {
                    remembered.remove(who);
                }
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Tenant, String), Seen>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Contacts(Vec<((Tenant, String), Seen)>);

impl Work for Contacts {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        // Another node may have heard of them earlier or later.
        const SEEN: &str = "INSERT INTO relationships (tenant, principal, first_seen_at, last_seen_at, sessions_count) \
            VALUES ($1, $2, $3, $4, 0) ON CONFLICT (tenant, principal) DO UPDATE SET \
            first_seen_at = CASE WHEN excluded.first_seen_at < relationships.first_seen_at \
              THEN excluded.first_seen_at ELSE relationships.first_seen_at END, \
            last_seen_at = CASE WHEN excluded.last_seen_at > relationships.last_seen_at \
              THEN excluded.last_seen_at ELSE relationships.last_seen_at END \
            WHERE excluded.last_seen_at > relationships.last_seen_at OR excluded.first_seen_at < relationships.first_seen_at";
        for some in self.0.chunks(STATEMENTS_MAX) {
            let row = some.iter().map(|((tenant, principal), seen)| {
                [tenant.0.into(), principal.into(), seen.first.into(), seen.last.into()]
            });
            let statements: Vec<Statement<'_>> = row.map(|row: [Value<'_>; 4]| (SEEN, row.to_vec())).collect();
            tx.execute_all(&statements).await?;
        }
        Ok(())
    }
}
