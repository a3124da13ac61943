//! From a caller's words to the bytes that go over the wire, once; and back.
//!
//! A message is signed and sealed when it is accepted and sent as those bytes at every attempt: a fresh nonce would make it another
//! request under the same id.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Entropy, Error, Result, Time};
use waybill_mesh_protocol::frames::Message;
use waybill_mesh_protocol::seal::{open_topic, seal_topic};
use waybill_mesh_protocol::{
    BoxPublicKey, BoxSecret, Carrier, ClientMessageId, Destination, DestinationKind, Envelope, Fingerprint,
    INLINE_BYTES, Identity, KeyId, MemberKeys, MeshId, Meta, Nonce, Plain, Priority, PublicKey, SharedKey,
};
use zeroize::Zeroizing;

use crate::directory::Directory;
use crate::metrics;
use crate::outbox::Parcel;
use crate::rotation::Archive;
use crate::shared_keys::SharedKeys;

/// The keys of this member: the present ones, and those that still open what was sent before a rotation.
#[derive(Clone)]
pub struct Keyring(Arc<Ring>);

struct Ring {
    keys: RwLock<Keys>,
    shared: SharedKeys,
}

struct Keys {
    identity: Arc<Identity>,
    archive: Archive,
}

impl Keyring {
    pub fn new(identity: Identity, archive: Archive) -> Self {
        let keys = Keys { identity: Arc::new(identity), archive };
        keys.find_publics();
        Self(Arc::new(Ring { keys: RwLock::new(keys), shared: SharedKeys::default() }))
    }

    pub fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.0.keys.read().unwrap_or_else(PoisonError::into_inner).identity)
    }

    pub fn public_key(&self) -> PublicKey {
        self.identity().public_key()
    }

    /// The present secret, then the archived ones, the newest first; each with whether it is archived.
    pub fn secrets(&self, now: Time) -> Vec<(BoxSecret, bool)> {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        let archived = keys.archive.usable(now).map(|key| (key.secret.clone(), true));
        [(keys.identity.box_secret().clone(), false)].into_iter().chain(archived).collect()
    }

    /// Whether this key is or was this member's.
    pub fn is_own(&self, key: &PublicKey) -> bool {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.identity.public_key() == *key || keys.archive.keys().iter().any(|archived| archived.ed25519 == *key)
    }

    pub fn archive(&self) -> Archive {
        self.0.keys.read().unwrap_or_else(PoisonError::into_inner).archive.clone()
    }

    pub fn set_archive(&self, archive: Archive) {
        self.change(|keys| keys.archive = archive);
    }

    pub fn set_identity(&self, identity: Identity) {
        self.change(|keys| keys.identity = Arc::new(identity));
    }

    fn change(&self, change: impl FnOnce(&mut Keys)) {
        let mut keys = self.0.keys.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut keys);
        keys.find_publics();
        // What was made with keys that are gone now goes with them.
        self.0.shared.clear();
    }

    /// What the boxes between one of this member's pairs and another's key are made with.
    ///
    /// # Errors
    /// `box_unreadable` when the other's key is one that nobody can have the secret of.
    pub fn shared_with(&self, own: &BoxSecret, other: &BoxPublicKey) -> Result<Arc<SharedKey>> {
        self.0.shared.between(own, other)
    }
}

impl Keys {
    /// Found once, so that the copies that are handed out have them.
    fn find_publics(&self) {
        self.identity.box_secret().public();
        for key in self.archive.keys() {
            key.secret.public();
        }
    }
}

/// What a caller wants to send, before anything is sealed. Its JSON is what the outbox keeps as the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    pub destination_kind: DestinationKind,
    pub destination_ref: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<ClientMessageId>,
    #[serde(default)]
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Meta>,
    pub body: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<PublicKey>,
}

impl Draft {
    pub fn destination(&self) -> Destination {
        Destination { kind: self.destination_kind, reference: self.destination_ref.clone() }
    }

    /// Decides what a second request under the same id means. It never leaves the host.
    pub fn request_fingerprint(&self) -> Result<Fingerprint> {
        let reply_to = self.reply_to.as_ref().map(ClientMessageId::as_str);
        Fingerprint::of(&self.destination(), reply_to, self.priority, self.meta.as_ref(), self.body.as_bytes())
    }
}

/// What was in an envelope.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    pub body: Vec<u8>,
    pub meta: Option<Meta>,
}

