//! Requests that say who sent them and prove it with their last byte, as a signature over the body does.
//!
//! Such a request cannot be charged to its caller yet: whoever knows a key's id could fill that key's places with bodies that
//! never end. So these bodies have room of their own, and one that has been coming for longest makes way for a new one. An
//! honest body is there at once, and hardly ever the oldest of so many.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::Notify;
use waybill_kernel::{Code, Error, Result};

/// Bodies that may be on their way at a time. Small ones take 4 KiB each; larger ones ask for room by their length.
const UNPROVEN_MAX: usize = 2_048;

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Unproven(Arc<Mutex<Line>>);

#[derive(Default)]
struct Line {
    next: u64,
    /// In the order in which they came.
    coming: BTreeMap<u64, Arc<Notify>>,
}

struct Place {
    of: Unproven,
    number: u64,
    given_up: Arc<Notify>,
}

impl Unproven {
    /// Reads a body, unless so many come after it that it has to make way.
    pub async fn read<T>(&self, reading: impl Future<Output = Result<T>>) -> Result<T> {
        let mut reading = pin!(reading);
        // Nearly every body has come with its head: who need not wait needs no place.
        let at_once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context)));
        if let Poll::Ready(outcome) = at_once.await {
            return outcome;
        }
        let place = self.enter();
        tokio::select! {
            biased;
            outcome = reading => outcome,
            () = place.given_up.notified() => {
                let message = "The body took so long that others were let in before it.";
                Err(Error::new(Code::Overloaded, message))
            }
        }
    }

    fn enter(&self) -> Place {
        let mut line = self.lock();
        if line.coming.len() >= UNPROVEN_MAX
            && let Some((_, oldest)) = line.coming.pop_first()
        {
            oldest.notify_one();
        }
        line.next += 1;
        let (number, given_up) = (line.next, Arc::new(Notify::new()));
        line.coming.insert(number, Arc::clone(&given_up));
        drop(line);
        Place { of: self.clone(), number, given_up }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.lock().coming.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_way_and_nobody_is_refused() {
        let unproven = Unproven::default();
        let never = || std::future::pending::<Result<()>>();
        let mut slow: Vec<_> = (0..UNPROVEN_MAX)
            .map(|_| {
                let unproven = unproven.clone();
                tokio::spawn(async move { unproven.read(never()).await })
            })
            .collect();
        while unproven.lock().coming.len() < UNPROVEN_MAX {
            tokio::task::yield_now().await;
        }
        assert_eq!(unproven.read(async { Ok(7) }).await.unwrap(), 7);
        assert_eq!(unproven.lock().coming.len(), UNPROVEN_MAX, "who is there at once takes nobody's place");
        let later = async {
            tokio::task::yield_now().await;
            Ok(8)
        };
        assert_eq!(unproven.read(later).await.unwrap(), 8);
        let first = slow.remove(0).await.unwrap();
        assert_eq!(first.unwrap_err().code(), Code::Overloaded);
        assert!(slow.iter().all(|reading| !reading.is_finished()));
        for reading in slow {
            reading.abort();
            let _ = reading.await;
        }
        assert!(unproven.lock().coming.is_empty());
    }
}
