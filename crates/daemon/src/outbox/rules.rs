//! What the outbox decides, without a database: the accept table, when a message is tried again, when it has become too old,
//! and how full the outbox is.

use std::time::Duration;

use serde::Serialize;
use waybill_kernel::{Entropy, Error, Result, Time};

/// SHA-256 of a request, as `waybill_mesh_protocol` makes it.
pub type Digest = [u8; 32];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Pending,
    Inflight,
    Done,
    Dead,
    Aborted,
}

impl Status {
    pub const ALL: [Status; 5] = [Status::Pending, Status::Inflight, Status::Done, Status::Dead, Status::Aborted];

    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Inflight => "inflight",
            Status::Done => "done",
            Status::Dead => "dead",
            Status::Aborted => "aborted",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    pub(super) fn from_stored(text: &str) -> Result<Self> {
        Self::named(text).ok_or_else(|| Error::internal(format!("the outbox holds a status {text:?}")))
    }
}

/// The row that has the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub status: Status,
    pub request_fingerprint: Digest,
    pub broker_message_id: Option<String>,
    pub history_id: Option<String>,
    pub last_error: Option<String>,
}

/// What a request under an id means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody has had the id: a pending row is written.
    Insert,
    /// 202: it is on its way already.
    Queued,
    Inflight,
    /// 200: it has arrived, and the broker is not asked again.
    Duplicate {
        broker_message_id: Option<String>,
        history_id: Option<String>,
    },
    /// 409.
    Conflict(Conflict),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub name: &'static str,
    /// Of the row that has the id: its first eight bytes are shown.
    pub request_fingerprint: Digest,
    pub broker_message_id: Option<String>,
    pub reason: Option<String>,
}

/// The accept table. Pure, so that every cell is a line of a test.
pub fn accept(found: Option<Found>, fingerprint: &Digest) -> Verdict {
    let Some(found) = found else { return Verdict::Insert };
    let is_same = found.request_fingerprint == *fingerprint;
    let conflict = |name, broker_message_id, reason| {
        Verdict::Conflict(Conflict { name, request_fingerprint: found.request_fingerprint, broker_message_id, reason })
    };
    match (found.status, is_same) {
        (Status::Pending, true) => Verdict::Queued,
        (Status::Pending, false) => conflict("outbox_pending_fingerprint_mismatch", None, None),
        (Status::Inflight, true) => Verdict::Inflight,
        (Status::Inflight, false) => conflict("outbox_inflight_fingerprint_mismatch", None, None),
        (Status::Done, true) => {
            Verdict::Duplicate { broker_message_id: found.broker_message_id, history_id: found.history_id }
        }
        (Status::Done, false) => conflict("outbox_done_fingerprint_mismatch", found.broker_message_id, None),
        (Status::Dead, true) => conflict("outbox_dead_fingerprint_match", None, found.last_error),
        (Status::Dead, false) => conflict("outbox_dead_fingerprint_mismatch", None, None),
        (Status::Aborted, true) => conflict("outbox_aborted_fingerprint_match", None, None),
        (Status::Aborted, false) => conflict("outbox_aborted_fingerprint_mismatch", None, None),
    }
}

/// Full jitter: anything from nothing to the doubled pause, so that many daemons that lost the same broker do not come back
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub least: Duration,
    pub most: Duration,
}

impl Backoff {
    /// The longest pause after so many attempts.
    pub fn ceiling(&self, attempts: u32) -> Duration {
        let doubled = 1_u32.checked_shl(attempts.saturating_sub(1)).and_then(|times| self.least.checked_mul(times));
        doubled.map_or(self.most, |pause| pause.min(self.most))
    }

    /// `drawn` is random, from all of its range.
    pub fn pause(&self, attempts: u32, drawn: u64) -> Duration {
        let pause_us = ((self.ceiling(attempts).as_micros() + 1) * u128::from(drawn)) >> 64;
        Duration::from_micros(u64::try_from(pause_us).unwrap_or(u64::MAX))
    }
}

