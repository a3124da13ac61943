//! Tasks that move dead letters: their rows, their handles, and how fast they go.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use waybill_kernel::{Error, Result, Tenant, Time, id_type};
use waybill_store::Topic;

use crate::rules::missing;

id_type!(
    /// Identifies a move task within its tenant.
    MoveTaskId
);

pub(crate) const RUNNING: &str = "RUNNING";
pub(crate) const COMPLETED: &str = "COMPLETED";
pub(crate) const CANCELLED: &str = "CANCELLED";
pub(crate) const FAILED: &str = "FAILED";

pub(crate) const PER_SECOND_MAX: i64 = 500;
const SECOND_US: i64 = 1_000_000;

/// As clients know it.
pub(crate) fn handle_of(task: MoveTaskId) -> String {
    URL_SAFE_NO_PAD.encode(task.as_bytes())
}

pub(crate) fn from_handle(handle: &str) -> Result<MoveTaskId> {
    if handle.is_empty() {
        return Err(missing("TaskHandle"));
    }
    let bytes = URL_SAFE_NO_PAD.decode(handle).map_err(|_| unknown_task())?;
    MoveTaskId::from_slice(&bytes).map_err(|_| unknown_task())
}

pub(crate) fn unknown_task() -> Error {
    Error::not_found("move task that is running")
}

/// How many messages a task may move now, and up to when its rate is used up after so many. What was not moved in the
/// latest second is not made up for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    now: Time,
    from: Time,
    per_second: Option<i64>,
}

impl Pace {
    pub(crate) fn new(now: Time, paced_to: Time, per_second: Option<i64>) -> Self {
        let from = paced_to.max(Time::from_micros(now.micros().saturating_sub(SECOND_US)));
        Self { now, from, per_second }
    }

    pub(crate) fn allowed(&self, at_most: i64) -> i64 {
        let passed_us = self.now.micros().saturating_sub(self.from.micros()).max(0);
        self.per_second.map_or(at_most, |rate| at_most.min(passed_us.saturating_mul(rate) / SECOND_US))
    }

    pub(crate) fn after(&self, moved: i64) -> Time {
        match self.per_second {
            None => self.now,
            Some(_) => Time::from_micros(self.from.micros() + cost_us(self.per_second, moved)),
        }
    }
}

/// How much of its time a task with this rate uses up for so many messages, in microseconds.
pub(crate) fn cost_us(per_second: Option<i64>, messages: i64) -> i64 {
    per_second.map_or(0, |rate| messages.saturating_mul(SECOND_US) / rate.max(1))
}

/// Woken when a task begins.
pub(crate) fn started() -> Topic {
    Topic::new("queue moves", Tenant(0), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_700_000_000_000_000;

    fn at(us: i64) -> Time {
        Time::from_micros(START + us)
    }

    #[test]
    fn a_rate_is_kept_and_nothing_is_saved_up() {
        for (passed_us, rate, at_most, allowed) in [
            (0, Some(10), 50, 0),
            (99_999, Some(10), 50, 0),
            (100_000, Some(10), 50, 1),
            (1_000_000, Some(10), 50, 10),
            (60_000_000, Some(10), 50, 10),
            (1_000_000, Some(500), 50, 50),
            (0, None, 50, 50),
        ] {
            assert_eq!(Pace::new(at(passed_us), at(0), rate).allowed(at_most), allowed, "{passed_us} {rate:?}");
        }
        let pace = Pace::new(at(350_000), at(0), Some(10));
        assert_eq!((pace.allowed(50), pace.after(3)), (3, at(300_000)));
        // Of what a batch had no room for nothing is lost.
        assert_eq!(Pace::new(at(1_000_000), at(0), Some(100)).after(50), at(500_000));
        assert_eq!((cost_us(Some(10), 3), cost_us(None, 3)), (300_000, 0));
    }

    #[test]
    fn a_handle_reads_back() {
        let task = MoveTaskId(waybill_kernel::id::Uuid::from_u128(7));
        assert_eq!(from_handle(&handle_of(task)).unwrap(), task);
        for bad in ["x", "not base64!", "AAAA"] {
            assert_eq!(from_handle(bad).unwrap_err().code(), waybill_kernel::Code::NotFound, "{bad}");
        }
        assert_eq!(from_handle("").unwrap_err().code(), waybill_kernel::Code::MissingParameter);
    }
}
