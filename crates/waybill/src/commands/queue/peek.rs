//! `waybill queue peek`

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_kernel::Result;

use crate::cli::Reach;
use crate::commands::session::Session;
use crate::output;

const COLUMNS: &[&str] = &["message_id", "sent_at", "receives", "group", "bytes", "attributes", "body"];
/// Messages asked for at a time.
const PAGE: u64 = 100;
/// Of a body in a table, unless more was asked for.
const BODY_CHARS: usize = 80;

#[derive(Args)]
pub struct Peek {
    name: String,
    /// How many messages at most.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    limit: u64,
    /// Show this much of each body, from 256 to 262144 bytes [default: a line of it].
    #[arg(long, value_name = "BYTES")]
    body_bytes: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

pub async fn run(flags: Peek) -> Result<()> {
    let session = Session::open(&flags.reach).await?;
    let messages = gather(&session, &flags).await;
    session.close().await;
    let messages = messages?;
    if flags.reach.json {
        return output::json(&json!({ "messages": messages }));
    }
    let chars = if flags.body_bytes.is_some() { usize::MAX } else { BODY_CHARS };
    output::table(COLUMNS, &messages.iter().map(|message| row(message, chars)).collect::<Vec<_>>())
}

/// Page by page, until there are enough. A page may be empty and not be the last.
async fn gather(session: &Session, flags: &Peek) -> Result<Vec<Json>> {
    let (mut messages, mut cursor) = (Vec::new(), Json::Null);
    loop {
        let missing = flags.limit.saturating_sub(messages.len() as u64);
        let limit = missing.min(PAGE);
        let input = json!({ "queue": flags.name, "limit": limit, "body_bytes": flags.body_bytes, "cursor": cursor });
        let mut page = session.call("peek_messages", input).await?;
        messages.extend(page["messages"].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = page["next_cursor"].take();
        if cursor.is_null() || messages.len() as u64 >= flags.limit {
            return Ok(messages);
        }
    }
}

fn row(message: &Json, chars: usize) -> Json {
    json!({
        "message_id": message["message_id"],
        "sent_at": message["sent_at"],
        "receives": message["receives"],
        "group": message["group_id"],
        "bytes": message["body_bytes"],
        "attributes": attributes(message),
        "body": body(message, chars),
    })
}

fn body(message: &Json, chars: usize) -> String {
    let text = message["body"].as_str().unwrap_or_default();
    let shown: String = text.chars().take(chars).collect();
    let is_cut = shown.len() < text.len() || message["body_is_cut"] == true;
    if is_cut { format!("{shown}…") } else { shown }
}

/// `name=value`; of a binary one its base64.
fn attributes(message: &Json) -> Json {
    let named = message["message_attributes"].as_object().into_iter().flatten();
    let mut words: Vec<String> = named
        .map(|(name, attribute)| match attribute["binary_value"].as_str() {
            Some(bytes) => format!("{name}=base64:{bytes}"),
            None => format!("{name}={}", output::cell(&attribute["string_value"])),
        })
        .collect();
    if message["message_attributes_are_cut"] == true {
        words.push("…".to_owned());
    }
    if words.is_empty() { Json::Null } else { json!(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_line() {
        let message = json!({
            "message_id": "m", "body": "hällo", "body_bytes": 6, "body_is_cut": false, "receives": 0,
            "message_attributes": {
                "kind": { "data_type": "String", "string_value": "new" },
                "picture": { "data_type": "Binary", "binary_value": "AAH/" },
            },
        });
        assert_eq!(row(&message, 80)["attributes"], json!(["kind=new", "picture=base64:AAH/"]));
        assert_eq!((body(&message, 80), body(&message, 2)), ("hällo".to_owned(), "hä…".to_owned()));
        let cut =
            json!({ "body": "a", "body_is_cut": true, "message_attributes": {}, "message_attributes_are_cut": true });
        assert_eq!((body(&cut, 80), attributes(&cut)), ("a…".to_owned(), json!(["…"])));
        assert_eq!(attributes(&json!({ "message_attributes": {} })), Json::Null);
    }
}
