//! What a member says to the broker.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::envelope::Envelope;
use crate::epoch::EpochBox;
use crate::fingerprint::Fingerprint;
use crate::ids::{DeliveryId, MeshId};
use crate::keys::{PublicKey, Signature};
use crate::names::{ClientMessageId, TopicName};
use crate::negotiation::FeatureRequest;

/// Frames without fields are structs all the same: serde would pass over the fields of a bare name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientFrame {
    Hello(Hello),
    FeatureNegotiationRequest(FeatureRequest),
    Send(Box<Send>),
    Delivered(Delivered),
    History(HistoryRequest),
    EpochBoxes(EpochBoxes),
    Ping {},
    Pong {},
}

/// The answer to the challenge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    pub mesh: MeshId,
    pub key: PublicKey,
    /// Whole seconds since 1970, by the member's clock.
    pub time: i64,
    /// As [`crate::challenge::sign`] makes it.
    pub signature: Signature,
    /// Name and version of the program, for the audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}

/// Also the body of `POST /mesh/v1/messages`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Send {
    pub client_message_id: ClientMessageId,
    pub envelope: Envelope,
    /// As the sender has frozen it. The broker computes it from the envelope in any case, and refuses one that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_fingerprint: Option<Fingerprint>,
}

/// The delivery is in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivered {
    pub delivery_id: DeliveryId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryRequest {
    /// The last sequence number that was seen; 0 for all that there is.
    pub after: u64,
    pub limit: u32,
}

/// The keyholder's answer to `epoch_wanted`: a box for every subscriber that was named there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochBoxes {
    pub topic: TopicName,
    pub epoch: u32,
    pub boxes: Vec<EpochBox>,
}
