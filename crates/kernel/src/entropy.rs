//! Where randomness enters the program. Tests pass a seed and get the same ids again.

use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

pub trait Entropy: Send + Sync {
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    #[expect(clippy::disallowed_methods, reason = "the one place where randomness enters the program")]
    /// # Panics
    /// When the operating system has no entropy to give: no id or secret minted then could be trusted.
    fn fill(&self, bytes: &mut [u8]) {
        if let Err(error) = getrandom::fill(bytes) {
            panic!("the operating system gave no entropy: {error}");
        }
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
