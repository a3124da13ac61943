//! The format of a key: `aga_`, a key id, a secret, a checksum, all base62.
//!
//! ```text
//! aga_ 0123456789AB 0123456789ABCDEFGHIJKLMNOPQRSTUV gnpLRq
//!      key id (12)  secret (32, some 190 bits)       checksum (6)
//! ```
//!
//! The id is public: it names the key in lists and logs and finds its row. The checksum lets a mistyped or truncated key
//! be refused without asking the database, and lets a scanner of leaked secrets be sure of what it has found.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use waybill_kernel::{Entropy, KeyId, Tenant, base62};
use waybill_store::Topic;

const PREFIX: &str = "aga_";
const SECRET_CHARS: usize = 32;
const CHECKSUM_CHARS: usize = 6;
const SECRET_AT: usize = PREFIX.len() + KeyId::CHARS;
const CHECKSUM_AT: usize = SECRET_AT + SECRET_CHARS;
const KEY_CHARS: usize = CHECKSUM_AT + CHECKSUM_CHARS;

/// The id in a text that has the shape of a key; its checksum is not looked at.
pub(crate) fn id_within(presented: &str) -> Option<KeyId> {
    let bytes = presented.as_bytes();
    if bytes.len() != KEY_CHARS || !bytes.starts_with(PREFIX.as_bytes()) {
        return None;
    }
    KeyId::from_ascii(&bytes[PREFIX.len()..SECRET_AT])
}

/// Woken when the key ends before its time.
pub(crate) fn end_of(id: KeyId) -> Topic {
    // Ids are unique among all tenants, and looked up before the tenant is known.
    Topic::new("key", Tenant(0), id.as_bytes())
}

/// The part that proves possession. Prints as nothing.
#[derive(Clone)]
pub struct Secret([u8; SECRET_CHARS]);

impl Secret {
    pub(crate) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[derive(Clone, Debug)]
pub struct Key {
    pub id: KeyId,
    pub secret: Secret,
}

impl Key {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self { id: KeyId::generate(entropy), secret: Secret(base62::random(entropy)) }
    }

    /// None for anything that was never a key: another length, another alphabet, a checksum that does not fit.
    pub fn parse(presented: &str) -> Option<Self> {
        let id = id_within(presented)?;
        let bytes = presented.as_bytes();
        let secret = Secret(base62::read(&bytes[SECRET_AT..CHECKSUM_AT])?);
        let fits = checksum(&id, &secret).ct_eq(&bytes[CHECKSUM_AT..]);
        bool::from(fits).then_some(Self { id, secret })
    }

    /// The whole key as text: for the one answer that hands it out.
    pub fn reveal(&self) -> KeyText {
        let mut text = String::with_capacity(KEY_CHARS);
        text.push_str(PREFIX);
        let checksum = checksum(&self.id, &self.secret);
        text.extend(self.id.as_bytes().iter().chain(&self.secret.0).chain(&checksum).map(|byte| char::from(*byte)));
        KeyText(text)
    }
}

/// A key on its way to its owner. It is written into an answer; it never prints.
#[derive(Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct KeyText(String);

impl KeyText {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(…)")
    }
}

fn checksum(id: &KeyId, secret: &Secret) -> [u8; CHECKSUM_CHARS] {
    let digest = Sha256::new().chain_update(id.as_bytes()).chain_update(secret.0).finalize();
    let mut rest = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let mut letters = [0; CHECKSUM_CHARS];
    for letter in letters.iter_mut().rev() {
        *letter = base62::ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    letters
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    /// Computed elsewhere. A change here makes every key in the world invalid.
    const VECTORS: [&str; 2] = [
        "aga_0123456789AB0123456789ABCDEFGHIJKLMNOPQRSTUVgnpLRq",
        "aga_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzVe9ntu",
    ];

    #[test]
    fn known_keys_have_known_checksums() {
        for text in VECTORS {
            let key = Key::parse(text).unwrap();
            assert_eq!(key.reveal().expose(), text);
            assert_eq!(key.id.as_str(), &text[4..16]);
        }
    }

    #[test]
    fn a_generated_key_reads_back() {
        let entropy = SeededEntropy::new(1);
        let (one, two) = (Key::generate(&entropy), Key::generate(&entropy));
        let text = one.reveal();
        assert_eq!(text.expose().len(), 54);
        let back = Key::parse(text.expose()).unwrap();
        assert_eq!((back.id, back.secret.as_bytes()), (one.id, one.secret.as_bytes()));
        assert_ne!(one.id, two.id);
        assert_ne!(one.secret.as_bytes(), two.secret.as_bytes());
    }

    #[test]
    fn every_single_slip_is_caught() {
        let text = VECTORS[0];
        for position in 0..text.len() {
            let mut slipped = text.as_bytes().to_vec();
            slipped[position] = if slipped[position] == b'x' { b'y' } else { b'x' };
            assert!(Key::parse(std::str::from_utf8(&slipped).unwrap()).is_none(), "at {position}");
        }
        let longer = format!("{text}0");
        let wide = text.replace('V', "é");
        for wrong in [
            "",
            "aga_",
            &text[..53],
            &text[4..],
            &longer,
            &wide,
            &text.replace("aga_", "AGA_"),
            &text.replace('V', "-"),
        ] {
            assert!(Key::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn nothing_secret_prints() {
        let key = Key::generate(&SeededEntropy::new(3));
        let text = key.reveal();
        let printed = format!("{key:?} {text:?} {:?}", key.secret);
        assert!(printed.contains(key.id.as_str()));
        assert!(!printed.contains(&text.expose()[SECRET_AT..SECRET_AT + 4]), "{printed}");
    }
}
