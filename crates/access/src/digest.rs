//! The digest that decides about a key before anything is hashed.
//!
//! A secret of 190 random bits needs no slow hash against guessing; Argon2id stays in the row for whoever gets the database.
//! What the slow hash costs, about 100 ms of a core and 64 MiB, must not be had for a key that somebody made up. So the row
//! has a digest as well, under the server's own key: whoever has the database alone can neither try secrets against it nor
//! make a row that passes, and whoever sends unknown or wrong keys is refused for the price of one HMAC.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::key::Key;
use crate::keys::FoundKey;
use crate::memory::Digest;
use crate::server_key::{self, ServerKey};

const PURPOSE: &str = "api key";

/// Compared with where there is none, so that this takes as long.
const OF_NOTHING: Digest = [0; 32];

/// As a row holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredDigest {
    pub(crate) digest: Digest,
    /// The id of the server key it was made under.
    pub(crate) under: String,
}

#[derive(Clone)]
pub(crate) struct Digests {
    mac: Hmac<Sha256>,
    under: String,
}

/// What the digest says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Unknown, or another secret.
    Refused,
    /// The row's own key, to be confirmed by its hash.
    Accepted,
    /// The row has no digest, or one under another server key: only the hash can tell.
    Unproven,
}

impl Digests {
    pub(crate) fn new(server_key: &ServerKey) -> Self {
        Self { mac: server_key::keyed(&server_key.derive(PURPOSE)), under: server_key.id().to_owned() }
    }

    pub(crate) fn of(&self, key: &Key) -> StoredDigest {
        StoredDigest { digest: self.compute(key), under: self.under.clone() }
    }

    /// In the same time whether there is a row or not, and wherever the digests differ.
    pub(crate) fn judge(&self, key: &Key, found: Option<&FoundKey>) -> Judgement {
        let stored = found.and_then(|found| found.digest.as_ref()).filter(|stored| stored.under == self.under);
        let fits = self.compute(key).ct_eq(stored.map_or(&OF_NOTHING, |stored| &stored.digest));
        match (found, stored) {
            (Some(_), None) => Judgement::Unproven,
            (Some(_), Some(_)) if bool::from(fits) => Judgement::Accepted,
            _ => Judgement::Refused,
        }
    }

    /// Both parts have their length by their type, so no two keys look alike.
    fn compute(&self, key: &Key) -> Digest {
        let mac = self.mac.clone().chain_update(key.id.as_bytes()).chain_update(key.secret.as_bytes());
        mac.finalize().into_bytes().into()
    }
}
