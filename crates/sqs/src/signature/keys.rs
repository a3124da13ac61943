//! Secrets, and the signing keys that are derived from them.
//!
//! A signing key is four HMACs away from its secret and good for one day. A client that signs a thousand requests a second
//! would pay for it a thousand times a second, so that the keys of the most recent signers are kept.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use sha2::{Digest, Sha256};
use waybill_kernel::Time;

use super::SERVICE;
use super::credential::Credential;

/// How many signing keys are kept, for a hundred bytes each. One that is not kept costs its derivation, nothing else.
pub const SIGNING_KEYS_MAX: usize = 1024;

const KEY_BYTES: usize = 32;

/// The secret of an access key. Prints as nothing.
#[derive(Clone)]
pub struct Secret(Box<str>);

impl Secret {
    pub fn new(secret: impl Into<Box<str>>) -> Self {
        Self(secret.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// As good as the secret for one day, region and service. Prints as nothing.
#[derive(Clone, Copy)]
pub(super) struct SigningKey([u8; KEY_BYTES]);

impl SigningKey {
    pub(super) fn derive(secret: &Secret, time: Time, region: &str, service: &str) -> Self {
        let derived = generate_signing_key(&secret.0, system_time(time), region, service);
        let mut key = [0; KEY_BYTES];
        // Both are the length of a SHA-256.
        key.copy_from_slice(derived.as_ref());
        Self(key)
    }

    /// In hexadecimal digits.
    pub(super) fn sign(&self, text: &[u8]) -> String {
        calculate_signature(self.0, text)
    }
}

/// The derivation takes a time and uses its day.
fn system_time(time: Time) -> SystemTime {
    let distance = Duration::from_micros(time.micros().unsigned_abs());
    let moved = if time < Time::EPOCH {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    moved.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// What a signing key was derived from. The secret is in it, so that the key of a secret that was replaced is not found.
type Origin = [u8; 32];

fn origin(credential: &Credential, secret: &Secret) -> Origin {
    let mut hash = Sha256::new();
    // A scope begins with its day and ends in its terminator: with the lengths in front nothing can stand for another.
    for part in [credential.access_key_id(), credential.scope()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(secret.0.as_bytes());
    hash.finalize().into()
}

/// The most recent signing keys. Share one between all who verify.
#[derive(Default)]
pub struct SigningKeys(Mutex<Held>);

#[derive(Default)]
struct Held {
    keys: HashMap<Origin, SigningKey>,
    /// Oldest first. Holds what `keys` holds.
    order: VecDeque<Origin>,
}

/// A signing key, and whether it was there already.
pub(super) struct Found {
    pub(super) key: SigningKey,
    fresh: Option<Origin>,
}

impl SigningKeys {
    pub(super) fn find(&self, credential: &Credential, secret: &Secret, time: Time) -> Found {
        let origin = origin(credential, secret);
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.get(&origin).copied();
        match held {
            Some(key) => Found { key, fresh: None },
            // Without the lock: a derivation must not hold up those who need none.
            None => Found { key: SigningKey::derive(secret, time, credential.region(), SERVICE), fresh: Some(origin) },
        }
    }

    /// To be called once a signature by this key has proved good: whoever only knows an access key id moves no other out.
    pub(super) fn keep(&self, found: &Found) {
        let Some(origin) = found.fresh else { return };
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.keys.insert(origin, found.key).is_some() {
            return;
        }
        held.order.push_back(origin);
        if held.order.len() > SIGNING_KEYS_MAX
            && let Some(oldest) = held.order.pop_front()
        {
            held.keys.remove(&oldest);
        }
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.len()
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKeys({} of {SIGNING_KEYS_MAX})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(key: usize, day: &str) -> Credential {
        Credential::read(&format!("AKID{key}/{day}/us-east-1/sqs/aws4_request")).unwrap()
    }

    const TIME: Time = Time::from_micros(1_440_938_160_000_000);

    fn is_held(keys: &SigningKeys, credential: &Credential, secret: &Secret) -> bool {
        keys.find(credential, secret, TIME).fresh.is_none()
    }

    #[test]
    fn a_key_is_derived_once_and_kept_when_it_has_proved_good() {
        let (keys, secret, one) = (SigningKeys::default(), Secret::new("one"), credential(1, "20150830"));
        let first = keys.find(&one, &secret, TIME);
        assert!(first.fresh.is_some() && !is_held(&keys, &one, &secret), "found, and not kept");
        keys.keep(&first);
        keys.keep(&first);
        assert!(is_held(&keys, &one, &secret));
        assert_eq!((keys.len(), first.key.0), (1, keys.find(&one, &secret, TIME).key.0));
    }

    #[test]
    fn another_secret_day_region_or_key_is_another_signing_key() {
        let (keys, secret) = (SigningKeys::default(), Secret::new("one"));
        let one = credential(1, "20150830");
        keys.keep(&keys.find(&one, &secret, TIME));
        let elsewhere = Credential::read("AKID1/20150830/eu-west-1/sqs/aws4_request").unwrap();
        for (credential, secret, what) in [
            (&one, &Secret::new("two"), "the secret was replaced"),
            (&credential(1, "20150831"), &secret, "a day later"),
            (&credential(2, "20150830"), &secret, "somebody else"),
            (&elsewhere, &secret, "elsewhere"),
        ] {
            assert!(!is_held(&keys, credential, secret), "{what}");
        }
        assert!(is_held(&keys, &one, &secret));
    }

    #[test]
    fn the_oldest_goes_first_and_there_are_never_more_than_the_most() {
        let (keys, secret) = (SigningKeys::default(), Secret::new("one"));
        let all: Vec<_> = (0..SIGNING_KEYS_MAX + 2).map(|key| credential(key, "20150830")).collect();
        for one in &all {
            keys.keep(&keys.find(one, &secret, TIME));
        }
        let held = keys.0.lock().unwrap();
        assert_eq!((held.keys.len(), held.order.len()), (SIGNING_KEYS_MAX, SIGNING_KEYS_MAX));
        drop(held);
        let held: Vec<_> = all.iter().map(|one| is_held(&keys, one, &secret)).collect();
        assert!(!held[0] && !held[1] && held[2..].iter().all(|held| *held));
    }

    #[test]
    fn nothing_secret_prints() {
        let keys = SigningKeys::default();
        let secret = Secret::new("hunter2");
        keys.keep(&keys.find(&credential(1, "20150830"), &secret, TIME));
        assert_eq!(format!("{secret:?} {keys:?}"), "Secret(…) SigningKeys(1 of 1024)");
    }
}
