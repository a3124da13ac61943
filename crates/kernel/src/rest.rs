//! How the input of an operation becomes a REST request: fields that the route names go into the path, the others into the
//! query of a GET or DELETE, or the body of a POST or PUT.

use crate::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as Json};

/// These stand for themselves in a path or query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

/// Path and query. What it uses is taken out of the fields; what is left is the body of a POST or PUT.
pub fn target(method: Method, template: &str, fields: &mut Map<String, Json>) -> String {
    let path = fill(template, fields);
    if method.has_body() { path } else { format!("{path}{}", query(&std::mem::take(fields))) }
}

/// The path with its `{name}` parts taken from the fields.
fn fill(template: &str, fields: &mut Map<String, Json>) -> String {
    let part = |part: &str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some(name) => fields.shift_remove(name).map_or_else(String::new, |value| text(&value)),
        None => part.to_owned(),
    };
    template.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// A field that is null is one that was not given.
fn query(fields: &Map<String, Json>) -> String {
    let given = fields.iter().filter(|(_, value)| !value.is_null());
    let pairs: Vec<_> = given.map(|(name, value)| format!("{name}={}", text(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

fn text(value: &Json) -> String {
    let plain = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    utf8_percent_encode(&plain, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_go_into_path_and_query_without_changing_either() {
        let mut fields = json!({"task_id": "a/../b?c", "limit": 3, "cursor": null, "type": "x&y=z:0"});
        let fields = fields.as_object_mut().unwrap();
        let sent = target(Method::Get, "/v1/tasks/{task_id}/x", fields);
        assert_eq!((sent.as_str(), fields.len()), ("/v1/tasks/a%2F..%2Fb%3Fc/x?limit=3&type=x%26y%3Dz:0", 0));
        assert_eq!(target(Method::Get, "/v1/tasks", &mut Map::new()), "/v1/tasks");
    }

    #[test]
    fn what_the_path_of_a_post_does_not_name_is_left_for_its_body() {
        let mut fields = json!({"task_id": "t", "result": {"a": 1}});
        let fields = fields.as_object_mut().unwrap();
        assert_eq!(target(Method::Post, "/v1/tasks/{task_id}/complete", fields), "/v1/tasks/t/complete");
        assert_eq!(json!(fields), json!({"result": {"a": 1}}));
        assert_eq!(target(Method::Put, "/v1/tasks/{task_id}", fields), "/v1/tasks/");
        assert_eq!(json!(fields), json!({"result": {"a": 1}}));
        assert_eq!(target(Method::Delete, "/v1/x", &mut Map::from_iter([("n".to_owned(), json!(1))])), "/v1/x?n=1");
    }
}
