//! Latencies in fixed memory: exact below 64 µs, then 32 buckets per power of two, so a quantile is off by 3 % at most.

use std::time::Duration;

const EXACT: u64 = 64;
const PER_OCTAVE: u64 = 32;
/// Up to 2^40 µs; anything longer than twelve days is counted in the last bucket.
const OCTAVES: u64 = 34;
const BUCKETS: usize = (EXACT + PER_OCTAVE * OCTAVES) as usize;

pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, latency: Duration) {
        self.buckets[bucket_of(latency.as_micros() as u64)] += 1;
        self.count += 1;
    }

    /// The latency in µs that the fraction `q` of all records did not exceed; `None` when nothing was recorded.
    pub fn quantile_us(&self, q: f64) -> Option<f64> {
        let wanted = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Some(middle_of(index as u64));
            }
        }
        None
    }
}

fn bucket_of(us: u64) -> usize {
    if us < EXACT {
        return us as usize;
    }
    let octave = u64::from(us.ilog2());
    let within = (us >> (octave - 5)) - PER_OCTAVE;
    ((EXACT + (octave - 6) * PER_OCTAVE + within) as usize).min(BUCKETS - 1)
}

fn middle_of(index: u64) -> f64 {
    if index < EXACT {
        return index as f64;
    }
    let (octave, within) = ((index - EXACT) / PER_OCTAVE + 6, (index - EXACT) % PER_OCTAVE);
    let width = (1u64 << (octave - 5)) as f64;
    (PER_OCTAVE + within) as f64 * width + width / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_within_three_percent() {
        for us in [0, 1, 63, 64, 65, 100, 999, 1_000, 65_535, 65_536, 7_654_321] {
            let middle = middle_of(bucket_of(us) as u64);
            let off = (middle - us as f64).abs();
            assert!(off <= 1.0 + us as f64 * 0.03, "{us} µs read back as {middle}");
        }
    }

    #[test]
    fn quantiles() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(0.5), None);
        for us in 1..=50 {
            histogram.record(Duration::from_micros(us));
        }
        assert_eq!(histogram.quantile_us(0.5), Some(25.0));
        assert_eq!(histogram.quantile_us(0.99), Some(50.0));
        histogram.record(Duration::from_secs(u64::MAX / 2_000_000));
        assert!(histogram.quantile_us(1.0).is_some_and(|us| us > 1e9));
    }
}
