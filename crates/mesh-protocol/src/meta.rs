//! Free JSON that travels with a message. It is part of the fingerprint, so it must mean one thing to everybody: no name twice,
//! no number that a reader with doubles reads as another.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};
use waybill_kernel::{Error, Result};

use crate::json;

/// Levels of brackets. Less than a frame may have, which holds it.
pub const META_DEPTH_MAX: usize = 32;
/// serde_json takes the text under such a name for JSON in its raw form, and would read it again without any bound.
const RESERVED: &str = "$serde_json::private::";

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Meta(Value);

impl Meta {
    pub fn parse(text: &str) -> Result<Self> {
        if json::is_too_deep(text.as_bytes()) {
            return Err(Error::invalid(format!("meta is nested more than {META_DEPTH_MAX} levels deep.")));
        }
        serde_json::from_str(text).map_err(|error| Error::invalid(format!("meta cannot be read: {error}.")))
    }

    /// A value that was built and not read is held to the same rules.
    pub fn from_value(value: Value) -> Result<Self> {
        Within(META_DEPTH_MAX)
            .deserialize(value)
            .map(Meta)
            .map_err(|error| Error::invalid(format!("meta cannot be used: {error}.")))
    }

    pub fn value(&self) -> &Value {
        &self.0
    }

    /// RFC 8785.
    pub fn canonical(&self) -> Result<String> {
        serde_json_canonicalizer::to_string(&self.0).map_err(Error::internal)
    }
}

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Within(META_DEPTH_MAX).deserialize(deserializer).map(Meta)
    }
}

impl JsonSchema for Meta {
    fn schema_name() -> Cow<'static, str> {
        "Meta".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

/// Builds a value of at most so many further levels.
#[derive(Clone, Copy)]
struct Within(usize);

impl Within {
    fn inside<E: serde::de::Error>(self) -> std::result::Result<Self, E> {
        let deeper = self.0.checked_sub(1).map(Self);
        deeper.ok_or_else(|| E::custom(format!("it is nested more than {META_DEPTH_MAX} levels deep")))
    }
}

impl<'de> DeserializeSeed<'de> for Within {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

type Built<E> = std::result::Result<Value, E>;

impl<'de> Visitor<'de> for Within {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Built<E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Built<E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Built<D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Built<E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Built<E> {
        refuse_inexact(value.unsigned_abs())?;
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Built<E> {
        refuse_inexact(value)?;
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Built<E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Built<E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Built<E> {
        refuse_nul(&text)?;
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Built<A::Error> {
        let inside = self.inside()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inside)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Built<A::Error> {
        let inside = self.inside()?;
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            refuse_nul(&name)?;
            if name.starts_with(RESERVED) {
                return Err(A::Error::custom(format!("a name must not begin with {RESERVED}")));
            }
            let value = fields.next_value_seed(inside)?;
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name is given twice in one object"));
            }
        }
        Ok(Value::Object(object))
    }
}

/// PostgreSQL keeps no NUL in a text.
fn refuse_nul<E: serde::de::Error>(text: &str) -> std::result::Result<(), E> {
    if text.contains('\0') { Err(E::custom("a text holds a NUL character")) } else { Ok(()) }
}

/// The canonical form writes numbers as doubles: two integers that are one double would have one form. Past 2^53 an integer is
/// therefore let through in the digits that the canonical form itself has for it, and in no others.
fn refuse_inexact<E: serde::de::Error>(magnitude: u64) -> std::result::Result<(), E> {
    if magnitude <= 1 << 53 || (magnitude as f64).to_string() == magnitude.to_string() {
        return Ok(());
    }
    Err(E::custom("an integer is beyond 2^53, which not every reader reads alike; send it as text"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_means_the_same_has_one_form() {
        let meta = Meta::parse(r#"{ "b": [1.0, "\u0041", 1e21], "a": null }"#).unwrap();
        assert_eq!(meta.canonical().unwrap(), r#"{"a":null,"b":[1,"A",1e+21]}"#);
        assert_eq!(Meta::parse(&meta.canonical().unwrap()).unwrap().canonical().unwrap(), meta.canonical().unwrap());
        // A double, and the same in the digits of its canonical form.
        for text in ["2.2167463967455176e16", "22167463967455176", "-9.223372036854775808e18", "-9223372036854776000"] {
            let canonical = Meta::parse(text).unwrap().canonical().unwrap();
            assert_eq!(Meta::parse(&canonical).unwrap().canonical().unwrap(), canonical, "{text}");
        }
        assert_eq!(Meta::from_value(json!({"n": 9_007_199_254_740_992_u64})).unwrap().value()["n"], json!(1_u64 << 53));
    }

    #[test]
    fn what_means_two_things_or_breaks_a_bound_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        Meta::parse(&nested(META_DEPTH_MAX)).unwrap();
        for text in [
            r#"{"a":1,"a":2}"#,
            r#"{"x":{"a":1,"\u0061":2}}"#,
            r#"{"a":"\u0000"}"#,
            r#"{"\u0000":1}"#,
            "9007199254740993",
            "-9007199254740993",
            "18446744073709551615",
            "9223372036854775807",
            "1e999",
            r#"{"$serde_json::private::RawValue":"[[1]]"}"#,
            r#"{"\u0024serde_json::private::Number":"1"}"#,
            "{",
            "",
            &nested(META_DEPTH_MAX + 1),
            &nested(100_000),
        ] {
            assert!(Meta::parse(text).is_err(), "{text:.60}");
        }
        assert!(Meta::from_value(json!({"n": u64::MAX})).is_err());
        assert!(Meta::from_value(json!({"$serde_json::private::RawValue": "1"})).is_err());
    }
}
