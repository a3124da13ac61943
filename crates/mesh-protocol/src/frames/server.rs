//! What the broker says to a member.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use waybill_kernel::Error;

use crate::challenge::ChallengeNonce;
use crate::epoch::EpochKey;
use crate::frames::Beside;
use crate::frames::records::{Message, Peer, SendResult, Subscriber};
use crate::identity::MemberKeys;
use crate::ids::{DeliveryId, MemberId, MeshId};
use crate::keys::PublicKey;
use crate::names::{MemberName, Slug, TopicName};
use crate::negotiation::FeatureResponse;

/// Frames without fields are structs all the same: serde would pass over the fields of a bare name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case", deny_unknown_fields)]
pub enum ServerFrame {
    Challenge(Challenge),
    HelloOk(HelloOk),
    FeatureNegotiationResponse(FeatureResponse),
    SendResult(Box<SendResult>),
    Deliver(Box<Deliver>),
    HistoryPage(HistoryPage),
    PeerJoin(Peer),
    PeerLeave(MemberGone),
    MemberRenamed(MemberRenamed),
    MemberKeypairRotated(KeypairRotated),
    MemberRevoked(MemberGone),
    EpochKey(EpochKey),
    EpochWanted(EpochWanted),
    /// A frame of the member was not carried out.
    Error(Refused),
    Ping {},
    Pong {},
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    pub nonce: ChallengeNonce,
}

/// Who the broker takes the member for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelloOk {
    pub mesh: MeshId,
    pub slug: Slug,
    pub member_id: MemberId,
    pub name: MemberName,
    pub plaintext: bool,
    pub broker_version: String,
}

/// On the wire the id stands beside the message's own fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Deliver {
    pub delivery_id: DeliveryId,
    #[serde(flatten)]
    pub message: Message,
}

impl<'de> Deserialize<'de> for Deliver {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (delivery_id, message) = deserializer.deserialize_map(Beside::new("delivery_id"))?;
        let delivery_id = delivery_id.ok_or_else(|| D::Error::missing_field("delivery_id"))?;
        Ok(Self { delivery_id, message })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryPage {
    /// In the order of their sequence numbers; as many as fit into a frame.
    pub messages: Vec<Message>,
    /// Where to go on: the last sequence number that was looked at, also where nothing of it was for this member.
    pub next_after: u64,
    pub more: bool,
}

/// Left, gone offline, or revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberGone {
    pub member_id: MemberId,
    pub key: PublicKey,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberRenamed {
    pub member_id: MemberId,
    pub key: PublicKey,
    pub name: MemberName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeypairRotated {
    pub member_id: MemberId,
    /// With both signatures: a peer verifies for itself that the old key has named the new one.
    pub rotation: crate::rotation::Rotation,
}

impl KeypairRotated {
    pub fn keys(&self) -> &MemberKeys {
        &self.rotation.keys
    }
}

/// The broker asks the keyholder to mint the key of the topic's next epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochWanted {
    pub topic: TopicName,
    /// The epoch to mint.
    pub epoch: u32,
    pub subscribers: Vec<Subscriber>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    pub error: String,
    pub message: String,
    pub help: String,
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Self {
        Self { error: error.code().to_string(), message: error.message().to_owned(), help: error.cure().to_owned() }
    }
}
