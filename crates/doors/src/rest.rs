//! REST: one JSON object is built from path, query and body, and decoded once by the operation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use http::header::CONTENT_TYPE;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value as Json};
use waybill_kernel::{Caller, Code, Error, Result};
use waybill_store::Entry;

use crate::driver::Driver;
use crate::settings::Settings;
use crate::{json, log, reply};

/// One operation at its route.
pub(crate) struct Endpoint {
    driver: Driver,
    entry: Arc<dyn Entry>,
    /// What text in a path or query means, by the input's schema.
    kinds: HashMap<String, Kind>,
    body_bytes_max: usize,
    body_read: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Boolean,
}

impl Endpoint {
    pub(crate) fn new(driver: Driver, entry: Arc<dyn Entry>, settings: &Settings) -> Self {
        let kinds = kinds(&entry.input_schema());
        let body_read = Duration::from_millis(settings.body_read_ms);
        Self { driver, entry, kinds, body_bytes_max: settings.body_bytes_max, body_read }
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
        // Before the body is read: a caller without the right learns nothing about the shape of the input.
        spec.authorise(&caller).inspect_err(|error| log::refusal(spec.name, &caller, error))?;

        let (parts, body) = request.into_parts();
        let mut input = Map::new();
        for (name, text) in path_fields(spec.path, parts.uri.path())? {
            self.add(&mut input, name, text)?;
        }
        for (name, text) in query_fields(parts.uri.query().unwrap_or(""))? {
            self.add(&mut input, name, text)?;
        }
        let body = json::read(body, self.body_bytes_max, self.body_read).await?;
        if !body.is_empty() {
            require_json(parts.headers.get(CONTENT_TYPE))?;
            for (name, value) in object(&body)? {
                insert(&mut input, name, value)?;
            }
        }
        let answer = self.driver.call(self.entry.as_ref(), &caller, Json::Object(input)).await?;
        Ok(reply::answer(answer, spec.status))
    }

    fn add(&self, input: &mut Map<String, Json>, name: String, text: String) -> Result<()> {
        let value = match self.kinds.get(&name) {
            Some(Kind::Integer) => text.parse::<i64>().map_or(Json::String(text), Json::from),
            Some(Kind::Boolean) => text.parse::<bool>().map_or(Json::String(text), Json::from),
            _ => Json::String(text),
        };
        insert(input, name, value)
    }
}

pub(crate) fn insert(input: &mut Map<String, Json>, name: String, value: Json) -> Result<()> {
    if input.contains_key(&name) {
        return Err(Error::invalid(format!("{name} is given twice.")));
    }
    input.insert(name, value);
    Ok(())
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

fn object(body: &[u8]) -> Result<Map<String, Json>> {
    match json::parse(body)? {
        Json::Object(fields) => Ok(fields),
        _ => Err(Error::invalid("The body must be a JSON object.")),
    }
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
    }
}
