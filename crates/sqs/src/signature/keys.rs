//! Secrets, and the signing keys that are derived from them.
//!
//! A signing key is four HMACs away from its secret and good for one day. A client that signs a thousand requests a second
//! would pay for it a thousand times a second, so that the keys of the most recent signers are kept.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sigv4::sign::v4::generate_signing_key;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use waybill_kernel::Time;

use super::SERVICE;
use super::credential::Credential;
use super::hex::{self, Hex};

/// How many signing keys are kept, for half a kilobyte each. One that is not kept costs its derivation, nothing else.
pub const SIGNING_KEYS_MAX: usize = 1024;

/// Of SHA-256.
const BLOCK_BYTES: usize = 64;

/// The secret of an access key. Prints as nothing.
#[derive(Clone)]
pub struct Secret(Box<str>);

impl Secret {
    pub fn new(secret: impl Into<Box<str>>) -> Self {
        Self(secret.into())
    }

    fn is(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// As good as the secret for one day, region and service: the MAC with the key taken in already. Prints as nothing.
#[derive(Clone)]
pub(super) struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    pub(super) fn derive(secret: &Secret, time: Time, region: &str, service: &str) -> Self {
        let derived = generate_signing_key(&secret.0, system_time(time), region, service);
        // HMAC fills a key that is shorter than its block up with zeros.
        let mut key = [0; BLOCK_BYTES];
        key[..derived.as_ref().len()].copy_from_slice(derived.as_ref());
        Self(Hmac::new(&key.into()))
    }

    /// Of a text in parts.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> Hex {
        let mac = parts.iter().fold(self.0.clone(), |mac, part| mac.chain_update(part));
        hex::encode(&mac.finalize().into_bytes().into())
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

/// The most recent signing keys. Share one between all who verify.
#[derive(Default)]
pub struct SigningKeys(Mutex<Held>);

#[derive(Default)]
struct Held {
    /// By the text of the credential: whose, and for which day, region and service.
    keys: HashMap<Arc<str>, Kept>,
    /// Oldest first. Holds what `keys` holds.
    order: VecDeque<Arc<str>>,
}

struct Kept {
    /// What the key was derived from: that of a secret which was replaced must not be found.
    secret: Secret,
    key: SigningKey,
}

/// A signing key, and whether it was there already.
pub(super) struct Found {
    pub(super) key: SigningKey,
    is_fresh: bool,
}

impl SigningKeys {
    pub(super) fn find(&self, credential: &Credential, secret: &Secret, time: Time) -> Found {
        let held =
            self.lock().keys.get(credential.text()).filter(|kept| kept.secret.is(secret)).map(|kept| kept.key.clone());
        match held {
            Some(key) => Found { key, is_fresh: false },
            // Without the lock: a derivation must not hold up those who need none.
            None => Found { key: SigningKey::derive(secret, time, credential.region(), SERVICE), is_fresh: true },
        }
    }

    /// To be called once a signature by this key has proved good: whoever only knows an access key id moves no other out.
    pub(super) fn keep(&self, found: &Found, credential: &Credential, secret: &Secret) {
        if !found.is_fresh {
            return;
        }
        let (name, kept) =
            (Arc::<str>::from(credential.text()), Kept { secret: secret.clone(), key: found.key.clone() });
        let mut held = self.lock();
        if held.keys.insert(Arc::clone(&name), kept).is_some() {
            return;
        }
        held.order.push_back(name);
        if held.order.len() > SIGNING_KEYS_MAX
            && let Some(oldest) = held.order.pop_front()
        {
            held.keys.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> usize {
        self.lock().keys.len()
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
        !keys.find(credential, secret, TIME).is_fresh
    }

    #[test]
    fn a_key_is_derived_once_and_kept_when_it_has_proved_good() {
        let (keys, secret, one) = (SigningKeys::default(), Secret::new("one"), credential(1, "20150830"));
        let first = keys.find(&one, &secret, TIME);
        assert!(first.is_fresh && !is_held(&keys, &one, &secret), "found, and not kept");
        keys.keep(&first, &one, &secret);
        keys.keep(&first, &one, &secret);
        assert!(is_held(&keys, &one, &secret));
        let again = keys.find(&one, &secret, TIME).key;
        assert_eq!((keys.len(), first.key.sign(&[b"text"])), (1, again.sign(&[b"te", b"xt"])));
    }

    #[test]
    fn another_secret_day_region_or_key_is_another_signing_key() {
        let (keys, secret) = (SigningKeys::default(), Secret::new("one"));
        let one = credential(1, "20150830");
        keys.keep(&keys.find(&one, &secret, TIME), &one, &secret);
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
        let second = Secret::new("two");
        keys.keep(&keys.find(&one, &second, TIME), &one, &second);
        assert!(is_held(&keys, &one, &second) && !is_held(&keys, &one, &secret), "the latest is kept");
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn the_oldest_goes_first_and_there_are_never_more_than_the_most() {
        let (keys, secret) = (SigningKeys::default(), Secret::new("one"));
        let all: Vec<_> = (0..SIGNING_KEYS_MAX + 2).map(|key| credential(key, "20150830")).collect();
        for one in &all {
            keys.keep(&keys.find(one, &secret, TIME), one, &secret);
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
        let one = credential(1, "20150830");
        keys.keep(&keys.find(&one, &secret, TIME), &one, &secret);
        assert_eq!(format!("{secret:?} {keys:?}"), "Secret(…) SigningKeys(1 of 1024)");
    }
}
