//! Boxes: direct messages from one member to another, messages under the key of a topic, keys sealed to a member. In the formats
//! of libsodium. A box begins with its nonce, as PyNaCl and others write it.
//!
//! A nonce is handed in and used once: a message is sealed when it is accepted, and every transmission sends those bytes.

use std::fmt;

use waybill_kernel::{Code, Entropy, Error, Result, hex};
use zeroize::Zeroizing;

use crate::crypto::{self, MAC_BYTES, NONCE_BYTES};
use crate::identity::{BoxSecret, Identity};
use crate::keys::BoxPublicKey;

/// How much longer a box with its nonce is than what is in it.
pub const BOX_BYTES: usize = NONCE_BYTES + MAC_BYTES;
/// A sealed key has exactly so many.
pub const SEALED_KEY_BYTES: usize = crypto::SEAL_BYTES + 32;

/// 24 bytes are enough to be drawn at random for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce([u8; NONCE_BYTES]);

impl Nonce {
    pub fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; NONCE_BYTES];
        entropy.fill(&mut bytes);
        Self(bytes)
    }

    pub const fn from_bytes(bytes: [u8; NONCE_BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; NONCE_BYTES] {
        &self.0
    }
}

/// The same whatever was wrong, so that nobody learns more by trying.
pub(crate) fn unreadable() -> Error {
    Error::new(Code::BoxUnreadable, Code::BoxUnreadable.entry().title)
}

/// Nonce and rest.
fn split(sealed: &[u8]) -> Result<(&[u8; NONCE_BYTES], &[u8])> {
    sealed.split_first_chunk().ok_or_else(unreadable)
}

fn joined(nonce: Nonce, sealed: &[u8]) -> Vec<u8> {
    [nonce.0.as_slice(), sealed].concat()
}

/// # Errors
/// `box_unreadable` when the recipient's key is one that nobody can have the secret of.
pub fn seal_dm(sender: &Identity, recipient: &BoxPublicKey, nonce: Nonce, plain: &[u8]) -> Result<Vec<u8>> {
    seal_box(sender.box_secret(), recipient, nonce, plain)
}

/// As [`seal_dm`], for a pair that is nobody's identity.
pub fn seal_box(sender: &BoxSecret, recipient: &BoxPublicKey, nonce: Nonce, plain: &[u8]) -> Result<Vec<u8>> {
    let sealed = crypto::box_seal(plain, &nonce.0, recipient.as_bytes(), sender.as_bytes());
    sealed.map(|sealed| joined(nonce, &sealed)).ok_or_else(unreadable)
}

/// `recipient` may be a key that was rotated out.
///
/// # Errors
/// `box_unreadable` when it is not a box from the one to the other, or not as it was sealed.
pub fn open_dm(recipient: &BoxSecret, sender: &BoxPublicKey, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    let (nonce, sealed) = split(sealed)?;
    crypto::box_open(sealed, nonce, sender.as_bytes(), recipient.as_bytes()).ok_or_else(unreadable)
}

/// What the boxes between two pairs are made with. Making it is nearly all that a box costs, and it is the same for all of
/// them, in both directions. Wiped when it is dropped.
pub struct SharedKey(Zeroizing<[u8; 32]>);

impl SharedKey {
    /// # Errors
    /// `box_unreadable` when the other's key is one that nobody can have the secret of.
    pub fn between(own: &BoxSecret, other: &BoxPublicKey) -> Result<Self> {
        crypto::box_shared(other.as_bytes(), own.as_bytes()).map(Self).ok_or_else(unreadable)
    }

    /// As [`seal_box`] between the two.
    pub fn seal(&self, nonce: Nonce, plain: &[u8]) -> Result<Vec<u8>> {
        let sealed = crypto::secretbox_seal(plain, &nonce.0, &self.0);
        sealed.map(|sealed| joined(nonce, &sealed)).ok_or_else(unreadable)
    }

    /// As [`open_dm`] between the two.
    pub fn open(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let (nonce, sealed) = split(sealed)?;
        crypto::secretbox_open(sealed, nonce, &self.0).ok_or_else(unreadable)
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey(…)")
    }
}

/// The key of a topic in one epoch. Wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct TopicKey(Zeroizing<[u8; 32]>);

impl TopicKey {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        entropy.fill(key.as_mut());
        Self(key)
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// For where it is kept.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// For the file that keeps it.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0.as_ref()))
    }

    /// None when the text is not 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        crate::bytes::read_hex(text).map(Self::from_bytes)
    }
}

impl fmt::Debug for TopicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TopicKey(…)")
    }
}

pub fn seal_topic(key: &TopicKey, nonce: Nonce, plain: &[u8]) -> Result<Vec<u8>> {
    let sealed = crypto::secretbox_seal(plain, &nonce.0, &key.0);
    sealed.map(|sealed| joined(nonce, &sealed)).ok_or_else(unreadable)
}

/// # Errors
/// `box_unreadable` when it was not sealed with this key, or is not as it was sealed.
pub fn open_topic(key: &TopicKey, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    let (nonce, sealed) = split(sealed)?;
    crypto::secretbox_open(sealed, nonce, &key.0).ok_or_else(unreadable)
}

/// A sealed box says nothing about who made it: [`crate::EpochBox`] adds who, and what for.
pub fn seal_key_to(recipient: &BoxPublicKey, key: &TopicKey, entropy: &dyn Entropy) -> Result<Vec<u8>> {
    let ephemeral = BoxSecret::generate(entropy);
    crypto::sealed_box(key.0.as_ref(), recipient.as_bytes(), ephemeral.as_bytes()).ok_or_else(unreadable)
}

/// # Errors
/// `box_unreadable` when it is not sealed to this one, is not as it was sealed, or holds anything but a key.
pub fn open_sealed_key(recipient: &BoxSecret, sealed: &[u8]) -> Result<TopicKey> {
    let public = recipient.public();
    let plain = crypto::open_sealed_box(sealed, public.as_bytes(), recipient.as_bytes()).ok_or_else(unreadable)?;
    plain.as_slice().try_into().map(TopicKey::from_bytes).map_err(|_| unreadable())
}
