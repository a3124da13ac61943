//! Argon2id, the form a secret has in the database.

use argon2::password_hash::{self, PasswordHasher, PasswordVerifier, phc::PasswordHash};
use argon2::{Algorithm, Argon2, Params, Version};
use waybill_kernel::{Entropy, Error, KeyId, Result};

use crate::key::{Key, Secret};
use crate::signing::MintedSigner;

const MEMORY_KIB: u32 = 64 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;
const SALT_BYTES: usize = 16;

const PARAMS: Params = match Params::new(MEMORY_KIB, PASSES, LANES, None) {
    Ok(params) => params,
    Err(_) => panic!("Argon2 refuses its parameters"),
};

/// A new key and what its row will hold: made before the transaction, because a hash takes a core some 50 ms.
#[derive(Clone)]
pub(crate) enum Minted {
    /// It comes with every request.
    Bearer { key: Key, hash: String },
    /// It signs them.
    Signer(MintedSigner),
}

impl Minted {
    pub(crate) fn bearer(key: Key, entropy: &dyn Entropy) -> Result<Self> {
        let mut salt = [0; SALT_BYTES];
        entropy.fill(&mut salt);
        let hash = hash(&key.secret, &salt)?;
        Ok(Self::Bearer { key, hash })
    }

    pub(crate) fn signer(entropy: &dyn Entropy) -> Self {
        Self::Signer(MintedSigner::new(entropy))
    }

    pub(crate) fn id(&self) -> KeyId {
        match self {
            Self::Bearer { key, .. } => key.id,
            Self::Signer(signer) => signer.id,
        }
    }
}

fn hash(secret: &Secret, salt: &[u8]) -> Result<String> {
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, PARAMS);
    let hash: PasswordHash = argon2.hash_password_with_salt(secret.as_bytes(), salt).map_err(Error::internal)?;
    Ok(hash.to_string())
}

/// With the parameters the stored hash names, so that stronger ones may come later. Blocking, and slow on purpose.
pub(crate) fn verify(secret: &Secret, stored: &str) -> Result<bool> {
    let stored = PasswordHash::new(stored).map_err(Error::internal)?;
    match Argon2::default().verify_password(secret.as_bytes(), &stored) {
        Ok(()) => Ok(true),
        Err(password_hash::Error::PasswordInvalid) => Ok(false),
        Err(error) => Err(Error::internal(error)),
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn a_hash_is_argon2id_with_the_parameters_we_promise_and_fits_its_secret_alone() {
        let entropy = SeededEntropy::new(1);
        let Minted::Bearer { key, hash } = Minted::bearer(Key::generate(&entropy), &entropy).unwrap() else {
            panic!("no bearer's key")
        };
        assert!(hash.starts_with("$argon2id$v=19$m=65536,t=2,p=1$"), "{hash}");
        assert!(verify(&key.secret, &hash).unwrap());
        let other = Key::generate(&entropy);
        assert!(!verify(&other.secret, &hash).unwrap());
        assert!(verify(&key.secret, "plain").is_err());
    }
}
