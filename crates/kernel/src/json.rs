//! JSON that is stored as text and handed on as it is, without being parsed again.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
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
