//! One seed in, the same choices out. Each user draws from a stream of its own, so that a new draw in one
//! place does not shift the choices of another.

use std::hash::{BuildHasher, Hasher, RandomState};

use waybill_fuzz::Rng as Generator;

#[derive(Clone, Copy)]
pub enum Stream {
    /// When each fault strikes.
    Strike,
    /// What the fault is in detail: how long, how often, which one.
    Fault,
    /// Pauses and the choice of operations on one connection in one round.
    Load { round: u32, conn: u32 },
    /// Which old operations a round checks again.
    Sample,
    /// The filling of one payload.
    Payload { conn: u32, seq: u32 },
    /// What one worker does in one round, good and bad.
    Crew { round: u32, hand: u32 },
    /// What one sender or receiver of queues does in one round.
    Queue { round: u32, hand: u32 },
    /// What one sender of a mesh does in one round.
    Mesh { round: u32, hand: u32 },
    /// What one writer of mail does in one round.
    Mail { round: u32, hand: u32 },
}

pub struct Rng(Generator);

impl Rng {
    pub fn new(seed: u64, stream: Stream) -> Self {
        let (kind, a, b) = match stream {
            Stream::Strike => (1, 0, 0),
            Stream::Load { round, conn } => (2, round, conn),
            Stream::Sample => (3, 0, 0),
            Stream::Payload { conn, seq } => (4, conn, seq),
            Stream::Fault => (5, 0, 0),
            Stream::Crew { round, hand } => (6, round, hand),
            Stream::Queue { round, hand } => (7, round, hand),
            Stream::Mesh { round, hand } => (8, round, hand),
            Stream::Mail { round, hand } => (9, round, hand),
        };
        // Each part passes through the mixer, so that neighbouring streams share no bits.
        let mix = |state: u64, part: u64| Generator::new(state).draw().wrapping_add(part);
        Rng(Generator::new([kind, u64::from(a), u64::from(b)].into_iter().fold(seed, mix)))
    }

    pub fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number in `0..bound`; the bias of the remainder does not matter for choosing moments.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// At most `count` of the items, each at most once, in no particular order.
    pub fn sample<T>(&mut self, mut items: Vec<T>, count: usize) -> Vec<T> {
        let count = count.min(items.len());
        for chosen in 0..count {
            let rest = items.len() - chosen;
            items.swap(chosen, chosen + self.below(rest as u64) as usize);
        }
        items.truncate(count);
        items
    }
}

/// A seed nobody chose, from the process's own hash keys: the harness needs variety here, not secrecy.
pub fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_choices_and_streams_differ() {
        let draw = |stream| Rng::new(7, stream).next();
        assert_eq!(draw(Stream::Strike), draw(Stream::Strike));
        assert_ne!(draw(Stream::Strike), draw(Stream::Sample));
        assert_ne!(draw(Stream::Load { round: 1, conn: 2 }), draw(Stream::Load { round: 2, conn: 1 }));
    }

    #[test]
    fn sample_has_no_repeats() {
        let mut chosen = Rng::new(1, Stream::Sample).sample((0..100).collect(), 40);
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!(chosen.len(), 40);
        assert_eq!(Rng::new(1, Stream::Sample).sample(vec![1, 2], 40).len(), 2);
    }
}
