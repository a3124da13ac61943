//! What an answer of the broker means for the row: a pure function, one line of its test for each kind of answer.

use std::time::Duration;

use waybill_mesh_protocol::frames::{Outcome as Meaning, SendResult};

use crate::outbox::Outcome;

/// The longest pause that a broker may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

pub fn outcome(answer: &SendResult) -> Outcome {
    let reason = || match (&answer.error, &answer.conflict) {
        (Some(error), Some(conflict)) => format!("{} {error}: {conflict}", answer.status),
        (Some(error), None) => format!("{} {error}", answer.status),
        (None, _) => answer.status.to_string(),
    };
    match (answer.outcome(), answer.broker_message_id) {
        (Meaning::Done, Some(id)) => {
            let history_id = answer.history_id.map(|id| id.to_string());
            Outcome::Delivered { broker_message_id: id.to_string(), history_id }
        }
        // It says done and not as what: asked again, it says duplicate.
        (Meaning::Done, None) => {
            Outcome::Failed { reason: format!("{} without an id", answer.status), retry_after: None }
        }
        (Meaning::Dead, _) => Outcome::Refused { reason: reason() },
        (Meaning::Retry { after_seconds }, _) => {
            let retry_after = after_seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
            Outcome::Failed { reason: reason(), retry_after }
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::id::Uuid;
    use waybill_kernel::{Code, Error, Time};
    use waybill_mesh_protocol::{ClientMessageId, HistoryId, MessageId};

    use super::*;

    fn id() -> ClientMessageId {
        "m".parse().unwrap()
    }

    #[test]
    fn what_each_answer_means() {
        let (message, history) = (MessageId(Uuid::from_u128(1)), HistoryId(Uuid::from_u128(2)));
        let delivered = |history: Option<HistoryId>| Outcome::Delivered {
            broker_message_id: message.to_string(),
            history_id: history.map(|id| id.to_string()),
        };
        let refused = |reason: &str| Outcome::Refused { reason: reason.to_owned() };
        let failed = |reason: &str, after: Option<u64>| Outcome::Failed {
            reason: reason.to_owned(),
            retry_after: after.map(Duration::from_secs),
        };
        let said = |code: Code| SendResult::refused(id(), &Error::new(code, "no"));
        let slow = |seconds: u64| {
            SendResult::refused(id(), &Error::new(Code::RateLimitExceeded, "no").with("retry_after", seconds))
        };
        let odd = |status: u16| SendResult { status, ..said(Code::Internal) };
        for (answer, expected) in [
            (SendResult::accepted(id(), message, history), delivered(Some(history))),
            (SendResult::duplicate(id(), message, Some(history), true, Time::EPOCH), delivered(Some(history))),
            (SendResult::duplicate(id(), message, None, false, Time::EPOCH), delivered(None)),
            (SendResult::conflict(id(), None), refused("409 idempotency_key_reused: request_fingerprint_mismatch")),
            (said(Code::InvalidRequest), refused("400 invalid_request")),
            (said(Code::PayloadTooLarge), refused("413 payload_too_large")),
            (said(Code::Unauthorized), refused("401 unauthorized")),
            (said(Code::NotSubscribed), refused("403 not_subscribed")),
            (said(Code::TopicUnknown), refused("404 topic_unknown")),
            (said(Code::RateLimitExceeded), failed("429 rate_limit_exceeded", None)),
            (slow(7), failed("429 rate_limit_exceeded", Some(7))),
            (slow(1 << 40), failed("429 rate_limit_exceeded", Some(3_600))),
            (said(Code::EpochPending), failed("503 epoch_pending", None)),
            (said(Code::Unavailable), failed("503 unavailable", None)),
            (said(Code::Internal), failed("500 internal", None)),
            (said(Code::StorageFull), failed("507 storage_full", None)),
            (odd(302), failed("302 internal", None)),
            (odd(999), failed("999 internal", None)),
            (
                SendResult { broker_message_id: None, ..SendResult::accepted(id(), message, history) },
                failed("201 without an id", None),
            ),
        ] {
            assert_eq!(outcome(&answer), expected, "{answer:?}");
        }
    }
}