/// Why an envelope was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// What is not here may come, a key or the proof of one: it is kept and tried again.
    Later(&'static str),
    /// Nothing will help.
    Never(&'static str),
}

/// Why a message waits whose text is signed by a key that nobody is known to have.
pub const SIGNER_UNPROVEN: &str = "signer_unproven";
/// Why a post waits for whose epoch there is no key.
pub const EPOCH_UNKNOWN: &str = "epoch_unknown";

#[derive(Clone)]
pub struct Sealer {
    mesh: MeshId,
    directory: Directory,
    keyring: Keyring,
    entropy: Arc<dyn Entropy>,
    /// As the broker has last said.
    inline_bytes_max: Arc<AtomicU64>,
}

impl Sealer {
    pub fn new(mesh: MeshId, directory: Directory, keyring: Keyring, entropy: Arc<dyn Entropy>) -> Self {
        Self { mesh, directory, keyring, entropy, inline_bytes_max: Arc::new(AtomicU64::new(INLINE_BYTES)) }
    }

    pub fn is_plaintext(&self) -> bool {
        self.directory.is_plaintext()
    }

    pub fn set_inline_bytes_max(&self, bytes: u64) {
        self.inline_bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub fn inline_bytes_max(&self) -> u64 {
        self.inline_bytes_max.load(Ordering::Relaxed)
    }

    /// The box key that a direct message to this address is to be sealed for. None where nobody is meant who is a member.
    pub fn recipients_key(&self, reference: &str) -> Option<KeyId> {
        self.directory.resolve(reference).ok().map(|member| member.keys.key_id())
    }

    /// The envelope is good for this id alone.
    ///
    /// # Errors
    /// `topic_unknown` and `member_unknown` for what this member has no key for; `queue_needs_plaintext`; `payload_too_large` beyond
    /// what the broker takes.
    pub fn seal(&self, id: &str, draft: &Draft) -> Result<Parcel> {
        let id: ClientMessageId = id.parse()?;
        draft.destination().check()?;
        let mut envelope = Envelope::new(draft.destination(), Vec::new());
        envelope.reply_to.clone_from(&draft.reply_to);
        envelope.priority = draft.priority;
        envelope.mentions.clone_from(&draft.mentions);
        match draft.destination_kind {
            DestinationKind::Topic => self.for_topic(&id, draft, &mut envelope)?,
            DestinationKind::Dm => self.for_member(&id, draft, &mut envelope)?,
            // Whether there is such a queue and the mesh may send to it only the broker knows.
            DestinationKind::Queue if self.directory.is_plaintext() => in_plain_text(draft, &mut envelope),
            DestinationKind::Queue => {
                return Err(Error::new(Code::QueueNeedsPlaintext, Code::QueueNeedsPlaintext.entry().title));
            }
        }
        envelope.check(self.directory.is_plaintext())?;
        let (bytes, max) = (envelope.payload_bytes()?, self.inline_bytes_max());
        if bytes > max {
            let message = format!("The message has {bytes} bytes when it is sent; the broker takes {max}.");
            return Err(Error::new(Code::PayloadTooLarge, message)
                .with_cure("Share the text as a file with `/v1/file/share`, and send where it is."));
        }
        Ok(Parcel {
            wire_fingerprint: *envelope.fingerprint()?.as_bytes(),
            destination_kind: draft.destination_kind.name().to_owned(),
            destination_ref: draft.destination_ref.clone(),
            key_id: envelope.key_id.map(|id| id.to_string()),
            epoch: envelope.epoch.map(i64::from),
            envelope: serde_json::to_string(&envelope).map_err(Error::internal)?,
        })
    }

    fn for_topic(&self, id: &ClientMessageId, draft: &Draft, envelope: &mut Envelope) -> Result<()> {
        match self.directory.posting_key(&draft.destination_ref)? {
            None => in_plain_text(draft, envelope),
            Some((epoch, key)) => {
                envelope.epoch = Some(epoch);
                let plain = self.signed(&self.keyring.identity(), id, draft, envelope)?;
                envelope.body.0 = seal_topic(&key, Nonce::random(self.entropy.as_ref()), &plain)?;
            }
        }
        Ok(())
    }

    fn for_member(&self, id: &ClientMessageId, draft: &Draft, envelope: &mut Envelope) -> Result<()> {
        // A key that was rotated out stays the address: the broker knows whose it was, and the message keeps its place in line.
        let member = self.directory.resolve(&draft.destination_ref)?;
        if self.directory.is_plaintext() {
            in_plain_text(draft, envelope);
            return Ok(());
        }
        // Taken once: box and signature must be by the same keys, whatever is rotated meanwhile.
        let identity = self.keyring.identity();
        envelope.key_id = Some(member.keys.key_id());
        let plain = self.signed(&identity, id, draft, envelope)?;
        let shared = self.keyring.shared_with(identity.box_secret(), &member.keys.x25519)?;
        envelope.body.0 = shared.seal(Nonce::random(self.entropy.as_ref()), &plain)?;
        Ok(())
    }

    /// The text for the box of this envelope, which is complete but for its body.
    fn signed(
        &self,
        identity: &Identity,
        id: &ClientMessageId,
        draft: &Draft,
        envelope: &Envelope,
    ) -> Result<Zeroizing<Vec<u8>>> {
        let carrier = Carrier { mesh: self.mesh, id, envelope };
        Plain::sign(identity, carrier, draft.body.clone(), draft.meta.clone())?.to_bytes()
    }

    /// Opens a message to this member and finds out whether its sender has written it. Whether the keys that the delivery names
    /// are the sender's own is decided before.
    pub fn open(&self, message: &Message, now: Time) -> std::result::Result<Opened, Unopened> {
        let Message { envelope, sender, .. } = message;
        if envelope.check(self.directory.is_plaintext()).is_err() {
            return Err(Unopened::Never("envelope_invalid"));
        }
        if self.directory.is_plaintext() {
            return Ok(Opened { body: envelope.body.0.clone(), meta: envelope.meta.clone() });
        }
        let plain = match envelope.destination_kind {
            DestinationKind::Topic => self.open_topic(envelope)?,
            DestinationKind::Dm => self.open_dm(envelope, sender, now)?,
            DestinationKind::Queue => return Err(Unopened::Never("destination_unknown")),
        };
        let plain = Plain::from_bytes(&plain).map_err(|_| Unopened::Never("content_invalid"))?;
        let carrier = Carrier { mesh: self.mesh, id: &message.client_message_id, envelope };
        plain.verify(carrier).map_err(|_| Unopened::Never("signature_wrong"))?;
        self.check_signer(plain.signer(), &sender.ed25519)?;
        Ok(Opened { body: plain.body.into_bytes(), meta: plain.meta })
    }

    /// The key that has signed is the one that the delivery names, or another that the same member has or had: what may have been
    /// sent before a rotation leaves after it as it was signed.
    fn check_signer(&self, signer: &PublicKey, sender: &PublicKey) -> std::result::Result<(), Unopened> {
        if signer == sender || (self.keyring.is_own(signer) && self.keyring.is_own(sender)) {
            return Ok(());
        }
        match (self.directory.owner_of_key(signer), self.directory.owner_of_key(sender)) {
            (Some(one), Some(other)) if one == other => Ok(()),
            (Some(_), _) => Err(Unopened::Never("signed_by_another")),
            (None, _) => Err(Unopened::Later(SIGNER_UNPROVEN)),
        }
    }

    fn open_topic(&self, envelope: &Envelope) -> std::result::Result<Zeroizing<Vec<u8>>, Unopened> {
        let Some(epoch) = envelope.epoch else { return Err(Unopened::Never("envelope_invalid")) };
        let key = self.directory.epoch_key(&envelope.destination_ref, epoch).ok_or(Unopened::Later(EPOCH_UNKNOWN))?;
        // The key of this epoch is here, and another one of the same epoch will never be.
        open_topic(&key, &envelope.body.0).map_err(|_| Unopened::Never("box_unreadable"))
    }

    fn open_dm(
        &self,
        envelope: &Envelope,
        sender: &MemberKeys,
        now: Time,
    ) -> std::result::Result<Zeroizing<Vec<u8>>, Unopened> {
        // A message that was sealed before the sender's rotation and sent after it has a box of the key from before.
        let former = self.directory.box_keys_of(&sender.ed25519).into_iter().filter(|key| *key != sender.x25519);
        let senders: Vec<BoxPublicKey> = [sender.x25519].into_iter().chain(former).collect();
        let mut knows_key = false;
        for (secret, is_archived) in self.keyring.secrets(now) {
            knows_key |= envelope.key_id == Some(secret.public().key_id());
            for from in &senders {
                let shared = self.keyring.shared_with(&secret, from);
                let Ok(plain) = shared.and_then(|shared| shared.open(&envelope.body.0)) else { continue };
                if is_archived {
                    metrics::decrypt_archived();
                }
                return Ok(plain);
            }
        }
        // With the key it names at hand, only the sender's may still be missing.
        metrics::decrypt_stale();
        Err(Unopened::Later(if knows_key { "box_unreadable" } else { "key_unknown" }))
    }
}

fn in_plain_text(draft: &Draft, envelope: &mut Envelope) {
    envelope.body.0 = draft.body.clone().into_bytes();
    envelope.meta.clone_from(&draft.meta);
}
