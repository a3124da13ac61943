//! Calls of one kind and how they went.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct Series {
    took: Vec<Duration>,
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, usize>,
}

impl Series {
    /// An answer that is none counts with the time it was waited for.
    pub fn record(&mut self, took: Duration, error: Option<String>) {
        self.took.push(took);
        if let Some(error) = error {
            *self.errors.entry(error).or_default() += 1;
        }
    }

    pub fn count(&self) -> usize {
        self.took.len()
    }

    pub fn failed(&self) -> usize {
        self.errors.values().sum()
    }

    pub fn max(&self) -> Option<Duration> {
        self.took.iter().max().copied()
    }

    /// The time that the fraction `q` of all calls did not exceed.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let mut sorted = self.took.clone();
        sorted.sort_unstable();
        let wanted = (sorted.len() as f64 * q).ceil() as usize;
        sorted.get(wanted.saturating_sub(1)).copied()
    }

    /// p50, p99 and the longest, in milliseconds.
    pub fn latency(&self) -> String {
        let millis = |time: Option<Duration>| match time {
            None => "-".to_owned(),
            Some(time) if time < Duration::from_millis(10) => format!("{:.1}", time.as_secs_f64() * 1e3),
            Some(time) => time.as_millis().to_string(),
        };
        format!("{}/{}/{}", millis(self.quantile(0.5)), millis(self.quantile(0.99)), millis(self.max()))
    }

    /// How many of how many went well, and how long the longest took.
    pub fn share(&self) -> String {
        let good = self.count() - self.failed();
        let longest = self.max().map(|time| format!(" {:.2} s", time.as_secs_f64())).unwrap_or_default();
        format!("{good}/{}{longest}", self.count())
    }

    pub fn json(&self) -> Value {
        let millis = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
        json!({
            "calls": self.count(),
            "failed": self.failed(),
            "p50_ms": millis(self.quantile(0.5)),
            "p99_ms": millis(self.quantile(0.99)),
            "max_ms": millis(self.max()),
            "errors": self.errors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        let mut series = Series::default();
        assert_eq!((series.latency(), series.share()), ("-/-/-".to_owned(), "0/0".to_owned()));
        for ms in 1..=100 {
            series.record(Duration::from_millis(ms), (ms > 98).then(|| "503".to_owned()));
        }
        assert_eq!(series.latency(), "50/99/100");
        assert_eq!(series.share(), "98/100 0.10 s");
        assert_eq!(series.failed(), 2);
    }
}
