//! What an answer means for a delivery and for its endpoint. Pure.

use std::time::Duration;

use waybill_kernel::Time;

/// After the first failed attempt, the second, and so on; the last stays. Each is made longer or shorter by up to a fifth, so
/// that those who failed together do not come back together.
const WAITS_S: [u64; 8] = [5, 30, 120, 900, 3_600, 14_400, 28_800, 43_200];

/// After the first turn in which an endpoint did not answer; it doubles with each further one …
const REST: Duration = Duration::from_secs(1);
/// … up to this. Its deliveries have waits of their own; this is for the next that is due, whichever it is.
const REST_MAX: Duration = Duration::from_secs(60);

/// An endpoint that asks to be left alone for longer is believed only up to here: by mistake it could ask for years.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// What came of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// 2xx.
    Accepted { status: u16 },
    /// Somebody is there and does not want this one.
    Refused { status: u16 },
    /// 410: nothing more is wanted.
    Gone,
    /// Nobody there, or in no state to answer; perhaps with the time it asks to be left alone for.
    Silent { status: Option<u16>, why: String, retry_after: Option<Duration> },
    /// It cannot be sent at all.
    Unsendable { why: String },
}

impl Answer {
    /// `retry_after_s` is what its header Retry-After says in seconds.
    pub(crate) fn of_status(status: u16, retry_after_s: Option<u64>) -> Self {
        let retry_after = retry_after_s.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        match status {
            200..=299 => Answer::Accepted { status },
            410 => Answer::Gone,
            408 | 429 | 500.. => Answer::Silent { status: Some(status), why: answered(status), retry_after },
            _ => Answer::Refused { status },
        }
    }

    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Answer::Accepted { status } | Answer::Refused { status } => Some(*status),
            Answer::Gone => Some(410),
            Answer::Silent { status, .. } => *status,
            Answer::Unsendable { .. } => None,
        }
    }

    /// What the owner is told; None where all is well.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Answer::Accepted { .. } => None,
            Answer::Refused { status: status @ 300..=399 } => {
                Some(format!("It answered {status}; redirects are not followed."))
            }
            Answer::Refused { status } => Some(answered(*status)),
            Answer::Gone => Some(answered(410)),
            Answer::Silent { why, .. } | Answer::Unsendable { why } => Some(why.clone()),
        }
    }

    /// For how long it asks to be left alone, as far as it is believed.
    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Answer::Silent { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// The endpoint is not worth asking for the next one at once.
    pub(crate) const fn is_silence(&self) -> bool {
        matches!(self, Answer::Silent { .. } | Answer::Gone)
    }
}

fn answered(status: u16) -> String {
    format!("It answered {status}.")
}

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Pending { next_at: Time },
    Delivered,
    Failed,
}

impl State {
    pub(crate) const PENDING: &'static str = "pending";

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            State::Pending { .. } => Self::PENDING,
            State::Delivered => "delivered",
            State::Failed => "failed",
        }
    }
}

/// After an attempt, which `attempts` counts. `chance` is any number.
pub(crate) fn after(answer: &Answer, attempts: i64, now: Time, gives_up_at: Time, chance: u32) -> State {
    match answer {
        Answer::Accepted { .. } => State::Delivered,
        Answer::Gone | Answer::Unsendable { .. } => State::Failed,
        Answer::Refused { .. } | Answer::Silent { .. } => {
            let next_at = now.after(wait(attempts, chance).max(answer.retry_after()));
            if next_at < gives_up_at { State::Pending { next_at } } else { State::Failed }
        }
    }
}

fn wait(attempts: i64, chance: u32) -> Duration {
    let at = usize::try_from(attempts.saturating_sub(1)).unwrap_or(0).min(WAITS_S.len() - 1);
    Duration::from_secs(WAITS_S[at]).mul_f64(0.8 + 0.4 * f64::from(chance) / f64::from(u32::MAX))
}

