//! An operation's input schema as an agent needs it. A client puts the whole list of tools before its model with every
//! question, so each word is paid for many times: what a model gains nothing from is left out here and stays in
//! `/openapi.json`. The server checks every call against the whole contract either way.
//!
//! Left out: fields that are marked as deprecated (they are still accepted), the closing of objects, `null` beside another
//! type (a field that is not required may be left away), defaults that mean nothing, the width of numbers, that one must not
//! be less than nothing, and that a text must not be empty.
//!
//! The profiles below the full one are brief: fields marked `x-rare` are left out too (and still accepted), as are bounds that
//! nobody meets by accident, and what a field means is said once in a list.

use std::collections::HashSet;

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

/// Marks a field that most callers never need.
const RARE: &str = "x-rare";

/// What a list has said of its fields by now: name and meaning.
pub type Said = HashSet<(String, String)>;

/// As [`input`], for a list whose earlier tools have said this much.
pub fn brief(schema: Value, said: &mut Said) -> JsonObject {
    let mut schema = schema;
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|_, field| field[RARE] != json!(true));
    }
    let mut schema = input(schema);
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, field) in properties.iter_mut() {
            unbound(field);
            let Some(meaning) = field["description"].as_str().map(str::to_owned) else { continue };
            let is_new = said.insert((name.clone(), meaning));
            if let Some(field) = field.as_object_mut().filter(|_| !is_new) {
                field.shift_remove("description");
            }
        }
    }
    schema
}

/// Without the lengths of texts and lists, which the server checks.
fn unbound(schema: &mut Value) {
    match schema {
        Value::Object(words) => {
            words.retain(|word, says| match word.as_str() {
                "maxLength" | "maxItems" | "minItems" => !says.is_number(),
                "minimum" => *says != json!(1),
                _ => true,
            });
            words.values_mut().for_each(unbound);
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(unbound),
        _ => {}
    }
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
        RARE => return None,
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
    fn a_brief_list_says_a_thing_once_and_leaves_out_what_is_rare() {
        let schema = || {
            json!({
                "type": "object",
                "required": ["project"],
                "properties": {
                    "project": { "type": "string", "description": "Its path.", "maxLength": 9 },
                    "token": { "type": "string", "description": "Its token.", "x-rare": true },
                    "limit": { "type": "integer", "minimum": 1, "maximum": 200 },
                    "maxLength": { "type": "array", "items": { "type": "string", "maxLength": 3 }, "maxItems": 2 },
                },
            })
        };
        let mut said = Said::new();
        let first = json!({
            "type": "object",
            "required": ["project"],
            "properties": {
                "project": { "type": "string", "description": "Its path." },
                "limit": { "type": "integer", "maximum": 200 },
                "maxLength": { "type": "array", "items": { "type": "string" } },
            },
        });
        assert_eq!(Value::Object(brief(schema(), &mut said)), first);
        let second = Value::Object(brief(schema(), &mut said));
        assert_eq!(second["properties"]["project"], json!({ "type": "string" }));
        // The whole list has it all, and not the mark.
        let whole = Value::Object(input(schema()));
        assert_eq!(whole["properties"]["token"], json!({ "type": "string", "description": "Its token." }));
        assert_eq!(whole["properties"]["project"]["maxLength"], 9);
    }

    #[test]
    fn any_schema_becomes_one_of_an_object() {
        assert_eq!(input(json!(true))["type"], "object");
        let one_of = input(json!({ "oneOf": [{ "type": "object" }] }));
        assert_eq!(one_of["type"], "object");
        assert!(one_of.contains_key("oneOf"));
    }
}
