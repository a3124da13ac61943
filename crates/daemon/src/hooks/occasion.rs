//! What happened, as hooks are concerned by it: which of them, and what they read.

use serde_json::{Map, Value as Json, json};
use waybill_kernel::Time;

use super::settings::ON_TOPIC;
use crate::events::{Event, EventKind};

/// What a hook is given to read at most.
pub const INPUT_BYTES_MAX: usize = 256 << 10;
const REDACTED: &str = "[redacted]";
/// Texts that are cut before all of the data is left out.
const CUTS_MAX: usize = 8;

#[derive(Clone, Debug)]
pub struct Occasion {
    pub id: String,
    pub input: Json,
    /// Of hooks that are to run, without those that nobody has enabled.
    pub hooks: Vec<String>,
    pub message: Option<Message>,
}

/// The message that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: String,
    pub sender_key: String,
    pub sender_name: String,
    pub topic: Option<String>,
}

impl Occasion {
    /// None for events that no hook is for; the end of a hook is one of them, or hooks would run for ever.
    pub fn of(event: &Event) -> Option<Self> {
        let text = |name: &str| event.data[name].as_str().map(str::to_owned);
        let mut message = None;
        let hooks = match event.kind {
            EventKind::Message => {
                let found = Message {
                    id: text("client_message_id").unwrap_or_default(),
                    sender_key: text("sender_pubkey").unwrap_or_default(),
                    sender_name: text("sender_name").unwrap_or_default(),
                    topic: text("topic"),
                };
                let hooks = of_message(found.topic.as_deref(), event.data["mentioned"] == true);
                message = Some(found);
                hooks
            }
            EventKind::FileShared => vec!["on-file-share".to_owned()],
            EventKind::DaemonDisconnect => vec!["on-disconnect".to_owned()],
            EventKind::DaemonReconnect => vec!["on-reconnect".to_owned()],
            _ => return None,
        };
        let input =
            json!({ "id": event.id.to_string(), "event": event.kind.name(), "at": event.at, "data": event.data });
        Some(Self { id: event.id.to_string(), input, hooks, message })
    }

    pub fn startup(id: &str, at: Time, data: Json) -> Self {
        let input = json!({ "id": id, "event": "startup", "at": at, "data": data });
        Self { id: id.to_owned(), input, hooks: vec!["on-startup".to_owned()], message: None }
    }
}

fn of_message(topic: Option<&str>, mentioned: bool) -> Vec<String> {
    let mut hooks = vec!["on-message".to_owned()];
    match topic {
        None => hooks.push("on-dm".to_owned()),
        Some(topic) => hooks.push(format!("{ON_TOPIC}{topic}")),
    }
    if mentioned {
        hooks.push("on-mention".to_owned());
    }
    hooks
}

/// The text for a hook's standard input.
pub fn input(event: &Json, redact: &[String], bytes_max: usize) -> String {
    let mut event = event.clone();
    for path in redact {
        let parts: Vec<&str> = path.split('.').collect();
        hide(&mut event, &parts);
    }
    let text = event.to_string();
    if text.len() <= bytes_max {
        return text;
    }
    cut(event, bytes_max)
}

fn hide(value: &mut Json, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else {
        *value = REDACTED.into();
        return;
    };
    match value {
        Json::Object(fields) => {
            for (_, field) in fields.iter_mut().filter(|(name, _)| *first == "*" || name == first) {
                hide(field, rest);
            }
        }
        Json::Array(items) => {
            let nth: Option<usize> = first.parse().ok();
            for (_, item) in items.iter_mut().enumerate().filter(|(at, _)| *first == "*" || nth == Some(*at)) {
                hide(item, rest);
            }
        }
        _ => {}
    }
}

