//! How long to wait before the next try: a random part of a doubling span, so that many callers of a server that was
//! away do not come back in step.

use std::time::Duration;

use waybill_kernel::Entropy;
use waybill_kernel::entropy::OsEntropy;

#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    span: Duration,
}

impl Backoff {
    /// The first wait is up to `first`; later ones double, up to `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, span: first }
    }

    /// The next wait: between half of the present span and all of it, so that it is never a busy loop.
    pub fn pause(&mut self) -> Duration {
        self.next_from(&OsEntropy)
    }

    pub fn reset(&mut self) {
        self.span = self.first;
    }

    fn next_from(&mut self, entropy: &dyn Entropy) -> Duration {
        let span = self.span;
        self.span = span.saturating_mul(2).min(self.most);
        span / 2 + part(span / 2, entropy)
    }
}

/// A random part of `span`.
fn part(span: Duration, entropy: &dyn Entropy) -> Duration {
    let mut bytes = [0; 4];
    entropy.fill(&mut bytes);
    span.mul_f64(f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn waits_grow_to_the_most_and_never_vanish() {
        let entropy = SeededEntropy::new(11);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut span = Duration::from_millis(100);
        for _ in 0..20 {
            let wait = backoff.next_from(&entropy);
            assert!(wait >= span / 2 && wait <= span, "{wait:?} of {span:?}");
            span = (span * 2).min(Duration::from_secs(2));
        }
        backoff.reset();
        assert!(backoff.next_from(&entropy) <= Duration::from_millis(100));
    }
}
