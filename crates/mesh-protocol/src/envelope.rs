//! What a sender hands to the broker: where a message goes, and its bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Result};

use crate::bytes::Base64;
use crate::fingerprint::Fingerprint;
use crate::keys::{KeyId, PublicKey};
use crate::meta::Meta;
use crate::names::{ClientMessageId, TopicName};

pub const ENVELOPE_VERSION: u32 = 1;
pub const MENTIONS_MAX: usize = 64;
/// Of a reference that is neither a topic nor a key.
pub const REFERENCE_CHARS_MAX: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DestinationKind {
    Topic,
    Dm,
    Queue,
}

impl DestinationKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Dm => "dm",
            Self::Queue => "queue",
        }
    }

    /// None for a name that is none of these.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Topic, Self::Dm, Self::Queue].into_iter().find(|kind| kind.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    pub kind: DestinationKind,
    /// A topic's name, a recipient's key in hexadecimal digits, a queue's id.
    pub reference: String,
}

impl Destination {
    pub fn topic(topic: &TopicName) -> Self {
        Self { kind: DestinationKind::Topic, reference: topic.to_string() }
    }

    pub fn dm(recipient: &PublicKey) -> Self {
        Self { kind: DestinationKind::Dm, reference: recipient.to_string() }
    }

    /// The recipient of a direct message; None for any other destination.
    pub fn recipient(&self) -> Option<PublicKey> {
        (self.kind == DestinationKind::Dm).then(|| self.reference.parse().ok()).flatten()
    }

    /// Whether the reference can be one of its kind.
    pub fn check(&self) -> Result<()> {
        match self.kind {
            DestinationKind::Topic => self.reference.parse::<TopicName>().map(drop),
            DestinationKind::Dm => self.reference.parse::<PublicKey>().map(drop),
            DestinationKind::Queue => {
                let chars = self.reference.chars().count();
                if chars == 0 || chars > REFERENCE_CHARS_MAX || self.reference.chars().any(char::is_control) {
                    return Err(Error::invalid(format!(
                        "destination_ref must have 1 to {REFERENCE_CHARS_MAX} characters and no control character."
                    )));
                }
                Ok(())
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    Now,
    #[default]
    Next,
    Low,
}

impl Priority {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Next => "next",
            Self::Low => "low",
        }
    }

    /// None for a name that is none of these.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Now, Self::Next, Self::Low].into_iter().find(|priority| priority.name() == name)
    }
}

/// On a plaintext mesh the body is the message and `meta` the sender's. On any other mesh the body is the ciphertext of
/// [`crate::Plain`], `meta` is absent, and `key_id` (of a direct message: the recipient's key) or `epoch` (of a topic) says what
/// opens it.
///
/// Read from JSON it has the right fields of the right types; the rest is [`Envelope::check`], because the broker looks
/// for an earlier message under the same id before it judges anything else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    pub version: u32,
    pub destination_kind: DestinationKind,
    pub destination_ref: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<ClientMessageId>,
    #[serde(default)]
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Meta>,
    pub body: Base64,
    /// In the clear, and no part of the fingerprint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<PublicKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
}

impl Envelope {
    pub fn new(destination: Destination, body: Vec<u8>) -> Self {
        Self {
            version: ENVELOPE_VERSION,
            destination_kind: destination.kind,
            destination_ref: destination.reference,
            reply_to: None,
            priority: Priority::default(),
            meta: None,
            body: Base64(body),
            mentions: Vec::new(),
            key_id: None,
            epoch: None,
        }
    }

    pub fn destination(&self) -> Destination {
        Destination { kind: self.destination_kind, reference: self.destination_ref.clone() }
    }

