//! `waybill mesh topics …`. Where a daemon runs it is asked, so that it learns of the topic and its key at once.

use clap::Subcommand;
use serde_json::{Value as Json, json};
use waybill_kernel::Result;
use waybill_mesh_protocol::TopicName;

use crate::commands::peer::home::{At, Of};
use crate::commands::peer::socket::Socket;
use crate::output;

const TOPICS: &[&str] = &["topic", "subscribed", "subscribers", "epoch", "pending_epoch", "blocked", "created_at"];

#[derive(Subcommand)]
pub enum Topics {
    /// Make a topic and subscribe to it.
    Create {
        #[command(flatten)]
        of: Of,
        topic: TopicName,
    },
    /// List the topics of a mesh.
    List(Of),
    /// Get what is posted to a topic from now on.
    Subscribe {
        #[command(flatten)]
        of: Of,
        topic: TopicName,
    },
    /// Get no more of what is posted to a topic.
    Unsubscribe {
        #[command(flatten)]
        of: Of,
        topic: TopicName,
    },
}

pub async fn run(command: Topics) -> Result<()> {
    match command {
        Topics::Create { of, topic } => {
            let at = of.at();
            let answer: Json = at.member()?.broker()?.post("mesh/v1/topics", &json!({ "topic": topic })).await?;
            // Its daemon is the one that makes the first key.
            if let Some(daemon) = Socket::find(&at.folder()?).await? {
                daemon.post("/v1/topic/subscribe", &json!({ "topic": topic })).await?;
            }
            output::answer(at.json, &answer, &format!("{topic}: made, and you are subscribed."))
        }
        Topics::List(of) => list(&of.at()).await,
        Topics::Subscribe { of, topic } => {
            let answer = change(&of.at(), "subscribe", &topic).await?;
            output::answer(of.at().json, &answer, &format!("{topic}: subscribed."))
        }
        Topics::Unsubscribe { of, topic } => {
            let answer = change(&of.at(), "unsubscribe", &topic).await?;
            output::answer(of.at().json, &answer, &format!("{topic}: no longer subscribed."))
        }
    }
}

async fn change(at: &At, word: &str, topic: &TopicName) -> Result<Json> {
    match Socket::find(&at.folder()?).await? {
        Some(daemon) => daemon.post(&format!("/v1/topic/{word}"), &json!({ "topic": topic })).await,
        None => at.member()?.broker()?.post(&format!("mesh/v1/topics/{topic}/{word}"), &json!({})).await,
    }
}

async fn list(at: &At) -> Result<()> {
    let broker = at.member()?.broker()?;
    let mut rows: Vec<Json> = Vec::new();
    let mut after = String::new();
    loop {
        let mut page: Json = broker.get(&format!("mesh/v1/topics?limit=1000{after}")).await?;
        let got = page["topics"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let is_over = got.is_empty();
        rows.extend(got);
        match page["next_after"].as_str() {
            Some(next) if !is_over => after = format!("&after={next}"),
            _ => break,
        }
    }
    if at.json {
        return output::json(&json!({ "topics": rows }));
    }
    output::table(TOPICS, &rows)
}