/// How an endpoint has been lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// Turns in a row in which it did not answer.
    pub(crate) failures: i64,
    /// The first failure since the latest success.
    pub(crate) failing_since: Option<Time>,
}

/// Why an endpoint gets nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disabled {
    Gone,
    TooLong,
}

impl Disabled {
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Disabled::Gone => "It answered 410: it wants nothing more.",
            Disabled::TooLong => "It has failed for too long without a success.",
        }
    }
}

impl Health {
    /// After one turn. A success among failures says that somebody is there.
    pub(crate) fn after(self, answers: &[Answer], now: Time) -> Self {
        if answers.iter().any(|answer| matches!(answer, Answer::Accepted { .. })) {
            return Self::default();
        }
        let silent = answers.iter().any(Answer::is_silence);
        let failed = answers.iter().any(|answer| !matches!(answer, Answer::Unsendable { .. }));
        let refused = failed && !silent;
        // Whoever refuses is there.
        let failures = if refused { 0 } else { self.failures.saturating_add(i64::from(silent)) };
        let failing_since = if failed { self.failing_since.or(Some(now)) } else { self.failing_since };
        Self { failures, failing_since }
    }

    pub(crate) fn disabled(self, answers: &[Answer], now: Time, after: Duration) -> Option<Disabled> {
        if answers.contains(&Answer::Gone) {
            return Some(Disabled::Gone);
        }
        let too_long = self.failing_since.is_some_and(|since| now.since(since) >= after);
        (too_long && !answers.is_empty()).then_some(Disabled::TooLong)
    }

