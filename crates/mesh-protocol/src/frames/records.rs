//! What several frames, and the HTTP door, have in common.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Time};

use crate::envelope::Envelope;
use crate::fingerprint::Fingerprint;
use crate::identity::MemberKeys;
use crate::ids::{HistoryId, MemberId, MessageId};
use crate::names::{ClientMessageId, MemberName};

/// A member as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    pub member_id: MemberId,
    pub name: MemberName,
    /// To be verified by whoever uses them: they come through the broker.
    pub keys: MemberKeys,
    pub online: bool,
}

/// Whom a topic's next key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subscriber {
    pub member_id: MemberId,
    pub keys: MemberKeys,
}

/// A message as its recipients get it, pushed or from history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub client_message_id: ClientMessageId,
    pub broker_message_id: MessageId,
    pub history_id: HistoryId,
    /// The place in the history of the mesh.
    pub seq: u64,
    pub sender_id: MemberId,
    pub sender_name: MemberName,
    /// The keys that the sender had when it sent: the box of a direct message was made with these.
    pub sender: MemberKeys,
    pub accepted_at: Time,
    pub envelope: Envelope,
}

/// What became of a message that was sent. `status` is the one HTTP would have; the fields are those of the body there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendResult {
    pub client_message_id: ClientMessageId,
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_message_id: Option<MessageId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_id: Option<HistoryId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_available: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_fingerprint_prefix: Option<String>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
}

/// What the sender does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has the message, from now or from before.
    Done,
    /// The same request may succeed later.
    Retry {
        /// Not before so many seconds have passed, where the broker says so.
        after_seconds: Option<u64>,
    },
    /// It never will.
    Dead,
}

pub const IDEMPOTENCY_KEY_REUSED: &str = "idempotency_key_reused";
pub const REQUEST_FINGERPRINT_MISMATCH: &str = "request_fingerprint_mismatch";

impl SendResult {
    fn new(client_message_id: ClientMessageId, status: u16) -> Self {
        Self {
            client_message_id,
            status,
            broker_message_id: None,
            history_id: None,
            duplicate: None,
            history_available: None,
            first_seen_at: None,
            error: None,
            message: None,
            help: None,
            conflict: None,
            broker_fingerprint_prefix: None,
            retry_after: None,
        }
    }

    pub fn accepted(id: ClientMessageId, broker_message_id: MessageId, history_id: HistoryId) -> Self {
        Self {
            broker_message_id: Some(broker_message_id),
            history_id: Some(history_id),
            duplicate: Some(false),
            ..Self::new(id, 201)
        }
    }

    /// `history_id` is None once the message was pruned.
    pub fn duplicate(
        id: ClientMessageId,
        broker_message_id: MessageId,
        history_id: Option<HistoryId>,
        history_available: bool,
        first_seen_at: Time,
    ) -> Self {
        Self {
            broker_message_id: Some(broker_message_id),
            history_id,
            duplicate: Some(true),
            history_available: Some(history_available),
            first_seen_at: Some(first_seen_at),
            ..Self::new(id, 200)
        }
    }

    /// `fingerprint` of what the broker has under the id. None where that is another sender's, of which nothing is shown.
    pub fn conflict(id: ClientMessageId, fingerprint: Option<&Fingerprint>) -> Self {
        Self {
            error: Some(IDEMPOTENCY_KEY_REUSED.to_owned()),
            conflict: Some(REQUEST_FINGERPRINT_MISMATCH.to_owned()),
            broker_fingerprint_prefix: fingerprint.map(Fingerprint::prefix),
            ..Self::new(id, 409)
        }
    }

