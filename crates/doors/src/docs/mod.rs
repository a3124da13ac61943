//! A readable page of every operation and every error, drawn from the registry and the catalogue. No scripts, no assets.

mod example;
mod fields;

use std::borrow::Cow;
use std::fmt::Write;

use serde_json::Value as Json;
use waybill_kernel::{Code, OperationSpec, Resource};
use waybill_store::Registry;

use crate::mcp;

pub(crate) const FRONT_PAGE: &str = "<!doctype html><meta charset=utf-8><title>Waybill</title>\
    <body style=\"font:16px/1.5 system-ui;max-width:40em;margin:4em auto;padding:0 1em\"><h1>Waybill</h1>\
    <p>Hand work and words to others, and prove afterwards what was promised, delivered and done.</p>\
    <ul><li><a href=/docs>The operations</a>, and <a href=/openapi.json>the same for programs</a>\
    <li>MCP clients connect to <code>/mcp</code>\
    <li><a href=/healthz>Alive</a> and <a href=/readyz>ready</a>?</ul>";

const STYLE: &str = "body{font:16px/1.5 system-ui;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
    code,pre{background:#f3f3f0;border-radius:3px}code{padding:.1em .3em}pre{padding:.6em .8em;overflow-x:auto}\
    h2{margin-top:2.5em}section{border-top:1px solid #ddd;padding:1em 0}table{border-collapse:collapse;width:100%}\
    td,th{text-align:left;vertical-align:top;padding:.3em .8em .3em 0;border-bottom:1px solid #eee}\
    .method{font-weight:600;text-transform:uppercase}.quiet{color:#666}nav ul{columns:2;padding-left:1.2em}\
    @media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}code,pre{background:#2a2a28}a{color:#8bf}}";

/// An operation as the page shows it. A stream has no answer of one form.
struct Shown {
    /// Its name among those of all domains.
    id: Cow<'static, str>,
    tool: Option<String>,
    spec: &'static OperationSpec,
    input: Json,
    answer: Option<Json>,
}

pub(crate) fn page(registry: &Registry) -> String {
    let shown = |spec: &'static OperationSpec, input, answer: Option<Json>| Shown {
        id: registry.id(spec),
        tool: (spec.tool && answer.is_some()).then(|| mcp::tool_name(registry, spec)),
        spec,
        input,
        answer,
    };
    let operations =
        registry.entries().map(|entry| shown(entry.spec(), entry.input_schema(), Some(entry.output_schema())));
    let streams = registry.streams().map(|entry| shown(entry.spec(), entry.input_schema(), None));
    let shown: Vec<Shown> = operations.chain(streams).collect();
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Waybill: operations</title><style>{STYLE}</style><h1>Waybill</h1>\
         <p>Every operation is a REST call and, where marked, an MCP tool at <code>/mcp</code>; both do the same. Send \
         <code>Authorization: Bearer aga_…</code>. REST takes the fields that are in the path from there, the others from \
         the query of a GET or DELETE or from the JSON body of a POST or PUT; a tool takes them all as its arguments. The scope \
         <code>admin:write</code> stands for any other, <code>admin:read</code> for any where nothing is written. Unknown \
         fields are refused. For programs: <a href=/openapi.json>openapi.json</a>.</p>"
    );
    contents(&mut html, registry, &shown);
    for domain in registry.domains() {
        let _ = write!(html, "<h2 id={}>{}</h2>", domain.name, domain.title);
        of_domain(&shown, domain.name).for_each(|operation| section(&mut html, operation));
    }
    errors(&mut html);
    html
}

fn of_domain<'a>(shown: &'a [Shown], domain: &'a str) -> impl Iterator<Item = &'a Shown> {
    shown.iter().filter(move |operation| operation.spec.domain == domain)
}

fn contents(html: &mut String, registry: &Registry, shown: &[Shown]) {
    html.push_str("<nav>");
    for domain in registry.domains() {
        let _ = write!(html, "<h2><a href=#{}>{}</a></h2><ul>", domain.name, domain.title);
        for Shown { id, spec, .. } in of_domain(shown, domain.name) {
            let _ = write!(html, "<li><a href=#{id}>{}</a> <code>{id}</code>", escape(spec.title));
        }
        html.push_str("</ul>");
    }
    html.push_str("<h2><a href=#errors>Errors</a></h2></nav>");
}

fn section(html: &mut String, operation: &Shown) {
    let Shown { id, tool, spec, input, answer } = operation;
    let words = |words: Vec<&str>| words.join(" or ");
    let roles = words(spec.roles.iter().map(|role| role.as_str()).collect());
    let scopes = words(spec.scopes.iter().map(|scope| scope.as_str()).collect());
    let tool = tool.as_ref().map(|name| format!(" · tool <code>{name}</code>")).unwrap_or_default();
    let read = |resource: &Resource| format!(" · resource <code>{}</code>", escape(resource.template));
    let resources: String = spec.resources.iter().map(read).collect();
    let _ = write!(
        html,
        "<section id={id}><h3>{title}</h3><p><span class=method>{method}</span> <code>{path}</code>{tool}{resources}</p>\
         <p>{description}</p><p class=quiet>Needs the role {roles} and the scope {scopes}.</p>",
        title = escape(spec.title),
        method = spec.route.method.as_str(),
        path = escape(spec.route.path),
        description = escape(spec.description),
    );
    fields::table(html, "Input", input);
    if let Some(answer) = answer {
        fields::table(html, "Answer", answer);
    }
    example::show(html, spec, answer.is_none());
    html.push_str("</section>");
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
