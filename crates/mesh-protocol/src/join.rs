//! How a joiner proves both its keys. It signs the broker's nonce with the one, and boxes the nonce with the other to a key that
//! the broker derives from the nonce: nothing has to be remembered between challenge and join.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Entropy, Error, Result};

use crate::bytes::Base64;
use crate::challenge::ChallengeNonce;
use crate::identity::{BoxSecret, Context, Identity, MemberKeys};
use crate::ids::{InviteId, MeshId};
use crate::keys::{BoxPublicKey, Signature};
use crate::names::MemberName;
use crate::seal::{BOX_BYTES, Nonce, open_dm, seal_box};

/// What the broker asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinChallenge {
    pub nonce: ChallengeNonce,
    /// What the nonce is boxed to.
    pub box_key: BoxPublicKey,
}

/// Which join it is about: a proof for one is none for another.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    pub mesh: MeshId,
    pub invite: InviteId,
    pub name: &'a MemberName,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinProof {
    pub signature: Signature,
    /// The nonce, in a box from the joiner's X25519 key.
    pub boxed: Base64,
}

impl JoinProof {
    pub fn make(
        identity: &Identity,
        challenge: &JoinChallenge,
        joining: Joining<'_>,
        entropy: &dyn Entropy,
    ) -> Result<Self> {
        let signature = identity.sign(Context::Join, &statement(challenge, &identity.public(), joining));
        let nonce = Nonce::random(entropy);
        let boxed = seal_box(identity.box_secret(), &challenge.box_key, nonce, challenge.nonce.as_bytes())?;
        Ok(Self { signature, boxed: Base64(boxed) })
    }

    /// `secret` is that of the challenge's box key.
    ///
    /// # Errors
    /// `proof_invalid` when one of the keys is not proved.
    pub fn verify(
        &self,
        keys: &MemberKeys,
        challenge: &JoinChallenge,
        joining: Joining<'_>,
        secret: &BoxSecret,
    ) -> Result<()> {
        keys.verify()?;
        let signed = keys.ed25519.verifies(Context::Join, &statement(challenge, keys, joining), &self.signature);
        let boxed = self.boxed.0.len() == BOX_BYTES + ChallengeNonce::BYTES
            && open_dm(secret, &keys.x25519, &self.boxed.0).is_ok_and(|plain| *plain == *challenge.nonce.as_bytes());
        if signed && boxed {
            return Ok(());
        }
        Err(Error::new(Code::ProofInvalid, "The joiner has not proved that both keys are its own.")
            .with_cure("Ask for a new challenge and join again."))
    }
}

fn statement(challenge: &JoinChallenge, keys: &MemberKeys, joining: Joining<'_>) -> Vec<u8> {
    [
        challenge.nonce.as_bytes().as_slice(),
        challenge.box_key.as_bytes(),
        joining.mesh.as_bytes(),
        joining.invite.as_bytes(),
        keys.ed25519.as_bytes(),
        keys.x25519.as_bytes(),
        joining.name.as_str().as_bytes(),
    ]
    .concat()
}
