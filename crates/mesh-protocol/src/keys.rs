//! Public keys, signatures and the short names of keys.

use sha2::{Digest, Sha256};
use waybill_kernel::hex;

use crate::bytes::{read_base64url, read_hex, text_bytes, write_base64url};
use crate::crypto;

text_bytes! {
    /// An Ed25519 key: who a member is.
    PublicKey, 32, hex::encode, read_hex, "^[0-9a-f]{64}$", "a public key, which has 64 lower-case hexadecimal digits"
}

text_bytes! {
    /// An X25519 key: what a member's boxes are made for.
    BoxPublicKey, 32, hex::encode, read_hex, "^[0-9a-f]{64}$", "a box key, which has 64 lower-case hexadecimal digits"
}

text_bytes! {
    Signature, 64, write_base64url, read_base64url, "^[0-9A-Za-z_-]{86}$", "a signature, which is 64 bytes as base64url"
}

text_bytes! {
    /// Names a box key, so that the receiver of a box knows which of its keys opens it.
    KeyId, 8, hex::encode, read_hex, "^[0-9a-f]{16}$", "a key id, which has 16 lower-case hexadecimal digits"
}

impl BoxPublicKey {
    /// The first 8 bytes of its SHA-256.
    pub fn key_id(&self) -> KeyId {
        let digest: [u8; 32] = Sha256::digest(self.as_bytes()).into();
        let mut first = [0; KeyId::BYTES];
        first.copy_from_slice(&digest[..KeyId::BYTES]);
        KeyId::from_bytes(first)
    }
}

impl PublicKey {
    /// Whether the owner of this key has signed these bytes for this purpose.
    pub fn verifies(&self, context: crate::Context, bytes: &[u8], signature: &Signature) -> bool {
        crypto::verify(self.as_bytes(), &context.statement(bytes), signature.as_bytes())
    }
}
