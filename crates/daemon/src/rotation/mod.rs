//! New keys for this member.
//!
//! The order is what makes it safe at any line: the old box key is archived first (without it, messages on their way could never be
//! opened), then the new keys are written beside the present ones (without them, nobody could be this member once the broker
//! knows them), then the broker is told, then the new keys take the place of the old, and last what waits in the outbox and was
//! never sent is signed and sealed anew with them.
//!
//! A crash or a lost answer in between leaves `keypair-next.json`: whether the broker has the new keys is asked before the next
//! connection, and what is missing is done then ([`Rotator::resume`]).

mod archive;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use waybill_kernel::{Clock, Code, Entropy, Error, Result};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{Identity, MemberId, MeshId};

pub use archive::{Archive, ArchivedKey, Malformed};

use crate::directory::{Directory, Member};
use crate::folder::{self, Folder};
use crate::link::Broker;
use crate::reseal::Resealer;
use crate::seal::Keyring;
use crate::{config, metrics};

/// Keys that the broker may or may not know yet.
pub const KEYPAIR_NEXT: &str = "keypair-next.json";

#[derive(Clone)]
pub struct Rotator(Arc<Inner>);

struct Inner {
    /// None for a member whose keys are in memory alone.
    folder: Option<Folder>,
    settings: config::Rotation,
    mesh: MeshId,
    member: MemberId,
    broker: Broker,
    keyring: Keyring,
    directory: Directory,
    resealer: Resealer,
    clock: Arc<Clock>,
    entropy: Arc<dyn Entropy>,
    /// One at a time.
    turn: Mutex<()>,
}

/// What a rotator works with.
pub struct Config {
    pub folder: Option<Folder>,
    pub settings: config::Rotation,
    pub mesh: MeshId,
    pub member: MemberId,
}

#[derive(Clone, Debug, Serialize)]
pub struct Rotated {
    pub old: String,
    pub new: String,
    /// Until then the old box key opens what was sealed for it.
    pub archived_until: waybill_kernel::Time,
}

impl Rotator {
    pub fn new(
        config: Config,
        broker: Broker,
        keyring: Keyring,
        directory: Directory,
        resealer: Resealer,
        clock: Arc<Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let Config { folder, settings, mesh, member } = config;
        let turn = Mutex::default();
        let inner =
            Inner { folder, settings, mesh, member, broker, keyring, directory, resealer, clock, entropy, turn };
        Self(Arc::new(inner))
    }

    fn folder(&self) -> Result<&Folder> {
        let none = || {
            Error::invalid(
                "This member's keys are in memory alone and end with the daemon: there is nothing to rotate.",
            )
        };
        self.0.folder.as_ref().ok_or_else(none)
    }

    /// # Errors
    /// `key_rotation_aborted_archive_write_failed` when the old key could not be archived: nothing has changed then. Those of the
    /// broker when it refuses; `unavailable` when nobody knows, and then the next connection finds out.
    pub async fn rotate(&self) -> Result<Rotated> {
        let _turn = self.0.turn.lock().await;
        let folder = self.folder()?;
        self.finish_pending(folder).await?;
        let old = self.0.keyring.identity();
        let archived_until = self.archive(folder, &old).map_err(|error| aborted(&error))?;
        let new = Identity::generate(self.0.entropy.as_ref());
        if let Err(error) = folder.write(KEYPAIR_NEXT, new.to_json()?.as_bytes()) {
            self.take_back(folder, &old)?;
            return Err(aborted(&error));
        }
        self.tell(folder, &old, &old, &new).await?;
        self.adopt(folder, &old, new).await?;
        let new = self.0.keyring.public_key();
        Ok(Rotated { old: old.public_key().to_string(), new: new.to_string(), archived_until })
    }

    /// Finds out what became of a rotation that did not come to its end. Called before every connection; does nothing without one.
    pub async fn resume(&self) -> Result<()> {
        let Some(folder) = &self.0.folder else { return Ok(()) };
        let _turn = self.0.turn.lock().await;
        self.finish_pending(folder).await
    }

    async fn finish_pending(&self, folder: &Folder) -> Result<()> {
        let Some(text) = folder.read_text(KEYPAIR_NEXT)? else { return Ok(()) };
        let Ok(new) = Identity::from_json(&text) else {
            // The broker is told only of keys that were written whole.
            return folder.remove(KEYPAIR_NEXT);
        };
        let old = self.0.keyring.identity();
        if new.public_key() == old.public_key() {
            return self.finish(folder).await;
        }
        // If the broker has them, they are this member's; if not, it does not know who is asking.
        let rotation = json!({ "rotation": Rotation::sign(self.0.mesh, &old, &new) });
        match self.0.broker.post_as::<Value>(&new, "mesh/v1/rotate", &rotation).await {
            Ok(_) => {}
            Err(error) if is_refusal(&error) => self.tell(folder, &old, &old, &new).await?,
            Err(error) => return Err(error),
        }
        // Until now others have sealed for the old key, however long ago it was archived: its time begins anew.
        self.archive(folder, &old)?;
        self.adopt(folder, &old, new).await
    }

