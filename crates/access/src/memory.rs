//! What a process remembers of the keys it has verified, so that it verifies each of them once.
//!
//! A key is remembered as its HMAC under a secret that this process drew at its start and never gives away: whoever reads this memory
//! learns no key, and whoever times a lookup learns nothing about another's digest. Refused keys are remembered too, so that a
//! client that goes on with a dead key does not cost a verification each time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use subtle::ConstantTimeEq;
use waybill_kernel::{Caller, KeyId, Time};
use waybill_store::WakeFlag;

use crate::keys::is_past;
use crate::signing::SigningSecret;

/// Refused keys remembered at a time. A flood of different ones empties the memory, which is then of no use but no harm.
const REFUSED_MAX: usize = 4096;

pub(crate) type Digest = [u8; 32];

/// When a key's row was read, and word of its end since.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) at: Time,
    pub(crate) ended: WakeFlag,
}

/// A verified key.
#[derive(Debug)]
pub(crate) struct Known {
    digest: Digest,
    pub(crate) caller: Arc<Caller>,
    /// Of a key that signs.
    pub(crate) secret: Option<SigningSecret>,
    expires_at: Option<Time>,
    read_at: Time,
    /// Begun before the row was read.
    ended: WakeFlag,
    /// Somebody is re-reading the row ahead of time.
    rereading: AtomicBool,
    /// When its row said that it has ended, and why: for those who were let in before.
    over: OnceLock<(Time, &'static str)>,
}

/// What to do with a key that was verified before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Good,
    /// Still good. This caller re-reads the row, so that the many behind it do not all do it at once.
    GoodButReread,
    /// Read too long ago, or ended since: not good before the row has been read again.
    Reread,
    Ended(&'static str),
}

impl Known {
    pub(crate) fn new(digest: Digest, caller: Arc<Caller>, expires_at: Option<Time>, read: Reading) -> Self {
        let Reading { at: read_at, ended } = read;
        let (rereading, over) = (AtomicBool::new(false), OnceLock::new());
        Self { digest, caller, secret: None, expires_at, read_at, ended, rereading, over }
    }

    pub(crate) fn that_signs(mut self, secret: SigningSecret) -> Self {
        self.secret = Some(secret);
        self
    }

    pub(crate) fn standing(&self, now: Time, recheck: Duration) -> Standing {
        let age = now.since(self.read_at);
        if let Some(why) = self.why_over(now, recheck) {
            Standing::Ended(why)
        } else if self.quiet_until(now, recheck).is_none() {
            Standing::Reread
        } else if age >= recheck / 2 && !self.rereading.swap(true, Ordering::Relaxed) {
            Standing::GoodButReread
        } else {
            Standing::Good
        }
    }

    /// Why it opens nothing any more. What a row has said holds until a recheck, as it does of refused keys.
    pub(crate) fn why_over(&self, now: Time, recheck: Duration) -> Option<&'static str> {
        let told = self.over.get().filter(|(at, _)| now.since(*at) < recheck).map(|(_, why)| *why);
        told.or_else(|| is_past(self.expires_at, now).then_some("expired"))
    }

    /// Until when its row need not be looked at, unless word of its end comes; None when it must be now.
    pub(crate) fn quiet_until(&self, now: Time, recheck: Duration) -> Option<Time> {
        let reread_at = self.read_at.after(recheck);
        let is_quiet = now < reread_at && !self.ended.woken() && self.over.get().is_none();
        is_quiet.then(|| self.expires_at.map_or(reread_at, |expires_at| expires_at.min(reread_at)))
    }

    /// Its row has said that it opens nothing any more.
    pub(crate) fn end(&self, now: Time, why: &'static str) {
        // Once is enough: a key that ends stays ended.
        let _ = self.over.set((now, why));
    }

