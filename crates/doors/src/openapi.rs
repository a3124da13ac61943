//! OpenAPI 3.1, assembled from the registry: it takes the same JSON Schemas as the operations themselves.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use waybill_kernel::{Code, OperationSpec};
use waybill_store::{Entry, Registry, StreamEntry};

/// What any request may be answered with, whatever the operation.
const COMMON: &[Code] = &[
    Code::InvalidRequest,
    Code::Unauthorized,
    Code::Forbidden,
    Code::NotFound,
    Code::RequestTimeout,
    Code::AlreadyExists,
    Code::PayloadTooLarge,
    Code::UnsupportedMediaType,
    Code::RateLimitExceeded,
    Code::HeadersTooLarge,
    Code::Internal,
    Code::Unavailable,
    Code::StorageFull,
];

pub fn document(registry: &Registry) -> Json {
    let mut paths: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
    for entry in registry.entries() {
        let spec = entry.spec();
        paths
            .entry(spec.route.path)
            .or_default()
            .insert(spec.route.method.as_str().to_lowercase(), operation(registry, entry.as_ref()));
    }
    for entry in registry.streams() {
        let spec = entry.spec();
        paths
            .entry(spec.route.path)
            .or_default()
            .insert(spec.route.method.as_str().to_lowercase(), stream(registry, entry.as_ref()));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Waybill",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Hand work and words to others, and prove afterwards what was promised, delivered and done.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "security": [{ "key": [] }],
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer", "bearerFormat": "aga_…" } },
            "schemas": { "Error": error_schema() },
        },
    })
}

fn operation(registry: &Registry, entry: &dyn Entry) -> Json {
    let spec = entry.spec();
    let fields = Fields::of(spec, entry.input_schema());
    let mut operation = json!({
        "operationId": registry.id(spec),
        "summary": spec.title,
        "description": spec.description,
        "tags": [spec.domain],
        "parameters": fields.parameters,
        "responses": responses(entry),
        "x-waybill-roles": spec.roles,
        "x-waybill-scopes": spec.scopes,
    });
    if let Some(body) = fields.body {
        let required = body["required"].as_array().is_some_and(|names| !names.is_empty());
        operation["requestBody"] =
            json!({ "required": required, "content": { "application/json": { "schema": body } } });
    }
    if entry.successor().is_some() {
        operation["deprecated"] = json!(true);
    }
    operation
}

/// Events come until somebody hangs up.
fn stream(registry: &Registry, entry: &dyn StreamEntry) -> Json {
    let spec = entry.spec();
    let events = json!({ "description": "Events, as they come.", "content": { "text/event-stream": {} } });
    json!({
        "operationId": registry.id(spec),
        "summary": spec.title,
        "description": spec.description,
        "tags": [spec.domain],
        "parameters": Fields::of(spec, entry.input_schema()).parameters,
        "responses": with_errors(Map::from_iter([(spec.status.to_string(), events)])),
        "x-waybill-roles": spec.roles,
        "x-waybill-scopes": spec.scopes,
    })
}

/// The input's fields, by where REST carries them.
struct Fields {
    parameters: Vec<Json>,
    body: Option<Json>,
}

impl Fields {
    fn of(spec: &OperationSpec, mut schema: Json) -> Self {
        let required: Vec<String> =
            schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).map(str::to_owned).collect();
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let in_path = |name: &str| spec.route.has_in_path(name);

        let mut parameters = Vec::new();
        let mut rest = Map::new();
        for (name, property) in properties {
            if in_path(&name) {
                parameters.push(parameter(&name, "path", true, property));
            } else if !spec.route.method.has_body() {
                parameters.push(parameter(&name, "query", required.contains(&name), property));
            } else {
                rest.insert(name, property);
            }
        }
        let body = spec.route.method.has_body().then(|| {
            schema["required"] = required.iter().filter(|name| !in_path(name)).cloned().collect();
            schema["properties"] = Json::Object(rest);
            schema
        });
        Self { parameters, body }
    }
}

fn parameter(name: &str, location: &str, required: bool, mut schema: Json) -> Json {
    let description =
        schema.as_object_mut().and_then(|schema| schema.remove("description")).unwrap_or_else(|| json!(""));
    json!({ "name": name, "in": location, "required": required, "description": description, "schema": schema })
}

fn responses(entry: &dyn Entry) -> Json {
    let status = entry.spec().status;
    let mut done =
        json!({ "description": "Done.", "content": { "application/json": { "schema": entry.output_schema() } } });
    let mut responses = Map::from_iter([(status.to_string(), done.clone())]);
    if entry.replays() {
        done["description"] = match status {
            200 => json!("Done; with the header, by an earlier request that said the same."),
            _ => json!("The answer of an earlier request with the same key."),
        };
        done["headers"] = json!({ "X-Idempotent-Replay": { "schema": { "const": "true" } } });
        responses.insert("200".to_owned(), done);
    }
    with_errors(responses)
}

fn with_errors(mut responses: Map<String, Json>) -> Json {
    for code in COMMON {
        let entry = code.entry();
        let error = json!({ "description": entry.title, "content": { "application/json": {
            "schema": { "$ref": "#/components/schemas/Error" } } } });
        responses.entry(entry.http.to_string()).or_insert(error);
    }
    Json::Object(responses)
}

fn error_schema() -> Json {
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.entry().code).collect();
    json!({
        "type": "object",
        "required": ["error", "message", "help"],
        "properties": {
            "error": { "type": "string", "enum": codes, "description": "Stable; switch on it." },
            "message": { "type": "string", "description": "What happened." },
            "help": { "type": "string", "description": "What to do." },
        },
    })
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Route;

    use super::*;

    #[test]
    fn fields_are_in_path_and_query_or_in_path_and_body_by_the_method() {
        let schema = json!({
            "type": "object",
            "properties": { "id": { "type": "string" }, "note": { "type": "string" } },
            "required": ["id", "note"],
        });
        let of = |route| Fields::of(&OperationSpec { route, ..OperationSpec::WRITE }, schema.clone());
        let locations = |fields: &Fields| -> Vec<String> {
            fields
                .parameters
                .iter()
                .map(|field| format!("{}:{}", field["in"], field["name"]).replace('"', ""))
                .collect()
        };
        for (with_body, route) in [
            (false, Route::get("/v1/x/{id}")),
            (false, Route::delete("/v1/x/{id}")),
            (true, Route::post("/v1/x/{id}")),
            (true, Route::put("/v1/x/{id}")),
        ] {
            let fields = of(route);
            let expected: &[&str] = if with_body { &["path:id"] } else { &["path:id", "query:note"] };
            assert_eq!(locations(&fields), expected, "{route:?}");
            assert_eq!(
                fields.body.map(|body| body["required"].clone()),
                with_body.then(|| json!(["note"])),
                "{route:?}"
            );
        }
    }
}
