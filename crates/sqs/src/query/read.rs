//! From parameters to a typed request: a serde deserializer over the tree of their names.
//!
//! Members that are not there are left to the type, and parameters that are no member of it are ignored, as SQS does. Texts
//! become numbers and booleans where the type asks for them. A type that lets serde guess (`flatten`, `untagged`) would
//! get texts only.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use waybill_kernel::Result;

use super::complaint::Complaint;
use super::names;
use super::node::{Elements, Node};
use super::params::Params;

/// Reads the request of an action. The error names the parameter as the client wrote it.
pub fn read<'p, T: Deserialize<'p>>(action: &'p str, params: &'p Params<'_>) -> Result<T> {
    let whole = Value { node: Node::root(params), key: names::key(""), action };
    T::deserialize(whole).map_err(Complaint::into_error)
}

/// Something at a node; what it is, the type says.
#[derive(Clone, Copy)]
struct Value<'p> {
    node: Node<'p>,
    /// Where the entries of a map have their keys.
    key: &'static str,
    action: &'p str,
}

impl<'p> Value<'p> {
    fn text(self) -> std::result::Result<&'p str, Complaint> {
        let text = self.node.text();
        text.ok_or_else(|| Complaint::wrong("must be a single value, not one in parts").of(self.node.name))
    }

    fn wrong(self, text: &str) -> Complaint {
        Complaint::wrong(text).of(self.node.name)
    }

    /// A member or a part of this, by the name that Query has for it or else by its own: an empty list is written as
    /// `AttributeNames=` by some clients, though one that is not empty begins with `AttributeName.1=`.
    fn member(self, member: &str) -> Option<Self> {
        let element = names::element(member, self.action);
        let node = self.node.child(&element).or_else(|| match element {
            Cow::Borrowed(same) if same == member => None,
            _ => self.node.child(member),
        })?;
        Some(Self { node, key: names::key(&element), ..self })
    }

    fn name_of(self, part: &str) -> String {
        if self.node.name.is_empty() { part.to_owned() } else { format!("{}.{part}", self.node.name) }
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident;)*) => {
        $(fn $method<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
            match self.text()?.parse() {
                Ok(number) => visitor.$visit(number),
                Err(_) => Err(self.wrong("must be a whole number that is not too large")),
            }
        })*
    };
}

macro_rules! texts {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
            visitor.visit_borrowed_str(self.text()?)
        })*
    };
}

impl<'p> Deserializer<'p> for Value<'p> {
    type Error = Complaint;

    numbers! {
        deserialize_i8 visit_i8;
        deserialize_i16 visit_i16;
        deserialize_i32 visit_i32;
        deserialize_i64 visit_i64;
        deserialize_u8 visit_u8;
        deserialize_u16 visit_u16;
        deserialize_u32 visit_u32;
        deserialize_u64 visit_u64;
    }

    texts! {
        deserialize_any deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
        deserialize_identifier
    }

    fn deserialize_f64<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        match self.text()?.parse::<f64>() {
            Ok(number) if number.is_finite() => visitor.visit_f64(number),
            _ => Err(self.wrong("must be a number")),
        }
    }

    fn deserialize_f32<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_bool<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        match self.text()? {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(self.wrong("must be true or false")),
        }
    }

    /// It is here, or nobody would have asked.
    fn deserialize_option<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'p>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'p>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_seq(Items { elements: self.node.elements(), of: self })
    }

    fn deserialize_tuple<V: Visitor<'p>>(self, _: usize, visitor: V) -> std::result::Result<V::Value, Complaint> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'p>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'p>>(self, visitor: V) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_map(Entries { elements: self.node.elements(), of: self, seen: HashSet::new(), value: None })
    }

    fn deserialize_struct<V: Visitor<'p>>(
        self,
        _: &'static str,
        members: &'static [&'static str],
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        let outcome = visitor.visit_map(Members { of: self, members: members.iter(), value: None });
        outcome.map_err(|complaint| complaint.resolve(|member| self.name_of(&names::element(member, self.action))))
    }

    fn deserialize_enum<V: Visitor<'p>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> std::result::Result<V::Value, Complaint> {
        visitor.visit_enum(self.text()?.into_deserializer())
    }
}

fn give<'p, T: DeserializeSeed<'p>>(seed: T, value: Value<'p>) -> std::result::Result<T::Value, Complaint> {
    seed.deserialize(value).map_err(|complaint| complaint.of(value.node.name))
}

fn value_before_key() -> Complaint {
    Complaint::wrong("was read out of order")
}

struct Items<'p> {
    elements: Elements<'p>,
    of: Value<'p>,
}

impl<'p> SeqAccess<'p> for Items<'p> {
    type Error = Complaint;

    fn next_element_seed<T: DeserializeSeed<'p>>(
        &mut self,
        seed: T,
    ) -> std::result::Result<Option<T::Value>, Complaint> {
        let Some(node) = self.elements.next()? else { return Ok(None) };
        give(seed, Value { node, ..self.of }).map(Some)
    }
}

/// Of a map. A key that comes again is passed over: the first one wins.
struct Entries<'p> {
    elements: Elements<'p>,
    of: Value<'p>,
    seen: HashSet<&'p str>,
    value: Option<Value<'p>>,
}

impl<'p> MapAccess<'p> for Entries<'p> {
    type Error = Complaint;

    fn next_key_seed<K: DeserializeSeed<'p>>(&mut self, seed: K) -> std::result::Result<Option<K::Value>, Complaint> {
        while let Some(node) = self.elements.next()? {
            let entry = Value { node, ..self.of };
            let part = |part: &str| -> std::result::Result<Value<'p>, Complaint> {
                let node = node.child(part).ok_or_else(|| Complaint::missing(entry.name_of(part)))?;
                Ok(Value { node, ..self.of })
            };
            let key = part(self.of.key)?;
            if self.seen.insert(key.text()?) {
                self.value = Some(part(names::VALUE)?);
                return give(seed, key).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'p>>(&mut self, seed: T) -> std::result::Result<T::Value, Complaint> {
        give(seed, self.value.take().ok_or_else(value_before_key)?)
    }
}

/// Of a struct: those that it has and that the request has too.
struct Members<'p> {
    of: Value<'p>,
    members: std::slice::Iter<'static, &'static str>,
    value: Option<Value<'p>>,
}

impl<'p> MapAccess<'p> for Members<'p> {
    type Error = Complaint;

    fn next_key_seed<K: DeserializeSeed<'p>>(&mut self, seed: K) -> std::result::Result<Option<K::Value>, Complaint> {
        for member in self.members.by_ref() {
            if let Some(value) = self.of.member(member) {
                self.value = Some(value);
                return seed.deserialize((*member).into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'p>>(&mut self, seed: T) -> std::result::Result<T::Value, Complaint> {
        give(seed, self.value.take().ok_or_else(value_before_key)?)
    }
}
