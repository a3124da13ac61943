//! The example of an operation, as it goes over the wire.

use std::fmt::Write;

use serde_json::{Map, Value as Json};
use waybill_kernel::OperationSpec;
use waybill_kernel::rest::target;

use super::escape;

pub(super) fn show(html: &mut String, spec: &OperationSpec, is_stream: bool) {
    let _ = write!(
        html,
        "<p>Example</p><pre>{}</pre><pre>{}</pre>",
        escape(&request(spec)),
        escape(&answer(spec, is_stream))
    );
}

fn request(spec: &OperationSpec) -> String {
    let mut rest: Map<String, Json> = serde_json::from_str(spec.example.arguments).unwrap_or_default();
    let method = spec.route.method;
    let line = format!("{} {}", method.as_str(), target(method, spec.route.path, &mut rest));
    if rest.is_empty() { line } else { format!("{line}\n\n{}", pretty(&Json::Object(rest))) }
}

fn answer(spec: &OperationSpec, is_stream: bool) -> String {
    let answer: Json = serde_json::from_str(spec.example.answer).unwrap_or_default();
    if is_stream {
        return format!("{}\n\nevent: receipt\ndata: {answer}", spec.status);
    }
    format!("{}\n\n{}", spec.status, pretty(&answer))
}

fn pretty(value: &Json) -> String {
    format!("{value:#}")
}

#[cfg(test)]
mod tests {
    use waybill_kernel::{Example, Method, Route};

    use super::*;

    const fn spec(method: Method, path: &'static str, arguments: &'static str) -> OperationSpec {
        OperationSpec {
            name: "operate",
            route: Route { method, path },
            status: 201,
            example: Example { arguments, answer: r#"{"ok": true}"# },
            ..OperationSpec::READ
        }
    }

    #[test]
    fn arguments_go_where_rest_takes_them_from() {
        let get = spec(Method::Get, "/v1/things/{id}", r#"{"limit": 2, "id": "a b", "of": "agent:x"}"#);
        assert_eq!(request(&get), "GET /v1/things/a%20b?limit=2&of=agent:x");
        let post = spec(Method::Post, "/v1/things/{id}/end", r#"{"id": "7", "why": {"z": 1, "a": 2}}"#);
        assert_eq!(request(&post), "POST /v1/things/7/end\n\n{\n  \"why\": {\n    \"z\": 1,\n    \"a\": 2\n  }\n}");
        assert_eq!(request(&spec(Method::Post, "/v1/end", "{}")), "POST /v1/end");
        assert_eq!(answer(&get, false), "201\n\n{\n  \"ok\": true\n}");
        assert_eq!(answer(&get, true), "201\n\nevent: receipt\ndata: {\"ok\":true}");
    }
}
