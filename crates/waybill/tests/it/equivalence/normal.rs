//! Two histories of the same calls differ in their ids and times, and may differ in nothing else.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};
use waybill_kernel::id::Uuid;

/// Characters of a UUID in its usual form.
const UUID_CHARS: usize = 36;

/// Ids become the order in which they were first seen, over a whole history.
#[derive(Default)]
pub struct Ordinals(HashMap<Uuid, usize>);

impl Ordinals {
    pub fn normal(&mut self, value: &Json) -> Json {
        match value {
            Json::String(text) => self.text(text),
            Json::Array(items) => items.iter().map(|item| self.normal(item)).collect(),
            Json::Object(fields) => {
                let mut kept = Map::new();
                for (name, field) in fields.iter().filter(|(name, _)| !name.ends_with("_at") && !name.ends_with("_ts"))
                {
                    // A cursor holds an id and a checksum over it: that there is one is all that can be compared.
                    let field = match name.as_str() {
                        name if name.ends_with("cursor") => json!("a cursor"),
                        "registration_token" => json!("a token"),
                        // How long two servers have been up is their own affair; digests cover ids.
                        "uptime" => json!("a while"),
                        "hash" => json!("a digest"),
                        // Of a queue: it begins with the time at which the queue was made.
                        "generation" => json!("a generation"),
                        _ => self.normal(field),
                    };
                    kept.insert(name.clone(), field);
                }
                Json::Object(kept)
            }
            other => other.clone(),
        }
    }

    fn text(&mut self, text: &str) -> Json {
        match Uuid::try_parse(text) {
            Ok(id) if text.len() == UUID_CHARS => {
                let next = self.0.len();
                json!(format!("id {}", self.0.entry(id).or_insert(next)))
            }
            _ => json!(text),
        }
    }
}

#[test]
fn ids_become_ordinals_and_times_go() {
    let (one, two) = ("01a1e0e7-2b84-7d12-9a6e-99fae6af2091", "01a1e0e7-2e3c-786e-92ed-903c277d1d59");
    let history = json!([{ "a": two, "b": [one, two, "text"], "created_at": 5, "next_cursor": "00" }]);
    let expected = json!([{ "a": "id 0", "b": ["id 1", "id 0", "text"], "next_cursor": "a cursor" }]);
    assert_eq!(Ordinals::default().normal(&history), expected);
}