    /// The durability point: from here on the old key opens what is on its way, whatever happens.
    fn archive(&self, folder: &Folder, old: &Identity) -> Result<waybill_kernel::Time> {
        let (now, settings) = (self.0.clock.now(), &self.0.settings);
        let mut archive = self.0.keyring.archive();
        let grace = Duration::from_millis(settings.grace_ms);
        let before = archive.keys().iter().find(|key| key.ed25519 != old.public_key());
        let created = before.map_or(waybill_kernel::Time::EPOCH, |newest| newest.rotated_out_at);
        let key = ArchivedKey::new(old.public_key(), old.box_secret().clone(), created, now, grace);
        let until = key.expires_at;
        let _ = archive.expire(now);
        let dropped = archive.add(key, settings.archived_max);
        archive.save(&folder.file(folder::KEYPAIR_ARCHIVE))?;
        if dropped > 0 {
            metrics::archive_force_expired(dropped as u64);
            tracing::warn!(keys = dropped, "the archive of keys was full: its oldest were dropped before their time");
        }
        self.0.keyring.set_archive(archive);
        Ok(until)
    }

    async fn tell(&self, folder: &Folder, signer: &Identity, old: &Identity, new: &Identity) -> Result<()> {
        let rotation = json!({ "rotation": Rotation::sign(self.0.mesh, old, new) });
        match self.0.broker.post_as::<Value>(signer, "mesh/v1/rotate", &rotation).await {
            Ok(_) => Ok(()),
            Err(error) if is_refusal(&error) => {
                folder.remove(KEYPAIR_NEXT)?;
                self.take_back(folder, old)?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The broker has them: they are this member's keys.
    async fn adopt(&self, folder: &Folder, old: &Identity, new: Identity) -> Result<()> {
        folder.write(folder::KEYPAIR, new.to_json()?.as_bytes())?;
        let keys = new.public();
        self.0.keyring.set_identity(new);
        if let Some(known) = self.0.directory.member(&self.0.member) {
            let old = old.public_key();
            let proven = move |known: &Member, _: &Member| known.keys.ed25519 == old;
            self.0.directory.learn_members(vec![Member { keys, ..known }], proven).await?;
        }
        self.finish(folder).await
    }

    /// The keys are in place. What was accepted before and never sent leaves with them: receivers that have never seen the old
    /// ones could not open it, or not believe whose it is.
    async fn finish(&self, folder: &Folder) -> Result<()> {
        self.0.resealer.everything().await?;
        folder.remove(KEYPAIR_NEXT)
    }

    fn take_back(&self, folder: &Folder, old: &Identity) -> Result<()> {
        let mut archive = self.0.keyring.archive();
        if archive.remove(old.box_secret().public().key_id()) {
            archive.save(&folder.file(folder::KEYPAIR_ARCHIVE))?;
            self.0.keyring.set_archive(archive);
        }
        Ok(())
    }

    /// Drops archived keys whose time is over. True when there were some.
    pub async fn clean_up(&self) -> Result<bool> {
        let _turn = self.0.turn.lock().await;
        let mut archive = self.0.keyring.archive();
        if !archive.expire(self.0.clock.now()) {
            return Ok(false);
        }
        if let Some(folder) = &self.0.folder {
            archive.save(&folder.file(folder::KEYPAIR_ARCHIVE))?;
        }
        self.0.keyring.set_archive(archive);
        Ok(true)
    }

    /// Between two clean-ups.
    pub fn clean_up_interval(&self) -> Duration {
        Duration::from_millis(self.0.settings.cleanup_ms)
    }
}

/// The broker has decided: the same request would be answered the same way.
fn is_refusal(error: &Error) -> bool {
    let http = error.code().entry().http;
    // A wrong clock says nothing about keys: refused for it, the broker's own new keys would be thrown away here.
    let passes = matches!(error.code(), Code::RequestTimeout | Code::RateLimitExceeded | Code::RequestTimeTooSkewed);
    (400..500).contains(&http) && !passes
}

fn aborted(error: &Error) -> Error {
    Error::new(Code::KeyRotationAborted, format!("{} Nothing was rotated.", error.message()))
}