    /// How long it is left alone after these answers, whatever is due.
    pub(crate) fn rest(self, answers: &[Answer]) -> Duration {
        let own = match self.failures.saturating_sub(1).min(16) {
            doublings @ 0.. => REST.saturating_mul(1 << doublings).min(REST_MAX),
            _ => Duration::ZERO,
        };
        // Of one that has accepted some, a single delivery waits longer, not the line.
        let asked = answers.iter().map(Answer::retry_after).max().filter(|_| self.failures > 0);
        own.max(asked.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn silent() -> Answer {
        Answer::Silent { status: None, why: "x".to_owned(), retry_after: None }
    }

    fn silence(status: u16, retry_after_s: Option<u64>) -> Answer {
        let retry_after = retry_after_s.map(Duration::from_secs);
        Answer::Silent { status: Some(status), why: answered(status), retry_after }
    }

    #[test]
    fn an_endpoint_that_asks_for_time_gets_it_up_to_an_hour() {
        assert_eq!(Answer::of_status(429, Some(90)), silence(429, Some(90)));
        assert_eq!(Answer::of_status(503, Some(u64::MAX)), silence(503, Some(3_600)));
        assert_eq!(Answer::of_status(404, Some(90)).retry_after(), Duration::ZERO, "it is there and refuses");
        let (now, later) = (Time::EPOCH, Time::EPOCH.after(72 * HOUR));
        let next = |answer: &Answer, attempts| match after(answer, attempts, now, later, u32::MAX / 2) {
            State::Pending { next_at } => next_at.since(now).as_secs_f64().round() as u64,
            state => panic!("{state:?}"),
        };
        assert_eq!(next(&silence(429, Some(90)), 1), 90, "longer than its own wait");
        assert_eq!(next(&silence(429, Some(90)), 4), 900, "its own wait is longer");
        let health = Health::default().after(&[silence(429, Some(90))], now);
        assert_eq!(health.rest(&[silent(), silence(429, Some(90))]).as_secs(), 90);
        assert_eq!(health.rest(&[silence(429, Some(0))]).as_secs(), 1);
        assert_eq!(Health::default().rest(&[silence(429, Some(90))]).as_secs(), 0, "others were accepted");
    }

    #[test]
    fn what_a_status_means() {
        for (status, answer) in [
            (200, Answer::Accepted { status: 200 }),
            (204, Answer::Accepted { status: 204 }),
            (299, Answer::Accepted { status: 299 }),
            (301, Answer::Refused { status: 301 }),
            (400, Answer::Refused { status: 400 }),
            (404, Answer::Refused { status: 404 }),
            (410, Answer::Gone),
            (408, silence(408, None)),
            (429, silence(429, None)),
            (500, silence(500, None)),
            (599, silence(599, None)),
        ] {
            assert_eq!(Answer::of_status(status, None), answer);
            assert_eq!((answer.status(), answer.error().is_none()), (Some(status), (200..300).contains(&status)));
        }
        assert!(Answer::of_status(302, None).error().unwrap().contains("redirects are not followed"));
    }

    #[test]
    fn attempts_come_later_and_later_until_they_would_come_too_late() {
        let mut at = Time::EPOCH;
        let gives_up_at = Time::EPOCH.after(72 * HOUR);
        let mut attempts = 0;
        let mut waits = Vec::new();
        loop {
            attempts += 1;
            match after(&silent(), attempts, at, gives_up_at, u32::MAX / 2) {
                State::Pending { next_at } => {
                    waits.push(next_at.since(at).as_secs_f64().round() as u64);
                    at = next_at;
                }
                state => break assert_eq!(state, State::Failed),
            }
        }
        assert_eq!(waits[..8], WAITS_S);
        assert_eq!((waits.len(), waits.last()), (11, Some(&43_200)), "and the wait stays");
        for (chance, seconds) in [(0, 4.0), (u32::MAX, 6.0)] {
            assert!((wait(1, chance).as_secs_f64() - seconds).abs() < 0.001);
        }
        assert_eq!(wait(i64::MIN, 0), wait(1, 0));
        let (now, later) = (Time::EPOCH, Time::EPOCH.after(HOUR));
        assert_eq!(after(&Answer::Accepted { status: 200 }, 1, now, later, 0), State::Delivered);
        assert_eq!(after(&Answer::Gone, 1, now, later, 0), State::Failed);
        assert_eq!(after(&Answer::Unsendable { why: String::new() }, 1, now, later, 0), State::Failed);
    }

    #[test]
    fn silence_adds_up_and_any_success_ends_it() {
        let at = |hours: u32| Time::EPOCH.after(hours * HOUR);
        let (good, bad) = (Answer::Accepted { status: 200 }, Answer::Refused { status: 400 });
        let health = Health::default().after(&[silent(), silent()], at(1));
        assert_eq!(health, Health { failures: 1, failing_since: Some(at(1)) }, "a turn counts once");
        let health = health.after(&[silent()], at(2));
        assert_eq!(health, Health { failures: 2, failing_since: Some(at(1)) });
        assert_eq!(health.after(std::slice::from_ref(&bad), at(3)), Health { failures: 0, failing_since: Some(at(1)) });
        assert_eq!(health.after(&[silent(), good.clone()], at(3)), Health::default());
        assert_eq!(health.after(&[], at(3)), health);
        assert_eq!(health.after(&[Answer::Unsendable { why: String::new() }], at(3)).failing_since, Some(at(1)));
        assert_eq!(Health::default().after(&[Answer::Unsendable { why: String::new() }], at(3)), Health::default());
        assert_eq!(Health::default().disabled(&[Answer::Gone], at(1), HOUR), Some(Disabled::Gone));
        assert_eq!(health.disabled(&[silent()], at(9), 9 * HOUR), None);
        assert_eq!(health.disabled(&[silent()], at(10), 9 * HOUR), Some(Disabled::TooLong));
        assert_eq!(health.disabled(&[], at(10), 9 * HOUR), None, "only an attempt disables");
    }

    #[test]
    fn a_silent_endpoint_rests_for_a_minute_at_most() {
        let rest = |failures| Health { failures, failing_since: None }.rest(&[]).as_secs();
        let rests = [0, 1, 2, 3, 6, 7, 40, i64::MAX].map(rest);
        assert_eq!(rests, [0, 1, 2, 4, 32, 60, 60, 60]);
    }
}
