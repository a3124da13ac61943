//! Letters and digits: what may stand in a key without being quoted anywhere.

use crate::Entropy;

pub const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// None when these are not exactly `N` letters and digits.
pub fn read<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let bytes: [u8; N] = bytes.try_into().ok()?;
    bytes.iter().all(u8::is_ascii_alphanumeric).then_some(bytes)
}

pub fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    // Larger bytes are thrown away: with them the first eight letters would come more often than the others.
    const FAIR: u8 = u8::MAX - u8::MAX % 62;
    let mut letters = [0; N];
    let mut drawn = [0; N];
    let mut filled = 0;
    while filled < N {
        entropy.fill(&mut drawn);
        for byte in drawn.iter().filter(|byte| **byte < FAIR) {
            let Some(letter) = letters.get_mut(filled) else { break };
            *letter = ALPHABET[usize::from(*byte % 62)];
            filled += 1;
        }
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SeededEntropy;

    #[test]
    fn letters_come_equally_often() {
        let letters = random::<62_000>(&SeededEntropy::new(2));
        for letter in ALPHABET {
            let count = letters.iter().filter(|other| *other == letter).count();
            assert!((850..1150).contains(&count), "{}: {count}", char::from(*letter));
        }
    }
}