/// Shortens the longest texts first, so that what says whom and what it is about stays whole.
fn cut(mut event: Json, bytes_max: usize) -> String {
    if let Json::Object(fields) = &mut event {
        fields.insert("_truncated".to_owned(), true.into());
    }
    for _ in 0..CUTS_MAX {
        let surplus = event.to_string().len().saturating_sub(bytes_max);
        if surplus == 0 {
            return event.to_string();
        }
        let Some(longest) = longest(&mut event) else { break };
        // Escapes make a text longer than it is; cutting as many characters as there are bytes too many is always enough.
        let mut keep = longest.len().saturating_sub(surplus);
        while !longest.is_char_boundary(keep) {
            keep -= 1;
        }
        longest.truncate(keep);
    }
    let text = event.to_string();
    if text.len() <= bytes_max {
        return text;
    }
    let kept: Map<String, Json> = match event {
        Json::Object(fields) => {
            fields.into_iter().filter(|(_, value)| !value.is_object() && !value.is_array()).collect()
        }
        _ => Map::new(),
    };
    Json::Object(kept).to_string()
}

fn longest(value: &mut Json) -> Option<&mut String> {
    match value {
        Json::String(text) => Some(text),
        Json::Array(items) => items.iter_mut().filter_map(longest).max_by_key(|text| text.len()),
        Json::Object(fields) => fields.values_mut().filter_map(longest).max_by_key(|text| text.len()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, data: Json) -> Event {
        Event { id: 7, kind, at: Time::EPOCH, data, text: String::new() }
    }

    #[test]
    fn an_event_concerns_the_hooks_that_are_named_after_it() {
        let of = |kind, data| Occasion::of(&event(kind, data)).map(|occasion| occasion.hooks);
        for (data, hooks) in [
            (json!({}), vec!["on-message", "on-dm"]),
            (json!({"topic": "builds"}), vec!["on-message", "on-topic-builds"]),
            (json!({"topic": "builds", "mentioned": true}), vec!["on-message", "on-topic-builds", "on-mention"]),
        ] {
            assert_eq!(of(EventKind::Message, data.clone()).unwrap(), hooks, "{data}");
        }
        assert_eq!(of(EventKind::FileShared, json!({})).unwrap(), ["on-file-share"]);
        assert_eq!(of(EventKind::HookExecuted, json!({})), None);
        assert_eq!(of(EventKind::PeerJoin, json!({})), None);
    }

    #[test]
    fn fields_are_hidden_by_path() {
        let event = json!({"data": {"meta": {"token": "s", "n": 1}, "list": [{"a": 1, "b": 2}, {"a": 3}]}});
        let paths = ["data.meta.token", "data.list.*.a", "data.none.x", "data.list.1"].map(str::to_owned);
        let read: Json = serde_json::from_str(&input(&event, &paths[..3], 4096)).unwrap();
        assert_eq!(read["data"]["meta"], json!({"token": REDACTED, "n": 1}));
        assert_eq!(read["data"]["list"], json!([{"a": REDACTED, "b": 2}, {"a": REDACTED}]));
        let read: Json = serde_json::from_str(&input(&event, &paths[3..], 4096)).unwrap();
        assert_eq!(read["data"]["list"][1], REDACTED);
    }

    #[test]
    fn a_large_event_is_cut_to_the_bound_and_says_so() {
        for body in ["x".repeat(5_000), "\u{1}é\"".repeat(2_000)] {
            let event = json!({"id": "7", "event": "message", "data": {"sender_name": "bob", "body": body}});
            let text = input(&event, &[], 1_000);
            let read: Json = serde_json::from_str(&text).unwrap();
            assert!(text.len() <= 1_000, "{}", text.len());
            assert_eq!((&read["_truncated"], &read["data"]["sender_name"]), (&json!(true), &json!("bob")));
        }
        let many = json!({"id": "7", "data": {"list": vec!["abcdef"; 1_000]}});
        let text = input(&many, &[], 1_000);
        assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), json!({"id": "7", "_truncated": true}));
        let fits = json!({"id": "7"});
        assert_eq!(input(&fits, &[], 1_000), fits.to_string());
    }
}
