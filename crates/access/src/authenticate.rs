//! From the key a request carries to its caller.
//!
//! # Contract
//! A key that this process has not seen costs one read of its row and one HMAC, which refuses unknown and wrong keys alike and in
//! the same time (`digest.rs`). A good key is then verified with Argon2id, once in each process; after that a request costs one
//! HMAC and one lookup in memory.
//!
//! The row of a key is read again often enough that a revocation holds everywhere after `key_recheck`. New calls to the process
//! that carried the revocation out are refused at once, and so is a key whose known expiry has passed. Calls that were let in
//! before wait for [`Access::ended`]. Whatever is wrong with a key, the answer is the same. A database that cannot be read is an
//! error of its own, because it says nothing about the key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::sync::{Mutex, Semaphore};
use waybill_kernel::{Caller, Code, Error, KeyId, Result, Time};
use waybill_store::{Store, Wait};

use crate::Settings;
use crate::digest::{Digests, Judgement};
use crate::key::{self, Key};
use crate::keys::{FindKey, FoundKey, GiveDigest};
use crate::memory::{Digest, Known, Memory, Reading, Standing};
use crate::server_key::ServerKey;
use crate::signing::{self, SigningSecret};
use crate::verifier::{Class, Verifier};

/// How many rows of new keys are read at a time; further keys wait in the order they came. A good key cannot be told from a made-up
/// one before its row is read, so this read must be cheap and the line short. It goes by an index and takes some 40 µs on SQLite and
/// half a millisecond on PostgreSQL: a hundred made-up keys at a time delay a good one by less than a tenth of a second, and as many
/// as the server admits by about a second. Reads of callers that have been let in wait behind no more than these.
const LOOKUPS_MAX: usize = 64;

/// How many requests may wait for such a read. With the default settings the doors refuse before this is reached.
const LOOKUPS_WAITING_MAX: usize = 16_384;

/// How many keys may be checked for their end at a time.
const LOOKERS: usize = 16;

/// Without a wake, waiters for a key's end look no more often than this, so an expiry may reach them this late.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Cheap to clone; all clones remember together.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    store: Store,
    settings: Settings,
    /// Keyed with this process's own secret.
    mac: Hmac<Sha256>,
    /// Under the server's key, as rows hold them.
    digests: Digests,
    /// Opens the boxes of keys that sign.
    server_key: ServerKey,
    memory: Memory,
    lookups: Semaphore,
    lookups_waiting: AtomicUsize,
    /// Locks for checking a key's end. Keys that share a lock wait for each other.
    lookers: [Mutex<()>; LOOKERS],
    verifier: Verifier,
}

impl Access {
    pub fn new(store: Store, settings: Settings, server_key: &ServerKey) -> Self {
        let mut secret = [0; 64];
        store.entropy().fill(&mut secret);
        let mac = Hmac::new(&secret.into());
        let memory = Memory::new(settings.remembered_keys_max);
        let verifier = Verifier::new(settings.verifications_waiting_max);
        Self(Arc::new(Inner {
            store,
            settings,
            mac,
            digests: Digests::new(server_key),
            server_key: server_key.clone(),
            memory,
            lookups: Semaphore::new(LOOKUPS_MAX),
            lookups_waiting: AtomicUsize::new(0),
            lookers: std::array::from_fn(|_| Mutex::new(())),
            verifier,
        }))
    }

    /// `presented` is the text after `Bearer `.
    pub async fn authenticate(&self, presented: &str) -> Result<Arc<Caller>> {
        let Some(id) = key::id_within(presented) else {
            tracing::info!("a key was refused: it does not have the form of one");
            return Err(unauthorized());
        };
        let digest = self.0.digest(presented);
        let now = self.0.store.now();
        let Some(known) = self.0.memory.find(id, &digest) else {
            // Boxed: the way through the database would make every request's future as large as itself.
            return Box::pin(self.0.verify(presented, id, digest, now)).await;
        };
        match known.standing(now, self.0.reread_after()) {
            Standing::Good => Ok(Arc::clone(&known.caller)),
            Standing::GoodButReread => Box::pin(self.0.reread_early(id, digest, &known)).await,
            Standing::Reread => Box::pin(self.0.reread(id, digest)).await,
            Standing::Ended(why) => Err(refused(id, why)),
        }
    }

    /// The caller and the secret behind an access key id, or None. The id proves nothing: the caller of this function must check
    /// the signature.
    pub async fn signer(&self, access_key_id: &str) -> Result<Option<Signer>> {
        let Some(id) = signing::key_id(access_key_id) else { return Ok(None) };
        let known = self.0.memory.named(id).filter(|known| known.secret.is_some());
        let standing = known.as_ref().map(|known| known.standing(self.0.store.now(), self.0.reread_after()));
        match (known, standing) {
            (Some(known), Some(Standing::Good)) => Ok(Signer::of(&known)),
            (Some(known), Some(Standing::GoodButReread)) => match Box::pin(self.0.find_signer(id)).await {
                Err(_) => {
                    known.reread_failed();
                    Ok(Signer::of(&known))
                }
                found => found,
            },
            (_, Some(Standing::Ended(_))) => Ok(None),
            _ => Box::pin(self.0.find_signer(id)).await,
        }
    }

