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

/// Those who wait for a key's end look no more often than this, unless word comes; so late an expiry may reach them.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
            Standing::Ended(why) => Err(refused(id, why)),
        }
    }

    /// Ends when the key does: for calls and streams that were let in with it and stay. Of a revocation it hears as soon as
    /// anybody in this process does; an expiry ends it by the clock, a second later at most; whatever goes unheard, after `key_recheck`.
    pub async fn ended(&self, id: KeyId) {
        Box::pin(self.0.wait_for_end(id)).await;
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
        // Both before the read: what is committed later may be missing from it.
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
        let _turn = self.verifier.turn(&self.digest(id.as_str())).await;
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
                self.admit(id, *known.digest(), &found, reading)?;
                Ok(Some(found.expires_at.map_or(now.after(recheck), |expires_at| expires_at.min(now.after(recheck)))))
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

fn refused(id: KeyId, reason: &str) -> Error {
    tracing::info!(key_id = %id, reason, "a key was refused");
    unauthorized()
}

fn unauthorized() -> Error {
    Error::new(Code::Unauthorized, Code::Unauthorized.entry().title)
}
