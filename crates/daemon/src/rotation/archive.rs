//! `keypair-archive.json`: box keys that were rotated out and still open what is on its way to them.
//!
//! Removing a key from the file is no secure erasure: file systems and disks keep copies that nobody here reaches.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result, Time};
use waybill_mesh_protocol::{BoxPublicKey, BoxSecret, KeyId, PublicKey};
use waybill_store::safety::{read_private, replace_private};
use zeroize::Zeroizing;

const FILE_VERSION: u32 = 1;
/// More than any archive of ours has.
const FILE_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct ArchivedKey {
    pub ed25519: PublicKey,
    pub secret: BoxSecret,
    pub key_id: KeyId,
    pub created_at: Time,
    pub rotated_out_at: Time,
    pub expires_at: Time,
}

/// As the file has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    ed25519_pubkey: PublicKey,
    x25519_pubkey: BoxPublicKey,
    x25519_privkey: Zeroizing<String>,
    key_id: KeyId,
    created_at: Time,
    rotated_out_at: Time,
    expires_at: Time,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    keys: Vec<Record>,
}

/// Why a file is set aside. It never quotes the file, which holds secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    TooLarge,
    Unreadable,
    Version,
    NotAKey,
    KeysDiffer,
    KeyIdDiffers,
    DuplicateKeyId,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "it is larger than an archive can be",
            Self::Unreadable => "it is not the JSON of an archive",
            Self::Version => "it is of another version",
            Self::NotAKey => "it holds a private key that is none",
            Self::KeysDiffer => "a public key in it is not that of its private key",
            Self::KeyIdDiffers => "a key id in it is not that of its key",
            Self::DuplicateKeyId => "two keys in it have the same id",
        })
    }
}

/// The keys, the newest first.
#[derive(Clone, Debug, Default)]
pub struct Archive {
    keys: Vec<ArchivedKey>,
}

impl Archive {
    pub fn parse(text: &str) -> std::result::Result<Self, Malformed> {
        if text.len() > FILE_BYTES_MAX {
            return Err(Malformed::TooLarge);
        }
        let file: File = serde_json::from_str(text).map_err(|_| Malformed::Unreadable)?;
        if file.version != FILE_VERSION {
            return Err(Malformed::Version);
        }
        let keys = file.keys.into_iter().map(Record::check).collect::<std::result::Result<Vec<_>, _>>()?;
        let mut ids: Vec<KeyId> = keys.iter().map(|key| key.key_id).collect();
        ids.sort_unstable_by_key(|id| *id.as_bytes());
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Malformed::DuplicateKeyId);
        }
        let mut archive = Self { keys };
        archive.sort();
        Ok(archive)
    }

    pub fn to_json(&self) -> Result<Zeroizing<String>> {
        let keys = self.keys.iter().map(Record::of).collect();
        let text = serde_json::to_string_pretty(&File { version: FILE_VERSION, keys });
        text.map(Zeroizing::new).map_err(Error::internal)
    }

    /// The archive at `path`, and where it was set aside to when it was malformed: then this one is empty and start goes on.
    pub fn load(path: &Path, now: Time) -> Result<(Self, Option<PathBuf>)> {
        let bytes = match read_private(path) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Self::default(), None)),
            Err(error) => return Err(unusable(path, &error)),
        };
        let parsed = std::str::from_utf8(&bytes).map_err(|_| Malformed::Unreadable).and_then(Self::parse);
        match parsed {
            Ok(archive) => Ok((archive, None)),
            Err(malformed) => {
                let mut aside = path.as_os_str().to_owned();
                aside.push(format!(".malformed-{}", now.micros() / 1_000_000));
                let aside = PathBuf::from(aside);
                std::fs::rename(path, &aside).map_err(|error| unusable(path, &error))?;
                tracing::error!(archive.moved_to = %aside.display(), archive.problem = %malformed, "the archive of keys is set aside: messages to archived keys cannot be opened");
                Ok((Self::default(), Some(aside)))
            }
        }
    }

    /// The write is durable when this returns.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = self.to_json()?;
        replace_private(path, text.as_bytes()).map_err(|error| unusable(path, &error))
    }

    /// Adds a key as the newest. Beyond `max` keys the oldest are dropped before their time; their number comes back.
    #[must_use]
    pub fn add(&mut self, key: ArchivedKey, max: usize) -> usize {
        self.keys.retain(|known| known.key_id != key.key_id);
        self.keys.push(key);
        self.sort();
        let dropped = self.keys.len().saturating_sub(max.max(1));
        self.keys.truncate(self.keys.len() - dropped);
        dropped
    }

    /// Drops what has expired; true when there was something.
    #[must_use]
    pub fn expire(&mut self, now: Time) -> bool {
        let before = self.keys.len();
        self.keys.retain(|key| key.expires_at > now);
        self.keys.len() != before
    }

    /// Takes a key back: the rotation that had archived it was not made.
    #[must_use]
    pub fn remove(&mut self, key_id: KeyId) -> bool {
        let before = self.keys.len();
        self.keys.retain(|key| key.key_id != key_id);
        self.keys.len() != before
    }

    /// The newest first, without those that have expired: a clean-up may not have run yet.
    pub fn usable(&self, now: Time) -> impl Iterator<Item = &ArchivedKey> {
        self.keys.iter().filter(move |key| key.expires_at > now)
    }

    pub fn keys(&self) -> &[ArchivedKey] {
        &self.keys
    }

    fn sort(&mut self) {
        self.keys.sort_by_key(|key| std::cmp::Reverse(key.rotated_out_at));
    }
}

