//! Boxes that a passphrase opens, for backups: Argon2id makes a key of it, a secretbox does the rest.
//!
//! `"WBPB" version memory_kib passes lanes salt nonce box`, numbers as 4 bytes with the highest first. The parameters stand in the
//! box, so that stronger ones can come later; a box that asks for more than the bounds is refused before anything is computed.

use argon2::{Algorithm, Argon2, Params, Version};
use waybill_kernel::{Entropy, Error, Result};
use zeroize::Zeroizing;

use crate::crypto::{self, NONCE_BYTES};
use crate::seal::{Nonce, unreadable};

const MAGIC: &[u8; 4] = b"WBPB";
const VERSION: u8 = 1;
const SALT_BYTES: usize = 16;
/// A guess of one passphrase costs an attacker as much as it costs the owner: some tenths of a second.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 1;
/// What a foreign box may ask of this host.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 4;
const HEAD_BYTES: usize = MAGIC.len() + 1 + 3 * 4 + SALT_BYTES + NONCE_BYTES;
/// More than any set of keys and settings.
pub const PLAIN_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub memory_kib: u32,
    pub passes: u32,
    pub lanes: u32,
}

const COST: Cost = Cost { memory_kib: MEMORY_KIB, passes: PASSES, lanes: LANES };

/// Blocking, and slow on purpose.
///
/// # Errors
/// `invalid_request` without a passphrase, or for more than fits.
pub fn seal(passphrase: &[u8], plain: &[u8], entropy: &dyn Entropy) -> Result<Vec<u8>> {
    seal_at(COST, passphrase, plain, entropy)
}

pub(crate) fn seal_at(cost: Cost, passphrase: &[u8], plain: &[u8], entropy: &dyn Entropy) -> Result<Vec<u8>> {
    if passphrase.is_empty() {
        return Err(Error::invalid("The passphrase is empty."));
    }
    if plain.len() > PLAIN_BYTES_MAX {
        return Err(Error::invalid(format!("A box with a passphrase holds at most {PLAIN_BYTES_MAX} bytes.")));
    }
    let mut salt = [0; SALT_BYTES];
    entropy.fill(&mut salt);
    let nonce = Nonce::random(entropy);
    let key = derive(cost, passphrase, &salt)?;
    let sealed = crypto::secretbox_seal(plain, nonce.as_bytes(), &key).ok_or_else(unreadable)?;
    let mut out = [MAGIC.as_slice(), &[VERSION]].concat();
    for number in [cost.memory_kib, cost.passes, cost.lanes] {
        out.extend(number.to_be_bytes());
    }
    out.extend(salt);
    out.extend(nonce.as_bytes());
    out.extend(sealed);
    Ok(out)
}

/// Blocking, and slow on purpose.
///
/// # Errors
/// `box_unreadable` when the passphrase is another, or the box is not as it was sealed.
pub fn open(passphrase: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    let rest = sealed.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(&[VERSION])).ok_or_else(unreadable)?;
    if sealed.len() > HEAD_BYTES + crypto::MAC_BYTES + PLAIN_BYTES_MAX {
        return Err(unreadable());
    }
    let (memory_kib, rest) = number(rest)?;
    let (passes, rest) = number(rest)?;
    let (lanes, rest) = number(rest)?;
    let (salt, rest) = rest.split_first_chunk::<SALT_BYTES>().ok_or_else(unreadable)?;
    let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or_else(unreadable)?;
    if memory_kib > MEMORY_KIB_MAX || passes > PASSES_MAX || lanes > LANES_MAX {
        return Err(unreadable());
    }
    let key = derive(Cost { memory_kib, passes, lanes }, passphrase, salt)?;
    crypto::secretbox_open(sealed, nonce, &key).ok_or_else(unreadable)
}

fn number(bytes: &[u8]) -> Result<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk().ok_or_else(unreadable)?;
    Ok((u32::from_be_bytes(*number), rest))
}

pub(crate) fn derive(cost: Cost, passphrase: &[u8], salt: &[u8; SALT_BYTES]) -> Result<Zeroizing<[u8; 32]>> {
    // Parameters that Argon2 refuses are a box that was tampered with.
    let params = Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(32)).map_err(|_| unreadable())?;
    let mut key = Zeroizing::new([0; 32]);
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2.hash_password_into(passphrase, salt, key.as_mut()).map_err(|_| unreadable())?;
    Ok(key)
}
