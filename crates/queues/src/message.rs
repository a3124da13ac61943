//! A message as it is sent and as it is received.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use waybill_kernel::id_type;

id_type!(
    /// Identifies a message to those who send and receive it.
    MessageId
);

/// What is beside the body, by its name.
pub type MessageAttributes = BTreeMap<String, MessageAttribute>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct MessageAttribute {
    /// `String`, `Number` or `Binary`, with a label of the sender's after a dot if there is one.
    #[serde(default)]
    pub data_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_value: Option<Blob>,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

impl MessageAttribute {
    pub fn is_binary(&self) -> bool {
        self.data_type.split('.').next() == Some("Binary")
    }

    /// The value that the type asks for; empty when it is missing.
    pub fn given(&self) -> Given<'_> {
        if self.is_binary() {
            Given::Binary(self.binary_value.as_ref().map_or(&[], |blob| &blob.0))
        } else {
            Given::Text(self.string_value.as_deref().unwrap_or_default())
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct Message {
    pub message_id: MessageId,
    /// Shown to delete the message, or to change how long it stays invisible.
    pub receipt_handle: String,
    #[serde(rename = "MD5OfBody")]
    pub md5_of_body: String,
    pub body: String,
    /// What the queue knows about it, as far as it was asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub message_attributes: MessageAttributes,
    /// Of those in this answer.
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    pub md5_of_message_attributes: Option<String>,
    /// Of a partitioned queue.
    #[serde(skip)]
    #[schemars(skip)]
    pub partition: Option<u32>,
    /// The number of a large one that still lacks what its sender wrote.
    #[serde(skip)]
    #[schemars(skip)]
    pub unread: Option<i64>,
}

/// Bytes, which JSON carries as base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

/// With padding, as SQS writes it, and tolerant of clients that leave it out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        BASE64.decode(text.as_bytes()).map(Blob).map_err(|_| de::Error::custom("must be base64"))
    }
}

impl JsonSchema for Blob {
    fn schema_name() -> Cow<'static, str> {
        "Blob".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "contentEncoding": "base64" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_reads_as_sdks_write_it() {
        let text = r#"{"DataType":"Binary.png","BinaryValue":"AAEC/w==","StringListValues":[],"BinaryListValues":[]}"#;
        let attribute: MessageAttribute = serde_json::from_str(text).unwrap();
        assert_eq!(attribute.given(), Given::Binary(&[0, 1, 2, 255]));
        let written = serde_json::to_string(&attribute).unwrap();
        assert_eq!(written, r#"{"DataType":"Binary.png","BinaryValue":"AAEC/w=="}"#);
        assert_eq!(serde_json::from_str::<Blob>(r#""AAEC/w""#).unwrap().0, [0, 1, 2, 255]);
        assert!(serde_json::from_str::<Blob>(r#""not base64!""#).is_err());
    }
}