    /// What the sender has frozen and the broker computes again.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        Fingerprint::of(
            &self.destination(),
            self.reply_to.as_ref().map(ClientMessageId::as_str),
            self.priority,
            self.meta.as_ref(),
            &self.body.0,
        )
    }

    /// Body and meta together: what the limit on inline payloads counts.
    pub fn payload_bytes(&self) -> Result<u64> {
        let meta = self.meta.as_ref().map(Meta::canonical).transpose()?.unwrap_or_default();
        Ok((self.body.0.len() + meta.len()) as u64)
    }

    /// What holds of every envelope, whatever the mesh: the version, the form of the destination, how many are mentioned, and
    /// that what names a key fits the destination. Sizes are the broker's to say.
    ///
    /// # Errors
    /// `invalid_request`, with the field.
    pub fn check(&self, plaintext: bool) -> Result<()> {
        if self.version != ENVELOPE_VERSION {
            return Err(Error::invalid(format!("version is {}; it must be {ENVELOPE_VERSION}.", self.version)));
        }
        self.destination().check()?;
        if self.mentions.len() > MENTIONS_MAX {
            return Err(Error::invalid(format!("mentions must have at most {MENTIONS_MAX} keys.")));
        }
        let (key, epoch) = (self.key_id.is_some(), self.epoch.is_some());
        let wrong = match (plaintext, self.destination_kind) {
            (true, _) if key || epoch => "A mesh in plain text has no key_id and no epoch",
            (true, _) => return Ok(()),
            (false, _) if self.meta.is_some() => "On an encrypted mesh meta is within the body",
            (false, DestinationKind::Dm) if !key || epoch => "A direct message has a key_id and no epoch",
            (false, DestinationKind::Topic) if key || !epoch => "A message to a topic has an epoch and no key_id",
            (false, _) => return Ok(()),
        };
        Err(Error::invalid(format!("{wrong}.")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(kind: DestinationKind, reference: &str) -> Envelope {
        Envelope::new(Destination { kind, reference: reference.to_owned() }, b"x".to_vec())
    }

    #[test]
    fn what_holds_of_every_envelope() {
        let key = "0f".repeat(32);
        let (dm, topic) = (to(DestinationKind::Dm, &key), to(DestinationKind::Topic, "build"));
        let key_id = Some(KeyId::from_bytes([1; 8]));
        let meta = Some(Meta::parse("{}").unwrap());
        let mentions = |count| vec![PublicKey::from_bytes([1; 32]); count];
        for (envelope, plain, encrypted) in [
            (dm.clone(), true, false),
            (topic.clone(), true, false),
            (Envelope { key_id, ..dm.clone() }, false, true),
            (Envelope { epoch: Some(1), ..dm.clone() }, false, false),
            (Envelope { key_id, epoch: Some(1), ..dm.clone() }, false, false),
            (Envelope { epoch: Some(0), ..topic.clone() }, false, true),
            (Envelope { key_id, ..topic.clone() }, false, false),
            (Envelope { meta: meta.clone(), ..topic.clone() }, true, false),
            (Envelope { meta, epoch: Some(1), ..topic.clone() }, false, false),
            (Envelope { mentions: mentions(MENTIONS_MAX), ..topic.clone() }, true, false),
            (Envelope { mentions: mentions(MENTIONS_MAX + 1), ..topic.clone() }, false, false),
            (Envelope { version: 2, ..topic }, false, false),
            (to(DestinationKind::Topic, "../x"), false, false),
            (to(DestinationKind::Topic, ""), false, false),
            (to(DestinationKind::Dm, &key.to_uppercase()), false, false),
            (to(DestinationKind::Dm, "bob"), false, false),
            (to(DestinationKind::Queue, "q"), true, true),
            (to(DestinationKind::Queue, ""), false, false),
            (to(DestinationKind::Queue, "a\0b"), false, false),
        ] {
            let checked = (envelope.check(true).is_ok(), envelope.check(false).is_ok());
            assert_eq!(checked, (plain, encrypted), "{envelope:?}");
        }
        assert_eq!(dm.destination().recipient(), Some(key.parse().unwrap()));
        assert_eq!(to(DestinationKind::Topic, &key).destination().recipient(), None);
    }

    #[test]
    fn what_cannot_be_read() {
        let good = r#"{"version":1,"destination_kind":"dm","destination_ref":"x","body":"eA=="}"#;
        let envelope: Envelope = serde_json::from_str(good).unwrap();
        assert_eq!((envelope.priority, envelope.body.0.as_slice()), (Priority::Next, b"x".as_slice()));
        for (from, to) in [
            ("eA==", "eA"),
            ("eA==", "eB=="),
            ("eA==", "e A="),
            ("eA==", "-_=="),
            ("\"dm\"", "\"dms\""),
            ("\"version\":1", "\"version\":\"1\""),
            ("{", "{\"more\":1,"),
            ("{", "{\"priority\":\"soon\","),
            ("{", "{\"reply_to\":\"\","),
            ("{", "{\"mentions\":[\"bob\"],"),
            ("{", "{\"epoch\":-1,"),
            ("{", "{\"key_id\":\"0F0F0F0F0F0F0F0F\","),
            ("{", "{\"version\":1,"),
        ] {
            let text = good.replacen(from, to, 1);
            assert!(serde_json::from_str::<Envelope>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_read_back() {
        for kind in [DestinationKind::Topic, DestinationKind::Dm, DestinationKind::Queue] {
            assert_eq!(DestinationKind::from_name(kind.name()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for priority in [Priority::Now, Priority::Next, Priority::Low] {
            assert_eq!(Priority::from_name(priority.name()), Some(priority));
            assert_eq!(serde_json::to_value(priority).unwrap(), priority.name());
        }
        assert_eq!((DestinationKind::from_name("x"), Priority::from_name("")), (None, None));
    }

    #[test]
    fn what_counts_as_payload() {
        let envelope = to(DestinationKind::Topic, "build");
        assert_eq!(envelope.payload_bytes().unwrap(), 1);
        let meta = Some(Meta::parse(r#"{ "a" : 1 }"#).unwrap());
        assert_eq!(Envelope { meta, ..envelope }.payload_bytes().unwrap(), 1 + 7);
    }
}
