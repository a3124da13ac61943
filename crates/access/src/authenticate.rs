//! From the key a request carries to its caller.
//!
//! # Contract
//! A key is verified with Argon2id once in a process; after that a request costs one HMAC and one lookup. Its row is read
//! again so soon that a revocation holds everywhere after `key_recheck`, for calls that wait as well; for new calls to
//! the process that carried it out it holds at once, as does an expiry that was known. Whatever is wrong with a key, the answer is the same, and as slow for an unknown key id as for a wrong
//! secret. A database that cannot be read is told as such: it says nothing about the key.

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use waybill_kernel::{Caller, Code, Error, KeyId, Result, Time};
use waybill_store::{Store, Wait};

use crate::Settings;
use crate::key::{self, Key};
use crate::keys::{FindKey, FoundKey};
use crate::memory::{Digest, Known, Memory, Reading, Standing};
use crate::verifier::Verifier;

/// Cheap to clone; all clones remember together.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    store: Store,
    settings: Settings,
    /// Keyed with this process's own secret.
    mac: Hmac<Sha256>,
    memory: Memory,
    verifier: Verifier,
}

impl Access {
    pub fn new(store: Store, settings: Settings) -> Self {
        let mut secret = [0; 64];
        store.entropy().fill(&mut secret);
        let mac = Hmac::new(&secret.into());
        let memory = Memory::new(settings.remembered_keys_max);
        let verifier = Verifier::new(settings.verifications_waiting_max);
        Self(Arc::new(Inner { store, settings, mac, memory, verifier }))
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
            Standing::Expired => Err(refused(id, "expired")),
        }
    }

    /// Argon2 verifications begun since the start of the process.
    pub fn verifications(&self) -> u64 {
        self.0.verifier.done()
    }
}

impl Inner {
    fn digest(&self, presented: &str) -> Digest {
        self.mac.clone().chain_update(presented).finalize().into_bytes().into()
    }

    /// The first use of a key in this process.
    async fn verify(&self, presented: &str, id: KeyId, digest: Digest, now: Time) -> Result<Arc<Caller>> {
        let Some(key) = Key::parse(presented) else { return Err(refused(id, "checksum")) };
        if self.was_refused(&digest, now) {
            return Err(unauthorized());
        }
        let _place = self.verifier.enter()?;
        // Before the turn: on a slow database, waiting one behind another would add up.
        let (found, reading) = self.read(id).await?;
        let _turn = self.verifier.turn(&digest).await;
        if self.was_refused(&digest, now) {
            return Err(unauthorized());
        }
        if let (Some(found), true) = (&found, self.memory.find(id, &digest).is_some()) {
            return self.admit(id, digest, found, reading);
        }
        let stored = found.as_ref().map(|found| found.hash.clone());
        let fits = self.verifier.verify(key.secret, stored).await?;
        match found {
            Some(found) if fits => self.admit(id, digest, &found, reading),
            Some(_) => Err(self.refuse(id, digest, "wrong secret")),
            None => Err(self.refuse(id, digest, "unknown key id")),
        }
    }

    async fn reread(&self, id: KeyId, digest: Digest) -> Result<Arc<Caller>> {
        let (found, reading) = self.read(id).await?;
        match found {
            Some(found) => self.admit(id, digest, &found, reading),
            None => {
                self.memory.forget(id);
                Err(self.refuse(id, digest, "unknown key id"))
            }
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
        // Both before the read: what is committed later may be missing from it.
        let reading = Reading { at: self.store.now(), ended: self.store.flag(key::end_of(id)) };
        Ok((self.store.system().run(FindKey(id)).await?, reading))
    }

    /// The secret is right; is the key still good?
    fn admit(&self, id: KeyId, digest: Digest, found: &FoundKey, reading: Reading) -> Result<Arc<Caller>> {
        if let Some(reason) = found.ended(self.store.now()) {
            self.memory.forget(id);
            return Err(self.refuse(id, digest, reason));
        }
        let caller = Arc::new(found.caller.clone());
        self.memory.remember(id, Known::new(digest, Arc::clone(&caller), found.expires_at, reading));
        Ok(caller)
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

fn refused(id: KeyId, reason: &str) -> Error {
    tracing::info!(key_id = %id, reason, "a key was refused");
    unauthorized()
}

fn unauthorized() -> Error {
    Error::new(Code::Unauthorized, Code::Unauthorized.entry().title)
}
