//! `waybill daemon outbox …`: what waits, what was sent, and what an operator does about what could not be.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use waybill_daemon::outbox::{Outbox as Store, Query, Status};
use waybill_daemon::{Lock, folder};
use waybill_kernel::{Clock, Error, Result};

use crate::commands::peer::home::{At, entropy, unusable};
use crate::commands::peer::socket::Socket;
use crate::output;

const MESSAGES: &[&str] =
    &["client_message_id", "status", "destination_kind", "destination_ref", "attempts", "enqueued_at", "last_error"];

#[derive(Subcommand)]
pub enum Outbox {
    /// List messages in the order of arrival, without their texts.
    List {
        /// Only those that could not be sent.
        #[arg(long, conflicts_with = "status")]
        failed: bool,
        /// pending, inflight, done, dead or aborted.
        #[arg(long)]
        status: Option<String>,
        /// How many at most.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
        limit: u64,
        /// `next_cursor` of the page before.
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// Show a message with all it replaced and was replaced by.
    Inspect {
        /// The client_message_id.
        id: String,
        #[command(flatten)]
        at: At,
    },
    /// Send a dead or pending message again, under an id of its own. The old one stays as aborted.
    Requeue(Requeue),
    /// Remove the texts of messages that were delivered long ago. Their ids stay taken.
    Prune {
        /// Do it; without this they are only counted.
        #[arg(long)]
        confirm: bool,
        /// Delivered longer ago than this [default: outbox.prune_age_ms].
        #[arg(long, value_name = "SECONDS")]
        older_than: Option<u64>,
        #[command(flatten)]
        at: At,
    },
}

#[derive(Args)]
pub struct Requeue {
    /// The client_message_id of the message.
    #[arg(long)]
    id: String,
    /// Mint a new id for it.
    #[arg(long, conflicts_with = "new_client_id", required_unless_present = "new_client_id")]
    auto: bool,
    /// The new id.
    #[arg(long, value_name = "ID")]
    new_client_id: Option<String>,
    /// A JSON file with the fields that are to be others, as in {"message": "…"}; `-` for stdin.
    #[arg(long, value_name = "FILE")]
    patch_payload: Option<PathBuf>,
    #[command(flatten)]
    at: At,
}

pub async fn run(command: Outbox) -> Result<()> {
    match command {
        Outbox::List { failed, status, limit, cursor, at } => {
            let status = if failed { Some("dead".to_owned()) } else { status };
            let answer = list(&at, status, limit, cursor).await?;
            if at.json {
                return output::json(&answer);
            }
            output::table(MESSAGES, answer["messages"].as_array().map_or(&[], Vec::as_slice))?;
            output::more(&answer)
        }
        Outbox::Inspect { id, at } => {
            let answer = inspect(&at, &id).await?;
            if at.json { output::json(&answer) } else { shown(&answer) }
        }
        Outbox::Requeue(flags) => requeue(flags).await,
        Outbox::Prune { confirm, older_than, at } => {
            let answer = prune(&at, confirm, older_than).await?;
            if at.json {
                return output::json(&answer);
            }
            let facts = answer.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
            output::facts(&facts.collect::<Vec<_>>())?;
            if confirm { Ok(()) } else { output::note("Nothing was removed: say --confirm to do it.") }
        }
    }
}

async fn list(at: &At, status: Option<String>, limit: u64, cursor: Option<String>) -> Result<Json> {
    if let Some(daemon) = Socket::find(&at.folder()?).await? {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(status.map(|status| ("status", status)));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        return daemon.get("/v1/admin/outbox", &query).await;
    }
    let status = match status {
        None => None,
        Some(name) => {
            let known = Status::named(&name);
            Some(known.ok_or_else(|| Error::invalid("status is pending, inflight, done, dead or aborted."))?)
        }
    };
    let query = Query { status, limit: usize::try_from(limit).ok(), cursor };
    offline(at, async |outbox| serde_json::to_value(outbox.list(query).await?).map_err(Error::internal)).await
}

async fn inspect(at: &At, id: &str) -> Result<Json> {
    if let Some(daemon) = Socket::find(&at.folder()?).await? {
        return daemon.get("/v1/admin/outbox/inspect", &[("id", id.to_owned())]).await;
    }
    offline(at, async |outbox| serde_json::to_value(outbox.inspect(id).await?).map_err(Error::internal)).await
}

async fn prune(at: &At, confirm: bool, older_than: Option<u64>) -> Result<Json> {
    if let Some(daemon) = Socket::find(&at.folder()?).await? {
        let mut body = json!({ "confirm": confirm });
        if let Some(seconds) = older_than {
            body["older_than_seconds"] = json!(seconds);
        }
        return daemon.post("/v1/admin/outbox/prune", &body).await;
    }
    offline(at, async |outbox| {
        let age = older_than.map_or_else(|| outbox.prune_age(), Duration::from_secs);
        serde_json::to_value(outbox.prune(age, confirm).await?).map_err(Error::internal)
    })
    .await
}

/// Where no daemon runs the file is opened here, under the lock that a daemon would have.
async fn offline(at: &At, work: impl AsyncFnOnce(&Store) -> Result<Json>) -> Result<Json> {
    let member = at.member()?;
    let _lock = Lock::take(&member.folder)?;
    let settings = member.folder.settings()?.outbox;
    let path = member.folder.file(folder::OUTBOX);
    let outbox = Store::open(&path, settings, &Arc::new(Clock::system()), &entropy()).await?;
    let answer = work(&outbox).await;
    let _ = tokio::task::spawn_blocking(move || outbox.store().close()).await;
    answer
}

/// It is sealed with the keys that count now, which is why a daemon does it.
async fn requeue(flags: Requeue) -> Result<()> {
    let mut body = json!({ "id": flags.id, "operator": operator() });
    match flags.new_client_id {
        Some(id) => body["new_client_id"] = json!(id),
        None => body["auto"] = json!(true),
    }
    if let Some(path) = &flags.patch_payload {
        let text = match path.as_os_str() == "-" {
            true => std::io::read_to_string(std::io::stdin().lock()),
            false => std::fs::read_to_string(path),
        };
        let text = text.map_err(|error| unusable(path, &error))?;
        body["patch"] = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(format!("{} holds no JSON object: {error}.", path.display())))?;
    }
    let answer = Socket::of(&flags.at.folder()?).await?.post("/v1/admin/outbox/requeue", &body).await?;
    if flags.at.json {
        return output::json(&answer);
    }
    if let Some(warning) = answer["warning"].as_str() {
        output::note(warning)?;
    }
    output::line(&format!("It waits under the id {}.", output::cell(&answer["client_message_id"])))
}

fn operator() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "operator".to_owned())
}

/// One message after another, each a fact on each line.
fn shown(answer: &Json) -> Result<()> {
    let rows = answer["chain"].as_array().cloned().unwrap_or_else(|| vec![answer.clone()]);
    for row in rows {
        let facts = row.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
        output::facts(&facts.collect::<Vec<_>>())?;
        output::line("")?;
    }
    Ok(())
}
