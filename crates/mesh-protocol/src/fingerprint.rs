//! The digest that says whether two requests under one id are the same request. Its formula is part of the protocol:
//! `sha256(version 00 kind 00 reference 00 reply_to 00 priority 00 meta 00 sha256hex(body))`.

use sha2::{Digest, Sha256};
use waybill_kernel::{Result, hex};

use crate::bytes::{read_hex, text_bytes};
use crate::envelope::{Destination, ENVELOPE_VERSION, Priority};
use crate::meta::Meta;

text_bytes! {
    Fingerprint, 32, hex::encode, read_hex, "^[0-9a-f]{64}$", "a fingerprint, which has 64 lower-case hexadecimal digits"
}

/// How much of a fingerprint is shown in a conflict.
const PREFIX_BYTES: usize = 8;

impl Fingerprint {
    /// `body` are the bytes themselves: of the caller's text for a request, of the ciphertext for what goes over the wire.
    pub fn of(
        destination: &Destination,
        reply_to: Option<&str>,
        priority: Priority,
        meta: Option<&Meta>,
        body: &[u8],
    ) -> Result<Self> {
        let meta = meta.map(Meta::canonical).transpose()?.unwrap_or_default();
        let body: [u8; 32] = Sha256::digest(body).into();
        let (version, body) = (ENVELOPE_VERSION.to_string(), hex::encode(&body));
        let parts = [
            destination.kind.name(),
            &destination.reference,
            reply_to.unwrap_or_default(),
            priority.name(),
            &meta,
            &body,
        ];
        let mut digest = Sha256::new_with_prefix(version);
        for part in parts {
            digest.update([0]);
            digest.update(part);
        }
        Ok(Self(digest.finalize().into()))
    }

    /// The first 8 bytes, as 16 digits.
    pub fn prefix(&self) -> String {
        hex::encode(&self.0[..PREFIX_BYTES])
    }
}