    pub(crate) const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The re-read failed: the next caller tries.
    pub(crate) fn reread_failed(&self) {
        self.rereading.store(false, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Memory {
    known: RwLock<HashMap<KeyId, Arc<Known>>>,
    known_max: usize,
    refused: Mutex<HashMap<Digest, Time>>,
}

impl Memory {
    pub(crate) fn new(known_max: usize) -> Self {
        Self { known: RwLock::default(), known_max: known_max.max(1), refused: Mutex::default() }
    }

    pub(crate) fn find(&self, id: KeyId, digest: &Digest) -> Option<Arc<Known>> {
        self.named(id).filter(|known| known.digest.ct_eq(digest).into())
    }

    /// By its id alone: for those who have been let in.
    pub(crate) fn named(&self, id: KeyId) -> Option<Arc<Known>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(crate) fn remember(&self, id: KeyId, key: Known) -> Arc<Known> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.known_max && !known.contains_key(&id) {
            // The key whose row was read longest ago is the one that was unused for longest.
            let oldest = known.iter().min_by_key(|(_, other)| other.read_at).map(|(id, _)| *id);
            oldest.map(|id| known.remove(&id));
        }
        let key = Arc::new(key);
        known.insert(id, Arc::clone(&key));
        key
    }

    pub(crate) fn remember_refused(&self, digest: Digest, now: Time) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= REFUSED_MAX {
            refused.clear();
        }
        refused.insert(digest, now);
    }

    /// No dead key ever comes to life; the time limit is for a database that was put back from a backup.
    pub(crate) fn was_refused(&self, digest: &Digest, now: Time, within: Duration) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get(digest).is_some_and(|at| now.since(*at) < within)
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;
    use waybill_kernel::{Principal, PrincipalKind, Roles, Scopes, Tenant, id::Uuid};

    use super::*;
    use crate::key::Key;

    const RECHECK: Duration = Duration::from_secs(60);
    const START: Time = Time::from_micros(1_700_000_000_000_000);

    fn known(digest: Digest, expires_at: Option<Time>, read_at: Time) -> Known {
        let caller = Caller {
            tenant: Tenant(1),
            tenant_id: Uuid::nil(),
            principal: Principal::new(PrincipalKind::Agent, "alice").unwrap(),
            roles: Roles::default(),
            scopes: Scopes::default(),
            key: None,
        };
        Known::new(digest, Arc::new(caller), expires_at, Reading { at: read_at, ended: WakeFlag::alone() })
    }

    fn seconds(seconds: u64) -> Time {
        START.after(Duration::from_secs(seconds))
    }

    #[test]
    fn one_caller_rereads_early_and_everybody_late() {
        let key = known([1; 32], None, START);
        assert_eq!(key.standing(seconds(29), RECHECK), Standing::Good);
        assert_eq!(key.standing(seconds(30), RECHECK), Standing::GoodButReread);
        assert_eq!(key.standing(seconds(31), RECHECK), Standing::Good);
        key.reread_failed();
        assert_eq!(key.standing(seconds(32), RECHECK), Standing::GoodButReread);
        assert_eq!(key.standing(seconds(60), RECHECK), Standing::Reread);
        assert_eq!(key.standing(seconds(60), RECHECK), Standing::Reread);
    }

    #[test]
    fn an_end_is_seen_without_rereading() {
        let key = known([1; 32], Some(seconds(5)), START);
        assert_eq!(key.standing(seconds(4), RECHECK), Standing::Good);
        assert_eq!(key.standing(seconds(5), RECHECK), Standing::Ended("expired"));
        assert_eq!(key.quiet_until(seconds(4), RECHECK), Some(seconds(5)));
    }

    #[test]
    fn what_a_row_has_said_of_the_end_holds_until_a_recheck() {
        let key = known([1; 32], None, START);
        assert_eq!(key.quiet_until(START, RECHECK), Some(seconds(60)));
        key.end(seconds(7), "revoked");
        assert_eq!(key.standing(seconds(66), RECHECK), Standing::Ended("revoked"));
        assert_eq!((key.standing(seconds(67), RECHECK), key.quiet_until(START, RECHECK)), (Standing::Reread, None));
    }

    #[test]
    fn the_key_unused_for_longest_makes_room() {
        let entropy = SeededEntropy::new(1);
        let ids: Vec<_> = (0..3).map(|_| Key::generate(&entropy).id).collect();
        let memory = Memory::new(2);
        memory.remember(ids[0], known([0; 32], None, seconds(2)));
        memory.remember(ids[1], known([1; 32], None, seconds(1)));
        memory.remember(ids[2], known([2; 32], None, seconds(3)));
        assert!(memory.find(ids[0], &[0; 32]).is_some());
        assert!(memory.find(ids[1], &[1; 32]).is_none());
        assert!(memory.find(ids[2], &[2; 32]).is_some());
        assert!(memory.find(ids[2], &[0; 32]).is_none(), "the id alone opens nothing");
    }

    #[test]
    fn refused_keys_are_bounded_in_number_and_time() {
        let memory = Memory::new(1);
        for number in 0..=REFUSED_MAX {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_be_bytes());
            memory.remember_refused(digest, START);
        }
        assert_eq!(memory.refused.lock().unwrap().len(), 1);
        memory.remember_refused([9; 32], START);
        assert!(memory.was_refused(&[9; 32], seconds(59), RECHECK));
        assert!(!memory.was_refused(&[9; 32], seconds(60), RECHECK));
        assert!(!memory.was_refused(&[8; 32], START, RECHECK));
    }
}
