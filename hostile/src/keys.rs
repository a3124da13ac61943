//! Keys that nobody has made: of the right form, with a checksum that fits, so that only the server's records tell them
//! from good ones.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const ID_AND_SECRET_CHARS: usize = 12 + 32;
const CHECKSUM_CHARS: usize = 6;

/// Never the same one twice.
pub struct Invented {
    nonce: u64,
    count: AtomicU64,
}

impl Invented {
    pub fn new() -> Self {
        // The process's own hash keys: variety is wanted here, not secrecy.
        Self { nonce: RandomState::new().build_hasher().finish(), count: AtomicU64::new(0) }
    }

    pub fn next(&self) -> String {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let block = |part: u8| {
            Sha256::new()
                .chain_update(self.nonce.to_be_bytes())
                .chain_update(number.to_be_bytes())
                .chain_update([part])
                .finalize()
        };
        let letters = block(0).into_iter().chain(block(1)).map(|byte| ALPHABET[usize::from(byte % 62)]);
        let body: Vec<u8> = letters.take(ID_AND_SECRET_CHARS).collect();
        let letters = body.iter().copied().chain(checksum(&body));
        std::iter::once("aga_".to_owned()).chain(letters.map(|letter| char::from(letter).to_string())).collect()
    }
}

/// Of the id and the secret behind one another.
fn checksum(body: &[u8]) -> [u8; CHECKSUM_CHARS] {
    let digest = Sha256::digest(body);
    let mut rest = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let mut letters = [0; CHECKSUM_CHARS];
    for place in letters.iter_mut().rev() {
        *place = ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_real_keys() {
        for (body, expected) in [
            ("0123456789AB0123456789ABCDEFGHIJKLMNOPQRSTUV", "gnpLRq"),
            ("zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", "Ve9ntu"),
        ] {
            assert_eq!(&checksum(body.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn invented_keys_differ_and_have_the_form() {
        let invented = Invented::new();
        let (one, two) = (invented.next(), invented.next());
        assert_ne!(one, two);
        assert_eq!(one.len(), 54);
        assert_eq!(one.as_bytes()[48..], checksum(&one.as_bytes()[4..48]));
    }
}
