//! The format of a key: `aga_`, a key id, a secret, a checksum, all base62.
//!
//! ```text
//! aga_ 0123456789AB 0123456789ABCDEFGHIJKLMNOPQRSTUV gnpLRq
//!      key id (12)  secret (32, some 190 bits)       checksum (6)
//! ```
//!
//! The id is public: it names the key in lists and logs and finds its row. The checksum lets a mistyped or truncated key
//! be refused without asking the database, and lets a scanner of leaked secrets be sure of what it has found.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use waybill_kernel::{Entropy, Error, Result, Tenant};
use waybill_store::Topic;

const PREFIX: &str = "aga_";
const ID_CHARS: usize = 12;
const SECRET_CHARS: usize = 32;
const CHECKSUM_CHARS: usize = 6;
const SECRET_AT: usize = PREFIX.len() + ID_CHARS;
const CHECKSUM_AT: usize = SECRET_AT + SECRET_CHARS;
const KEY_CHARS: usize = CHECKSUM_AT + CHECKSUM_CHARS;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The public part of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; ID_CHARS]);

impl KeyId {
    /// The id in a text that has the shape of a key; its checksum is not looked at.
    pub(crate) fn within(presented: &str) -> Option<Self> {
        let bytes = presented.as_bytes();
        if bytes.len() != KEY_CHARS || !bytes.starts_with(PREFIX.as_bytes()) {
            return None;
        }
        base62(&bytes[PREFIX.len()..SECRET_AT]).map(KeyId)
    }

    /// Woken when the key ends before its time.
    pub(crate) fn topic(self) -> Topic {
        // Ids are unique among all tenants, and looked up before the tenant is known.
        Topic::new("key", Tenant(0), &self.0)
    }

    pub fn as_str(&self) -> &str {
        // Base62 characters and nothing else, by every way of making one.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        base62(text.as_bytes()).map(KeyId).ok_or_else(|| {
            // Not repeated: people paste whole keys where an id is asked for.
            Error::invalid(format!("That is not a key id, which has {ID_CHARS} letters and digits."))
        })
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(|error: Error| de::Error::custom(error.message().trim_end_matches('.')))
    }
}

impl JsonSchema for KeyId {
    fn schema_name() -> Cow<'static, str> {
        "KeyId".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": format!("^[0-9A-Za-z]{{{ID_CHARS}}}$") })
    }
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
        Self { id: KeyId(random(entropy)), secret: Secret(random(entropy)) }
    }

    /// None for anything that was never a key: another length, another alphabet, a checksum that does not fit.
    pub fn parse(presented: &str) -> Option<Self> {
        let id = KeyId::within(presented)?;
        let bytes = presented.as_bytes();
        let secret = Secret(base62(&bytes[SECRET_AT..CHECKSUM_AT])?);
        let fits = checksum(&id, &secret).ct_eq(&bytes[CHECKSUM_AT..]);
        bool::from(fits).then_some(Self { id, secret })
    }

    /// The whole key as text: for the one answer that hands it out.
    pub fn reveal(&self) -> KeyText {
        let mut text = String::with_capacity(KEY_CHARS);
        text.push_str(PREFIX);
        let checksum = checksum(&self.id, &self.secret);
        text.extend(self.id.0.iter().chain(&self.secret.0).chain(&checksum).map(|byte| char::from(*byte)));
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

fn base62<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let bytes: [u8; N] = bytes.try_into().ok()?;
    bytes.iter().all(u8::is_ascii_alphanumeric).then_some(bytes)
}

fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    // Larger bytes are thrown away: with them the first eight letters would come more often than the others.
    const FAIR: u8 = u8::MAX - u8::MAX % 62;
    let mut letters = [0; N];
    let mut drawn = [0; N];
    let mut filled = 0;
    while filled < N {
        entropy.fill(&mut drawn);
        for byte in drawn.iter().filter(|byte| **byte < FAIR) {
            let Some(place) = letters.get_mut(filled) else { break };
            *place = ALPHABET[usize::from(*byte % 62)];
            filled += 1;
        }
    }
    letters
}

fn checksum(id: &KeyId, secret: &Secret) -> [u8; CHECKSUM_CHARS] {
    let digest = Sha256::new().chain_update(id.0).chain_update(secret.0).finalize();
    let mut rest = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let mut letters = [0; CHECKSUM_CHARS];
    for place in letters.iter_mut().rev() {
        *place = ALPHABET[(rest % 62) as usize];
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
        for place in 0..text.len() {
            let mut slipped = text.as_bytes().to_vec();
            slipped[place] = if slipped[place] == b'x' { b'y' } else { b'x' };
            assert!(Key::parse(std::str::from_utf8(&slipped).unwrap()).is_none(), "at {place}");
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
    fn letters_come_equally_often() {
        let letters = random::<62_000>(&SeededEntropy::new(2));
        for letter in ALPHABET {
            let count = letters.iter().filter(|other| *other == letter).count();
            assert!((850..1150).contains(&count), "{}: {count}", char::from(*letter));
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
