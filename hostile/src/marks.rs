//! What has to hold during every attack.

use std::time::Duration;

use serde_json::{Value, json};

use crate::series::Series;
use crate::witness::Seen;

const MIB: u64 = 1 << 20;
/// A good key is answered within this, whoever else is there.
pub const ANSWER_MAX: Duration = Duration::from_secs(2);
/// … and in the short form, which meets dev builds on busy machines, within this.
pub const ANSWER_SHORT_MAX: Duration = Duration::from_secs(8);
const RESIDENT_MAX_BYTES: u64 = 200 * MIB;
pub const RESTED_MAX_BYTES: u64 = 80 * MIB;
/// So soon after the attack the memory has been given back.
pub const REST_MAX: Duration = Duration::from_secs(60);
/// An attack that gets this far has won, and is called off for the sake of the machine.
pub const RESIDENT_CEILING_BYTES: u64 = 1_024 * MIB;

/// What an attack itself has to find, beside what it does to others.
pub struct Check {
    pub what: String,
    pub holds: bool,
}

impl Check {
    pub fn new(holds: bool, what: impl Into<String>) -> Self {
        Self { what: what.into(), holds }
    }
}

pub struct Outcome {
    pub name: &'static str,
    pub seen: Seen,
    /// How the process has ended, which it should not have.
    pub died: Option<String>,
    /// Why the attack did not go to its end.
    pub broken_off: Option<String>,
    /// How long after the attack the memory was given back.
    pub rested_after: Option<Duration>,
    pub checks: Vec<Check>,
    /// The mark for every answer.
    pub answer_max: Duration,
    /// What the attackers were answered.
    pub attackers: String,
}

impl Outcome {
    /// Every mark that was missed, in words; none when the server has held.
    pub fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        misses.extend(self.died.clone().map(|how| format!("the process {how}")));
        misses.extend(self.broken_off.clone());
        let seen = &self.seen;
        misses.extend(miss("an innocent call", &seen.during, self.answer_max));
        misses.extend(miss("an innocent call afterwards", &seen.after, self.answer_max));
        misses.extend(miss("a key used for the first time", &seen.new_keys, self.answer_max));
        misses.extend(miss("key revoke", &seen.revoke, self.answer_max));
        misses.extend(miss("/metrics", &seen.metrics, self.answer_max));
        if seen.resident_peak >= RESIDENT_MAX_BYTES {
            misses.push(format!("{} MiB resident", seen.resident_peak / MIB));
        }
        if self.rested_after.is_none() && self.died.is_none() {
            let still = seen.resident_now / MIB;
            misses.push(format!("{still} MiB still resident {} s afterwards", REST_MAX.as_secs()));
        }
        misses.extend(self.checks.iter().filter(|check| !check.holds).map(|check| format!("not so: {}", check.what)));
        misses
    }

    pub fn row(&self) -> Vec<String> {
        let Seen { before, during, after, new_keys, revoke, metrics, .. } = &self.seen;
        let (was, peak, now) =
            (self.seen.resident_before / MIB, self.seen.resident_peak / MIB, self.seen.resident_now / MIB);
        vec![
            self.name.to_owned(),
            before.latency(),
            during.latency(),
            after.latency(),
            format!("{}/{}/{}", before.failed(), during.failed(), after.failed()),
            format!("{was}/{peak}/{now}"),
            self.rested_after.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", time.as_secs_f64())),
            new_keys.share(),
            revoke.share(),
            metrics.share(),
            if self.misses().is_empty() { "PASS" } else { "FAIL" }.to_owned(),
        ]
    }

    pub fn json(&self) -> Value {
        let seen = &self.seen;
        json!({
            "attack": self.name,
            "pass": self.misses().is_empty(),
            "misses": self.misses(),
            "innocent": { "before": seen.before.json(), "during": seen.during.json(), "after": seen.after.json() },
            "resident_bytes": { "before": seen.resident_before, "peak": seen.resident_peak, "after": seen.resident_now },
            "rested_after_s": self.rested_after.map(|time| time.as_secs_f64()),
            "new_keys": seen.new_keys.json(),
            "revoke": seen.revoke.json(),
            "metrics": seen.metrics.json(),
            "checks": self.checks.iter().map(|check| json!({ "what": check.what, "holds": check.holds })).collect::<Vec<_>>(),
            "attackers": self.attackers,
        })
    }
}

pub const HEADINGS: [&str; 11] = [
    "attack",
    "before ms",
    "during ms",
    "after ms",
    "errors",
    "MiB",
    "rested s",
    "new keys",
    "revoke",
    "metrics",
    "verdict",
];

fn miss(what: &str, series: &Series, answer_max: Duration) -> Option<String> {
    if series.count() == 0 {
        return Some(format!("{what} was never tried"));
    }
    if let Some((error, count)) = series.errors.iter().max_by_key(|(_, count)| **count) {
        return Some(format!("{what} failed {} of {} times, {count} by: {error}", series.failed(), series.count()));
    }
    let longest = series.max().filter(|longest| *longest > answer_max)?;
    Some(format!("{what} took {:.1} s", longest.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Outcome {
        let mut series = Series::default();
        series.record(Duration::from_millis(3), None);
        let seen = Seen {
            before: series.clone(),
            during: series.clone(),
            after: series.clone(),
            new_keys: series.clone(),
            revoke: series.clone(),
            metrics: series,
            resident_before: 30 * MIB,
            resident_peak: 199 * MIB,
            resident_now: 79 * MIB,
        };
        let rested_after = Some(Duration::ZERO);
        let (died, broken_off, checks) = (None, None, vec![Check::new(true, "it holds")]);
        let answer_max = ANSWER_MAX;
        Outcome { name: "test", seen, died, broken_off, rested_after, checks, answer_max, attackers: String::new() }
    }

    #[test]
    fn each_mark_can_be_missed() {
        assert!(held().misses().is_empty(), "{:?}", held().misses());
        let spoil: [fn(&mut Outcome); 9] = [
            |outcome| outcome.died = Some("ended".to_owned()),
            |outcome| outcome.broken_off = Some("too much".to_owned()),
            |outcome| outcome.seen.during.record(ANSWER_MAX * 2, None),
            |outcome| outcome.seen.after.record(Duration::ZERO, Some("503".to_owned())),
            |outcome| outcome.seen.new_keys = Series::default(),
            |outcome| outcome.seen.revoke.record(Duration::ZERO, Some("503".to_owned())),
            |outcome| outcome.seen.resident_peak = RESIDENT_MAX_BYTES,
            |outcome| outcome.rested_after = None,
            |outcome| outcome.checks.push(Check::new(false, "it holds")),
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            let mut outcome = held();
            spoil(&mut outcome);
            assert_eq!(outcome.misses().len(), 1, "{number}: {:?}", outcome.misses());
        }
    }
}
