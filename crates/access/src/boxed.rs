//! Secrets that must come back, such as those that sign: stored in a box that only the server's key opens.
//!
//! Whoever has the database alone has nothing. A box is for one purpose and is bound to what it belongs to (a tenant, an id):
//! moved to another row it does not open, so that nobody who can write rows can have a foreign secret used for theirs.
//!
//! ```text
//! 01 | id of the server key (8) | nonce (24, random) | XChaCha20-Poly1305 of the secret, with its tag (16)
//! ```
//!
//! The id is there so that a box of another server key is told from a damaged one. The nonce is long enough to be drawn at
//! random for as many boxes as there will ever be.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use waybill_kernel::{Entropy, Error, Result, hex};
use zeroize::Zeroizing;

use crate::server_key::{ID_BYTES, ServerKey};

const FORMAT: u8 = 1;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + ID_BYTES + NONCE_BYTES;
/// For secrets, not for documents.
const SECRET_BYTES_MAX: usize = 64 * 1024;

/// Makes two boxes of the same secret differ. It is drawn before the transaction that stores the box, so that a repeated run
/// makes the same box again; no two boxes have the same one.
#[derive(Clone, Copy, Debug)]
pub struct Nonce([u8; NONCE_BYTES]);

impl Nonce {
    pub fn draw(entropy: &dyn Entropy) -> Self {
        let mut nonce = [0; NONCE_BYTES];
        entropy.fill(&mut nonce);
        Self(nonce)
    }
}

/// What was in a box. It never prints, and is wiped when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Opened(Zeroizing<Vec<u8>>);

impl Opened {
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// For secrets that were text.
    pub fn expose_str(&self) -> Result<&str> {
        std::str::from_utf8(&self.0).map_err(|_| Error::internal("a boxed secret is not text"))
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opened(…)")
    }
}

impl ServerKey {
    /// Puts a secret into a box for `purpose`. It opens again only with the same purpose and the same `bound_to`, part by part.
    pub fn seal(&self, purpose: &str, bound_to: &[&[u8]], secret: &[u8], nonce: &Nonce) -> Result<Vec<u8>> {
        if secret.len() > SECRET_BYTES_MAX {
            return Err(Error::internal(format!("a secret to be boxed has more than {SECRET_BYTES_MAX} bytes")));
        }
        let bound = bound_bytes(bound_to);
        let payload = Payload { msg: secret, aad: &bound };
        let sealed = self.cipher(purpose).encrypt(&XNonce::from(nonce.0), payload);
        let sealed = sealed.map_err(|_| Error::internal("a secret could not be boxed"))?;
        let mut boxed = Vec::with_capacity(HEAD_BYTES + sealed.len());
        boxed.push(FORMAT);
        boxed.extend_from_slice(&self.id_bytes());
        boxed.extend_from_slice(&nonce.0);
        boxed.extend_from_slice(&sealed);
        Ok(boxed)
    }

    /// The secret in a box that [`ServerKey::seal`] made. An error of ours whichever way it does not open: callers cannot
    /// cause one.
    pub fn open(&self, purpose: &str, bound_to: &[&[u8]], boxed: &[u8]) -> Result<Opened> {
        if boxed.len() < HEAD_BYTES + TAG_BYTES || boxed[0] != FORMAT {
            return Err(Error::internal(format!("this is no box ({purpose})")));
        }
        let (head, sealed) = boxed.split_at(HEAD_BYTES);
        let (under, nonce) = head[1..].split_at(ID_BYTES);
        if under != self.id_bytes() {
            let cause =
                format!("a box ({purpose}) was made under another server key, of the id {}", hex::encode(under));
            return Err(Error::internal(cause));
        }
        let mut fixed = [0; NONCE_BYTES];
        fixed.copy_from_slice(nonce);
        let bound = bound_bytes(bound_to);
        let secret = self.cipher(purpose).decrypt(&XNonce::from(fixed), Payload { msg: sealed, aad: &bound });
        let changed = || Error::internal(format!("a box ({purpose}) was changed, or moved from where it belongs"));
        Ok(Opened(Zeroizing::new(secret.map_err(|_| changed())?)))
    }

    fn cipher(&self, purpose: &str) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.derive(&format!("box {purpose}")).into())
    }
}

