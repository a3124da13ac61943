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
        let (id, frame) = deserializer.deserialize_map(Beside::new("id"))?;
        Ok(Self { id, frame })
    }
}

/// Reads an object as a `T`, and what it has under one further name as an `I`.
struct Beside<I, T> {
    name: &'static str,
    read: PhantomData<(I, T)>,
}

impl<I, T> Beside<I, T> {
    fn new(name: &'static str) -> Self {
        Self { name, read: PhantomData }
    }
}

impl<'de, I: Deserialize<'de>, T: Deserialize<'de>> Visitor<'de> for Beside<I, T> {
    type Value = (Option<I>, T);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> std::result::Result<Self::Value, A::Error> {
        let mut taken = None;
        let without = Without { name: self.name, fields, taken: &mut taken };
        let rest = T::deserialize(MapAccessDeserializer::new(without))?;
        Ok((taken, rest))
    }
}

struct Without<'t, I, A> {
    name: &'static str,
    fields: A,
    taken: &'t mut Option<I>,
}

impl<'de, I: Deserialize<'de>, A: MapAccess<'de>> MapAccess<'de> for Without<'_, I, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> std::result::Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.fields.next_key::<String>()? {
            if name != self.name {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if self.taken.is_some() {
                return Err(A::Error::duplicate_field(self.name));
            }
            *self.taken = Some(self.fields.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> std::result::Result<V::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use waybill_kernel::Code;

    use super::*;

    fn client(frame: &Value) -> Result<Framed<ClientFrame>> {
        Framed::read(frame.to_string().as_bytes())
    }

    #[test]
    fn an_id_stands_beside_the_fields_of_every_frame() {
        let read = client(&json!({"t": "history", "id": "h1", "after": 3, "limit": 10})).unwrap();
        assert_eq!(read.id.as_ref().map(FrameId::as_str), Some("h1"));
        assert_eq!(read.frame, ClientFrame::History(HistoryRequest { after: 3, limit: 10 }));
        let answer = Framed::answer(read.id, ServerFrame::Pong {});
        assert_eq!(answer.write().unwrap(), r#"{"id":"h1","t":"pong"}"#);
        assert_eq!(Framed::from(ClientFrame::Ping {}).write().unwrap(), r#"{"t":"ping"}"#);
    }

    #[test]
    fn what_a_frame_does_not_have_is_refused() {
        client(&json!({"t": "ping"})).unwrap();
        client(&json!({"limit": 1, "t": "history", "after": 1})).unwrap();
        for frame in [
            json!({"t": "ping", "x": 1}),
            json!({"t": "pong", "after": 1}),
            json!({"t": "history", "after": 1, "limit": 1, "x": null}),
            json!({"t": "history", "after": 1}),
            json!({"t": "history", "after": -1, "limit": 1}),
            json!({"t": "history", "after": "1", "limit": 1}),
            json!({"t": "challenge", "nonce": "00".repeat(32)}),
            json!({"t": "unknown"}),
            json!({"t": 1}),
            json!({"id": "x"}),
            json!({"t": "ping", "id": ""}),
            json!({"t": "ping", "id": 1}),
            json!([{"t": "ping"}]),
            json!("ping"),
        ] {
            assert_eq!(client(&frame).unwrap_err().code(), Code::InvalidRequest, "{frame}");
        }
        for text in
            [r#"{"t":"ping","t":"ping"}"#, r#"{"t":"ping","id":"a","id":"b"}"#, r#"{"t":"ping"} x"#, "", "{", "\u{0}"]
        {
            assert!(Framed::<ClientFrame>::read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Framed::<ClientFrame>::read(b"{\"t\":\"ping\xff\"}").is_err());
    }

    #[test]
    fn large_and_deep_frames_are_refused_before_they_are_parsed() {
        let large = format!(r#"{{"t":"ping","id":"{}"}}"#, "x".repeat(FRAME_BYTES_MAX));
        assert_eq!(Framed::<ClientFrame>::read(large.as_bytes()).unwrap_err().code(), Code::PayloadTooLarge);
        for deep in ["[".repeat(FRAME_BYTES_MAX), r#"{"t":"#.repeat(100_000), format!("{}1", "[{\"a\":".repeat(50_000))]
        {
            let refused = Framed::<ClientFrame>::read(deep.as_bytes()).unwrap_err();
            assert!(refused.message().contains("levels deep"), "{refused}");
        }
    }

    #[test]
    fn a_delivery_has_the_fields_of_its_message_beside_its_id() {
        let text = Framed::from(crate::tests::any::delivery()).write().unwrap();
        let object: Value = serde_json::from_str(&text).unwrap();
        for name in ["t", "delivery_id", "seq", "envelope", "client_message_id", "sender"] {
            assert!(object.get(name).is_some(), "{name} in {text}");
        }
        let Framed { frame, .. } = Framed::<ServerFrame>::read(text.as_bytes()).unwrap();
        assert_eq!(frame, crate::tests::any::delivery());
        let mut more = object.clone();
        more["more"] = json!(1);
        let mut less = object.clone();
        less.as_object_mut().unwrap().remove("delivery_id");
        for frame in [more, less] {
            assert!(Framed::<ServerFrame>::read(frame.to_string().as_bytes()).is_err(), "{frame}");
        }
    }
}