impl ArchivedKey {
    pub fn new(ed25519: PublicKey, secret: BoxSecret, created_at: Time, now: Time, grace: Duration) -> Self {
        let key_id = secret.public().key_id();
        Self { ed25519, secret, key_id, created_at, rotated_out_at: now, expires_at: now.after(grace) }
    }
}

impl Record {
    fn of(key: &ArchivedKey) -> Self {
        Self {
            ed25519_pubkey: key.ed25519,
            x25519_pubkey: key.secret.public(),
            x25519_privkey: key.secret.to_hex(),
            key_id: key.key_id,
            created_at: key.created_at,
            rotated_out_at: key.rotated_out_at,
            expires_at: key.expires_at,
        }
    }

    fn check(self) -> std::result::Result<ArchivedKey, Malformed> {
        let secret = BoxSecret::from_hex(&self.x25519_privkey).ok_or(Malformed::NotAKey)?;
        if secret.public() != self.x25519_pubkey {
            return Err(Malformed::KeysDiffer);
        }
        if self.x25519_pubkey.key_id() != self.key_id {
            return Err(Malformed::KeyIdDiffers);
        }
        Ok(ArchivedKey {
            ed25519: self.ed25519_pubkey,
            secret,
            key_id: self.key_id,
            created_at: self.created_at,
            rotated_out_at: self.rotated_out_at,
            expires_at: self.expires_at,
        })
    }
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::new(Code::PathUnusable, format!("{} cannot be used: {error}.", path.display()))
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;
    use waybill_mesh_protocol::Identity;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn day(number: u64) -> Time {
        Time::EPOCH.after(DAY * u32::try_from(number).unwrap())
    }

    fn key(seed: u64, rotated: u64) -> ArchivedKey {
        let identity = Identity::generate(&SeededEntropy::new(seed));
        ArchivedKey::new(identity.public_key(), identity.box_secret().clone(), day(0), day(rotated), 7 * DAY)
    }

    fn archive(count: u64) -> Archive {
        let mut archive = Archive::default();
        for number in 1..=count {
            assert_eq!(archive.add(key(number, number), 8), 0);
        }
        archive
    }

    #[test]
    fn keys_come_back_from_the_file_with_the_newest_first() {
        let archive = archive(3);
        let back = Archive::parse(&archive.to_json().unwrap()).unwrap();
        let order: Vec<Time> = back.keys().iter().map(|key| key.rotated_out_at).collect();
        assert_eq!(order, [day(3), day(2), day(1)]);
        assert_eq!(*back.to_json().unwrap(), *archive.to_json().unwrap());
    }

    #[test]
    fn the_oldest_makes_room_and_what_has_expired_is_gone() {
        let mut archive = archive(8);
        assert_eq!(archive.add(key(9, 9), 8), 1);
        assert_eq!(archive.keys().len(), 8);
        assert!(archive.keys().iter().all(|key| key.rotated_out_at >= day(2)));
        // Those of days 2 to 5 expire on days 9 to 12.
        assert_eq!(archive.usable(day(12)).count(), 4);
        assert!(archive.expire(day(12)));
        assert!(!archive.expire(day(12)));
        assert_eq!(archive.keys().len(), 4);
        let id = archive.keys()[0].key_id;
        assert!(archive.remove(id) && !archive.remove(id));
    }

    #[test]
    fn a_malformed_file_says_why_and_nothing_of_what_it_holds() {
        let text = archive(2).to_json().unwrap().to_string();
        let (one, other) = (key(1, 1), key(2, 2));
        let swap = |from: &str, to: &str| text.replacen(from, to, 1);
        let secret = one.secret.to_hex();
        for (changed, expected) in [
            ("{".to_owned(), Malformed::Unreadable),
            (swap("\"version\": 1", "\"version\": 2"), Malformed::Version),
            (swap("\"version\": 1", "\"version\": 1, \"more\": 0"), Malformed::Unreadable),
            (swap(&one.secret.to_hex(), &other.secret.to_hex()), Malformed::KeysDiffer),
            (swap(&secret, &secret[2..]), Malformed::NotAKey),
            (swap(&one.key_id.to_string(), &other.key_id.to_string()), Malformed::KeyIdDiffers),
            (" ".repeat(FILE_BYTES_MAX + 1), Malformed::TooLarge),
        ] {
            assert_ne!(changed, text);
            assert_eq!(Archive::parse(&changed).unwrap_err(), expected);
        }
        let mut twice = archive(1);
        twice.keys.push(key(1, 2));
        assert_eq!(Archive::parse(&twice.to_json().unwrap()).unwrap_err(), Malformed::DuplicateKeyId);
    }

    #[test]
    fn a_malformed_file_is_set_aside_and_start_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keypair-archive.json");
        assert!(Archive::load(&path, day(1)).unwrap().0.keys().is_empty());
        archive(2).save(&path).unwrap();
        assert_eq!(Archive::load(&path, day(1)).unwrap().0.keys().len(), 2);
        std::fs::write(&path, "not an archive").unwrap();
        let (archive, aside) = Archive::load(&path, day(1)).unwrap();
        assert!(archive.keys().is_empty() && !path.exists());
        let aside = aside.unwrap();
        assert_eq!(aside, folder.path().join("keypair-archive.json.malformed-86400"));
        assert_eq!(std::fs::read_to_string(aside).unwrap(), "not an archive");
    }
}