/// Each part with its length, so that no two lists of parts are the same bytes.
fn bound_bytes(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Code;
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    const PURPOSE: &str = "signing secrets";
    const OWNER: [&[u8]; 2] = [b"tenant", b"id"];
    const VECTOR_KEY: &str = "waybill-server-key-1 6b13166b546b19fa \
                              000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const VECTOR_BOX: &str = "016b13166b546b19fa6465666768696a6b6c6d6e6f707172737475767778797a7b\
                              eadfdabc16ff55cea4262e58272fab3c463e6b9796";

    fn key(seed: u64) -> ServerKey {
        ServerKey::generate(&SeededEntropy::new(seed))
    }

    fn nonce(seed: u64) -> Nonce {
        Nonce::draw(&SeededEntropy::new(seed))
    }

    #[test]
    fn a_secret_comes_back_and_its_box_shows_nothing_of_it() {
        let key = key(1);
        for secret in [&b""[..], b"s", b"a secret of many letters", &[7; SECRET_BYTES_MAX]] {
            let boxed = key.seal(PURPOSE, &OWNER, secret, &nonce(2)).unwrap();
            assert_eq!(boxed.len(), HEAD_BYTES + secret.len() + TAG_BYTES);
            assert!(secret.len() < 8 || !boxed.windows(8).any(|window| window == &secret[..8]));
            assert_eq!(key.open(PURPOSE, &OWNER, &boxed).unwrap().expose(), secret);
        }
        let boxed = key.seal(PURPOSE, &OWNER, b"text", &nonce(2)).unwrap();
        let opened = key.open(PURPOSE, &OWNER, &boxed).unwrap();
        assert_eq!((opened.expose_str().unwrap(), format!("{opened:?}")), ("text", "Opened(…)".to_owned()));
        assert!(key.seal(PURPOSE, &OWNER, &[0; SECRET_BYTES_MAX + 1], &nonce(2)).is_err());
    }

    #[test]
    fn the_same_nonce_makes_the_same_box_and_another_one_another() {
        let key = key(1);
        let boxed = |seed| key.seal(PURPOSE, &OWNER, b"secret", &nonce(seed)).unwrap();
        assert_eq!(boxed(2), boxed(2));
        assert_ne!(boxed(2)[HEAD_BYTES..], boxed(3)[HEAD_BYTES..]);
    }

    #[test]
    fn a_box_opens_only_where_it_belongs() {
        let key = key(1);
        let boxed = key.seal(PURPOSE, &OWNER, b"secret", &nonce(2)).unwrap();
        let elsewhere: [&[&[u8]]; 6] =
            [&[], &[b"tenant"], &[b"tenant", b"other"], &[b"id", b"tenant"], &[b"tenan", b"tid"], &[b"tenantid"]];
        for owner in elsewhere {
            let error = key.open(PURPOSE, owner, &boxed).unwrap_err();
            assert!(error.code() == Code::Internal && !error.message().contains("secret"), "{error}");
        }
        assert!(key.open("something else", &OWNER, &boxed).is_err());
        let error = self::key(9).open(PURPOSE, &OWNER, &boxed).unwrap_err();
        assert!(error.cause().unwrap().contains(key.id()), "{:?}", error.cause());
    }

    #[test]
    fn a_box_that_was_changed_anywhere_or_cut_does_not_open() {
        let key = key(1);
        let boxed = key.seal(PURPOSE, &OWNER, b"secret", &nonce(2)).unwrap();
        for position in 0..boxed.len() {
            let mut changed = boxed.clone();
            changed[position] ^= 1;
            assert!(key.open(PURPOSE, &OWNER, &changed).is_err(), "byte {position}");
            assert!(key.open(PURPOSE, &OWNER, &boxed[..position]).is_err(), "cut to {position}");
        }
    }

    /// Computed elsewhere: a change here makes every stored secret unreadable.
    #[test]
    fn a_known_box_opens() {
        let key: ServerKey = VECTOR_KEY.parse().unwrap();
        let boxed = hex::decode(VECTOR_BOX).unwrap();
        assert_eq!(key.open("vector", &[b"t", b"42"], &boxed).unwrap().expose_str().unwrap(), "whsec");
    }
}
