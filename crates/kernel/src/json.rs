//! JSON that is kept as text and handed on as it is: nobody between its sender and its reader needs to understand it. Read
//! into a tree, `[0,0,…]` takes some thirty times its length, and a number beyond 2^53 comes back as another one.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{Error, Result};

#[derive(Clone, Debug)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Text that a table holds. It was JSON when it was stored, so anything else is damage.
    pub fn from_stored(text: &str) -> Result<Self> {
        RawValue::from_string(text.to_owned())
            .map(Json)
            .map_err(|error| Error::internal(format!("stored JSON cannot be read: {error}")))
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }
}

impl Default for Json {
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

/// For what was checked where it came in: its own text follows no bounds here.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Json)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for Json {
    fn schema_name() -> Cow<'static, str> {
        "Json".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}
