//! Room that all callers share: places for requests, for streams, for reads, bytes of bodies and of answers. A key may take a
//! part of it and a tenant another, so that nobody can take it from everybody; some is kept for admins, who can then end what
//! fills the rest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use waybill_kernel::{Caller, Code, Error, KeyId, Result, Role, Tenant};

/// An admin of one tenant takes at most this part of what is kept for admins; those of the default tenant take all.
const KEPT_FOR_ONE_TENANT: usize = 4;

/// How much there is, and who gets how much of it.
pub struct Limits {
    /// What is shared, as an error names it.
    pub what: &'static str,
    pub whole: usize,
    pub kept_for_admins: usize,
    pub key_percent: usize,
    pub tenant_percent: usize,
}

#[derive(Clone)]
pub struct Shares(Arc<Inner>);

struct Inner {
    limits: Limits,
    whole: Arc<Semaphore>,
    kept: Arc<Semaphore>,
    /// Only of those who hold something.
    parts: Mutex<HashMap<Holder, Arc<Semaphore>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Key(Tenant, Option<KeyId>),
    Tenant(Tenant),
    Kept(Tenant),
}

/// What one caller has taken; given back when dropped.
pub struct Share {
    shares: Shares,
    taken: Vec<(Option<Holder>, OwnedSemaphorePermit)>,
}

impl Shares {
    pub fn new(limits: Limits) -> Self {
        let whole = Arc::new(Semaphore::new(limits.whole));
        let kept = Arc::new(Semaphore::new(limits.kept_for_admins));
        Self(Arc::new(Inner { limits, whole, kept, parts: Mutex::default() }))
    }

    /// At once or not at all.
    pub fn try_take(&self, caller: &Caller, amount: usize) -> Result<Share> {
        self.try_take_of(&usual(caller), &self.0.whole, amount).or_else(|refusal| {
            if !caller.roles.contains_any(&[Role::Admin, Role::System]) {
                return Err(refusal);
            }
            self.try_take_of(&[Holder::Kept(caller.tenant)], &self.0.kept, amount).map_err(|_| refusal)
        })
    }

    /// Waits until there is room. First the caller's own part, so that nobody waits behind those of another one; an admin
    /// need not wait while there is some of what is kept.
    ///
    /// # Cancel safety
    /// What was taken on the way is given back.
    pub async fn take(&self, caller: &Caller, amount: usize) -> Result<Share> {
        if let Ok(share) = self.try_take(caller, amount) {
            return Ok(share);
        }
        let mut share = Share { shares: self.clone(), taken: Vec::with_capacity(3) };
        for holder in usual(caller) {
            let permits = self.permits(amount, Some(holder))?;
            let taken = self.part(holder).acquire_many_owned(permits).await.map_err(|_| self.refusal(None))?;
            share.taken.push((Some(holder), taken));
        }
        let permits = self.permits(amount, None)?;
        let taken = Arc::clone(&self.0.whole).acquire_many_owned(permits).await.map_err(|_| self.refusal(None))?;
        share.taken.push((None, taken));
        Ok(share)
    }

    fn try_take_of(&self, holders: &[Holder], rest: &Arc<Semaphore>, amount: usize) -> Result<Share> {
        let mut share = Share { shares: self.clone(), taken: Vec::with_capacity(3) };
        for holder in holders {
            let permits = self.permits(amount, Some(*holder))?;
            let taken = self.part(*holder).try_acquire_many_owned(permits);
            share.taken.push((Some(*holder), taken.map_err(|_| self.refusal(Some(*holder)))?));
        }
        let permits = self.permits(amount, None)?;
        let taken = Arc::clone(rest).try_acquire_many_owned(permits).map_err(|_| self.refusal(None))?;
        share.taken.push((None, taken));
        Ok(share)
    }

    /// More than somebody's whole part would be waited for in vain.
    fn permits(&self, amount: usize, of: Option<Holder>) -> Result<u32> {
        let most = of.map_or(self.0.limits.whole, |holder| self.0.limits.part_of(holder));
        u32::try_from(amount).ok().filter(|_| amount <= most).ok_or_else(|| self.refusal(of))
    }

    fn part(&self, holder: Holder) -> Arc<Semaphore> {
        let mut parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(parts.entry(holder).or_insert_with(|| Arc::new(Semaphore::new(self.0.limits.part_of(holder)))))
    }

