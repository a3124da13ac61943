//! An operation's input schema as an agent needs it. A client puts the whole list of tools before its model with every
//! question, so each word is paid for many times: what a model gains nothing from is left out here and stays in
//! `/openapi.json`. The server checks every call against the whole contract either way.
//!
//! Left out: fields that are marked as deprecated (they are still accepted), the closing of objects, `null` beside another
//! type (a field that is not required may be left away), defaults that mean nothing, the width of numbers, that one must not
//! be less than nothing, and that a text must not be empty.

use rmcp::model::JsonObject;
use serde_json::{Map, Value, json};

/// A schema as MCP wants it at the root. An enum of structs has `oneOf` there and no type, though each of its values is
/// an object.
pub fn input(schema: Value) -> JsonObject {
    let mut schema = match lean(schema) {
        Value::Object(schema) => schema,
        // `true`, the schema of anything.
        _ => JsonObject::new(),
    };
    schema.insert("type".to_owned(), json!("object"));
    schema
}

fn lean(schema: Value) -> Value {
    match schema {
        Value::Object(schema) => {
            Value::Object(schema.into_iter().filter_map(|(word, says)| kept(word, says)).collect())
        }
        Value::Array(schemas) => schemas.into_iter().map(lean).collect(),
        other => other,
    }
}

fn kept(word: String, says: Value) -> Option<(String, Value)> {
    let says = match word.as_str() {
        "additionalProperties" if says == json!(false) => return None,
        "default" if is_nothing(&says) => return None,
        "format" if says.as_str().is_some_and(|format| format.contains("int")) => return None,
        "maximum" if says.as_f64() >= Some(f64::from(i32::MAX)) => return None,
        "minLength" if says == json!(1) => return None,
        "minimum" if says.as_f64() <= Some(f64::from(i32::MIN)) || says == json!(0) => return None,
        "type" | "enum" => without_null(says),
        "properties" => Value::Object(fields(says)),
        // These hold values and texts, not schemas.
        "const" | "default" | "description" | "required" => says,
        _ => lean(says),
    };
    Some((word, says))
}

fn fields(properties: Value) -> Map<String, Value> {
    let Value::Object(properties) = properties else { return Map::new() };
    let current = properties.into_iter().filter(|(_, schema)| schema["deprecated"] != json!(true));
    current.map(|(name, schema)| (name, lean(schema))).collect()
}

fn is_nothing(default: &Value) -> bool {
    match default {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_nothing),
        Value::Bool(true) => false,
    }
}

fn without_null(choices: Value) -> Value {
    let Value::Array(mut choices) = choices else { return choices };
    choices.retain(|choice| !choice.is_null() && *choice != json!("null"));
    match (choices.len(), choices.pop()) {
        // One type stands alone; one choice of an enum stays a list, as the word demands.
        (1, Some(Value::String(only))) if is_type(&only) => Value::String(only),
        (_, last) => choices.into_iter().chain(last).collect(),
    }
}

fn is_type(name: &str) -> bool {
    ["string", "integer", "number", "boolean", "array", "object"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_gains_nothing_from_is_left_out() {
        let whole = json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["type"],
            "properties": {
                "type": { "type": "string", "minLength": 1, "maxLength": 9 },
                "count": { "type": ["integer", "null"], "format": "uint32", "minimum": 1, "maximum": 4_294_967_295_u32 },
                "names": { "type": "array", "items": { "type": "string" }, "default": [] },
                "kind": { "type": ["string", "null"], "enum": ["agent", null] },
                "id": { "type": "string", "format": "uuid" },
                "limit": { "type": "integer", "default": 50, "maximum": 200 },
                "old": { "type": "string", "deprecated": true },
            },
        });
        let expected = json!({
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": { "type": "string", "maxLength": 9 },
                "count": { "type": "integer", "minimum": 1 },
                "names": { "type": "array", "items": { "type": "string" } },
                "kind": { "type": "string", "enum": ["agent"] },
                "id": { "type": "string", "format": "uuid" },
                "limit": { "type": "integer", "default": 50, "maximum": 200 },
            },
        });
        assert_eq!(Value::Object(input(whole)), expected);
    }

    #[test]
    fn any_schema_becomes_one_of_an_object() {
        assert_eq!(input(json!(true))["type"], "object");
        let one_of = input(json!({ "oneOf": [{ "type": "object" }] }));
        assert_eq!(one_of["type"], "object");
        assert!(one_of.contains_key("oneOf"));
    }
}
