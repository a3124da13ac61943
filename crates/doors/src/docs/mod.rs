//! A readable page of every operation and every error, drawn from the registry and the catalogue. No scripts, no assets.

use std::fmt::Write;

use serde_json::Value as Json;
use waybill_kernel::{Code, OperationSpec};
use waybill_store::Registry;

use crate::openapi::method;

pub(crate) const FRONT_PAGE: &str = "<!doctype html><meta charset=utf-8><title>Waybill</title>\
    <body style=\"font:16px/1.5 system-ui;max-width:40em;margin:4em auto;padding:0 1em\"><h1>Waybill</h1>\
    <p>Hand work to others, and prove afterwards what was promised and delivered.</p>\
    <ul><li><a href=/docs>The operations</a>, and <a href=/openapi.json>the same for programs</a>\
    <li>MCP clients connect to <code>/mcp</code>\
    <li><a href=/healthz>Alive</a> and <a href=/readyz>ready</a>?</ul>";

const STYLE: &str = "body{font:16px/1.5 system-ui;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
    code{background:#f3f3f0;padding:.1em .3em;border-radius:3px}h2{margin-top:2.5em}\
    section{border-top:1px solid #ddd;padding:1em 0}table{border-collapse:collapse;width:100%}\
    td,th{text-align:left;vertical-align:top;padding:.3em .8em .3em 0;border-bottom:1px solid #eee}\
    .method{font-weight:600;text-transform:uppercase}.quiet{color:#666}\
    @media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}code{background:#2a2a28}a{color:#8bf}}";

pub(crate) fn page(registry: &Registry) -> String {
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Waybill: operations</title><style>{STYLE}</style><h1>Waybill</h1>\
         <p>Every operation is a REST call and, where marked, an MCP tool at <code>/mcp</code>; both do the same. Send \
         <code>Authorization: Bearer aga_…</code>. The scope <code>admin:write</code> stands for any other, \
         <code>admin:read</code> for any where nothing is written. Unknown fields are refused. For programs: \
         <a href=/openapi.json>openapi.json</a>. <a href=#errors>Errors</a> are at the end.</p><h2>Operations</h2>"
    );
    for entry in registry.entries() {
        operation(&mut html, entry.spec(), &entry.input_schema(), Some(&entry.output_schema()));
    }
    for entry in registry.streams() {
        operation(&mut html, entry.spec(), &entry.input_schema(), None);
    }
    errors(&mut html);
    html
}

/// A stream has no answer of one form.
fn operation(html: &mut String, spec: &OperationSpec, input: &Json, answer: Option<&Json>) {
    let words = |words: Vec<&str>| words.join(" or ");
    let roles = words(spec.roles.iter().map(|role| role.as_str()).collect());
    let scopes = words(spec.scopes.iter().map(|scope| scope.as_str()).collect());
    let tool = if spec.tool { format!(" · tool <code>asyncgate.{}</code>", spec.name) } else { String::new() };
    let _ = write!(
        html,
        "<section id={name}><h3>{title}</h3><p><span class=method>{method}</span> <code>{path}</code>{tool}</p>\
         <p>{description}</p><p class=quiet>Needs the role {roles} and the scope {scopes}.</p>",
        name = spec.name,
        title = escape(spec.title),
        method = method(spec),
        path = escape(spec.path),
        description = escape(spec.description),
    );
    fields(html, "Input", input);
    if let Some(answer) = answer {
        fields(html, "Answer", answer);
    }
    html.push_str("</section>");
}

fn fields(html: &mut String, title: &str, schema: &Json) {
    let Some(properties) = schema["properties"].as_object().filter(|fields| !fields.is_empty()) else { return };
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
    let _ = write!(html, "<table><tr><th>{title}<th>Type<th>");
    for (name, property) in properties {
        let _ = write!(
            html,
            "<tr><td><code>{}</code>{}<td>{}<td>{}",
            escape(name),
            if required(name) { "" } else { " <span class=quiet>optional</span>" },
            escape(&type_of(property)),
            escape(property["description"].as_str().unwrap_or("")),
        );
    }
    html.push_str("</table>");
}

fn type_of(property: &Json) -> String {
    let named = |text: &str| match property["format"].as_str() {
        Some(format) if text == "string" => format.to_owned(),
        _ => text.to_owned(),
    };
    if let Some(values) = property["enum"].as_array() {
        return values.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(" | ");
    }
    match &property["type"] {
        Json::String(text) => named(text),
        Json::Array(types) => types.iter().filter_map(Json::as_str).filter(|text| *text != "null").map(named).collect(),
        _ => property["anyOf"].as_array().and_then(|choices| choices.first()).map_or_else(|| "any".to_owned(), type_of),
    }
}

fn errors(html: &mut String) {
    html.push_str(
        "<h2 id=errors>Errors</h2><p>An error is <code>{\"error\", \"message\", \"help\", …}</code>, the same on \
                   every door.</p><table><tr><th>Code<th>HTTP<th>What happened<th>What to do",
    );
    for code in Code::ALL {
        let entry = code.entry();
        let _ = write!(
            html,
            "<tr><td><code>{}</code><td>{}<td>{}<td>{}",
            entry.code,
            entry.http,
            escape(entry.title),
            escape(entry.cure)
        );
    }
    html.push_str("</table>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
