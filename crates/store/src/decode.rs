//! From the text of a request to the operation's own struct.
//!
//! serde_json would do, but for two things. A field that is given as null is a field that is left out, so that a client
//! which writes out every field it knows is understood; free JSON keeps its nulls. And serde's complaints speak of Rust.

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use waybill_kernel::{Error, Result};

use crate::complaint::complaint;

/// The name by which serde_json knows its raw values.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// `text` was checked where it came in: it is one JSON value of bounded depth.
pub fn decode<T: DeserializeOwned>(text: &str) -> Result<T> {
    // Which field is wrong is found out only when one is: keeping track of it costs every call.
    T::deserialize(Text(text))
        .or_else(|_| serde_path_to_error::deserialize(Text(text)).map_err(|error| Error::invalid(complaint(&error))))
}

type Complaint = serde_json::Error;

/// One value.
struct Text<'de>(&'de str);

impl<'de> Text<'de> {
    fn is_null(&self) -> bool {
        self.0.trim_ascii() == "null"
    }
}

macro_rules! as_serde_json_does {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
            serde_json::Deserializer::from_str(self.0).$method(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Text<'de> {
    type Error = Complaint;

    as_serde_json_does! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_unit deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        serde_json::Deserializer::from_str(self.0).deserialize_map(Within { visitor, may_be_null: fields })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        serde_json::Deserializer::from_str(self.0).deserialize_map(Within { visitor, may_be_null: &[] })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        serde_json::Deserializer::from_str(self.0).deserialize_seq(Within { visitor, may_be_null: &[] })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> std::result::Result<V::Value, Complaint> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        serde_json::Deserializer::from_str(self.0).deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        if name == RAW_VALUE {
            return serde_json::Deserializer::from_str(self.0).deserialize_newtype_struct(name, visitor);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        serde_json::Deserializer::from_str(self.0).deserialize_enum(name, variants, visitor)
    }
}

/// Gives what is inside an object or a list on as [`Text`] again.
struct Within<V> {
    visitor: V,
    /// The fields that are left out when they are null. One that nobody knows is refused, whatever it holds.
    may_be_null: &'static [&'static str],
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Within<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> std::result::Result<V::Value, A::Error> {
        let outcome = self.visitor.visit_map(Fields { fields, may_be_null: self.may_be_null, value: None });
        outcome.map_err(serde::de::Error::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> std::result::Result<V::Value, A::Error> {
        self.visitor.visit_seq(Items(items)).map_err(serde::de::Error::custom)
    }
}

struct Fields<'de, A> {
    fields: A,
    may_be_null: &'static [&'static str],
    value: Option<&'de RawValue>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<'de, A> {
    type Error = Complaint;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> std::result::Result<Option<K::Value>, Complaint> {
        loop {
            let field = self.fields.next_entry::<String, &'de RawValue>().map_err(serde::de::Error::custom)?;
            let Some((name, value)) = field else { return Ok(None) };
            if value.get() == "null" && self.may_be_null.contains(&name.as_str()) {
                continue;
            }
            self.value = Some(value);
            return seed.deserialize(name.into_deserializer()).map(Some);
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> std::result::Result<T::Value, Complaint> {
        let value =
            self.value.take().ok_or_else(|| serde::de::Error::custom("a value was asked for before its name"))?;
        seed.deserialize(Text(value.get()))
    }
}

struct Items<A>(A);

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<A> {
    type Error = Complaint;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> std::result::Result<Option<T::Value>, Complaint> {
        let item = self.0.next_element::<&'de RawValue>().map_err(serde::de::Error::custom)?;
        item.map(|item| seed.deserialize(Text(item.get()))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;
    use waybill_kernel::Json;

    use super::*;

    #[derive(Deserialize, Debug, Default, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(default)]
        tags: Vec<String>,
        #[serde(default)]
        count: u32,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        name: String,
        #[serde(default)]
        inner: Inner,
        #[serde(default)]
        list: Vec<Inner>,
        maybe: Option<Inner>,
        #[serde(default)]
        free: Json,
    }

    fn read(text: &str) -> std::result::Result<Outer, String> {
        serde_path_to_error::deserialize(Text(text)).map_err(|error| complaint(&error))
    }

    #[test]
    fn null_is_a_field_that_is_left_out_at_every_depth_and_stays_in_free_json() {
        let text = r#"{"name":"n","inner":null,"list":[{"tags":null,"count":1}],"maybe":{"count":null},
                       "free":{"a":null,"big":123456789012345678901234567890}}"#;
        let outer = read(text).unwrap();
        assert_eq!((outer.name.as_str(), outer.inner), ("n", Inner::default()));
        assert_eq!(outer.list, [Inner { tags: vec![], count: 1 }]);
        assert_eq!(outer.maybe, Some(Inner::default()));
        assert_eq!(outer.free.as_str(), r#"{"a":null,"big":123456789012345678901234567890}"#);
    }

    #[test]
    fn complaints_name_the_field() {
        for (text, expected) in [
            (r#"{"name":null}"#, "Missing field `name`."),
            (r#"{"name":"n","x":null}"#, "Unknown field `x`"),
            (r#"{"name":"n","inner":[]}"#, "inner: Must be an object, not a list."),
            (r#"{"name":"n","list":[{},{"tags":["a",7]}]}"#, "list[1].tags[1]: Must be a text, not 7."),
            (r#"{"name":{}}"#, "name: Must be a text, not an object."),
        ] {
            let complaint = read(text).unwrap_err();
            assert!(complaint.starts_with(expected), "{complaint}");
        }
        assert!(read(&json!([1]).to_string()).unwrap_err().contains("Must be an object"));
    }
}
