//! `waybill daemon down|status|ps`, and what is asked of a running daemon with one word.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_daemon::{Folder, Lock, Membership};
use waybill_kernel::{Code, Error, Result};

use crate::commands::peer::home::{At, Home, not_a_member};
use crate::commands::peer::socket::Socket;
use crate::output;

/// A daemon lets requests under way end, closes its files and removes an ephemeral member.
const DOWN_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const DAEMONS: &[&str] = &["mesh", "name", "state", "pid", "queue_depth", "dead", "uptime_s", "server"];

#[derive(Args)]
pub struct Down {
    /// Every daemon of this user.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    at: At,
}

#[derive(Args)]
pub struct Ps {
    #[command(flatten)]
    home: Home,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub async fn down(flags: Down) -> Result<()> {
    let slugs = if flags.all { flags.at.home.meshes()? } else { vec![flags.at.slug()?] };
    let mut ended = Vec::new();
    for slug in slugs {
        let folder = Folder::at(&flags.at.home.path()?, &slug)?;
        let was_running = stop(&folder).await?;
        if !flags.at.json {
            output::line(&if was_running {
                format!("{slug}: stopped.")
            } else {
                format!("{slug}: no daemon was running.")
            })?;
        }
        ended.push(json!({ "mesh": slug, "was_running": was_running }));
    }
    if flags.at.json { output::json(&json!({ "daemons": ended })) } else { Ok(()) }
}

/// Whether one was running. Returns when its process has let go of the folder.
pub async fn stop(folder: &Folder) -> Result<bool> {
    let Some(daemon) = Socket::find(folder).await? else {
        // One that holds the folder and does not listen is starting or ending, and must not be taken for none.
        return match Lock::holder(folder)? {
            None => Ok(false),
            Some(pid) => Err(Error::new(
                Code::DaemonRunning,
                format!("Process {pid} has the folder and does not answer on its socket."),
            )
            .with_cure(format!("Wait until it has started or ended; `kill {pid}` ends it."))),
        };
    };
    daemon.post("/v1/admin/shutdown", &json!({})).await?;
    let deadline = Instant::now() + DOWN_MAX;
    while let Some(pid) = Lock::holder(folder)? {
        if Instant::now() > deadline {
            let message =
                format!("The daemon, process {pid}, was told to stop and still runs after {} s.", DOWN_MAX.as_secs());
            return Err(
                Error::new(Code::DaemonRunning, message).with_cure(format!("See its log; `kill {pid}` ends it."))
            );
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(true)
}

pub async fn status(at: &At) -> Result<()> {
    let folder = at.folder()?;
    let membership = Membership::load(&folder)?;
    // An ephemeral member keeps nothing in the folder of its daemon.
    if membership.is_none() && Lock::holder(&folder)?.is_none() {
        return Err(not_a_member(&folder));
    }
    let mut health = Socket::of(&folder).await?.get("/v1/health", &[]).await?;
    if let Some(membership) = membership {
        health["name"] = json!(membership.name);
        health["server"] = json!(membership.server);
    }
    health["folder"] = json!(folder.path());
    if at.json {
        return output::json(&health);
    }
    let facts = health.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
    output::facts(&facts.collect::<Vec<_>>())
}

pub async fn ps(flags: Ps) -> Result<()> {
    let mut rows = Vec::new();
    for slug in flags.home.meshes()? {
        rows.push(row(&Folder::at(&flags.home.path()?, &slug)?, &slug).await?);
    }
    if flags.json { output::json(&json!({ "daemons": rows })) } else { output::table(DAEMONS, &rows) }
}

async fn row(folder: &Folder, slug: &str) -> Result<Json> {
    let membership = Membership::load(folder)?;
    let mut row = json!({
        "mesh": slug,
        "name": membership.as_ref().map(|membership| &membership.name),
        "server": membership.as_ref().map(|membership| &membership.server),
        "state": "stopped",
        "pid": Lock::holder(folder)?,
    });
    match Socket::find(folder).await? {
        None if row["pid"].is_null() => {}
        None => row["state"] = json!("starting"),
        Some(daemon) => match daemon.get("/v1/health", &[]).await {
            Ok(health) => {
                row["state"] = json!(if health["connected"] == true { "connected" } else { "offline" });
                for name in ["queue_depth", "inflight", "dead", "uptime_s"] {
                    row[name] = health[name].clone();
                }
            }
            // It ended between the two questions: one that stops is no reason not to show the others.
            Err(error) if error.code() == Code::DaemonUnreachable => row["state"] = json!("stopping"),
            Err(error) => return Err(error),
        },
    }
    Ok(row)
}

/// An endpoint for operators that takes nothing.
pub async fn ask(at: &At, word: &str, done: &str) -> Result<()> {
    let daemon = Socket::of(&at.folder()?).await?;
    let answer = daemon.post(&format!("/v1/admin/{word}"), &json!({})).await?;
    if at.json { output::json(&answer) } else { output::line(done) }
}
