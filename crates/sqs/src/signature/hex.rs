//! SHA-256 as the lower-case hexadecimal digits in which signatures speak of it.

use sha2::{Digest, Sha256};

pub(super) const DIGITS: usize = 64;

/// A digest in text form. Whether it holds what it says was never checked: it may come from a client.
pub(super) type Hex = [u8; DIGITS];

pub(super) fn of(data: &[u8]) -> Hex {
    encode(&Sha256::digest(data).into())
}

pub(super) fn encode(digest: &[u8; DIGITS / 2]) -> Hex {
    let mut digits = [0; DIGITS];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&waybill_kernel::hex::digits(*byte));
    }
    digits
}

/// None for another length, and for capitals, which no signer writes.
pub(super) fn read(text: &str) -> Option<Hex> {
    let digits: Hex = text.as_bytes().try_into().ok()?;
    digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hashes_to_what_everybody_knows() {
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(&of(b""), nothing.as_bytes());
        assert_eq!(read(nothing), Some(of(b"")));
    }

    #[test]
    fn other_texts_are_no_digests() {
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for wrong in ["", "e3", &nothing[1..], &nothing.to_uppercase(), &nothing.replace('e', "g"), &"é".repeat(32)] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
