//! REST: writes one JSON object from path, query and body, which the operation decodes once.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use http::header::CONTENT_TYPE;
use waybill_kernel::{Caller, Code, Error, OperationSpec, Result};
use waybill_store::Entry;

use crate::address::{Input, Kinds, path_fields, query_fields};
use crate::body::{Bodies, Read};
use crate::driver::Driver;
use crate::json::Checked;
use crate::reply;

/// One operation at its route.
pub(crate) struct Endpoint {
    driver: Driver,
    entry: Arc<dyn Entry>,
    kinds: Kinds,
    bodies: Bodies,
}

impl Endpoint {
    pub(crate) fn new(driver: Driver, entry: Arc<dyn Entry>, bodies: Bodies) -> Self {
        let kinds = Kinds::of(&entry.input_schema());
        Self { driver, entry, kinds, bodies }
    }

    pub(crate) fn spec(&self) -> &'static OperationSpec {
        self.entry.spec()
    }

    pub(crate) async fn handle(&self, caller: &Caller, request: Request<Body>) -> Response {
        let mut response = match self.answer(caller, request).await {
            Ok(response) => response,
            Err(error) => reply::error(&error),
        };
        if let Some(successor) = self.entry.successor() {
            reply::deprecate(&mut response, successor);
        }
        response
    }

    async fn answer(&self, caller: &Caller, request: Request<Body>) -> Result<Response> {
        let spec = self.entry.spec();
        let admitted = self.driver.admit(spec, caller)?;

        let (parts, body) = request.into_parts();
        let mut input = Input::default();
        for (name, text) in path_fields(spec.route.path, parts.uri.path())? {
            input.add(name, &self.kinds.value(name, text))?;
        }
        for (name, text) in query_fields(parts.uri.query().unwrap_or(""))? {
            input.add(&name, &self.kinds.value(&name, text))?;
        }
        let Read { bytes, room } = self.bodies.read(&parts.headers, body, caller).await?;
        let input = if bytes.is_empty() {
            input.text()
        } else {
            require_json(parts.headers.get(CONTENT_TYPE))?;
            input.with(&Checked::of(&bytes)?)?
        };
        // Thousands of calls may wait here, so what is no longer needed is dropped first.
        drop((parts, bytes));
        let answer = admitted.call(self.entry.as_ref(), &input).await?;
        drop(room);
        Ok(reply::answer(answer, spec.status))
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
