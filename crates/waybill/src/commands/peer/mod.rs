//! `waybill send|post|inbox|peers`: what a member does every day. A daemon does it where one runs; without one a message is sent
//! directly, which is said, because nothing keeps it when the server is away.

mod direct;
pub mod home;
pub mod socket;

use clap::{Args, ValueEnum};
use serde_json::{Value as Json, json};
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::{ClientMessageId, TopicName};

use self::home::At;
use self::socket::Socket;
use crate::output;

const INBOX: &[&str] = &["id", "received_at", "sender_name", "topic", "body", "client_message_id"];
/// Messages that one search finds.
const FOUND_MAX: u64 = 100;
const PEERS: &[&str] = &["name", "pubkey", "is_owner", "online", "state"];

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Priority {
    Now,
    #[default]
    Next,
    Low,
}

impl Priority {
    const fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Next => "next",
            Self::Low => "low",
        }
    }
}

#[derive(Args)]
pub struct Words {
    /// What to say; `-` to read it from stdin.
    text: String,
    #[arg(long, value_enum, default_value_t)]
    priority: Priority,
    /// An id of your own: the same message under it is sent once, however often this is run.
    #[arg(long, value_name = "ID")]
    id: Option<ClientMessageId>,
    /// The client_message_id of the message that this answers.
    #[arg(long, value_name = "ID")]
    reply_to: Option<ClientMessageId>,
    /// Further data, as a JSON object.
    #[arg(long, value_name = "JSON")]
    meta: Option<String>,
    #[command(flatten)]
    at: At,
}

#[derive(Args)]
pub struct Send {
    /// A member's name or public key; with --queue the name of a queue.
    to: String,
    /// Send to a queue of the server, on a mesh in plain text whose owner has allowed it.
    #[arg(long)]
    queue: bool,
    #[command(flatten)]
    words: Words,
}

#[derive(Args)]
pub struct Post {
    topic: TopicName,
    #[command(flatten)]
    words: Words,
    /// The public key of a member to point out; may be given several times.
    #[arg(long, value_name = "KEY")]
    mention: Vec<String>,
}

#[derive(Args)]
pub struct Inbox {
    /// Only of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only of this sender, by name or key.
    #[arg(long, value_name = "MEMBER")]
    from: Option<String>,
    /// Only what came after: a message's id or a time.
    #[arg(long)]
    since: Option<String>,
    /// Only messages with these words.
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["topic", "from", "since"])]
    search: Option<String>,
    /// How many at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// Where the page before has ended, as it was said there.
    #[arg(long, conflicts_with = "since")]
    cursor: Option<String>,
    #[command(flatten)]
    at: At,
}

pub async fn send(flags: Send) -> Result<()> {
    let mut body = flags.words.body()?;
    body[if flags.queue { "queue" } else { "to" }] = json!(flags.to);
    let answer = match Socket::find(&flags.words.at.folder()?).await? {
        Some(daemon) => daemon.post("/v1/send", &body).await?,
        None => direct::send(&flags.words.at, body).await?,
    };
    sent(&flags.words.at, &answer)
}

pub async fn post(flags: Post) -> Result<()> {
    let mut body = flags.words.body()?;
    body["topic"] = json!(flags.topic);
    if !flags.mention.is_empty() {
        body["mentions"] = json!(flags.mention);
    }
    let answer = match Socket::find(&flags.words.at.folder()?).await? {
        Some(daemon) => daemon.post("/v1/topic/post", &body).await?,
        None => direct::post(&flags.words.at, body).await?,
    };
    sent(&flags.words.at, &answer)
}

impl Words {
    fn body(&self) -> Result<Json> {
        let text = match self.text.as_str() {
            "-" => std::io::read_to_string(std::io::stdin().lock()).map_err(Error::internal)?,
            text => text.to_owned(),
        };
        let mut body = json!({ "message": text, "priority": self.priority.name() });
        if let Some(id) = &self.id {
            body["client_message_id"] = json!(id);
        }
        if let Some(id) = &self.reply_to {
            body["replyToId"] = json!(id);
        }
        if let Some(meta) = &self.meta {
            body["meta"] =
                serde_json::from_str(meta).map_err(|error| Error::invalid(format!("--meta is no JSON: {error}.")))?;
        }
        Ok(body)
    }
}

fn sent(at: &At, answer: &Json) -> Result<()> {
    if at.json {
        return output::json(answer);
    }
    let id = output::cell(&answer["client_message_id"]);
    output::line(&match (answer["duplicate"] == true, answer["status"].as_str()) {
        (true, _) => format!("{id}: was sent before."),
        (false, Some("queued" | "inflight")) => format!("{id}: kept, and on its way."),
        (false, _) => format!("{id}: sent."),
    })
}

pub async fn inbox(flags: Inbox) -> Result<()> {
    let daemon = Socket::of(&flags.at.folder()?).await?;
    let mut query: Vec<(&str, String)> = flags.cursor.into_iter().map(|cursor| ("cursor", cursor)).collect();
    let answer = match flags.search {
        Some(words) => {
            query.extend([("limit", flags.limit.min(FOUND_MAX).to_string()), ("q", words)]);
            daemon.get("/v1/inbox/search", &query).await?
        }
        None => {
            query.push(("limit", flags.limit.to_string()));
            query.extend(flags.topic.map(|topic| ("topic", topic)));
            query.extend(flags.from.map(|from| ("from", from)));
            query.extend(flags.since.map(|since| ("since", since)));
            daemon.get("/v1/inbox", &query).await?
        }
    };
    output::list(flags.at.json, &answer, "messages", INBOX)?;
    if flags.at.json { Ok(()) } else { output::more(&answer) }
}

pub async fn peers(at: At) -> Result<()> {
    let answer = Socket::of(&at.folder()?).await?.get("/v1/peers", &[]).await?;
    output::list(at.json, &answer, "peers", PEERS)
}
