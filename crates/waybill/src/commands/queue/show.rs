//! `waybill queue list` and `waybill queue show`

use serde_json::{Map, Value as Json, json};
use waybill_kernel::Result;

use super::{Watch, watch};
use crate::cli::Reach;
use crate::commands::session::Session;
use crate::output;

const QUEUES: &[&str] =
    &["queue", "visible", "in_flight", "delayed", "dead_letter_queue", "is_dead_letter_queue", "created_at"];
/// Queues asked for at a time.
const PAGE: u64 = 100;

pub async fn list(prefix: Option<&str>, watching: &Watch, reach: &Reach) -> Result<()> {
    let ask = async |session: &Session| all(session, prefix).await;
    watch::show(watching, reach, ask, |answer| {
        let queues = answer["queues"].as_array().map_or(&[][..], Vec::as_slice);
        output::table(QUEUES, &queues.iter().map(flat).collect::<Vec<_>>())
    })
    .await
}

/// Every page, as one.
async fn all(session: &Session, prefix: Option<&str>) -> Result<Json> {
    let mut queues = Vec::new();
    let mut input = json!({ "limit": PAGE, "prefix": prefix });
    loop {
        let mut page = session.call("list_queues", input.clone()).await?;
        queues.extend(page["queues"].as_array_mut().map(std::mem::take).unwrap_or_default());
        match page["next_cursor"].take() {
            Json::Null => return Ok(json!({ "queues": queues })),
            cursor => input["cursor"] = cursor,
        }
    }
}

/// The three figures beside the others.
fn flat(queue: &Json) -> Json {
    let mut row = queue.as_object().cloned().unwrap_or_default();
    if let Some(Json::Object(messages)) = row.shift_remove("messages") {
        row.extend(messages);
    }
    Json::Object(row)
}

pub async fn one(name: &str, watching: &Watch, reach: &Reach) -> Result<()> {
    let ask = async |session: &Session| session.call("get_queue", json!({ "queue": name })).await;
    watch::show(watching, reach, ask, |queue| output::facts(&facts(queue))).await
}

/// What there is to say, line by line.
fn facts(queue: &Json) -> Vec<(String, Json)> {
    let messages = &queue["messages"];
    let mut facts: Vec<(String, Json)> = ["queue", "arn", "fifo"].iter().map(|name| fact(queue, name)).collect();
    facts.extend(["visible", "in_flight", "delayed"].iter().map(|name| fact(messages, name)));
    facts.push(fact(queue, "oldest_message_at"));
    let target = &queue["dead_letter_queue"];
    if target.is_object() {
        let times = output::cell(&target["max_receive_count"]);
        let to = format!("{} after {times} receives", output::cell(&target["queue"]));
        facts.push(("dead_letter_queue".to_owned(), json!(to)));
    }
    if queue["is_dead_letter_queue"] == true {
        facts.push(fact(queue, "dead_letter_sources"));
    }
    facts.extend(["created_at", "modified_at", "purged_at"].iter().map(|name| fact(queue, name)));
    facts.extend(group(queue["attributes"].as_object(), "attribute"));
    facts.extend(group(queue["tags"].as_object(), "tag"));
    facts
}

fn fact(of: &Json, name: &str) -> (String, Json) {
    (name.to_owned(), of[name].clone())
}

fn group(of: Option<&Map<String, Json>>, what: &str) -> Vec<(String, Json)> {
    of.into_iter().flatten().map(|(name, value)| (format!("{what} {name}"), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_told_line_by_line() {
        let queue = json!({
            "queue": "jobs", "arn": "arn:…:jobs", "fifo": false, "messages": { "visible": 3, "in_flight": 1, "delayed": 0 },
            "attributes": { "DelaySeconds": "0" }, "tags": { "team": "a" }, "is_dead_letter_queue": true,
            "dead_letter_queue": { "queue": "dead", "max_receive_count": 5 }, "dead_letter_sources": ["a", "b"],
            "created_at": "2026-01-05T12:30:00.000000Z",
        });
        let told: Vec<String> =
            facts(&queue).iter().map(|(name, value)| format!("{name}: {}", output::cell(value))).collect();
        for line in [
            "visible: 3",
            "oldest_message_at: -",
            "dead_letter_queue: dead after 5 receives",
            "dead_letter_sources: a b",
            "attribute DelaySeconds: 0",
            "tag team: a",
        ] {
            assert!(told.contains(&line.to_owned()), "{line}: {told:?}");
        }
        assert_eq!(flat(&queue)["in_flight"], 1);
    }
}
