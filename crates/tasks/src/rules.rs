//! The state machine of a task, as pure functions. No SQL, no clock.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Status {
    Queued,
    Leased,
    Running,
    Succeeded,
    Failed,
    Canceled,
}

impl Status {
    pub const ALL: [Status; 6] =
        [Status::Queued, Status::Leased, Status::Running, Status::Succeeded, Status::Failed, Status::Canceled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::Leased => "leased",
            Status::Running => "running",
            Status::Succeeded => "succeeded",
            Status::Failed => "failed",
            Status::Canceled => "canceled",
        }
    }

    pub fn from_stored(text: &str) -> Result<Self> {
        let found = Status::ALL.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| Error::internal(format!("a task has the stored status {text:?}")))
    }

    /// Nothing leaves these.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Status::Succeeded | Status::Failed | Status::Canceled)
    }

    /// Every edge of the state machine. Lease expiry and retry are the two ways back to the queue.
    pub const fn may_become(self, next: Status) -> bool {
        use Status::{Canceled, Failed, Leased, Queued, Running, Succeeded};
        matches!(
            (self, next),
            (Queued, Leased | Canceled)
                | (Leased, Running | Succeeded | Failed | Queued | Canceled)
                | (Running, Succeeded | Failed | Queued | Canceled)
        )
    }
}

/// What a reported failure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// Back to the queue, with this attempt, after this many seconds.
    Again {
        attempt: i64,
        delay_s: i64,
    },
    Final,
}

/// `attempt` is the number of failures before this one; `max_attempts` counts executions.
pub fn after_failure(
    attempt: i64,
    max_attempts: i64,
    retryable: bool,
    backoff_s: i64,
    backoff_s_max: i64,
) -> AfterFailure {
    if !retryable || attempt + 1 >= max_attempts {
        return AfterFailure::Final;
    }
    let doublings = u32::try_from(attempt).unwrap_or(u32::MAX).min(32);
    let delay_s = backoff_s.saturating_mul(1 << doublings).min(backoff_s_max);
    AfterFailure::Again { attempt: attempt + 1, delay_s }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::ops::{cancel_task, complete, fail, lease_next, report_progress};
    use crate::sweeps;

    #[test]
    fn nothing_leaves_a_terminal_state_and_everything_else_can_be_canceled() {
        for from in Status::ALL {
            for to in Status::ALL {
                assert!(!(from.is_terminal() && from.may_become(to)), "{from} -> {to}");
            }
            assert_eq!(from.may_become(Status::Canceled), !from.is_terminal(), "{from}");
            assert!(!from.may_become(from), "{from}");
        }
    }

    #[test]
    fn only_a_lease_leads_out_of_the_queue_to_an_outcome() {
        for outcome in [Status::Succeeded, Status::Failed, Status::Running] {
            assert!(!Status::Queued.may_become(outcome));
        }
    }

    /// Every statement of the crate that sets the status of a task.
    const WRITES: &[&str] = &[
        cancel_task::CANCEL,
        complete::SUCCEED,
        fail::AGAIN,
        fail::FINAL,
        lease_next::TAKE_FIRST[0],
        lease_next::TAKE_FIRST[1],
        lease_next::TAKE_ONE_OF,
        report_progress::RUNNING,
        sweeps::REQUEUE,
    ];

    /// The words between single quotes.
    fn quoted(text: &str) -> impl Iterator<Item = Status> + '_ {
        text.split('\'').skip(1).step_by(2).map(|word| Status::from_stored(word).unwrap())
    }

    /// The states that a statement takes a task out of, and the one it leaves it in. The guard is the last condition on
    /// the status of the row itself: before it stands at most what chooses the row.
    fn edges(sql: &str) -> (Vec<Status>, Status) {
        let set = sql.split_once("UPDATE tasks SET status = ").expect(sql).1;
        let guard = sql.rsplit_once(" AND status ").expect(sql).1;
        let guard = match guard.strip_prefix("IN (") {
            Some(list) => list.split_once(')').expect(sql).0,
            None => guard.strip_prefix("= ").and_then(|one| one.split_once(" AND")).expect(sql).0,
        };
        (quoted(guard).collect(), quoted(set).next().expect(sql))
    }

    #[test]
    fn every_write_of_a_status_is_guarded_by_the_table_and_the_table_has_no_other_edge() {
        let mut walked = HashSet::new();
        for sql in WRITES {
            let (from, to) = edges(sql);
            assert!(!from.is_empty(), "{sql}");
            // A report of one who has reported before changes nothing about the status.
            for from in from.into_iter().filter(|from| *from != to) {
                assert!(from.may_become(to), "{from} -> {to}: {sql}");
                walked.insert((from, to));
            }
        }
        for from in Status::ALL {
            for to in Status::ALL {
                assert_eq!(walked.contains(&(from, to)), from.may_become(to), "{from} -> {to}");
            }
        }
    }

    /// A statement that the test above does not know would not be compared with the table.
    #[test]
    fn every_write_of_a_status_is_known() {
        fn writes(source: &str) -> usize {
            let sets = source.split("UPDATE tasks SET ").skip(1).filter_map(|rest| rest.split("WHERE").next());
            sets.filter(|set| set.split(", ").any(|column| column.trim_start().starts_with("status = "))).count()
        }
        fn count(folder: &Path) -> usize {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let count = |path: PathBuf| match path.is_dir() {
                true => count(&path),
                // This file speaks of such statements and has none.
                false if path.ends_with("rules.rs") => 0,
                false => writes(&std::fs::read_to_string(&path).unwrap()),
            };
            entries.map(count).sum()
        }
        // Three claims are made of one text.
        let texts = WRITES.len() - 2;
        assert_eq!(count(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")), texts);
    }

    #[test]
    fn retries_wait_twice_as_long_each_time_and_end_with_the_last_attempt() {
        let after = |attempt| after_failure(attempt, 6, true, 30, 900);
        for (attempt, delay_s) in [(0, 30), (1, 60), (2, 120), (3, 240), (4, 480)] {
            assert_eq!(after(attempt), AfterFailure::Again { attempt: attempt + 1, delay_s });
        }
        assert_eq!(after(5), AfterFailure::Final);
        assert_eq!(after_failure(8, 100, true, 30, 900), AfterFailure::Again { attempt: 9, delay_s: 900 });
        assert_eq!(after_failure(0, 3, false, 30, 900), AfterFailure::Final);
        assert_eq!(after_failure(0, 1, true, 30, 900), AfterFailure::Final);
        assert_eq!(after_failure(70, 1000, true, i64::MAX, 900), AfterFailure::Again { attempt: 71, delay_s: 900 });
    }

    #[test]
    fn words_read_back() {
        for status in Status::ALL {
            assert_eq!(Status::from_stored(status.as_str()).unwrap(), status);
        }
        assert!(Status::from_stored("lost").is_err());
    }
}
