//! Ids for callers who bring none: 48 bits of milliseconds and 80 random ones, in Crockford's base 32, so they sort by time.

use waybill_kernel::{Clock, Entropy};

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const LETTERS: u32 = 26;

pub fn mint(clock: &Clock, entropy: &dyn Entropy) -> String {
    let mut random = [0; 16];
    entropy.fill(&mut random[6..]);
    let millis = u128::try_from(clock.now().micros() / 1_000).unwrap_or(0) & ((1 << 48) - 1);
    encode((millis << 80) | u128::from_be_bytes(random))
}

fn encode(bits: u128) -> String {
    let letter = |digit: u32| char::from(ALPHABET[(bits >> (5 * digit)) as usize & 31]);
    (0..LETTERS).rev().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use waybill_kernel::clock::manual::ManualSource;
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn the_text_is_that_of_the_specification() {
        assert_eq!(encode(0), "0".repeat(26));
        assert_eq!(encode(u128::MAX), format!("7{}", "Z".repeat(25)));
        // 2016-07-30T23:54:10.259Z, the example of the specification.
        assert!(encode(1_469_922_850_259 << 80).starts_with("01ARZ3NDEK"));
    }

    #[test]
    fn later_ids_sort_later() {
        let source = ManualSource::at(1_700_000_000_000_000);
        let (clock, entropy) = (Clock::new(source.clone()), SeededEntropy::new(1));
        let first = mint(&clock, &entropy);
        source.pass(std::time::Duration::from_millis(2));
        let second = mint(&clock, &entropy);
        assert!(first < second && first.len() == 26, "{first} {second}");
    }
}
