//! From a typed answer to XML: a serde serializer.
//!
//! ```text
//! <ReceiveMessageResponse xmlns="…">
//!   <ReceiveMessageResult><Message>…</Message><Message>…</Message></ReceiveMessageResult>
//!   <ResponseMetadata><RequestId>…</RequestId></ResponseMetadata>
//! </ReceiveMessageResponse>
//! ```

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::Serialize;
use serde::ser::{self, Impossible, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, Serializer};
use waybill_kernel::{Error, Result};

use super::names;
use super::xml::Xml;

/// Writes the answer of an action, which must be one that SQS has. The error is a type that is no answer of SQS.
pub fn write<T: Serialize + ?Sized>(action: &str, output: &T, request_id: &str) -> Result<Vec<u8>> {
    let mut xml = Xml::default();
    let response = format!("{action}Response");
    xml.open_document(&response);
    if names::has_result(action) {
        let name = format!("{action}Result");
        output.serialize(Element { xml: &mut xml, action, name: &name }).map_err(Error::internal)?;
    }
    xml.open("ResponseMetadata");
    xml.element("RequestId", request_id);
    xml.close("ResponseMetadata");
    xml.close(&response);
    Ok(xml.into_bytes())
}

/// A value under its name. Nothing is written for one that is not there, and several elements for a list.
struct Element<'x> {
    xml: &'x mut Xml,
    action: &'x str,
    name: &'x str,
}

/// What follows an opened element.
struct Fields<'x> {
    xml: &'x mut Xml,
    action: &'x str,
    name: &'x str,
}

struct Items<'x> {
    xml: &'x mut Xml,
    action: &'x str,
    /// Of each one.
    name: Cow<'x, str>,
}

enum Map<'x> {
    /// `<Attribute><Name>…</Name><Value>…</Value></Attribute>` for each entry.
    Pairs(Items<'x>),
    /// A struct in which another was flattened; the name of the member whose value comes next.
    Members(Fields<'x>, String),
}

#[derive(Debug)]
struct Unwritable(String);

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unwritable {}

impl ser::Error for Unwritable {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

type Written<T = ()> = std::result::Result<T, Unwritable>;

impl<'x> Element<'x> {
    fn text(self, text: &str) -> Written {
        self.xml.element(self.name, text);
        Ok(())
    }

    fn refuse<T>(self, what: &str) -> Written<T> {
        Err(Unwritable(format!("the answer of {} has {what} as {}, which XML has no form for", self.action, self.name)))
    }

    fn items(self) -> Items<'x> {
        Items { name: names::element(self.name, self.action), xml: self.xml, action: self.action }
    }
}

macro_rules! displayed {
    ($($method:ident $type:ty;)*) => {
        $(fn $method(self, value: $type) -> Written {
            self.text(&value.to_string())
        })*
    };
}

impl<'x> Serializer for Element<'x> {
    type Ok = ();
    type Error = Unwritable;
    type SerializeSeq = Items<'x>;
    type SerializeTuple = Items<'x>;
    type SerializeTupleStruct = Impossible<(), Unwritable>;
    type SerializeTupleVariant = Impossible<(), Unwritable>;
    type SerializeMap = Map<'x>;
    type SerializeStruct = Fields<'x>;
    type SerializeStructVariant = Impossible<(), Unwritable>;

    displayed! {
        serialize_bool bool;
        serialize_i8 i8;
        serialize_i16 i16;
        serialize_i32 i32;
        serialize_i64 i64;
        serialize_u8 u8;
        serialize_u16 u16;
        serialize_u32 u32;
        serialize_u64 u64;
        serialize_f32 f32;
        serialize_f64 f64;
        serialize_char char;
    }

    fn serialize_str(self, text: &str) -> Written {
        self.text(text)
    }

    fn serialize_bytes(self, _: &[u8]) -> Written {
        self.refuse("bytes")
    }

    fn serialize_none(self) -> Written {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Written {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Written {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Written {
        self.text(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Written {
        self.refuse("a variant with a value")
    }

    fn serialize_seq(self, _: Option<usize>) -> Written<Items<'x>> {
        Ok(self.items())
    }

    fn serialize_tuple(self, _: usize) -> Written<Items<'x>> {
        Ok(self.items())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Written<Self::SerializeTupleStruct> {
        self.refuse("a tuple")
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Written<Self::SerializeTupleVariant> {
        self.refuse("a variant with values")
    }

    fn serialize_map(self, members: Option<usize>) -> Written<Map<'x>> {
        if names::is_map(self.name) {
            return Ok(Map::Pairs(self.items()));
        }
        Ok(Map::Members(self.serialize_struct("", members.unwrap_or_default())?, String::new()))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Written<Fields<'x>> {
        self.xml.open(self.name);
        Ok(Fields { xml: self.xml, action: self.action, name: self.name })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Written<Self::SerializeStructVariant> {
        self.refuse("a variant with members")
    }
}

impl SerializeStruct for Fields<'_> {
    type Ok = ();
    type Error = Unwritable;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Written {
        value.serialize(Element { xml: self.xml, action: self.action, name })
    }

    fn end(self) -> Written {
        self.xml.close(self.name);
        Ok(())
    }
}

impl SerializeSeq for Items<'_> {
    type Ok = ();
    type Error = Unwritable;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        value.serialize(Element { xml: self.xml, action: self.action, name: &self.name })
    }

    fn end(self) -> Written {
        Ok(())
    }
}

impl SerializeTuple for Items<'_> {
    type Ok = ();
    type Error = Unwritable;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Written {
        Ok(())
    }
}

impl SerializeMap for Map<'_> {
    type Ok = ();
    type Error = Unwritable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Written {
        match self {
            Self::Pairs(Items { xml, action, name }) => {
                xml.open(name);
                key.serialize(Element { xml, action, name: names::key(name) })
            }
            Self::Members(_, member) => {
                member.clear();
                write!(member, "{}", Shown(key)).map_err(|_| Unwritable("the name of a member is no text".to_owned()))
            }
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        match self {
            Self::Pairs(Items { xml, action, name }) => {
                value.serialize(Element { xml, action, name: names::VALUE })?;
                xml.close(name);
                Ok(())
            }
            Self::Members(Fields { xml, action, .. }, member) => value.serialize(Element { xml, action, name: member }),
        }
    }

    fn end(self) -> Written {
        match self {
            Self::Pairs(_) => Ok(()),
            Self::Members(fields, _) => SerializeStruct::end(fields),
        }
    }
}

/// A text as serde sees it.
struct Shown<'k, T: ?Sized>(&'k T);

impl<T: Serialize + ?Sized> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}
