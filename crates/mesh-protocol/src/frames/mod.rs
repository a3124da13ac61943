//! Frames of the socket: JSON objects `{"t": …, "id"?: …, …}`. `t` says which; an `id` comes back with the answer. Fields that a
//! frame does not have are refused.

mod client;
mod records;
mod server;

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use waybill_kernel::{Error, Result};

pub use client::{ClientFrame, Delivered, EpochBoxes, Hello, HistoryRequest, Send};
pub use records::{Message, Outcome, Peer, SendResult, Subscriber};
pub use server::{
    Challenge, Deliver, EpochWanted, HelloOk, HistoryPage, KeypairRotated, MemberGone, MemberRenamed, Refused,
    ServerFrame,
};

use crate::json;
use crate::names::ClientMessageId;

/// Of one frame in either direction. Room for the largest message, and for a page of history.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Chosen by whoever asks; free text, like the ids of messages.
pub type FrameId = ClientMessageId;

/// A frame and the id that it carries beside its fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Framed<F> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<FrameId>,
    #[serde(flatten)]
    pub frame: F,
}

impl<F> From<F> for Framed<F> {
    fn from(frame: F) -> Self {
        Self { id: None, frame }
    }
}

impl<F> Framed<F> {
    /// The same id as the frame it answers.
    pub fn answer(id: Option<FrameId>, frame: F) -> Self {
        Self { id, frame }
    }
}

impl<F: DeserializeOwned> Framed<F> {
    /// # Errors
    /// `payload_too_large` past the bound, `invalid_request` for what is no such frame. The message says which field, and
    /// repeats nothing of the frame but names.
    pub fn read(text: &[u8]) -> Result<Self> {
        if text.len() > FRAME_BYTES_MAX {
            return Err(Error::new(
                waybill_kernel::Code::PayloadTooLarge,
                format!("A frame has at most {FRAME_BYTES_MAX} bytes."),
            ));
        }
        if json::is_too_deep(text) {
            return Err(Error::invalid(format!("The frame is nested more than {} levels deep.", json::DEPTH_MAX)));
        }
        serde_json::from_slice(text).map_err(|error| Error::invalid(format!("The frame cannot be read: {error}.")))
    }
}

impl<F: Serialize> Framed<F> {
    /// # Errors
    /// `payload_too_large` when the other side would refuse it.
    pub fn write(&self) -> Result<String> {
        let text = serde_json::to_string(self).map_err(Error::internal)?;
        if text.len() > FRAME_BYTES_MAX {
            return Err(Error::new(
                waybill_kernel::Code::PayloadTooLarge,
                format!("The frame would have {} bytes; it may have {FRAME_BYTES_MAX}.", text.len()),
            ));
        }
        Ok(text)
    }
}

/// Written by hand, because serde's `flatten` does not refuse unknown fields: the id is taken out on the way to the frame's own
/// reader, which sees every other field.
impl<'de, F: Deserialize<'de>> Deserialize<'de> for Framed<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Object(PhantomData))
    }
}

struct Object<F>(PhantomData<F>);

impl<'de, F: Deserialize<'de>> Visitor<'de> for Object<F> {
    type Value = Framed<F>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a frame")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> std::result::Result<Framed<F>, A::Error> {
        let mut id = None;
        let frame = F::deserialize(MapAccessDeserializer::new(WithoutId { fields, id: &mut id }))?;
        Ok(Framed { id, frame })
    }
}

struct WithoutId<'i, A> {
    fields: A,
    id: &'i mut Option<FrameId>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithoutId<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> std::result::Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.fields.next_key::<String>()? {
            if name != "id" {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if self.id.is_some() {
                return Err(A::Error::duplicate_field("id"));
            }
            *self.id = Some(self.fields.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> std::result::Result<V::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }
}
