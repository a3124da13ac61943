//! New keys for an old member: the old key says which are the new ones, the new one agrees.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result};

use crate::identity::{Context, Identity, MemberKeys};
use crate::ids::MeshId;
use crate::keys::{PublicKey, Signature};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    pub old: PublicKey,
    pub keys: MemberKeys,
    /// Without it whoever holds the new keys could take the member over.
    pub old_signature: Signature,
    /// Without it a member could take over the keys of another.
    pub new_signature: Signature,
}

impl Rotation {
    pub fn sign(mesh: MeshId, old: &Identity, new: &Identity) -> Self {
        let keys = new.public();
        let statement = statement(mesh, &old.public_key(), &keys);
        Self {
            old: old.public_key(),
            keys,
            old_signature: old.sign(Context::Rotation, &statement),
            new_signature: new.sign(Context::Rotation, &statement),
        }
    }

    /// # Errors
    /// `signature_does_not_match`; `invalid_request` when nothing is rotated.
    pub fn verify(&self, mesh: MeshId) -> Result<()> {
        self.keys.verify()?;
        if self.old == self.keys.ed25519 {
            return Err(Error::invalid("The new key is the old one."));
        }
        let statement = statement(mesh, &self.old, &self.keys);
        let signed = self.old.verifies(Context::Rotation, &statement, &self.old_signature)
            && self.keys.ed25519.verifies(Context::Rotation, &statement, &self.new_signature);
        if signed {
            return Ok(());
        }
        Err(Error::new(Code::SignatureDoesNotMatch, "The rotation is not signed by both the old and the new key.")
            .with_cure("Rotate again with `waybill daemon rotate-keypair`."))
    }
}

fn statement(mesh: MeshId, old: &PublicKey, keys: &MemberKeys) -> Vec<u8> {
    [mesh.as_bytes(), old.as_bytes(), keys.ed25519.as_bytes(), keys.x25519.as_bytes()].concat()
}
