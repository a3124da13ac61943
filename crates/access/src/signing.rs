//! Keys that sign requests instead of coming with them, as SQS clients do.
//!
//! Whoever checks a signature needs the secret itself, so its row has it in a box under the server's own key (`boxed.rs`),
//! bound to its tenant and its id. Clients know such a key as an access key id, which is the key's id behind four letters, and
//! a secret access key.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Code, Entropy, Error, KeyId, Result, Tenant, base62};

use crate::boxed::Nonce;
use crate::rebox::{Boxes, IdKind};
use crate::server_key::ServerKey;

const PREFIX: &str = "AKWB";
/// As many as clients of SQS are used to; 238 bits.
const SECRET_CHARS: usize = 40;
const PURPOSE: &str = "signing key";

/// What signs. Prints as nothing.
#[derive(Clone)]
pub struct SigningSecret([u8; SECRET_CHARS]);

impl SigningSecret {
    pub fn expose(&self) -> &str {
        // Base62 is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        base62::read(bytes).map(Self)
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

/// A secret on its way to its owner. It is written into an answer; it never prints.
#[derive(Clone, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct SecretText(String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// A new one, before it has a row.
#[derive(Clone)]
pub(crate) struct MintedSigner {
    pub(crate) id: KeyId,
    secret: SigningSecret,
    nonce: Nonce,
}

impl MintedSigner {
    pub(crate) fn new(entropy: &dyn Entropy) -> Self {
        let secret = SigningSecret(base62::random(entropy));
        Self { id: KeyId::generate(entropy), secret, nonce: Nonce::draw(entropy) }
    }

    /// For the one answer that hands it out.
    pub(crate) fn reveal(&self) -> SecretText {
        SecretText(self.secret.expose().to_owned())
    }

    /// As its row holds it.
    pub(crate) fn boxed(&self, server: Option<&ServerKey>, tenant: Tenant) -> Result<Vec<u8>> {
        let server = server.ok_or_else(|| {
            let message = "A key that signs is kept under the server's own key, and there is none here.";
            Error::new(Code::DataFolderUnusable, message)
                .with_cure("Start the server once, which makes server.key, or name it with --server-key-file.")
        })?;
        sealed(server, tenant, self.id, &self.secret, &self.nonce)
    }
}

fn sealed(server: &ServerKey, tenant: Tenant, id: KeyId, secret: &SigningSecret, nonce: &Nonce) -> Result<Vec<u8>> {
    server.seal(PURPOSE, &[&tenant.0.to_be_bytes(), id.as_bytes()], secret.expose().as_bytes(), nonce)
}

/// The secret of a row.
pub(crate) fn unboxed(server: &ServerKey, tenant: Tenant, id: KeyId, boxed: &[u8]) -> Result<SigningSecret> {
    let opened = server.open(PURPOSE, &[&tenant.0.to_be_bytes(), id.as_bytes()], boxed)?;
    SigningSecret::read(opened.expose()).ok_or_else(|| Error::internal("a boxed secret is none that signs"))
}

/// For a server key that takes the place of another.
pub const SIGNING_KEYS: Boxes = Boxes {
    purpose: PURPOSE,
    select: "SELECT tenant, key_id, secret FROM api_keys WHERE secret IS NOT NULL",
    update: "UPDATE api_keys SET secret = $3 WHERE tenant = $1 AND key_id = $2",
    id: IdKind::Text,
};

/// What a client calls the key.
pub fn access_key_id(id: KeyId) -> String {
    format!("{PREFIX}{id}")
}

/// None for what was never an access key id.
pub(crate) fn key_id(access_key_id: &str) -> Option<KeyId> {
    KeyId::from_ascii(access_key_id.strip_prefix(PREFIX)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn an_access_key_id_names_its_key_and_nothing_else_does() {
        let minted = MintedSigner::new(&SeededEntropy::new(1));
        let text = access_key_id(minted.id);
        assert_eq!((text.len(), key_id(&text)), (16, Some(minted.id)));
        for wrong in [
            "",
            "AKWB",
            &text[4..],
            &text[..15],
            &format!("{text}0"),
            &text.replace("AKWB", "AKIA"),
            "AKWB12345678901é",
        ] {
            assert_eq!(key_id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_box_opens_for_its_own_row() {
        let entropy = SeededEntropy::new(2);
        let old = ServerKey::generate(&entropy);
        let minted = MintedSigner::new(&entropy);
        let boxed = minted.boxed(Some(&old), Tenant(2)).unwrap();
        let opened = unboxed(&old, Tenant(2), minted.id, &boxed).unwrap();
        assert_eq!((opened.expose().len(), opened.expose()), (SECRET_CHARS, minted.secret.expose()));
        assert!(unboxed(&old, Tenant(3), minted.id, &boxed).is_err());
        assert!(unboxed(&old, Tenant(2), KeyId::generate(&entropy), &boxed).is_err());
        assert!(minted.boxed(None, Tenant(2)).is_err());
        let printed = format!("{:?} {:?}", minted.secret, minted.reveal());
        assert!(!printed.contains(&minted.secret.expose()[..4]), "{printed}");
    }
}
