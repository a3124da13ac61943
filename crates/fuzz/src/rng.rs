//! SplitMix64, the generator of all that tests choose by chance: the fuzzers' inputs and the faults of the chaos harness.

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `0..bound`, and 0 where there is nothing to choose from.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.draw() >> 1).unwrap_or_default() % bound.max(1)
    }

    /// Mostly small, sometimes up to `2^powers`: sizes at which bounds are found.
    pub fn size(&mut self, powers: usize) -> usize {
        let most = 1 << self.below(powers + 1);
        1 + self.below(most)
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    pub fn byte(&mut self) -> u8 {
        self.draw().to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds are written down when something fails: they must mean the same for ever.
    #[test]
    fn a_seed_gives_the_numbers_that_the_generator_is_known_for() {
        let mut rng = Rng::new(1_234_567);
        let first = [rng.draw(), rng.draw(), rng.draw()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
