//! Argon2 in good order: as many verifications at once as there are cores, a bounded line before them, and requests with
//! one and the same key behind one another, so that the first of them verifies for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{Mutex, MutexGuard, Semaphore};
use waybill_kernel::{Code, Error, Result};

use crate::hash;
use crate::key::Secret;
use crate::memory::Digest;

/// Two keys on one turn wait for each other, which costs time and never truth. Digests are keyed, so nobody can aim.
const TURNS: usize = 64;

pub(crate) struct Verifier {
    cores: Arc<Semaphore>,
    line: AtomicUsize,
    line_max: usize,
    turns: [Mutex<()>; TURNS],
    done: AtomicU64,
}

impl Verifier {
    pub(crate) fn new(waiting_max: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cores: Arc::new(Semaphore::new(cores)),
            line: AtomicUsize::new(0),
            line_max: waiting_max.saturating_add(cores),
            turns: std::array::from_fn(|_| Mutex::new(())),
            done: AtomicU64::new(0),
        }
    }

    /// A place in the line, held until the verification is over.
    pub(crate) fn enter(&self) -> Result<Place<'_>> {
        let place = Place(&self.line);
        if self.line.fetch_add(1, Ordering::Relaxed) >= self.line_max {
            return Err(Error::new(Code::Overloaded, Code::Overloaded.entry().title));
        }
        Ok(place)
    }

    /// While it is held, nobody else verifies this key.
    pub(crate) async fn turn(&self, digest: &Digest) -> MutexGuard<'_, ()> {
        self.turns[usize::from(digest[0]) % TURNS].lock().await
    }

    /// Takes the same time whether there is a hash or not.
    pub(crate) async fn verify(&self, secret: Secret, stored: Option<String>) -> Result<bool> {
        let core = Arc::clone(&self.cores).acquire_owned().await.map_err(Error::internal)?;
        self.done.fetch_add(1, Ordering::Relaxed);
        let verify = move || {
            // Moved in here: a caller that goes away does not stop the work, so it must not free the core.
            let _core = core;
            let fits = hash::verify(&secret, stored.as_deref().unwrap_or(hash::OF_NOTHING))?;
            Ok(fits && stored.is_some())
        };
        tokio::task::spawn_blocking(verify).await.map_err(Error::internal)?
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

pub(crate) struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_bounded_and_places_come_back() {
        let verifier = Verifier::new(1);
        let places: Vec<_> = (0..verifier.line_max).map(|_| verifier.enter().unwrap()).collect();
        assert_eq!(verifier.enter().map(drop).unwrap_err().code(), Code::Overloaded);
        drop(places);
        assert!(verifier.enter().is_ok());
    }
}