/// What a pause is drawn by.
pub fn draw(entropy: &dyn Entropy) -> u64 {
    let mut bytes = [0; 8];
    entropy.fill(&mut bytes);
    u64::from_be_bytes(bytes)
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 201, or 200 for one that the broker had already.
    Delivered { broker_message_id: String, history_id: Option<String> },
    /// The broker will never take it: 409 or a permanent 4xx.
    Refused { reason: String },
    /// 429, 5xx, no answer, no connection.
    Failed {
        reason: String,
        /// As the broker has asked; the pause is never shorter.
        retry_after: Option<Duration>,
    },
}

/// What the row of an attempt becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    Done { broker_message_id: String, history_id: Option<String> },
    Dead { reason: String },
    Pending { reason: String, next_attempt_at: Time },
}

pub const TOO_OLD: &str = "outbox_max_age_exceeded";

/// `attempts` counts the one that has just ended.
pub fn settle(
    outcome: Outcome,
    attempts: u32,
    enqueued_at: Time,
    max_age: Duration,
    now: Time,
    pause: Duration,
) -> Settled {
    match outcome {
        Outcome::Delivered { broker_message_id, history_id } => Settled::Done { broker_message_id, history_id },
        Outcome::Refused { reason } => Settled::Dead { reason },
        Outcome::Failed { reason, .. } if is_too_old(enqueued_at, max_age, now) => {
            Settled::Dead { reason: format!("{TOO_OLD} after {attempts} attempts: {reason}") }
        }
        Outcome::Failed { reason, retry_after } => {
            let pause = pause.max(retry_after.unwrap_or_default());
            Settled::Pending { reason, next_attempt_at: now.after(pause) }
        }
    }
}

/// Beyond this the broker may have forgotten the id, and a retry could deliver a second copy.
pub fn is_too_old(enqueued_at: Time, max_age: Duration, now: Time) -> bool {
    now >= enqueued_at.after(max_age)
}

/// The latest arrival that [`is_too_old`], for statements.
pub fn too_old_until(max_age: Duration, now: Time) -> Time {
    let age_us = i64::try_from(max_age.as_micros()).unwrap_or(i64::MAX);
    Time::from_micros(now.micros().saturating_sub(age_us))
}

/// How full the outbox is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pressure {
    #[default]
    Normal,
    /// An event tells of it.
    High,
    /// New ids are refused; what is in the outbox is sent.
    Refusing,
    /// Only what comes in is taken. Draining goes on: it is what gives room again.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub bytes_max: u64,
    pub pressure_percent: u64,
    pub refuse_percent: u64,
}

impl Budget {
    pub fn percent(&self, used_bytes: u64) -> u64 {
        u64::try_from(u128::from(used_bytes) * 100 / u128::from(self.bytes_max.max(1))).unwrap_or(u64::MAX)
    }

