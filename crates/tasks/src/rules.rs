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

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn words_read_back() {
        for status in Status::ALL {
            assert_eq!(Status::from_stored(status.as_str()).unwrap(), status);
        }
        assert!(Status::from_stored("lost").is_err());
    }
}
