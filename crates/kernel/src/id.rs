//! Ids are UUIDv7: they sort by creation, so every index over them grows at its end.

use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};
pub use uuid::Uuid;

use crate::{Entropy, Time};

/// A tenant inside the program and the database. At the edge it is a UUID; the number never leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub i64);

impl Tenant {
    /// Made at the first start. Its admins are the operators: they alone see what belongs to no tenant or to all.
    pub const DEFAULT: Tenant = Tenant(1);
}

/// Mints the ids of one call. The seed is fixed when the call begins, so a run repeated after a serialization
/// failure or a voided batch mints the same ids and an already committed first run is recognised.
#[derive(Debug)]
pub struct IdSource {
    seed: [u8; 16],
    began: Time,
    minted: AtomicU32,
}

impl IdSource {
    pub fn new(entropy: &dyn Entropy, began: Time) -> Self {
        let mut seed = [0; 16];
        entropy.fill(&mut seed);
        Self { seed, began, minted: AtomicU32::new(0) }
    }

    /// Back to the first id: called before every run of the operation.
    pub fn rewind(&self) {
        self.minted.store(0, Ordering::Relaxed);
    }

    pub fn next(&self) -> Uuid {
        let counter = self.minted.fetch_add(1, Ordering::Relaxed);
        let digest = Sha256::new().chain_update(self.seed).chain_update(counter.to_be_bytes()).finalize();
        uuid_v7(self.began, counter, &digest)
    }
}

/// The id of something that must exist only once: a digest (UUIDv8) of what makes it the same thing.
pub fn digest_id(parts: &[&[u8]]) -> Uuid {
    let mut digest = Sha256::new();
    for part in parts {
        // With its length, so that no two lists of parts look alike.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.finalize()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// As [`digest_id`], with the time of another id in front: rows that come about together stand together in an index, and a
/// commit of many writes few of its pages. `near` must follow from what makes it the same thing.
pub fn digest_id_near(near: &Uuid, parts: &[&[u8]]) -> Uuid {
    let mut bytes = *digest_id(parts).as_bytes();
    bytes[..TIME_BYTES].copy_from_slice(&near.as_bytes()[..TIME_BYTES]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Milliseconds, in front of an id that has a time.
const TIME_BYTES: usize = 6;

/// 48 bits of milliseconds, 12 bits of the fraction (about 0.25 µs each, the counter added so that the ids of one
/// call keep their order), 62 random bits.
fn uuid_v7(time: Time, counter: u32, random: &[u8]) -> Uuid {
    let micros = u64::try_from(time.micros()).unwrap_or(0) + u64::from(counter);
    let fraction = u16::try_from((micros % 1000) * 4096 / 1000).unwrap_or(0);
    let mut tail = [0; 10];
    tail[..2].copy_from_slice(&fraction.to_be_bytes());
    tail[2..].copy_from_slice(&random[..8]);
    uuid::Builder::from_unix_timestamp_millis(micros / 1000, &tail).into_uuid()
}

/// A UUID newtype with its text form at the edge and its 16 bytes in the database.
#[macro_export]
macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $crate::id::Uuid);

        impl $name {
            pub fn as_bytes(&self) -> &[u8] {
                self.0.as_bytes()
            }

            pub fn from_slice(bytes: &[u8]) -> $crate::Result<Self> {
                $crate::id::Uuid::from_slice(bytes).map($name).map_err(|_| {
                    $crate::Error::internal(concat!("a stored ", stringify!($name), " is not 16 bytes long"))
                })
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl ::schemars::JsonSchema for $name {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({ "type": "string", "format": "uuid" })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SeededEntropy;

    #[test]
    fn a_rewound_source_mints_the_same_ids_in_ascending_order() {
        let ids = IdSource::new(&SeededEntropy::new(7), Time::from_micros(1_700_000_000_123_456));
        let first: Vec<Uuid> = (0..64).map(|_| ids.next()).collect();
        ids.rewind();
        let again: Vec<Uuid> = (0..64).map(|_| ids.next()).collect();
        assert_eq!(first, again);
        assert!(first.is_sorted());
        assert!(first.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn a_digest_id_near_another_has_its_time_and_depends_on_every_part() {
        let (early, late) =
            (uuid_v7(Time::from_micros(1_000), 0, &[1; 8]), uuid_v7(Time::from_micros(9_000), 0, &[2; 8]));
        let id = digest_id_near(&early, &[b"ab", b"c"]);
        assert_eq!(id, digest_id_near(&early, &[b"ab", b"c"]));
        assert_eq!(id.get_version_num(), 8);
        assert_ne!(id, digest_id_near(&early, &[b"a", b"bc"]));
        assert!(id < digest_id_near(&late, &[b"ab", b"c"]));
    }

    #[test]
    fn a_digest_id_depends_on_every_part_and_on_where_one_ends() {
        let id = digest_id(&[b"ab", b"c"]);
        assert_eq!(id, digest_id(&[b"ab", b"c"]));
        assert_eq!(id.get_version_num(), 8);
        for other in [digest_id(&[b"a", b"bc"]), digest_id(&[b"abc"]), digest_id(&[b"ab", b"c", b""])] {
            assert_ne!(id, other);
        }
    }

    #[test]
    fn two_calls_in_the_same_microsecond_share_no_id() {
        let entropy = SeededEntropy::new(7);
        let at = Time::from_micros(1_700_000_000_000_000);
        assert_ne!(IdSource::new(&entropy, at).next(), IdSource::new(&entropy, at).next());
    }
}