    pub fn pressure(&self, used_bytes: u64) -> Pressure {
        match self.percent(used_bytes) {
            100.. => Pressure::Full,
            percent if percent >= self.refuse_percent => Pressure::Refusing,
            percent if percent >= self.pressure_percent => Pressure::High,
            _ => Pressure::Normal,
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    const SAME: Digest = [1; 32];
    const OTHER: Digest = [2; 32];

    fn found(status: Status) -> Found {
        Found {
            status,
            request_fingerprint: SAME,
            broker_message_id: Some("m1".to_owned()),
            history_id: Some("h1".to_owned()),
            last_error: Some("why".to_owned()),
        }
    }

    #[test]
    fn the_accept_table() {
        let conflict = |name, broker: Option<&str>, reason: Option<&str>| {
            let (broker_message_id, reason) = (broker.map(str::to_owned), reason.map(str::to_owned));
            Verdict::Conflict(Conflict { name, request_fingerprint: SAME, broker_message_id, reason })
        };
        let duplicate =
            Verdict::Duplicate { broker_message_id: Some("m1".to_owned()), history_id: Some("h1".to_owned()) };
        for (status, fingerprint, expected) in [
            (None, SAME, Verdict::Insert),
            (Some(Status::Pending), SAME, Verdict::Queued),
            (Some(Status::Pending), OTHER, conflict("outbox_pending_fingerprint_mismatch", None, None)),
            (Some(Status::Inflight), SAME, Verdict::Inflight),
            (Some(Status::Inflight), OTHER, conflict("outbox_inflight_fingerprint_mismatch", None, None)),
            (Some(Status::Done), SAME, duplicate),
            (Some(Status::Done), OTHER, conflict("outbox_done_fingerprint_mismatch", Some("m1"), None)),
            (Some(Status::Dead), SAME, conflict("outbox_dead_fingerprint_match", None, Some("why"))),
            (Some(Status::Dead), OTHER, conflict("outbox_dead_fingerprint_mismatch", None, None)),
            (Some(Status::Aborted), SAME, conflict("outbox_aborted_fingerprint_match", None, None)),
            (Some(Status::Aborted), OTHER, conflict("outbox_aborted_fingerprint_mismatch", None, None)),
        ] {
            assert_eq!(accept(status.map(found), &fingerprint), expected, "{status:?}");
        }
    }

    #[test]
    fn the_pause_doubles_to_its_bound_and_is_drawn_from_all_of_it() {
        let backoff = Backoff { least: Duration::from_secs(1), most: Duration::from_secs(60) };
        let ceilings = [1, 2, 3, 6, 7, 8, 31, 33, 64, u32::MAX].map(|attempts| backoff.ceiling(attempts).as_secs());
        assert_eq!(ceilings, [1, 2, 4, 32, 60, 60, 60, 60, 60, 60]);
        let entropy = SeededEntropy::new(1);
        let drawn: Vec<_> = (0..1_000).map(|_| backoff.pause(7, draw(&entropy))).collect();
        assert!(drawn.iter().all(|pause| *pause <= backoff.most));
        for quarter in 0..4 {
            let within = |pause: &&Duration| (quarter * 15..(quarter + 1) * 15).contains(&pause.as_secs());
            assert!(drawn.iter().filter(within).count() > 150, "quarter {quarter}");
        }
    }

    #[test]
    fn what_becomes_of_an_attempt() {
        let (at, age) = (Time::from_micros(0), Duration::from_secs(100));
        let failed = |retry_after| Outcome::Failed { reason: "503".to_owned(), retry_after };
        let pause = Duration::from_secs(2);
        let becomes = |outcome, now_s| settle(outcome, 3, at, age, at.after(Duration::from_secs(now_s)), pause);
        let pending =
            |s| Settled::Pending { reason: "503".to_owned(), next_attempt_at: at.after(Duration::from_secs(s)) };
        assert_eq!(becomes(failed(None), 10), pending(12));
        assert_eq!(becomes(failed(Some(Duration::from_secs(1))), 10), pending(12));
        assert_eq!(becomes(failed(Some(Duration::from_secs(5))), 10), pending(15));
        assert_eq!(becomes(failed(None), 99), pending(101));
        let dead = Settled::Dead { reason: "outbox_max_age_exceeded after 3 attempts: 503".to_owned() };
        assert_eq!(becomes(failed(None), 100), dead);
        let delivered = Outcome::Delivered { broker_message_id: "m".to_owned(), history_id: None };
        let done = Settled::Done { broker_message_id: "m".to_owned(), history_id: None };
        assert_eq!(becomes(delivered, 1_000), done, "an answer counts however late it comes");
        assert_eq!(
            becomes(Outcome::Refused { reason: "409".to_owned() }, 0),
            Settled::Dead { reason: "409".to_owned() }
        );
    }

    #[test]
    fn statements_find_the_same_too_old() {
        let (now, age) = (Time::from_micros(1_000_000), Duration::from_micros(300));
        let until = too_old_until(age, now);
        for (enqueued_at, expected) in [(until.micros() - 1, true), (until.micros(), true), (until.micros() + 1, false)]
        {
            assert_eq!(is_too_old(Time::from_micros(enqueued_at), age, now), expected, "{enqueued_at}");
        }
        assert_eq!(too_old_until(Duration::MAX, now), Time::from_micros(1_000_000 - i64::MAX));
    }

    #[test]
    fn pressure_follows_the_budget() {
        let budget = Budget { bytes_max: 1_000, pressure_percent: 80, refuse_percent: 95 };
        for (used, expected) in [
            (0, Pressure::Normal),
            (799, Pressure::Normal),
            (800, Pressure::High),
            (949, Pressure::High),
            (950, Pressure::Refusing),
            (999, Pressure::Refusing),
            (1_000, Pressure::Full),
            (u64::MAX, Pressure::Full),
        ] {
            assert_eq!(budget.pressure(used), expected, "{used}");
        }
    }
}
