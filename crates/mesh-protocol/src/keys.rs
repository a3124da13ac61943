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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_a_signature_have_one_spelling_each() {
        let key = PublicKey::from_bytes([0xab; 32]);
        assert_eq!((key.to_string(), key.to_string().parse::<PublicKey>().unwrap()), ("ab".repeat(32), key));
        assert_eq!(serde_json::to_value(key).unwrap(), "ab".repeat(32));
        for text in ["AB".repeat(32), "ab".repeat(31), "ab".repeat(33), format!("{}a ", "ab".repeat(31)), String::new()]
        {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
            assert!(serde_json::from_value::<PublicKey>(text.clone().into()).is_err(), "{text}");
        }
        let signature = Signature::from_bytes([0xff; 64]);
        let text = signature.to_string();
        assert_eq!((text.len(), text.parse::<Signature>().unwrap()), (86, signature));
        // Padding, the other alphabet, and bits at the end that mean nothing.
        for text in [format!("{text}=="), text.replace('_', "/"), format!("{}x", &text[..85]), text[..84].to_owned()] {
            assert!(text.parse::<Signature>().is_err(), "{text}");
        }
        assert_eq!(
            (PublicKey::from_slice(&[0; 31]), KeyId::from_slice(&[1; 8])),
            (None, Some(KeyId::from_bytes([1; 8])))
        );
    }
}
