//! The limiter of new messages: each id counts once per mesh and window, however often it is tried, and an attempt that is denied
//! counts not at all.
//!
//! The algorithm, for one mesh and `bucket = floor(now / window)`:
//! 1. the marker of (mesh, id, bucket) exists: allowed, nothing is counted;
//! 2. the counter of (mesh, bucket) is at the budget: denied;
//! 3. the counter is raised and the marker set, which is kept for two windows.
//!
//! All three are one step. Here they are done under a lock, on Redis by one script. Markers exist only for what was counted, so
//! there are never more of them than the budget allows.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use waybill_kernel::{Code, Error, Result, Tenant, Time};
use waybill_mesh_protocol::MeshId;

/// Meshes that are remembered at a time, each with two windows.
const MESHES_MAX: usize = 65_536;
/// Markers of all meshes together, 16 bytes each.
const MARKERS_MAX: usize = 4_000_000;

/// One attempt to send something new.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    pub tenant: Tenant,
    pub mesh: MeshId,
    pub client_message_id: &'a str,
    pub now: Time,
    pub window: Duration,
    /// Messages that one window has room for.
    pub budget: u32,
}

impl Attempt<'_> {
    pub fn bucket(&self) -> i64 {
        self.now.micros().div_euclid(self.window_us())
    }

    /// Until the next bucket.
    pub fn retry_after(&self) -> Duration {
        let rest = self.window_us() - self.now.micros().rem_euclid(self.window_us());
        Duration::from_micros(rest.unsigned_abs())
    }

    fn window_us(&self) -> i64 {
        i64::try_from(self.window.as_micros()).unwrap_or(i64::MAX).max(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has used one unit of the window.
    Counted,
    /// An earlier attempt with the same id has.
    CountedBefore,
    /// Nothing was used.
    Denied { retry_after: Duration },
}

/// # Contract
/// One step: of any number of attempts with one id in one window exactly one is `Counted`, unless all are denied.
pub trait Limiter: Send + Sync {
    fn consume<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Verdict>>;
}

/// What the store carries to the procedures.
#[derive(Clone)]
pub struct Limits(pub Arc<dyn Limiter>);

impl Default for Limits {
    fn default() -> Self {
        Self(Arc::new(InProcess::default()))
    }
}

/// The limiter of one process.
#[derive(Default)]
pub struct InProcess(Mutex<State>);

#[derive(Default)]
struct State {
    meshes: HashMap<(Tenant, MeshId), Windows>,
    markers: usize,
}

/// The newest bucket of a mesh and the one before it.
#[derive(Default)]
struct Windows {
    newest: i64,
    /// The end of the newest window: two windows later nothing of it is needed.
    forget_at: Time,
    current: HashSet<[u8; 16]>,
    previous: HashSet<[u8; 16]>,
}

impl Windows {
    fn markers(&self) -> usize {
        self.current.len() + self.previous.len()
    }

    /// Moves on to a newer bucket. A bucket that is older than the one before the newest is none that the clock still gives.
    fn turn_to(&mut self, bucket: i64) {
        if bucket <= self.newest {
            return;
        }
        let last = std::mem::take(&mut self.current);
        self.previous = if bucket == self.newest + 1 { last } else { HashSet::new() };
        self.newest = bucket;
    }

    fn of(&mut self, bucket: i64) -> &mut HashSet<[u8; 16]> {
        if bucket == self.newest - 1 { &mut self.previous } else { &mut self.current }
    }
}

impl InProcess {
    /// In one step.
    pub fn decide(&self, attempt: &Attempt<'_>) -> Result<Verdict> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (attempt.tenant, attempt.mesh);
        if !state.has_room(&key) {
            state.forget(attempt.now);
        }
        if !state.has_room(&key) {
            return Err(Error::new(
                Code::Overloaded,
                "More meshes send at the same time than the server keeps count of.",
            ));
        }
        state.consume(key, attempt)
    }

    /// What is counted in the window of `now`: for tests and for those who look.
    pub fn used(&self, tenant: Tenant, mesh: MeshId, now: Time, window: Duration) -> usize {
        let bucket = Attempt { tenant, mesh, client_message_id: "", now, window, budget: 0 }.bucket();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.meshes.get_mut(&(tenant, mesh)) {
            Some(windows) if bucket == windows.newest || bucket == windows.newest - 1 => windows.of(bucket).len(),
            _ => 0,
        }
    }
}

impl State {
    fn has_room(&self, key: &(Tenant, MeshId)) -> bool {
        self.markers < MARKERS_MAX && (self.meshes.len() < MESHES_MAX || self.meshes.contains_key(key))
    }

    fn consume(&mut self, key: (Tenant, MeshId), attempt: &Attempt<'_>) -> Result<Verdict> {
        let (bucket, marker) = (attempt.bucket(), marker(attempt.client_message_id));
        let windows = self.meshes.entry(key).or_default();
        let before = windows.markers();
        windows.turn_to(bucket);
        windows.forget_at = windows.forget_at.max(attempt.now.after(attempt.window * 2));
        let ids = windows.of(bucket);
        let verdict = if ids.contains(&marker) {
            Verdict::CountedBefore
        } else if ids.len() >= attempt.budget as usize {
            Verdict::Denied { retry_after: attempt.retry_after() }
        } else {
            ids.insert(marker);
            Verdict::Counted
        };
        let after = windows.markers();
        self.markers = (self.markers + after).saturating_sub(before);
        Ok(verdict)
    }

    fn forget(&mut self, now: Time) {
        self.meshes.retain(|_, windows| windows.forget_at > now);
        self.markers = self.meshes.values().map(Windows::markers).sum();
    }
}

/// Short, so that an id of 255 characters costs no more than one of ten.
fn marker(client_message_id: &str) -> [u8; 16] {
    let digest = Sha256::digest(client_message_id.as_bytes());
    let mut marker = [0; 16];
    marker.copy_from_slice(&digest[..16]);
    marker
}

impl Limiter for InProcess {
    fn consume<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Verdict>> {
        let verdict = self.decide(&attempt);
        Box::pin(async { verdict })
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::id::Uuid;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn attempt(id: &str, seconds: i64, budget: u32) -> Attempt<'_> {
        let (tenant, mesh) = (Tenant(1), MeshId(Uuid::nil()));
        let now = Time::from_micros(seconds * 1_000_000);
        Attempt { tenant, mesh, client_message_id: id, now, window: WINDOW, budget }
    }

    #[test]
    fn an_id_counts_once_per_window_and_a_denied_attempt_not_at_all() {
        let limiter = InProcess::default();
        let ask = |id: &str, seconds: i64| limiter.decide(&attempt(id, seconds, 2)).unwrap();
        assert_eq!(ask("a", 0), Verdict::Counted);
        assert_eq!(ask("a", 59), Verdict::CountedBefore);
        assert_eq!(ask("b", 1), Verdict::Counted);
        for _ in 0..3 {
            assert_eq!(ask("c", 50), Verdict::Denied { retry_after: Duration::from_secs(10) });
        }
        // One that was counted is let through in a window that is full.
        assert_eq!(ask("b", 50), Verdict::CountedBefore);
        // The next window begins with nothing used, and the denied one has the same right as any other.
        assert_eq!((ask("c", 60), ask("a", 61)), (Verdict::Counted, Verdict::Counted));
        assert_eq!(ask("d", 62), Verdict::Denied { retry_after: Duration::from_secs(58) });
        // A call that was slow finds the window before as it was.
        assert_eq!(ask("b", 59), Verdict::CountedBefore);
        assert_eq!(ask("d", 59), Verdict::Denied { retry_after: Duration::from_secs(1) });
    }

    #[test]
    fn windows_begin_at_multiples_of_their_length() {
        let limiter = InProcess::default();
        let ask = |id: &str, seconds: i64| limiter.decide(&attempt(id, seconds, 1)).unwrap();
        assert_eq!((ask("a", 119), ask("b", 120)), (Verdict::Counted, Verdict::Counted));
        assert_eq!(attempt("a", 119, 1).bucket(), 1);
    }

    #[test]
    fn meshes_and_tenants_have_windows_of_their_own() {
        let limiter = InProcess::default();
        for (tenant, mesh) in [(1, 1), (1, 2), (2, 1)] {
            let mesh = MeshId(Uuid::from_u128(mesh));
            let attempt = Attempt { tenant: Tenant(tenant), mesh, ..attempt("a", 0, 1) };
            assert_eq!(limiter.decide(&attempt).unwrap(), Verdict::Counted);
            assert_eq!(limiter.used(Tenant(tenant), mesh, attempt.now, WINDOW), 1);
        }
    }

    #[test]
    fn what_is_over_is_forgotten_and_counted_right() {
        let limiter = InProcess::default();
        for number in 0..100 {
            limiter.decide(&attempt(&number.to_string(), number, 1_000)).unwrap();
        }
        let mut state = limiter.0.lock().unwrap();
        assert_eq!(state.markers, 100);
        state.forget(Time::from_micros(100 * 1_000_000));
        assert_eq!(state.markers, 100);
        state.forget(Time::from_micros(99 * 1_000_000 + 120 * 1_000_000));
        assert_eq!((state.markers, state.meshes.len()), (0, 0));
    }

    #[test]
    fn of_many_at_once_one_is_counted() {
        let limiter = Arc::new(InProcess::default());
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                std::thread::spawn(move || limiter.decide(&attempt("same", 0, 5)).unwrap())
            })
            .collect();
        let verdicts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Counted).count(), 1, "{verdicts:?}");
    }
}
