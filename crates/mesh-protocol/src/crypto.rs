//! The one module that names a library of ciphers.
//!
//! dryoc, because it is one crate with libsodium's formats and checks, builds on stable without its defaults, and takes nonces
//! and secrets from its caller. Its verification is the strict one: small-order keys and commitments, points and scalars in
//! a second spelling are refused, and so are X25519 keys that lead to a shared secret of zeros. `crypto_box` 0.9 would
//! bring a second generation of the same curve. Where dryoc draws on a generator of its own, which is in the
//! keypair of a sealed box, the box is made here of its parts instead.

use dryoc::classic::crypto_box::{crypto_box_beforenm, crypto_box_easy, crypto_box_open_easy, crypto_box_seal_open};
use dryoc::classic::crypto_core::crypto_scalarmult_base;
use dryoc::classic::crypto_generichash::crypto_generichash;
use dryoc::classic::crypto_secretbox::{crypto_secretbox_easy, crypto_secretbox_open_easy};
use dryoc::classic::crypto_sign::{crypto_sign_detached, crypto_sign_seed_keypair, crypto_sign_verify_detached};
use zeroize::Zeroizing;

pub const NONCE_BYTES: usize = 24;
/// How much longer a box is than what is in it.
pub const MAC_BYTES: usize = 16;
/// The same of a sealed box, which begins with the key that it was made with.
pub const SEAL_BYTES: usize = 32 + MAC_BYTES;

type Key = [u8; 32];
type Nonce = [u8; NONCE_BYTES];

/// Seed and public key one after the other, as libsodium keeps a secret key.
pub fn signing_key(seed: &Key) -> (Key, Zeroizing<[u8; 64]>) {
    let (public, secret) = crypto_sign_seed_keypair(seed);
    (public, Zeroizing::new(secret))
}

pub fn sign(secret: &[u8; 64], statement: &[u8]) -> Option<[u8; 64]> {
    let mut signature = [0; 64];
    crypto_sign_detached(&mut signature, statement, secret).ok()?;
    Some(signature)
}

pub fn verify(public: &Key, statement: &[u8], signature: &[u8; 64]) -> bool {
    crypto_sign_verify_detached(signature, statement, public).is_ok()
}

pub fn box_public(secret: &Key) -> Key {
    let mut public = [0; 32];
    crypto_scalarmult_base(&mut public, secret);
    public
}

/// None when the recipient's key is one that nobody can have.
pub fn box_seal(plain: &[u8], nonce: &Nonce, recipient: &Key, sender: &Key) -> Option<Vec<u8>> {
    let mut sealed = vec![0; plain.len() + MAC_BYTES];
    crypto_box_easy(&mut sealed, plain, nonce, recipient, sender).ok()?;
    Some(sealed)
}

pub fn box_open(sealed: &[u8], nonce: &Nonce, sender: &Key, recipient: &Key) -> Option<Zeroizing<Vec<u8>>> {
    let mut plain = Zeroizing::new(vec![0; sealed.len().checked_sub(MAC_BYTES)?]);
    crypto_box_open_easy(&mut plain, sealed, nonce, sender, recipient).ok()?;
    Some(plain)
}

/// With this as the key of a secretbox both sides make and open the same boxes as with their pairs. None when the other's key
/// is one that nobody can have.
pub fn box_shared(other: &Key, own: &Key) -> Option<Zeroizing<Key>> {
    crypto_box_beforenm(other, own).ok().map(Zeroizing::new)
}

pub fn secretbox_seal(plain: &[u8], nonce: &Nonce, key: &Key) -> Option<Vec<u8>> {
    let mut sealed = vec![0; plain.len() + MAC_BYTES];
    crypto_secretbox_easy(&mut sealed, plain, nonce, key).ok()?;
    Some(sealed)
}

pub fn secretbox_open(sealed: &[u8], nonce: &Nonce, key: &Key) -> Option<Zeroizing<Vec<u8>>> {
    let mut plain = Zeroizing::new(vec![0; sealed.len().checked_sub(MAC_BYTES)?]);
    crypto_secretbox_open_easy(&mut plain, sealed, nonce, key).ok()?;
    Some(plain)
}

/// As libsodium's `crypto_box_seal`, with the keypair of this box handed in: the nonce is BLAKE2b of both public keys.
pub fn sealed_box(plain: &[u8], recipient: &Key, ephemeral: &Key) -> Option<Vec<u8>> {
    let public = box_public(ephemeral);
    let mut nonce = [0; NONCE_BYTES];
    crypto_generichash(&mut nonce, &[public, *recipient].concat(), None).ok()?;
    let mut sealed = public.to_vec();
    sealed.extend(box_seal(plain, &nonce, recipient, ephemeral)?);
    Some(sealed)
}

pub fn open_sealed_box(sealed: &[u8], public: &Key, secret: &Key) -> Option<Zeroizing<Vec<u8>>> {
    let mut plain = Zeroizing::new(vec![0; sealed.len().checked_sub(SEAL_BYTES)?]);
    crypto_box_seal_open(&mut plain, sealed, public, secret).ok()?;
    Some(plain)
}
