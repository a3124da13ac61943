//! Reading JSON from the network: bounded in bytes, time and depth, and strict about names.

use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};
use waybill_kernel::{Code, Error, Result};

pub(crate) async fn read(body: Body, bytes_max: usize, patience: Duration) -> Result<bytes::Bytes> {
    let collected = tokio::time::timeout(patience, Limited::new(body, bytes_max).collect()).await;
    let late = |_| Error::new(Code::RequestTimeout, Code::RequestTimeout.entry().title);
    match collected.map_err(late)? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("The body has more than {bytes_max} bytes.");
            Err(Error::new(Code::PayloadTooLarge, message).with("limit_bytes", bytes_max))
        }
        Err(error) => Err(Error::invalid("The body could not be read to its end.").because(error)),
    }
}

/// serde_json keeps the last of two equal names; which one the caller meant nobody knows, so both are refused.
pub(crate) fn parse(body: &[u8]) -> Result<Json> {
    let text = std::str::from_utf8(body).map_err(|_| Error::invalid("The body is not UTF-8."))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = Strict.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| Error::invalid(format!("The body is not valid JSON: {error}.")))
}

/// Builds a [`Json`] and refuses a name that stands twice in one object.
#[derive(Clone, Copy)]
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Json;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Json;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Json, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Json, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> std::result::Result<Json, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Json, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> std::result::Result<Json, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let value = fields.next_value_seed(self)?;
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:?} is given twice")));
            }
            object.insert(name, value);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn doubled_names_and_what_is_not_json_are_refused() {
        let parsed = parse(br#"{"a": {"b": [1, -2, 2.5, "x", null, true]}}"#).unwrap();
        assert_eq!(parsed, json!({"a": {"b": [1, -2, 2.5, "x", null, true]}}));
        let deep = [b"{\"a\":".repeat(200), b"1".to_vec(), b"}".repeat(200)].concat();
        let bad: [&[u8]; 7] =
            [b"{", b"{} x", b"{\"a\":1,\"a\":2}", b"{\"x\":{\"a\":1,\"a\":2}}", b"\xff", b"{\"a\":1e999}", &deep];
        for body in bad {
            assert_eq!(parse(body).unwrap_err().code(), Code::InvalidRequest, "{}", String::from_utf8_lossy(body));
        }
    }
}
