//! The key of a topic on its way to a subscriber. A sealed box alone could come from anybody, also from the broker, which would
//! then know the key; so the member that minted the key signs which topic, epoch and recipient each box is for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use waybill_kernel::{Code, Entropy, Error, Result};

use crate::bytes::Base64;
use crate::identity::{BoxSecret, Context, Identity, MemberKeys};
use crate::ids::MeshId;
use crate::keys::{PublicKey, Signature};
use crate::names::TopicName;
use crate::seal::{SEALED_KEY_BYTES, TopicKey, open_sealed_key, seal_key_to, unreadable};

/// What a box is for.
#[derive(Clone, Copy, Debug)]
pub struct EpochOf<'a> {
    pub mesh: MeshId,
    pub topic: &'a TopicName,
    pub epoch: u32,
}

/// The key of one epoch for one subscriber, as its minter uploads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochBox {
    pub recipient: PublicKey,
    /// A sealed box to the recipient's X25519 key.
    pub sealed: Base64,
    /// By the minter.
    pub signature: Signature,
}

/// The same as the subscriber gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochKey {
    pub topic: TopicName,
    pub epoch: u32,
    /// Who made the key; a member that the receiver knows, and whose signature is in the box.
    pub minter: PublicKey,
    #[serde(rename = "box")]
    pub boxed: EpochBox,
}

impl EpochBox {
    pub fn seal(
        minter: &Identity,
        of: EpochOf<'_>,
        recipient: &MemberKeys,
        key: &TopicKey,
        entropy: &dyn Entropy,
    ) -> Result<Self> {
        let sealed = Base64(seal_key_to(&recipient.x25519, key, entropy)?);
        let signature = minter.sign(Context::EpochBox, &statement(of, &recipient.ed25519, &sealed.0));
        Ok(Self { recipient: recipient.ed25519, sealed, signature })
    }

    /// What the broker can check of a box it cannot open.
    ///
    /// # Errors
    /// `signature_does_not_match`, and `box_unreadable` when it is too long or too short to hold a key.
    pub fn verify(&self, of: EpochOf<'_>, minter: &PublicKey) -> Result<()> {
        if self.sealed.0.len() != SEALED_KEY_BYTES {
            return Err(unreadable());
        }
        if minter.verifies(Context::EpochBox, &statement(of, &self.recipient, &self.sealed.0), &self.signature) {
            return Ok(());
        }
        Err(Error::new(Code::SignatureDoesNotMatch, "The box of the topic's key is not signed by who minted it."))
    }

    /// Verifies and opens it.
    pub fn open(&self, of: EpochOf<'_>, minter: &PublicKey, recipient: &BoxSecret) -> Result<TopicKey> {
        self.verify(of, minter)?;
        open_sealed_key(recipient, &self.sealed.0)
    }
}

/// Every part has a length of its own but the topic, which is alone at the end.
fn statement(of: EpochOf<'_>, recipient: &PublicKey, sealed: &[u8]) -> Vec<u8> {
    let sealed: [u8; 32] = Sha256::digest(sealed).into();
    let epoch = of.epoch.to_be_bytes();
    [of.mesh.as_bytes(), &epoch, recipient.as_bytes(), &sealed, of.topic.as_str().as_bytes()].concat()
}
