//! Bounds the work of Argon2: two bounded lines that do not delay each other. Requests with the same key stand behind one another,
//! so that the first of them verifies for all.
//!
//! The line of accepted keys holds good keys only, so nobody else can lengthen it. The line of unproven keys holds those from before
//! there were digests, and those whose digest is under another server key. Whoever knows the id of such a key can send wrong
//! secrets for it, so this line is short, uses a part of the cores, and has few places for one key id.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock, MutexGuard as LockGuard, PoisonError};

use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};
use waybill_kernel::{Code, Error, KeyId, Result};

use crate::hash;
use crate::key::Secret;
use crate::memory::Digest;

/// Unproven keys that may wait; one more is refused with 503. The last of them waits for some seconds.
const UNPROVEN_WAITING_MAX: usize = 64;

/// How many secrets for one key id may wait. A good key has one.
const SECRETS_PER_ID_MAX: usize = 4;

/// Which line a key stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Accepted,
    Unproven,
}

pub(crate) struct Verifier {
    accepted: Line,
    unproven: Line,
    done: AtomicU64,
}

struct Line {
    cores: Arc<Semaphore>,
    /// By the digest of what was presented.
    keys: Lock<HashMap<Digest, Waiting>>,
    keys_max: usize,
}

/// A key in the line. Its requests are bounded where requests are.
struct Waiting {
    id: KeyId,
    requests: usize,
    turn: Arc<Mutex<()>>,
}

impl Line {
    fn new(cores: usize, waiting_max: usize) -> Self {
        let keys_max = waiting_max.saturating_add(cores);
        Self { cores: Arc::new(Semaphore::new(cores)), keys: Lock::default(), keys_max }
    }

    fn lock(&self) -> LockGuard<'_, HashMap<Digest, Waiting>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None when there is no place for another key.
    fn join(&self, id: KeyId, digest: Digest) -> Option<Arc<Mutex<()>>> {
        let mut keys = self.lock();
        if let Some(waiting) = keys.get_mut(&digest) {
            waiting.requests += 1;
            return Some(Arc::clone(&waiting.turn));
        }
        let secrets = keys.values().filter(|waiting| waiting.id == id).count();
        if keys.len() >= self.keys_max || secrets >= SECRETS_PER_ID_MAX {
            return None;
        }
        let turn = Arc::default();
        keys.insert(digest, Waiting { id, requests: 1, turn: Arc::clone(&turn) });
        Some(turn)
    }

    fn leave(&self, digest: &Digest) {
        let mut keys = self.lock();
        if let Some(waiting) = keys.get_mut(digest) {
            waiting.requests -= 1;
            if waiting.requests == 0 {
                keys.remove(digest);
            }
        }
    }
}

impl Verifier {
    pub(crate) fn new(accepted_waiting_max: usize) -> Self {
        // Half of the cores: each verification takes 64 MiB.
        let cores = (std::thread::available_parallelism().map_or(1, std::num::NonZero::get) / 2).max(1);
        Self {
            accepted: Line::new(cores, accepted_waiting_max),
            unproven: Line::new(1, UNPROVEN_WAITING_MAX),
            done: AtomicU64::new(0),
        }
    }

    const fn line(&self, class: Class) -> &Line {
        match class {
            Class::Accepted => &self.accepted,
            Class::Unproven => &self.unproven,
        }
    }

    /// A place in the line, held until the verification is over.
    pub(crate) fn enter(&self, class: Class, id: KeyId, digest: Digest) -> Result<Place<'_>> {
        match self.line(class).join(id, digest) {
            Some(turn) => Ok(Place { line: self.line(class), digest, turn }),
            None => Err(Error::new(Code::Overloaded, Code::Overloaded.entry().title)),
        }
    }

    pub(crate) async fn verify(&self, class: Class, secret: Secret, stored: String) -> Result<bool> {
        let core = Arc::clone(&self.line(class).cores).acquire_owned().await.map_err(Error::internal)?;
        self.done.fetch_add(1, Ordering::Relaxed);
        let verify = move || {
            // Moved in here: a caller that goes away does not stop the work, so it must not free the core.
            let _core = core;
            hash::verify(&secret, &stored)
        };
        tokio::task::spawn_blocking(verify).await.map_err(Error::internal)?
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

pub(crate) struct Place<'a> {
    line: &'a Line,
    digest: Digest,
    turn: Arc<Mutex<()>>,
}

impl Place<'_> {
    /// While it is held, nobody else verifies this key.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.line.leave(&self.digest);
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    fn digest(number: usize) -> Digest {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        digest
    }

    fn full(entered: Result<Place<'_>>) -> bool {
        entered.map(drop).is_err_and(|error| error.code() == Code::Overloaded)
    }

    #[test]
    fn each_line_is_bounded_by_itself_and_places_come_back() {
        let (verifier, entropy) = (Verifier::new(1), SeededEntropy::new(1));
        let enter = |class, number| verifier.enter(class, KeyId::generate(&entropy), digest(number));
        for (class, other) in [(Class::Accepted, Class::Unproven), (Class::Unproven, Class::Accepted)] {
            let keys_max = verifier.line(class).keys_max;
            let places: Vec<_> = (0..keys_max).map(|number| enter(class, number).unwrap()).collect();
            assert!(full(enter(class, keys_max)), "{class:?}");
            assert!(enter(class, 0).is_ok(), "more requests with one key take no more places");
            assert!(enter(other, 0).is_ok(), "{other:?}");
            drop(places);
            assert!(enter(class, keys_max).is_ok(), "{class:?}");
            assert!(verifier.line(class).lock().is_empty());
        }
    }

    #[test]
    fn many_secrets_for_one_key_leave_places_to_others() {
        let (verifier, entropy) = (Verifier::new(1), SeededEntropy::new(2));
        let (flooded, other) = (KeyId::generate(&entropy), KeyId::generate(&entropy));
        let enter = |id, number| verifier.enter(Class::Unproven, id, digest(number));
        let places: Vec<_> = (0..SECRETS_PER_ID_MAX).map(|number| enter(flooded, number).unwrap()).collect();
        assert!(full(enter(flooded, SECRETS_PER_ID_MAX)));
        assert!(enter(other, SECRETS_PER_ID_MAX).is_ok());
        drop(places);
        assert!(enter(flooded, SECRETS_PER_ID_MAX).is_ok());
    }
}
