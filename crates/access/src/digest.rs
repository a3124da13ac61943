//! The digest that decides about a key before anything is hashed.
//!
//! A secret of 190 random bits needs no slow hash against guessing; the Argon2id hash in the row is for the case that somebody gets the
//! database. Such a hash costs about 100 ms of a core and 64 MiB, which a made-up key must not be able to cause. So the row also has
//! a digest under the server's own key: with the database alone nobody can try secrets against it or make a row that passes, and an
//! unknown or wrong key is refused for the price of one HMAC.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::key::Key;
use crate::keys::FoundKey;
use crate::memory::Digest;
use crate::server_key::{self, ServerKey};

const PURPOSE: &str = "api key";

/// Compared with when there is no digest, so that this case takes as long.
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

    /// Takes the same time whether or not there is a row, and wherever the digests differ.
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
