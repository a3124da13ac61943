//! `waybill queue redrive`

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Error, Result};

use super::call;
use super::watch::Ended;
use crate::cli::Reach;
use crate::commands::session::Session;
use crate::output;

const COLUMNS: &[&str] =
    &["status", "moved", "to_move", "destination", "per_second", "started_at", "task_handle", "failure_reason"];
/// Between two looks at how far it has come.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
pub struct Redrive {
    /// The dead-letter queue.
    name: String,
    /// Move them here [default: each to the queue it came from].
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    /// Messages per second at most, up to 500.
    #[arg(long, value_name = "N")]
    per_second: Option<u64>,
    /// Do not wait for its end.
    #[arg(long)]
    no_wait: bool,
    /// End the one that runs. What was moved stays where it is.
    #[arg(long, conflicts_with_all = ["list", "to", "per_second", "no_wait"])]
    cancel: bool,
    /// Show the latest ones.
    #[arg(long, conflicts_with_all = ["to", "per_second", "no_wait"])]
    list: bool,
    #[command(flatten)]
    reach: Reach,
}

pub async fn run(flags: Redrive) -> Result<()> {
    let (reach, queue) = (&flags.reach, json!({ "queue": flags.name }));
    if flags.cancel {
        let answer = call(reach, "cancel_redrive", queue).await?;
        let text =
            format!("Cancelled. {} messages were moved, and stay where they are.", output::cell(&answer["moved"]));
        return output::answer(reach.json, &answer, &text);
    }
    if flags.list {
        let answer = call(reach, "list_redrives", queue).await?;
        return output::list(reach.json, &answer, "redrives", COLUMNS);
    }
    let session = Session::open(reach).await?;
    let outcome = start(&session, &flags).await;
    session.close().await;
    outcome
}

async fn start(session: &Session, flags: &Redrive) -> Result<()> {
    let input = json!({ "queue": flags.name, "destination": flags.to, "per_second": flags.per_second });
    let started = session.call("start_redrive", input).await?;
    // Without a server nobody moves anything yet.
    let waits = !flags.no_wait && matches!(session, Session::Server { .. });
    if !waits {
        return output::answer(flags.reach.json, &started, "Started. `--list` shows how far it has come.");
    }
    let mut ended = Ended::new()?;
    let ended = tokio::select! {
        outcome = followed(session, &flags.name, &started["task_handle"]) => outcome,
        () = ended.recv() => {
            let cure = format!("`waybill queue redrive {0} --list` shows it, `--cancel` ends it.", flags.name);
            Err(Error::new(Code::Interrupted, "The messages are still being moved.").with_cure(cure))
        }
    };
    if std::io::stderr().is_terminal() {
        output::status("");
    }
    conclude(&flags.reach, &ended?)
}

/// The redrive when it is over. Of several the newest comes first, and while one runs there is no other.
async fn followed(session: &Session, name: &str, handle: &Json) -> Result<Json> {
    let shows = std::io::stderr().is_terminal();
    loop {
        let mut page = session.call("list_redrives", json!({ "queue": name, "limit": 1 })).await?;
        let latest = page["redrives"][0].take();
        if latest["status"] != "RUNNING" || latest["task_handle"] != *handle {
            return Ok(latest);
        }
        if shows {
            output::status(&progress(&latest));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn progress(redrive: &Json) -> String {
    format!("moved {} of {}", output::cell(&redrive["moved"]), output::cell(&redrive["to_move"]))
}

fn conclude(reach: &Reach, redrive: &Json) -> Result<()> {
    let moved = output::cell(&redrive["moved"]);
    match redrive["status"].as_str() {
        Some("COMPLETED") => output::answer(reach.json, redrive, &format!("Moved {moved} messages.")),
        Some("CANCELLED") => {
            output::answer(reach.json, redrive, &format!("It was cancelled. {moved} messages were moved."))
        }
        _ => {
            let why = output::cell(&redrive["failure_reason"]);
            let message = format!("The redrive has ended after {moved} messages: {why}");
            Err(Error::new(Code::InvalidStateTransition, message)
                .with_cure("Mend what it names, or choose a queue with --to, and start it again."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_redrive_is_an_error_and_others_are_told() {
        let reach = Reach { json: true, ..Reach::default() };
        let of = |status: &str| json!({ "status": status, "moved": 3, "to_move": 7, "failure_reason": "Gone." });
        assert_eq!(progress(&of("RUNNING")), "moved 3 of 7");
        for status in ["COMPLETED", "CANCELLED"] {
            assert!(conclude(&reach, &of(status)).is_ok(), "{status}");
        }
        let error = conclude(&reach, &of("FAILED")).unwrap_err();
        assert!(error.message().contains("after 3 messages: Gone."), "{error}");
    }
}
