//! Reads the fields in an address's path and query as the input of an operation: for REST, event streams and MCP resources.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::Value as Json;
use waybill_kernel::{Error, Result};

use crate::json::Checked;

/// More than any operation has fields. Each name is compared with all others.
const QUERY_FIELDS_MAX: usize = 100;

/// What text in an address means, by the schema of the input.
pub(crate) struct Kinds(HashMap<String, Kind>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Boolean,
}

impl Kinds {
    pub(crate) fn of(schema: &Json) -> Self {
        let properties = schema["properties"].as_object().into_iter().flatten();
        Self(properties.map(|(name, property)| (name.clone(), Kind::of(property))).collect())
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Text where a number belongs stays text, and the operation says what it wants.
    pub(crate) fn value(&self, name: &str, text: String) -> Json {
        match self.0.get(name) {
            Some(Kind::Integer) => text.parse::<i64>().map_or(Json::String(text), Json::from),
            Some(Kind::Boolean) => text.parse::<bool>().map_or(Json::String(text), Json::from),
            _ => Json::String(text),
        }
    }
}

impl Kind {
    fn of(property: &Json) -> Self {
        let is = |word: &str| match &property["type"] {
            Json::String(text) => text == word,
            Json::Array(types) => types.iter().any(|text| text == word),
            _ => false,
        };
        if is("integer") {
            Kind::Integer
        } else if is("boolean") {
            Kind::Boolean
        } else {
            Kind::Text
        }
    }
}

/// An object that is written field by field; a name given twice is refused.
#[derive(Clone, Default)]
pub(crate) struct Input {
    names: Vec<String>,
    /// The fields as JSON text, without the braces.
    fields: String,
}

impl Input {
    pub(crate) fn add(&mut self, name: &str, value: &Json) -> Result<()> {
        if name.contains('\0') || value.as_str().is_some_and(|text| text.contains('\0')) {
            return Err(Error::invalid("The address holds a NUL character."));
        }
        self.refuse_known(name)?;
        let comma = if self.fields.is_empty() { "" } else { "," };
        self.fields.push_str(&format!("{comma}{}:{value}", Json::from(name)));
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Together with the fields of a body, which stay the text they are.
    pub(crate) fn with(self, body: &Checked<'_>) -> Result<String> {
        let Some(names) = &body.names else { return Err(Error::invalid("The body must be a JSON object.")) };
        for name in names {
            self.refuse_known(name)?;
        }
        if self.names.is_empty() {
            return Ok(body.text.to_owned());
        }
        if names.is_empty() {
            return Ok(self.text());
        }
        let (_, rest) = body.text.split_at(1);
        Ok(format!("{{{},{rest}", self.fields))
    }

    pub(crate) fn text(&self) -> String {
        format!("{{{}}}", self.fields)
    }

    fn refuse_known(&self, name: &str) -> Result<()> {
        if self.names.iter().any(|known| known == name) {
            return Err(Error::invalid(format!("{name} is given twice.")));
        }
        Ok(())
    }
}

/// The `{name}` parts of the template with their text in the path.
pub(crate) fn path_fields<'a>(template: &'a str, path: &str) -> Result<Vec<(&'a str, String)>> {
    let pairs = template.split('/').zip(path.split('/'));
    pairs
        .filter_map(|(part, text)| Some((variable(part)?, text)))
        .map(|(name, text)| Ok((name, decode(text)?)))
        .collect()
}

/// Is it a path of this template? What stands for a `{name}` must not be empty.
pub(crate) fn fits(template: &str, path: &str) -> bool {
    let same_length = template.split('/').count() == path.split('/').count();
    let mut pairs = template.split('/').zip(path.split('/'));
    same_length && pairs.all(|(part, text)| if variable(part).is_some() { !text.is_empty() } else { part == text })
}

/// The name in a part of a template that is a `{name}`.
pub(crate) fn variable(part: &str) -> Option<&str> {
    part.strip_prefix('{')?.strip_suffix('}')
}

pub(crate) fn query_fields(query: &str) -> Result<Vec<(String, String)>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    if pairs.clone().nth(QUERY_FIELDS_MAX).is_some() {
        return Err(Error::invalid(format!("The query has more than {QUERY_FIELDS_MAX} fields.")));
    }
    pairs
        .map(|pair| {
            let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(&name.replace('+', " "))?, decode(&text.replace('+', " "))?))
        })
        .collect()
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| Error::invalid("The address holds text that is not UTF-8."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_path_and_query_are_decoded() {
        let path = path_fields("/v1/tasks/{task_id}/cancel", "/v1/tasks/a%20b/cancel").unwrap();
        assert_eq!(path, [("task_id", "a b".to_owned())]);
        let query = query_fields("a=1&b=x+y%2B&&c").unwrap();
        assert_eq!(query, [("a", "1"), ("b", "x y+"), ("c", "")].map(|(n, t)| (n.to_owned(), t.to_owned())));
        assert!(query_fields("a=%ff").is_err());
        assert!(query_fields(&"a&".repeat(QUERY_FIELDS_MAX)).is_ok());
        assert!(query_fields(&"a&".repeat(QUERY_FIELDS_MAX + 1)).is_err());
    }

    #[test]
    fn a_path_fits_a_template_part_by_part() {
        let template = "resource://inbox/{agent}";
        assert!(fits(template, "resource://inbox/BlueLake") && fits(template, "resource://inbox/a%2Fb"));
        for other in ["resource://inbox", "resource://inbox/", "resource://inbox/a/b", "resource://outbox/a", ""] {
            assert!(!fits(template, other), "{other}");
        }
    }

    #[test]
    fn the_body_keeps_its_text_beside_the_fields_of_the_address() {
        let mut input = Input::default();
        input.add("task_id", &Json::from("a\"b")).unwrap();
        input.add("limit", &Json::from(3)).unwrap();
        assert!(input.add("limit", &Json::from(4)).is_err());
        assert!(input.add("x\0", &Json::from(4)).is_err());
        let with = |body: &str| input.clone().with(&Checked::of(body.as_bytes()).unwrap());
        let whole = with(r#" {"payload": 12345678901234567890123} "#).unwrap();
        assert_eq!(whole, r#"{"task_id":"a\"b","limit":3,"payload": 12345678901234567890123}"#);
        assert_eq!(with("{ }").unwrap(), r#"{"task_id":"a\"b","limit":3}"#);
        assert!(with("[]").is_err() && with(r#"{"l\u0069mit": 1}"#).is_err());
        assert_eq!(Input::default().with(&Checked::of(b"{\"a\":1}").unwrap()).unwrap(), r#"{"a":1}"#);
        assert_eq!(Input::default().text(), "{}");
    }
}
