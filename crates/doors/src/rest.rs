//! REST: one JSON object is written from path, query and body, and decoded once by the operation.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use http::header::CONTENT_TYPE;
use percent_encoding::percent_decode_str;
use serde_json::Value as Json;
use waybill_kernel::{Caller, Code, Error, Result};
use waybill_store::Entry;

use crate::body::{Bodies, Read};
use crate::driver::Driver;
use crate::json::Checked;
use crate::reply;

/// More than any operation has fields; each is compared with all others.
const QUERY_FIELDS_MAX: usize = 100;

/// One operation at its route.
pub(crate) struct Endpoint {
    driver: Driver,
    entry: Arc<dyn Entry>,
    /// What text in a path or query means, by the input's schema.
    kinds: HashMap<String, Kind>,
    bodies: Bodies,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Boolean,
}

impl Endpoint {
    pub(crate) fn new(driver: Driver, entry: Arc<dyn Entry>, bodies: Bodies) -> Self {
        let kinds = kinds(&entry.input_schema());
        Self { driver, entry, kinds, bodies }
    }

    pub(crate) async fn handle(&self, request: Request<Body>) -> Response {
        let mut response = match self.run(request).await {
            Ok(response) => response,
            Err(error) => reply::error(&error),
        };
        if let Some(successor) = self.entry.successor() {
            reply::deprecate(&mut response, successor);
        }
        response
    }

    async fn run(&self, request: Request<Body>) -> Result<Response> {
        let caller = request.extensions().get::<Arc<Caller>>().cloned();
        let caller = caller.ok_or_else(|| Error::internal("a request came past the gatekeeper"))?;
        let spec = self.entry.spec();
        let admitted = self.driver.admit(spec, &caller)?;

        let (parts, body) = request.into_parts();
        let mut input = Input::default();
        for (name, text) in path_fields(spec.route.path, parts.uri.path())? {
            input.add(&name, &self.value(&name, text))?;
        }
        for (name, text) in query_fields(parts.uri.query().unwrap_or(""))? {
            input.add(&name, &self.value(&name, text))?;
        }
        let Read { bytes, room } = self.bodies.read(&parts.headers, body, &caller).await?;
        let input = if bytes.is_empty() {
            input.text()
        } else {
            require_json(parts.headers.get(CONTENT_TYPE))?;
            input.with(&Checked::of(&bytes)?)?
        };
        // The call may wait, and many may: what is not needed any more is not kept for them.
        drop((parts, bytes));
        let answer = admitted.call(self.entry.as_ref(), &input).await?;
        drop(room);
        Ok(reply::answer(answer, spec.status))
    }

    fn value(&self, name: &str, text: String) -> Json {
        match self.kinds.get(name) {
            Some(Kind::Integer) => text.parse::<i64>().map_or(Json::String(text), Json::from),
            Some(Kind::Boolean) => text.parse::<bool>().map_or(Json::String(text), Json::from),
            _ => Json::String(text),
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
    fn with(self, body: &Checked<'_>) -> Result<String> {
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

fn kinds(schema: &Json) -> HashMap<String, Kind> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let kind = |property: &Json| {
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
    };
    properties.map(|(name, property)| (name.clone(), kind(property))).collect()
}

/// The `{name}` parts of the template with their text in the path.
fn path_fields(template: &str, path: &str) -> Result<Vec<(String, String)>> {
    let pairs = template.split('/').zip(path.split('/'));
    pairs
        .filter_map(|(part, text)| Some((part.strip_prefix('{')?.strip_suffix('}')?, text)))
        .map(|(name, text)| Ok((name.to_owned(), decode(text)?)))
        .collect()
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

fn require_json(content_type: Option<&http::HeaderValue>) -> Result<()> {
    let media = content_type.and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = media.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if media == "application/json" || media.ends_with("+json") {
        return Ok(());
    }
    Err(Error::new(Code::UnsupportedMediaType, Code::UnsupportedMediaType.entry().title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_path_and_query_are_decoded() {
        let path = path_fields("/v1/tasks/{task_id}/cancel", "/v1/tasks/a%20b/cancel").unwrap();
        assert_eq!(path, [("task_id".to_owned(), "a b".to_owned())]);
        let query = query_fields("a=1&b=x+y%2B&&c").unwrap();
        assert_eq!(query, [("a", "1"), ("b", "x y+"), ("c", "")].map(|(n, t)| (n.to_owned(), t.to_owned())));
        assert!(query_fields("a=%ff").is_err());
        assert!(query_fields(&"a&".repeat(QUERY_FIELDS_MAX)).is_ok());
        assert!(query_fields(&"a&".repeat(QUERY_FIELDS_MAX + 1)).is_err());
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
