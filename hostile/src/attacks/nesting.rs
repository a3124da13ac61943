//! One small request that makes a parser call itself until its stack ends.
//!
//! Plain depth is what every parser counts. The other form is a name by which serde_json knows its own raw text: a reader
//! that takes such an object for raw JSON parses the text within with a fresh count of depth, and so at every level.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use super::Field;
use crate::marks::Check;

const RAW_NAME: &str = "$serde_json::private::RawValue";
/// Levels of raw text, and brackets around each: below the depth at which a parser gives up, which is counted anew in
/// every level. The second makes 44 KB, the last 1 MB.
const RAW: [(usize, usize); 4] = [(60, 0), (60, 115), (150, 115), (300, 115)];
const DEPTHS: [usize; 3] = [126, 5_000, 500_000];

pub async fn run(field: &Field) -> Result<Vec<Check>> {
    let (time, requests) = (field.time(), requests());
    let (mut sent, mut unanswered) = (0, Vec::new());
    loop {
        for (form, path, body) in &requests {
            sent += 1;
            let answer = field.target(field.key(0)).call(Method::POST, path, body.clone().into_bytes()).await;
            match answer {
                Ok(answer) => {
                    field.tally.answered(answer.status);
                    if answer.status >= 500 {
                        unanswered.push(format!("{form} at {path}: {}", answer.brief()));
                    }
                }
                Err(error) => unanswered.push(format!("{form} at {path}: {error:#}")),
            }
        }
        if !time.is_left() {
            break;
        }
    }
    let found = unanswered.first().map(|first| format!(" ({}, {first})", unanswered.len())).unwrap_or_default();
    Ok(vec![Check::new(unanswered.is_empty(), format!("each of {sent} requests is answered, none by 5xx{found}"))])
}

/// Form, path and body of each.
fn requests() -> Vec<(String, &'static str, String)> {
    let mut requests = Vec::new();
    for (form, deep) in forms() {
        let mut add = |place: &str, path, body: String| requests.push((format!("{form} in {place}"), path, body));
        add("the body", "/v1/tasks", deep.clone());
        add("payload", "/v1/tasks", format!(r#"{{"type":"echo","payload":{deep}}}"#));
        add("requirements", "/v1/tasks", format!(r#"{{"type":"echo","requirements":{deep}}}"#));
        add("the frame", "/mcp", deep.clone());
        for (place, frame) in frames() {
            add(place, "/mcp", frame.to_string().replace("\"HERE\"", &deep));
        }
    }
    requests
}

fn forms() -> Vec<(String, String)> {
    let raw = |(levels, brackets)| (format!("raw text, {levels} levels in {brackets} brackets"), raw(levels, brackets));
    let mut forms: Vec<_> = RAW.into_iter().map(raw).collect();
    for depth in DEPTHS {
        forms.push((format!("{depth} arrays"), format!("{}1{}", "[".repeat(depth), "]".repeat(depth))));
        forms.push((format!("{depth} objects"), format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))));
        forms.push((format!("{depth} unclosed arrays"), "[".repeat(depth)));
    }
    // What is longer than any body may be tells nothing about depth.
    forms.retain(|(_, deep)| deep.len() < 2_000_000);
    forms
}

/// MCP messages with a place for the deep thing.
fn frames() -> Vec<(&'static str, Value)> {
    let frame =
        |id: Value, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
    let call = |arguments: Value, meta: Value| json!({ "name": "asyncgate.create_task", "arguments": arguments, "_meta": meta });
    let deep = json!("HERE");
    vec![
        ("arguments.payload", frame(json!(1), call(json!({ "type": "echo", "payload": deep }), json!({})))),
        ("arguments", frame(json!(1), call(deep.clone(), json!({})))),
        ("_meta", frame(json!(1), call(json!({ "type": "echo" }), json!({ "x": deep })))),
        ("_meta itself", frame(json!(1), call(json!({ "type": "echo" }), deep.clone()))),
        ("params", frame(json!(1), deep.clone())),
        ("id", frame(deep.clone(), call(json!({ "type": "echo" }), json!({})))),
        ("method", json!({ "jsonrpc": "2.0", "id": 1, "method": deep, "params": {} })),
        ("a notification", json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": deep })),
        ("a result", json!({ "jsonrpc": "2.0", "id": 1, "result": deep })),
        (
            "initialize",
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "capabilities": deep } }),
        ),
        ("an unknown field", json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "more": deep })),
        ("a batch", json!([{ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": deep }])),
    ]
}

/// `levels` objects of the raw name, the text of each being the JSON of the next.
fn raw(levels: usize, brackets: usize) -> String {
    let mut text = "1".to_owned();
    for _ in 0..levels {
        // With \u escapes a level adds five characters to each quote of those within; with backslashes it would double them.
        let escaped = text.replace('\\', "\\u005c").replace('"', "\\u0022");
        text = format!("{}{{\"{RAW_NAME}\":\"{escaped}\"}}{}", "[".repeat(brackets), "]".repeat(brackets));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_text_is_json_within_json() {
        let mut text = raw(3, 1);
        for _ in 0..3 {
            let value: Vec<std::collections::BTreeMap<String, String>> = serde_json::from_str(&text).unwrap();
            text.clone_from(&value[0][RAW_NAME]);
        }
        assert_eq!(text, "1");
        for (levels, brackets) in RAW {
            assert!(raw(levels, brackets).len() < 1_100_000);
        }
    }

    #[test]
    fn every_form_stands_at_every_place() {
        let requests = requests();
        assert!(requests.len() > 100);
        assert!(requests.iter().all(|(_, _, body)| !body.contains("HERE")));
    }
}
