//! The public part of an API key: it names the key in lists, logs and counts, and finds its row. Not a secret.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Entropy, Error, Result, base62};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; KeyId::CHARS]);

impl KeyId {
    pub const CHARS: usize = 12;

    /// None when these are not so many letters and digits.
    pub fn from_ascii(bytes: &[u8]) -> Option<Self> {
        base62::read(bytes).map(Self)
    }

    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self(base62::random(entropy))
    }

    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        // Letters and digits and nothing else, by every way of making one.
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
        Self::from_ascii(text.as_bytes()).ok_or_else(|| {
            // Not repeated: people paste whole keys where an id is asked for.
            Error::invalid(format!("That is not a key id, which has {} letters and digits.", Self::CHARS))
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
        json_schema!({ "type": "string", "pattern": format!("^[0-9A-Za-z]{{{}}}$", Self::CHARS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_nothing_else_passes_for_one() {
        let id: KeyId = "0123456789AB".parse().unwrap();
        assert_eq!((id.to_string().as_str(), id.as_bytes()), ("0123456789AB", b"0123456789AB".as_slice()));
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""0123456789AB""#);
        for other in ["", "0123456789A", "0123456789ABC", "0123456789A-", "0123456789é"] {
            assert!(other.parse::<KeyId>().is_err(), "{other}");
        }
    }
}
