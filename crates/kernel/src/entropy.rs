//! Where randomness enters the program. Tests pass a seed and get the same ids again.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

pub trait Entropy: Send + Sync {
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's generator. Each thread fetches some ahead, because every call mints ids and would pay for a system
/// call of its own; what is given out is wiped here.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

/// Fetched at once.
const AHEAD_BYTES: usize = 512;
/// More than this is fetched for the one who wants it: secrets are never in the stock.
const FROM_STOCK_BYTES_MAX: usize = 16;

/// The first `left` bytes have not been given out.
struct Stock {
    bytes: [u8; AHEAD_BYTES],
    left: usize,
}

thread_local! {
    static STOCK: RefCell<Stock> = const { RefCell::new(Stock { bytes: [0; AHEAD_BYTES], left: 0 }) };
}

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        if bytes.len() > FROM_STOCK_BYTES_MAX {
            return fetch(bytes);
        }
        STOCK.with_borrow_mut(|stock| {
            if stock.left < bytes.len() {
                fetch(&mut stock.bytes);
                stock.left = AHEAD_BYTES;
            }
            let begin = stock.left - bytes.len();
            let given = &mut stock.bytes[begin..stock.left];
            bytes.copy_from_slice(given);
            given.fill(0);
            stock.left = begin;
        });
    }
}

/// # Panics
/// When the operating system has no entropy to give: no id or secret minted then could be trusted.
#[expect(clippy::disallowed_methods, reason = "the one place where randomness enters the program")]
fn fetch(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        panic!("the operating system gave no entropy: {error}");
    }
}

/// A reproducible stream for tests: block `n` is SHA-256(seed, n).
#[derive(Debug)]
pub struct SeededEntropy {
    seed: u64,
    block: AtomicU64,
}

impl SeededEntropy {
    pub const fn new(seed: u64) -> Self {
        Self { seed, block: AtomicU64::new(0) }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(32) {
            let block = self.block.fetch_add(1, Ordering::Relaxed);
            let digest =
                Sha256::new().chain_update(self.seed.to_be_bytes()).chain_update(block.to_be_bytes()).finalize();
            chunk.copy_from_slice(&digest[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_was_given_out_is_not_given_out_again() {
        let mut seen = HashSet::new();
        for round in 0..1_000_usize {
            let mut bytes = [0; 24];
            let bytes = &mut bytes[..8 + round % 17];
            OsEntropy.fill(bytes);
            assert!(seen.insert(bytes[..8].to_vec()), "again in round {round}: {bytes:?}");
        }
        STOCK.with_borrow(|stock| assert!(stock.bytes[stock.left..].iter().all(|byte| *byte == 0)));
    }
}
