//! The fields of a schema as a table: each by its path, in the order in which its struct has them, with what may be in it.

use std::fmt::Write;

use serde_json::Value as Json;

use super::escape;

pub(super) fn table(html: &mut String, title: &str, schema: &Json) {
    let mut rows = Vec::new();
    collect(&mut rows, "", schema);
    if rows.is_empty() {
        return;
    }
    let _ = write!(html, "<table><tr><th>{title}<th>Type<th>");
    for Row { path, optional, kind, bounds, description } in rows {
        let _ = write!(
            html,
            "<tr><td><code>{}</code>{}<td>{}<td>{}",
            escape(&path),
            if optional { " <span class=quiet>optional</span>" } else { "" },
            escape(&kind),
            escape(&description),
        );
        if !bounds.is_empty() {
            let _ = write!(html, " <span class=quiet>{}.</span>", escape(&bounds.join("; ")));
        }
    }
    html.push_str("</table>");
}

#[derive(Debug, PartialEq)]
struct Row {
    /// `a.b` for a field of an object, `a[].b` for one of a list's objects.
    path: String,
    optional: bool,
    kind: String,
    bounds: Vec<String>,
    description: String,
}

fn collect(rows: &mut Vec<Row>, within: &str, schema: &Json) {
    let is_required =
        |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let subject = without_null(property);
        let path = format!("{within}{name}");
        rows.push(Row {
            path: path.clone(),
            optional: !is_required(name),
            kind: kind(subject),
            bounds: bounds(property, subject),
            description: property["description"].as_str().unwrap_or("").to_owned(),
        });
        collect(rows, &format!("{path}."), subject);
        collect(rows, &format!("{path}[]."), without_null(&subject["items"]));
    }
}

/// What a field is when it is not null.
fn without_null(property: &Json) -> &Json {
    let choices = property["anyOf"].as_array();
    choices.and_then(|choices| choices.iter().find(|choice| choice["type"] != "null")).unwrap_or(property)
}

fn kind(schema: &Json) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(" | ");
    }
    let named = |name: &str| match (name, schema["format"].as_str()) {
        ("string", Some(format)) => format.to_owned(),
        ("array", _) => match kind(without_null(&schema["items"])) {
            items if items == ANYTHING => "list".to_owned(),
            items => format!("list of {items}"),
        },
        (name, _) => name.to_owned(),
    };
    match &schema["type"] {
        Json::String(name) => named(name),
        Json::Array(names) => names.iter().filter_map(Json::as_str).filter(|name| *name != "null").map(named).collect(),
        _ => ANYTHING.to_owned(),
    }
}

const ANYTHING: &str = "any JSON";

/// What the schema says beside the type.
fn bounds(property: &Json, subject: &Json) -> Vec<String> {
    let mut bounds: Vec<String> = limits(subject).into_iter().collect();
    bounds.extend(limits(&subject["items"]).map(|of_each| format!("each {of_each}")));
    if let Some(pattern) = subject["pattern"].as_str() {
        bounds.push(format!("matches {pattern}"));
    }
    let default = &property["default"];
    if default.is_number() || default.is_boolean() || default.as_str().is_some_and(|text| !text.is_empty()) {
        bounds.push(format!("{default} unless given"));
    }
    if property["deprecated"] == true {
        bounds.push("deprecated".to_owned());
    }
    bounds
}

fn limits(schema: &Json) -> Option<String> {
    let range = |least: &str, most: &str| {
        // Where a number is merely as wide as its type, nothing is said about it.
        let most = schema[most].as_i64().filter(|most| *most < i64::from(u32::MAX));
        (schema[least].as_i64().filter(|least| *least > 0 || most.is_some()), most)
    };
    for (least, most, unit) in
        [("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " entries")]
    {
        let told = match range(least, most) {
            (Some(least), Some(most)) => format!("{} to {}{unit}", grouped(least), grouped(most)),
            (None, Some(most)) => format!("at most {}{unit}", grouped(most)),
            (Some(least), None) => format!("at least {}{unit}", grouped(least)),
            (None, None) => continue,
        };
        return Some(told);
    }
    None
}

/// With a comma before every three digits from the right.
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(path: &str, optional: bool, kind: &str, bounds: &[&str], description: &str) -> Row {
        Row {
            path: path.to_owned(),
            optional,
            kind: kind.to_owned(),
            bounds: bounds.iter().map(|bound| (*bound).to_owned()).collect(),
            description: description.to_owned(),
        }
    }

    #[test]
    fn fields_come_in_their_own_order_with_what_is_in_them() {
        let schema = json!({
            "type": "object",
            "required": ["zeta", "alpha"],
            "properties": {
                "zeta": { "type": "string", "minLength": 1, "maxLength": 2000, "description": "First." },
                "needs": {
                    "type": "object",
                    "default": { "tags": [] },
                    "properties": {
                        "tags": { "type": "array", "maxItems": 64, "items": { "type": "string", "maxLength": 9 } },
                    },
                },
                "alpha": { "type": "integer", "format": "int64", "minimum": 0, "maximum": 31_622_400, "default": 0 },
                "wait": { "type": "integer", "format": "uint32", "minimum": 0, "maximum": 4_294_967_295_u32 },
                "kind": { "type": ["string", "null"], "enum": ["agent", "worker", null], "deprecated": true },
                "of": { "anyOf": [
                    { "type": "object", "properties": { "at": { "type": "string", "format": "date-time" } } },
                    { "type": "null" },
                ] },
                "list": { "type": "array", "items": {
                    "type": "object", "required": ["id"], "properties": { "id": { "type": "string", "format": "uuid" } },
                } },
                "payload": { "description": "Whatever." },
            },
        });
        let mut rows = Vec::new();
        collect(&mut rows, "", &schema);
        assert_eq!(
            rows,
            [
                row("zeta", false, "string", &["1 to 2,000 characters"], "First."),
                row("needs", true, "object", &[], ""),
                row("needs.tags", true, "list of string", &["at most 64 entries", "each at most 9 characters"], ""),
                row("alpha", false, "integer", &["0 to 31,622,400", "0 unless given"], ""),
                row("wait", true, "integer", &[], ""),
                row("kind", true, "agent | worker", &["deprecated"], ""),
                row("of", true, "object", &[], ""),
                row("of.at", true, "date-time", &[], ""),
                row("list", true, "list of object", &[], ""),
                row("list[].id", false, "uuid", &[], ""),
                row("payload", true, "any JSON", &[], "Whatever."),
            ]
        );
    }

    #[test]
    fn large_numbers_are_told_in_groups() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (-1_234_567, "-1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