    /// Completes when the key ends, for calls and streams that go on after they were let in: at once for a revocation that this
    /// process hears of, at most a second late for an expiry, and after `key_recheck` for whatever goes unheard.
    pub async fn ended(&self, id: KeyId) {
        Box::pin(self.0.wait_for_end(id)).await;
    }

    /// Argon2 verifications begun since the start of the process.
    pub fn verifications(&self) -> u64 {
        self.0.verifier.done()
    }
}

/// Whoever can sign with this secret is this caller.
#[derive(Debug)]
pub struct Signer {
    pub caller: Arc<Caller>,
    pub secret: SigningSecret,
}

impl Signer {
    fn of(known: &Known) -> Option<Self> {
        Some(Self { caller: Arc::clone(&known.caller), secret: known.secret.clone()? })
    }
}

impl Inner {
    async fn find_signer(&self, id: KeyId) -> Result<Option<Signer>> {
        let (found, reading) = self.look_up(id).await?;
        let reason = match &found {
            None => Some("unknown key id"),
            Some(found) if found.secret.is_none() => Some("it does not sign"),
            Some(found) => found.ended(self.store.now()),
        };
        if let Some(reason) = reason {
            if let Some(known) = self.memory.named(id) {
                known.end(self.store.now(), reason);
            }
            tracing::info!(key_id = %id, reason, "a key was refused");
            return Ok(None);
        }
        let known = found.map(|found| self.known_signer(id, &found, reading)).transpose()?;
        Ok(known.as_deref().and_then(Signer::of))
    }

    fn known_signer(&self, id: KeyId, found: &FoundKey, reading: Reading) -> Result<Arc<Known>> {
        let boxed = found.secret.as_deref().unwrap_or_default();
        let secret = signing::unboxed(&self.server_key, found.caller.tenant, id, boxed)?;
        let (digest, caller) = (self.digest(secret.expose()), Arc::new(found.caller.clone()));
        Ok(self.memory.remember(id, Known::new(digest, caller, found.expires_at, reading).that_signs(secret)))
    }

    fn digest(&self, presented: &str) -> Digest {
        self.mac.clone().chain_update(presented).finalize().into_bytes().into()
    }

    /// The first use of a key in this process.
    async fn verify(&self, presented: &str, id: KeyId, digest: Digest, now: Time) -> Result<Arc<Caller>> {
        let Some(key) = Key::parse(presented) else { return Err(refused(id, "checksum")) };
        if self.was_refused(&digest, now) {
            return Err(unauthorized());
        }
        let (found, reading) = self.look_up(id).await?;
        let judgement = self.digests.judge(&key, found.as_ref());
        if found.as_ref().is_some_and(|found| found.secret.is_some()) {
            return Err(self.refuse(id, digest, "it signs, and opens nothing by itself"));
        }
        let Some(found) = found else { return Err(self.refuse(id, digest, "unknown key id")) };
        // What opens nothing need not be hashed.
        if let Some(reason) = found.ended(now) {
            return Err(self.refuse(id, digest, reason));
        }
        let class = match judgement {
            Judgement::Refused => return Err(self.refuse(id, digest, "wrong secret")),
            Judgement::Accepted => Class::Accepted,
            Judgement::Unproven => Class::Unproven,
        };
        let place = self.verifier.enter(class, id, digest)?;
        let _turn = place.turn().await;
        if self.was_refused(&digest, now) {
            return Err(unauthorized());
        }
        if self.memory.find(id, &digest).is_none() {
            if !self.verifier.verify(class, key.secret.clone(), found.hash.clone()).await? {
                return Err(self.refuse(id, digest, "wrong secret"));
            }
            if class == Class::Unproven {
                self.give_digest(&key).await;
            }
        }
        self.admit(id, digest, &found, reading)
    }

    async fn look_up(&self, id: KeyId) -> Result<(Option<FoundKey>, Reading)> {
        let overloaded = || Error::new(Code::Overloaded, Code::Overloaded.entry().title);
        let _place = match self.lookups.try_acquire() {
            Ok(place) => place,
            Err(_) => {
                let _waiting = Waiting::count(&self.lookups_waiting).ok_or_else(overloaded)?;
                self.lookups.acquire().await.map_err(Error::internal)?
            }
        };
        self.read(id).await
    }

    /// Stores the digest, so that from the next start on it decides. The key is good even if that cannot be written.
    async fn give_digest(&self, key: &Key) {
        let work = GiveDigest { id: key.id, digest: self.digests.of(key) };
        if let Err(error) = self.store.system().run(work).await {
            tracing::warn!(key_id = %key.id, %error, "a key's digest could not be written; its next first use tries again");
        }
    }