    /// Anything else that the broker has said no with.
    pub fn refused(id: ClientMessageId, error: &Error) -> Self {
        let text = |name: &str| error.detail(name).and_then(|value| value.as_str()).map(str::to_owned);
        Self {
            error: Some(error.code().to_string()),
            message: Some(error.message().to_owned()),
            help: Some(error.cure().to_owned()),
            conflict: text("conflict"),
            broker_fingerprint_prefix: text("broker_fingerprint_prefix"),
            retry_after: error.detail("retry_after").and_then(serde_json::Value::as_u64),
            ..Self::new(id, error.code().entry().http)
        }
    }

    /// A status that is not known is tried again: giving up loses a message, trying again does not.
    pub fn outcome(&self) -> Outcome {
        match self.status {
            200 | 201 => Outcome::Done,
            408 | 425 | 429 => Outcome::Retry { after_seconds: self.retry_after },
            // The tenant may have room again, and the message is good.
            _ if self.error.as_deref() == Some(Code::TooManyStoredBytes.entry().code) => {
                Outcome::Retry { after_seconds: self.retry_after }
            }
            400..=499 => Outcome::Dead,
            _ => Outcome::Retry { after_seconds: self.retry_after },
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Code;

    use super::*;

    #[test]
    fn what_a_sender_does_about_each_answer() {
        let id: ClientMessageId = "a".parse().unwrap();
        let again = |after_seconds| Outcome::Retry { after_seconds };
        for (status, expected) in [
            (201, Outcome::Done),
            (200, Outcome::Done),
            (400, Outcome::Dead),
            (401, Outcome::Dead),
            (404, Outcome::Dead),
            (409, Outcome::Dead),
            (413, Outcome::Dead),
            (408, again(None)),
            (429, again(None)),
            (500, again(None)),
            (503, again(None)),
            (507, again(None)),
            (0, again(None)),
            (302, again(None)),
        ] {
            assert_eq!(SendResult::new(id.clone(), status).outcome(), expected, "{status}");
        }
        let throttled = Error::new(Code::RateLimitExceeded, "Too many.").with("retry_after", 7);
        assert_eq!(SendResult::refused(id.clone(), &throttled).outcome(), again(Some(7)));
        let full = SendResult::refused(id.clone(), &Error::new(Code::TooManyStoredBytes, "Full."));
        assert_eq!((full.status, full.outcome()), (409, again(None)));
        let pending = SendResult::refused(id, &Error::new(Code::EpochPending, "Wait."));
        assert_eq!((pending.error.as_deref(), pending.outcome()), (Some("epoch_pending"), again(None)));
    }

    #[test]
    fn the_bodies_of_the_contract() {
        let id: ClientMessageId = "a".parse().unwrap();
        let (message, history) =
            (MessageId(waybill_kernel::id::Uuid::nil()), HistoryId(waybill_kernel::id::Uuid::max()));
        let shown = |result: &SendResult| serde_json::to_string(result).unwrap();
        let nil = "00000000-0000-0000-0000-000000000000";
        let max = "ffffffff-ffff-ffff-ffff-ffffffffffff";
        assert_eq!(
            shown(&SendResult::accepted(id.clone(), message, history)),
            format!(
                r#"{{"client_message_id":"a","status":201,"broker_message_id":"{nil}","history_id":"{max}","duplicate":false}}"#
            )
        );
        assert_eq!(
            shown(&SendResult::duplicate(id.clone(), message, None, false, Time::EPOCH)),
            format!(
                r#"{{"client_message_id":"a","status":200,"broker_message_id":"{nil}","duplicate":true,"history_available":false,"first_seen_at":"1970-01-01T00:00:00.000000Z"}}"#
            )
        );
        let fingerprint = Fingerprint::from_bytes([0xab; 32]);
        assert_eq!(
            shown(&SendResult::conflict(id.clone(), Some(&fingerprint))),
            r#"{"client_message_id":"a","status":409,"error":"idempotency_key_reused","conflict":"request_fingerprint_mismatch","broker_fingerprint_prefix":"abababababababab"}"#
        );
        assert!(!shown(&SendResult::conflict(id, None)).contains("prefix"));
    }
}
