//! The secret of a webhook, and what is signed with it.
//!
//! By Standard Webhooks a receiver gets three headers: `webhook-id`, `webhook-timestamp` in seconds, and `webhook-signature`,
//! which is `v1,` and the base64 of an HMAC-SHA-256 over `id.timestamp.body` under the secret's bytes. The secret is handed out
//! as `whsec_` and the base64 of these bytes.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::Sha256;
use waybill_access::{Boxes, IdKind, Nonce, Opened, ServerKey};
use waybill_kernel::{Code, Entropy, Error, Result, Tenant};

use crate::WebhookId;

const PREFIX: &str = "whsec_";
const PURPOSE: &str = "webhook secret";
/// Of the 24 to 64 that Standard Webhooks allows.
const SECRET_BYTES: usize = 32;

/// Where the secrets are, for whoever replaces the server's key.
pub const SECRETS: Boxes = Boxes {
    purpose: PURPOSE,
    select: "SELECT tenant, webhook_id, secret FROM webhooks",
    update: "UPDATE webhooks SET secret = $3 WHERE tenant = $1 AND webhook_id = $2",
    id: IdKind::Bytes,
};

/// A new secret, with what its box needs: drawn before the transaction.
pub(crate) struct Minted {
    bytes: [u8; SECRET_BYTES],
    nonce: Nonce,
}

impl Minted {
    pub(crate) fn new(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; SECRET_BYTES];
        entropy.fill(&mut bytes);
        Self { bytes, nonce: Nonce::draw(entropy) }
    }

    /// For the one answer that hands it out.
    pub(crate) fn reveal(&self) -> SecretText {
        SecretText(format!("{PREFIX}{}", STANDARD.encode(self.bytes)))
    }

    pub(crate) fn seal(&self, key: &ServerKey, tenant: Tenant, id: WebhookId) -> Result<Vec<u8>> {
        key.seal(PURPOSE, &[&tenant.0.to_be_bytes(), id.as_bytes()], &self.bytes, &self.nonce)
    }
}

/// A secret on its way to its owner. It is written into an answer; it never prints.
#[derive(Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct SecretText(String);

impl SecretText {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// Without the server's key nothing can be boxed, and nothing opened.
pub(crate) fn server_key(found: Option<&ServerKey>) -> Result<&ServerKey> {
    found.ok_or_else(|| {
        Error::new(Code::DataFolderUnusable, "There is no server key to keep the webhook's secret under.")
            .with_cure("The first `waybill serve` makes one: make the webhook while the server runs.")
    })
}

/// Signs for one webhook.
pub(crate) struct Signer(Opened);

impl Signer {
    pub(crate) fn open(key: &ServerKey, tenant: Tenant, id: WebhookId, boxed: &[u8]) -> Result<Self> {
        key.open(PURPOSE, &[&tenant.0.to_be_bytes(), id.as_bytes()], boxed).map(Signer)
    }

    pub(crate) fn sign(&self, id: &str, timestamp_s: i64, body: &str) -> Result<String> {
        signature(self.0.expose(), id, timestamp_s, body)
    }
}

fn signature(secret: &[u8], id: &str, timestamp_s: i64, body: &str) -> Result<String> {
    let mac = Hmac::<Sha256>::new_from_slice(secret).map_err(Error::internal)?;
    let signed = mac.chain_update(format!("{id}.{timestamp_s}.")).chain_update(body).finalize();
    Ok(format!("v1,{}", STANDARD.encode(signed.into_bytes())))
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;
    use waybill_kernel::id::Uuid;

    use super::*;

    /// From the test suites of Standard Webhooks' own libraries.
    #[test]
    fn a_known_message_has_a_known_signature() {
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            signature(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#).unwrap();
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_signs_for_its_own_webhook_alone_and_never_prints() {
        let entropy = SeededEntropy::new(1);
        let (key, minted) = (ServerKey::generate(&entropy), Minted::new(&entropy));
        let (id, other) = (WebhookId(Uuid::from_u128(1)), WebhookId(Uuid::from_u128(2)));
        let text = minted.reveal();
        let bytes = STANDARD.decode(text.expose().strip_prefix("whsec_").unwrap()).unwrap();
        assert_eq!((bytes.as_slice(), format!("{text:?}")), (&minted.bytes[..], "SecretText(…)".to_owned()));
        let boxed = minted.seal(&key, Tenant(7), id).unwrap();
        let signed = Signer::open(&key, Tenant(7), id, &boxed).unwrap().sign("m", 1, "{}").unwrap();
        assert_eq!(signed, signature(&bytes, "m", 1, "{}").unwrap());
        assert!(
            Signer::open(&key, Tenant(8), id, &boxed).is_err() && Signer::open(&key, Tenant(7), other, &boxed).is_err()
        );
    }
}