    async fn reread(&self, id: KeyId, digest: Digest) -> Result<Arc<Caller>> {
        let (found, reading) = self.read(id).await?;
        match found {
            Some(found) => self.admit(id, digest, &found, reading),
            None => Err(self.end(id, digest, "unknown key id")),
        }
    }

    async fn reread_early(&self, id: KeyId, digest: Digest, known: &Known) -> Result<Arc<Caller>> {
        match self.reread(id, digest).await {
            Err(error) if error.code() != Code::Unauthorized => {
                known.reread_failed();
                Ok(Arc::clone(&known.caller))
            }
            outcome => outcome,
        }
    }

    async fn read(&self, id: KeyId) -> Result<(Option<FoundKey>, Reading)> {
        // Both before the read, which may miss whatever is committed after it began.
        let reading = Reading { at: self.store.now(), ended: self.store.flag(key::end_of(id)) };
        Ok((self.store.system().run(FindKey(id)).await?, reading))
    }

    /// The secret is right; is the key still good?
    fn admit(&self, id: KeyId, digest: Digest, found: &FoundKey, reading: Reading) -> Result<Arc<Caller>> {
        if let Some(reason) = found.ended(self.store.now()) {
            return Err(self.end(id, digest, reason));
        }
        let caller = Arc::new(found.caller.clone());
        self.memory.remember(id, Known::new(digest, Arc::clone(&caller), found.expires_at, reading));
        Ok(caller)
    }

    fn end(&self, id: KeyId, digest: Digest, reason: &'static str) -> Error {
        if let Some(known) = self.memory.find(id, &digest) {
            known.end(self.store.now(), reason);
        }
        self.refuse(id, digest, reason)
    }

    async fn wait_for_end(&self, id: KeyId) {
        loop {
            // Before anything is looked at: what comes later is heard.
            let word = self.store.flag(key::end_of(id));
            let now = self.store.now();
            let quiet_for = match self.look_for_end(id, now).await {
                Ok(None) => return,
                Ok(Some(until)) => until.since(now).max(LOOK_AGAIN),
                Err(_) => LOOK_AGAIN,
            };
            tokio::select! {
                () = word.wait() => {}
                () = tokio::time::sleep(quiet_for) => {}
            }
        }
    }

    /// None when the key has ended, else until when nobody has to look again. Of many who are woken together one reads the
    /// row for all.
    async fn look_for_end(&self, id: KeyId, now: Time) -> Result<Option<Time>> {
        let recheck = self.reread_after();
        let look = |known: &Known| match known.why_over(now, recheck) {
            Some(_) => Some(None),
            None => known.quiet_until(now, recheck).map(Some),
        };
        if let Some(seen) = self.memory.named(id).and_then(|known| look(&known)) {
            return Ok(seen);
        }
        let turn = usize::from(self.digest(id.as_str())[0]) % LOOKERS;
        let _turn = self.lookers[turn].lock().await;
        let known = self.memory.named(id);
        if let Some(seen) = known.as_deref().and_then(look) {
            return Ok(seen);
        }
        let (found, reading) = self.read(id).await?;
        let ended = found.as_ref().map_or(Some("unknown key id"), |found| found.ended(now));
        match (found, known, ended) {
            (_, known, Some(reason)) => {
                if let Some(known) = known {
                    known.end(now, reason);
                }
                Ok(None)
            }
            (Some(found), Some(known), None) => {
                match found.secret.is_some() {
                    true => self.known_signer(id, &found, reading).map(drop)?,
                    false => self.admit(id, *known.digest(), &found, reading).map(drop)?,
                }
                let latest = now.after(recheck);
                Ok(Some(found.expires_at.map_or(latest, |expires_at| expires_at.min(latest))))
            }
            // Forgotten, to make room for others: each who waits looks at its row.
            _ => Ok(Some(now.after(recheck))),
        }
    }

    fn refuse(&self, id: KeyId, digest: Digest, reason: &str) -> Error {
        self.memory.remember_refused(digest, self.store.now());
        refused(id, reason)
    }

    /// A call that is let in may wait for its answer, and is not asked again in between.
    fn reread_after(&self) -> Duration {
        let recheck = self.settings.key_recheck;
        recheck - Wait::LONGEST.min(recheck / 3)
    }

    fn was_refused(&self, digest: &Digest, now: Time) -> bool {
        self.memory.was_refused(digest, now, self.settings.key_recheck)
    }
}

/// One of those who wait, counted until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn count(waiting: &'a AtomicUsize) -> Option<Self> {
        let place = Self(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < LOOKUPS_WAITING_MAX).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn refused(id: KeyId, reason: &str) -> Error {
    tracing::info!(key_id = %id, reason, "a key was refused");
    unauthorized()
}

fn unauthorized() -> Error {
    Error::new(Code::Unauthorized, Code::Unauthorized.entry().title)
}