    fn refusal(&self, of: Option<Holder>) -> Error {
        let Limits { what, whole, .. } = self.0.limits;
        let message = match of {
            Some(holder @ Holder::Key(..)) => {
                format!("This key has taken its share of all {what} ({}).", self.0.limits.part_of(holder))
            }
            Some(holder @ Holder::Tenant(_)) => {
                format!("This tenant has taken its share of all {what} ({}).", self.0.limits.part_of(holder))
            }
            Some(Holder::Kept(_)) | None => format!("All {what} of the server are taken ({whole})."),
        };
        Error::new(Code::Overloaded, message)
    }

    /// Forgets those who hold nothing any more.
    fn tidy(&self, holders: impl Iterator<Item = Holder>) {
        let mut parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        for holder in holders {
            // Whoever waits or has just been given it holds a reference of its own.
            let is_unused = |part: &Arc<Semaphore>| {
                Arc::strong_count(part) == 1 && part.available_permits() == self.0.limits.part_of(holder)
            };
            if parts.get(&holder).is_some_and(is_unused) {
                parts.remove(&holder);
            }
        }
    }
}

fn usual(caller: &Caller) -> [Holder; 2] {
    [Holder::Key(caller.tenant, caller.key), Holder::Tenant(caller.tenant)]
}

impl Limits {
    fn part_of(&self, holder: Holder) -> usize {
        let percent = |percent: usize| (self.whole * percent / 100).max(1);
        match holder {
            Holder::Key(..) => percent(self.key_percent),
            Holder::Tenant(_) => percent(self.tenant_percent),
            Holder::Kept(tenant) if tenant == Tenant::DEFAULT => self.kept_for_admins,
            Holder::Kept(_) => self.kept_for_admins / KEPT_FOR_ONE_TENANT,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut holders = [None; 3];
        for (slot, (holder, permit)) in holders.iter_mut().zip(self.taken.drain(..)) {
            *slot = holder;
            drop(permit);
        }
        self.shares.tidy(holders.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;
    use waybill_kernel::id::Uuid;
    use waybill_kernel::{Principal, PrincipalKind, Roles, Scopes};

    use super::*;

    fn shares() -> Shares {
        let limits = Limits { what: "places", whole: 16, kept_for_admins: 4, key_percent: 25, tenant_percent: 50 };
        Shares::new(limits)
    }

    fn caller(tenant: i64, key: u64, role: Role) -> Caller {
        Caller {
            tenant: Tenant(tenant),
            tenant_id: Uuid::nil(),
            principal: Principal::new(PrincipalKind::Agent, "a").unwrap(),
            roles: Roles::new([role]),
            scopes: Scopes::new([]),
            key: Some(KeyId::generate(&SeededEntropy::new(key))),
        }
    }

    fn all_of(shares: &Shares, caller: &Caller) -> Vec<Share> {
        std::iter::from_fn(|| shares.try_take(caller, 1).ok()).collect()
    }

    #[test]
    fn a_key_takes_a_quarter_a_tenant_half_and_admins_what_is_kept() {
        let shares = shares();
        let mut held = all_of(&shares, &caller(2, 1, Role::Agent));
        assert_eq!(held.len(), 4);
        held.extend(all_of(&shares, &caller(2, 2, Role::Agent)));
        held.extend(all_of(&shares, &caller(2, 3, Role::Agent)));
        assert_eq!(held.len(), 8, "the tenant has had its half");
        for tenant in 3..9 {
            held.extend(all_of(&shares, &caller(tenant, 9, Role::Agent)));
        }
        assert_eq!(held.len(), 16);
        held.extend(all_of(&shares, &caller(2, 4, Role::Admin)));
        assert_eq!(held.len(), 17, "one tenant's admins have a part of what is kept");
        held.extend(all_of(&shares, &caller(Tenant::DEFAULT.0, 5, Role::Admin)));
        assert_eq!(held.len(), 20, "the operators have the rest");
        drop(held);
        assert!(shares.0.parts.lock().unwrap().is_empty(), "nothing is kept of those who hold nothing");
        assert_eq!(all_of(&shares, &caller(2, 1, Role::Agent)).len(), 4);
    }

    #[tokio::test]
    async fn who_waits_for_its_own_part_holds_up_nobody() {
        let shares = shares();
        let (greedy, other) = (caller(2, 1, Role::Agent), caller(3, 2, Role::Agent));
        let held = shares.take(&greedy, 4).await.unwrap();
        let waiting = tokio::spawn({
            let (shares, greedy) = (shares.clone(), greedy.clone());
            async move { shares.take(&greedy, 4).await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(shares.take(&other, 4).await.unwrap());
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap().unwrap();
        assert!(shares.take(&greedy, 5).await.is_err(), "more than its part is never there");
        assert!(shares.0.parts.lock().unwrap().is_empty());
    }
}
