//! `waybill mail inbox`, `read`, `ack`, `search` and `thread`

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Result};

use super::{Actor, Project, call};
use crate::cli::Reach;
use crate::commands::session::Session;
use crate::output;

const MESSAGES: &[&str] = &["id", "from", "subject", "thread_id", "importance", "created_ts", "read_ts", "ack"];
const HITS: &[&str] = &["id", "from", "subject", "thread_id", "created_ts", "snippet"];

#[derive(Args)]
pub struct Inbox {
    /// Only what has not been read.
    #[arg(long)]
    unread: bool,
    /// Only what is of high or urgent importance.
    #[arg(long)]
    urgent: bool,
    /// Only what should have been acknowledged by now.
    #[arg(long)]
    overdue: bool,
    /// Only what came after this time, as in 2026-01-05T12:30:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// How many at most.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// With the texts.
    #[arg(long)]
    bodies: bool,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Message {
    message_id: i64,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Search {
    /// Words, "phrases", begin*, AND, OR, NOT, subject:x, body:x, from:NAME.
    query: String,
    /// The newest first, instead of the best.
    #[arg(long)]
    recent: bool,
    /// Only from this agent.
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// Only of this thread.
    #[arg(long, value_name = "ID")]
    thread: Option<String>,
    /// Only what this agent of yours has sent or got [default: all of yours].
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// That agent's token, where another key has registered it.
    #[arg(long, env = "AGENT_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// How many at most.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// `next_cursor` of the page before, with everything else the same.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    project: Project,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Thread {
    thread_id: String,
    /// How many messages at most, the newest of them.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=500))]
    limit: u64,
    /// `next_cursor` of the page before, for what is older.
    #[arg(long)]
    cursor: Option<String>,
    /// Only who wrote what about what, without the texts.
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    project: Project,
    #[command(flatten)]
    reach: Reach,
}

pub async fn inbox(flags: Inbox) -> Result<()> {
    let Inbox { unread, urgent, overdue, since, limit, bodies, actor, reach } = flags;
    let input = json!({
        "project_key": actor.project.key(&reach).await?,
        "agent_name": actor.name()?,
        "registration_token": actor.token,
        "unread_only": unread,
        "urgent_only": urgent,
        "ack_overdue_only": overdue,
        "since_ts": since,
        "limit": limit,
        "include_bodies": bodies,
    });
    let answer = call(&reach, "mail.fetch_inbox", input).await?;
    if reach.json {
        return output::json(&answer);
    }
    if answer["has_more"] == true {
        output::note("There are older ones that are not shown: raise --limit, or leave --bodies away.")?;
    }
    let messages = answer["result"].as_array().map_or(&[][..], Vec::as_slice);
    if bodies {
        return whole(messages);
    }
    output::table(MESSAGES, &messages.iter().map(row).collect::<Vec<_>>())
}

impl Message {
    /// What the calls about it take.
    async fn input(&self) -> Result<Json> {
        let Message { message_id, actor, reach } = self;
        Ok(json!({
            "project_key": actor.project.key(reach).await?,
            "agent_name": actor.name()?,
            "registration_token": actor.token,
            "message_id": message_id,
        }))
    }
}

pub async fn read(flags: Message) -> Result<()> {
    let input = flags.input().await?;
    let reach = flags.reach;
    let session = Session::open(&reach).await?;
    let found = async {
        let message = session.call("mail.get_message", input.clone()).await?;
        // Whoever wrote a message may have got it as well. An agent that has not got it cannot mark it, and need not.
        match session.call("mail.mark_message_read", input).await {
            Err(error) if error.code() != Code::NotFound => Err(error),
            _ => Ok(message),
        }
    };
    let message: Result<Json> = found.await;
    session.close().await;
    let message = message?;
    if reach.json { output::json(&message) } else { whole(std::slice::from_ref(&message)) }
}

pub async fn acknowledge(flags: Message) -> Result<()> {
    let input = flags.input().await?;
    let reach = flags.reach;
    let answer = call(&reach, "mail.acknowledge_message", input).await?;
    output::answer(reach.json, &answer, &format!("Acknowledged at {}.", output::cell(&answer["acknowledged_at"])))
}

pub async fn search(flags: Search) -> Result<()> {
    let Search { query, recent, from, thread, agent, token, limit, cursor, project, reach } = flags;
    let input = json!({
        "project_key": project.key(&reach).await?,
        "query": query,
        "ranking": if recent { "recency" } else { "relevance" },
        "sender": from,
        "thread_id": thread,
        "agent_name": agent,
        "registration_token": token,
        "limit": limit,
        "cursor": cursor,
    });
    let answer = call(&reach, "mail.search_messages", input).await?;
    if !reach.json {
        output::more(&answer)?;
        for word in answer["assistance"]["guidance"].as_array().into_iter().flatten() {
            output::note(&output::cell(word))?;
        }
    }
    output::list(reach.json, &answer, "result", HITS)
}

pub async fn thread(flags: Thread) -> Result<()> {
    let Thread { thread_id, limit, cursor, short, project, reach } = flags;
    let input = json!({
        "project_key": project.key(&reach).await?,
        "thread_id": thread_id,
        "limit": limit,
        "cursor": cursor,
        "include_bodies": !short,
    });
    let answer = call(&reach, "mail.get_thread", input).await?;
    if reach.json {
        return output::json(&answer);
    }
    output::more(&answer)?;
    let messages = answer["messages"].as_array().map_or(&[][..], Vec::as_slice);
    if short {
        return output::table(MESSAGES, &messages.iter().map(row).collect::<Vec<_>>());
    }
    whole(messages)
}

fn row(message: &Json) -> Json {
    let ack = match (message["ack_required"] == true, &message["ack_ts"]) {
        (_, Json::String(at)) => json!(at),
        (true, _) => json!("wanted"),
        (false, _) => Json::Null,
    };
    let mut row = message.clone();
    row["ack"] = ack;
    row
}

/// Messages with their texts, one after the other.
fn whole(messages: &[Json]) -> Result<()> {
    if messages.is_empty() {
        return output::note("There are none.");
    }
    output::line(&messages.iter().map(letter).collect::<Vec<_>>().join("\n\n"))
}

/// As a letter: who, to whom, about what, and then the text.
fn letter(message: &Json) -> String {
    let mut lines = Vec::new();
    for (head, field) in [
        ("Message", "id"),
        ("From", "from"),
        ("To", "to"),
        ("Cc", "cc"),
        ("Bcc", "bcc"),
        ("Subject", "subject"),
        ("Thread", "thread_id"),
        ("Importance", "importance"),
        ("Date", "created_ts"),
    ] {
        let value = &message[field];
        let is_said = !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
        if is_said && !(field == "importance" && value == "normal") {
            lines.push(format!("{head}: {}", output::cell(value)));
        }
    }
    for file in message["attachments"].as_array().into_iter().flatten() {
        lines.push(format!("Attached: {}", output::cell(&file["name"])));
    }
    if message["ack_required"] == true && message["ack_ts"].is_null() {
        lines.push("An acknowledgement is wanted.".to_owned());
    }
    lines.push(String::new());
    // Line by line: control characters of others do not reach the terminal, and lines stay lines.
    let text = message["body_md"].as_str().unwrap_or_default();
    lines.extend(text.lines().map(|line| output::cell(&json!(line))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_as_a_letter_and_keeps_its_lines() {
        let message = json!({
            "id": 7, "from": "RedFox", "to": ["BlueLake"], "cc": [], "subject": "Plan", "importance": "normal",
            "created_ts": "2026-01-05T12:30:00Z", "ack_required": true, "body_md": "one\n\u{1b}[31mtwo",
            "attachments": [{ "name": "a.txt" }],
        });
        let expected = "Message: 7\nFrom: RedFox\nTo: BlueLake\nSubject: Plan\nDate: 2026-01-05T12:30:00Z\n\
                        Attached: a.txt\nAn acknowledgement is wanted.\n\none\n\u{fffd}[31mtwo";
        assert_eq!(letter(&message), expected);
    }

    #[test]
    fn a_row_says_whether_an_acknowledgement_is_wanted_or_was_given() {
        assert_eq!(row(&json!({ "ack_required": true }))["ack"], "wanted");
        assert_eq!(row(&json!({ "ack_required": true, "ack_ts": "now" }))["ack"], "now");
        assert_eq!(row(&json!({ "ack_required": false }))["ack"], Json::Null);
    }
}
